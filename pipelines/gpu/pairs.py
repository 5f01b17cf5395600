"""Pairs of any size on the device at hand, with the function of one pair trained there in minutes: Llamas of 1, 7 and 13 billion
parameters, and drafts of a chosen share of a target's cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from pipelines.builtin.builtin_pair import (
    RECORD,
    SMALL,
    SMALL_DRAFT,
    BuiltinParameters,
    ModelParameters,
    token_stream,
    train_builtin_pair,
)
from pipelines.builtin.corpus import builtin_shares
from pipelines.builtin.inflation import InflatedShape, inflate
from pipelines.builtin.language_model import Shape
from pipelines.measuring.names import TEST
from pipelines.prompt_table import Prompt

# Shape and steps of the larger models; as many as were guessed to take two minutes on an H100.
GROWN = {"target": (Shape(512, 8, 8, 1408), 1500), "draft": (Shape(256, 2, 4, 704), 1000)}
BATCH = 16
LONGEST_CONTEXT = 8192
DRAFT_WIDTH = InflatedShape(hidden=2048, layers=1, heads=16, kv_heads=16, head_dim=128, feed_forward=5632)


@dataclass(frozen=True)
class Sized:
    """A shape and its vocabulary; embedding and head are one matrix."""

    shape: InflatedShape
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Weights that a pass reads: every matrix once, the shared one as the head."""
        return self.vocabulary * self.shape.hidden + self.shape.layers * self.shape.layer_weights

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Sized":
        return cls(InflatedShape(**record["shape"]), record["vocabulary"])


SHAPES = {
    "1b": Sized(InflatedShape(2048, 16, 32, 8, 64, 8192), 128256),
    "7b": Sized(InflatedShape(4096, 32, 32, 32, 128, 11008), 32000),
    "13b": Sized(InflatedShape(5120, 40, 40, 40, 128, 13824), 32000),
    "tiny": Sized(InflatedShape(256, 4, 4, 4, 64, 704), 2048),  # for tests, and for machines without a GPU
}
LEAST = InflatedShape(1024, 8, 16, 16, 64, 1408)  # that holds the trained pair under any vocabulary


def draft_shape(target: Sized, ratio: float, width: InflatedShape, least_layers: int) -> Sized:
    """A draft of ``width`` with as many layers, at least ``least_layers``, as make its weights a ``ratio``-th of the target's.

    Examples
    --------
    >>> draft_shape(SHAPES["7b"], 10, DRAFT_WIDTH, 2).shape.layers
    12
    """
    head = target.vocabulary * width.hidden
    layers = round((target.parameters / ratio - head) / width.layer_weights)
    return Sized(replace(width, layers=max(layers, least_layers)), target.vocabulary)


@dataclass(frozen=True)
class Trained:
    """The trained models in float32 on the host, and prompts of held-out documents."""

    target: LlamaForCausalLM
    draft: LlamaForCausalLM
    prompts: list[Prompt]


def inflated(small: LlamaForCausalLM, to: Sized, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """``small`` inflated on ``device``, then rounded to ``dtype``; norms, whose factor is not exact in every shape, too."""
    big = inflate(small.to(device), to.shape, to.vocabulary)
    small.cpu()
    for parameter in big.parameters():
        parameter.data = parameter.data.to(dtype)  # one after the other: never both in full
    big.config.max_position_embeddings = LONGEST_CONTEXT  # beyond the training's, text is nonsense at its right cost
    big.config.eos_token_id = big.generation_config.eos_token_id = None  # every arm decodes all its tokens
    return big.eval()


def trained(
    folder: Path, builtin: BuiltinParameters, device: torch.device, count: int, prompt_tokens: int, grown: bool = True
) -> Trained:
    """The pair in ``folder``, trained there first if it is not there: larger and longer than ``builtin`` says, unless not
    ``grown``; with ``count`` prompts of held-out documents, from every slice in turn."""
    if grown:
        models: dict[str, Any] = {}
        for name, (shape, steps) in GROWN.items():
            usual = getattr(builtin, name).training
            models[name] = ModelParameters(shape, replace(usual, steps=steps, batch=BATCH, max_minutes=None))
        builtin = replace(builtin, **models)
    if not (folder / SMALL_DRAFT / RECORD).is_file():
        train_builtin_pair(builtin, folder, device)
    target, draft = (
        LlamaForCausalLM.from_pretrained(folder / name, dtype=torch.float32) for name in (SMALL, SMALL_DRAFT)
    )
    prompts = _prompts(builtin, AutoTokenizer.from_pretrained(folder / "tokenizer"), count, prompt_tokens)
    return Trained(target.eval(), draft.eval(), prompts)


def _prompts(builtin: BuiltinParameters, tokenizer: Any, count: int, prompt_tokens: int) -> list[Prompt]:
    by_slice: dict[str, list[tuple[str, list[int]]]] = {}
    for document in builtin_shares(builtin.shares)[TEST]:
        tokens = token_stream([document], tokenizer).tolist()
        if len(tokens) > 2 * prompt_tokens:
            by_slice.setdefault(document.slice, []).append((document.id, tokens[:prompt_tokens]))
    prompts = []
    for turn in range(count):
        slice_ = sorted(by_slice)[turn % len(by_slice)]
        name, tokens = by_slice[slice_][(turn // len(by_slice)) % len(by_slice[slice_])]
        text = tokenizer.decode(tokens)
        prompts.append(Prompt(f"{name}#{turn}", name, "builtin", slice_, TEST, text, tokens))
    return prompts
