"""Whether the compact forward computes a pair's models: its logits in float32 against those of Hugging Face's own forward.

Both run the same passes over held-out prompts: the prompt, single steps, a tree of which an inner path is kept, a chain, and a
long text of repeated prompts. The largest difference is given in parts of 1 + |logit|, beside what rounding alone amounts to: the
difference of Hugging Face's logits to its own over the same text in passes of another width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from runtime import ModelPair
from runtime.adapter import ModelState
from runtime.causal_model import CausalLanguageModel

STEPS, CHAIN = 3, 9
TREE, PATH = (-1, 0, 0, 1, 1, 2), (0, 2, 5)
LONG = 384  # tokens of the long text, if the model holds as many
WIDTH = 32


def agreement(pair: ModelPair, prompts: Sequence[list[int]]) -> dict[str, dict[str, float]]:
    """By model that runs by a compact forward, how far its logits are from Hugging Face's in float32."""
    return {
        name: forward_agreement(model, prompts)
        for name, model in (("target", pair.target), ("draft", pair.draft))
        if isinstance(model, CausalLanguageModel) and model.forward != "hugging_face"
    }


def forward_agreement(model: CausalLanguageModel, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Largest |difference| / (1 + |logit|), ``compact`` and for scale ``rounding``, over ``prompts`` of a float32 ``model``."""
    forwards = [CausalLanguageModel(model.model, "compact"), CausalLanguageModel(model.model, "hugging_face")]
    limit = min(LONG, model.context_limit // 2)
    largest = {"compact": 0.0, "rounding": 0.0}
    for prompt in prompts:
        long = (list(prompt) * LONG)[:limit]
        room = len(prompt) + STEPS + len(TREE) + CHAIN
        walks = [_walk(forward.open(room), prompt) for forward in forwards]
        reached = list(zip(*walks, strict=True))
        whole = [forward.open(limit).forward(long).logits for forward in forwards]
        _note(largest, "compact", [*reached, (whole[0], whole[1])])
        _note(largest, "rounding", [(_in_passes(forwards[1].open(limit), long), whole[1])])
    return largest


def _walk(state: ModelState, prompt: Sequence[int]) -> Iterator[Tensor]:
    """Logits of a prompt, steps, a tree and a chain."""
    tokens = [prompt[place % len(prompt)] for place in range(CHAIN)]
    yield state.forward(prompt).logits
    state.keep(range(len(prompt)))
    for token in tokens[:STEPS]:
        yield state.forward([token]).logits
        state.keep([0])
    yield state.forward(tokens[: len(TREE)], TREE).logits
    state.keep(PATH)
    yield state.forward(tokens).logits


def _in_passes(state: ModelState, tokens: Sequence[int]) -> Tensor:
    rows = []
    for first in range(0, len(tokens), WIDTH):
        part = tokens[first : first + WIDTH]
        rows.append(state.forward(part).logits)
        state.keep(range(len(part)))
    return torch.cat(rows)


def _note(largest: dict[str, float], name: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for logits, reference in pairs:
        difference = float(((logits - reference).abs() / (1 + reference.abs())).max())
        largest[name] = max(largest[name], difference)
