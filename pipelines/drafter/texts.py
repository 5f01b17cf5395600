"""What a drafter learns from: the target's own answers to the drafter's prompts, with its hidden states along prompt and answer.

Half of the answers are greedy, half are drawn at temperature 1. They are written many at a time (`runtime.compact.batch`) and
saved in shards, so that an interrupted collection goes on after its last one. Shape suffixes: N positions, K tapped layers, C
hidden size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from predictors.sampling import SamplingSettings
from runtime import Randomness
from runtime.causal_model import CausalLanguageModel
from runtime.compact.batch import BatchWriter, Wanted

SHARD = 96  # texts of a shard
SLOTS = 48
SETTINGS = (SamplingSettings(0.0), SamplingSettings(1.0))


@dataclass(frozen=True)
class StatedText:
    """``tokens`` [N + 1] of prompt and answer, the answer from ``start`` on; ``hidden_NKC``: the target's states of the tapped
    layers and, last, behind its final norm, at all but the last token."""

    tokens: Tensor
    start: int
    temperature: float
    hidden_NKC: Tensor


def collect(
    target: CausalLanguageModel,
    prompts: Sequence[Sequence[int]],
    layers: tuple[int, ...],
    max_new_tokens: int,
    seed: int,
    folder: Path,
    both: bool = False,
) -> list[StatedText]:
    """The target's answer to every prompt, with states of ``layers``; ``both``: at both settings, else in turn. `ValueError`
    where the target has no compact forward."""
    weights = target.compact_weights()
    settings = [one for number in range(len(prompts)) for one in (SETTINGS if both else (SETTINGS[number % 2],))]
    repeated = [prompt for prompt in prompts for _ in (SETTINGS if both else (0,))]
    wanted = [
        Wanted(number, list(prompt), max_new_tokens, one, Randomness(seed).stream(f"answer/{number}"))
        for number, (prompt, one) in enumerate(zip(repeated, settings, strict=True))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    shards = [wanted[place : place + SHARD] for place in range(0, len(wanted), SHARD)]
    paths = [folder / f"{number:05d}.safetensors" for number in range(len(shards))]
    due = [(path, shard) for path, shard in zip(paths, shards, strict=True) if not path.is_file()]
    with tqdm(
        total=len(wanted), initial=len(wanted) - sum(len(shard) for _, shard in due), desc="answers", unit="text"
    ) as bar:
        for path, shard in due:
            longest = max(len(one.prompt) for one in shard) + max_new_tokens
            writer = BatchWriter(weights, SLOTS, longest, (*layers, target.num_layers), target.eos_tokens)
            held = {}
            for one in writer.write(sorted(shard, key=lambda one: len(one.prompt))):
                assert one.hidden_NKC is not None
                held[f"{one.wanted.name}.tokens"] = torch.tensor([*one.wanted.prompt, *one.tokens])
                held[f"{one.wanted.name}.hidden"] = one.hidden_NKC.to(torch.bfloat16).contiguous()
                bar.update()
            part = path.with_suffix(".part")
            save_file(held, part)
            part.rename(path)
    found = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    return [
        StatedText(found[f"{one.name}.tokens"], len(one.prompt), one.settings.temperature, found[f"{one.name}.hidden"])
        for one in wanted
    ]


def batches(
    texts: Sequence[StatedText], positions: int, context: int, generator: torch.Generator | None
) -> Iterator[list[StatedText]]:
    """Texts of like length, up to ``positions`` of them together, each cut to ``context`` tokens of its prompt; shuffled by
    ``generator``."""
    cut = sorted((shortened(text, context) for text in texts), key=lambda text: len(text.tokens))
    made: list[list[StatedText]] = []
    for text in cut:
        if not made or (len(made[-1]) + 1) * len(text.tokens) > positions:
            made.append([])
        made[-1].append(text)
    order = range(len(made)) if generator is None else torch.randperm(len(made), generator=generator).tolist()
    for place in order:
        yield made[place]


def shortened(text: StatedText, context: int) -> StatedText:
    """The text with the last ``context`` tokens of its prompt."""
    first = max(0, text.start - context)
    return StatedText(text.tokens[first:], text.start - first, text.temperature, text.hidden_NKC[first:])
