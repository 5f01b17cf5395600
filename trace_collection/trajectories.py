"""Texts of the target, several at once: each prompt is a chain of scratch nodes of one state, and a pass adds a token to all.

    y_t ~ p(. | prompt, y_<t)

A pass over sixteen rows takes little longer than one over a single row where reading the weights is what takes time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from predictors.sampling import SamplingSettings
from runtime.adapter import LanguageModel, ModelState
from runtime.laws import processed_law
from runtime.randomness import Chance

MOST_ROWS = 4096  # of one state: what a node sees of the others is a mask of so many rows and columns


@dataclass
class Trajectory:
    """A continuation of ``prompt`` so far, by its own ``chance``; ``node`` is its newest one in the state's scratch."""

    prompt: Sequence[int]
    chance: Chance
    tokens: list[int] = field(default_factory=list)
    node: int = -1


def continuations(
    model: LanguageModel, trajectories: Sequence[Trajectory], settings: SamplingSettings, budget: int
) -> Iterator[list[int]]:
    """``budget`` new tokens of every trajectory, or up to an end of sequence, in their order."""
    while trajectories:
        rows = torch.tensor([len(one.prompt) + budget for one in trajectories]).cumsum(0)
        count = max(1, int((rows <= MOST_ROWS).sum()))
        grow(model, trajectories[:count], settings, budget)
        yield from (one.tokens for one in trajectories[:count])
        trajectories = trajectories[count:]


@torch.inference_mode()
def grow(model: LanguageModel, trajectories: Sequence[Trajectory], settings: SamplingSettings, budget: int) -> None:
    """Draw all ``trajectories`` together."""
    state = model.open(sum(len(one.prompt) + budget for one in trajectories))
    nodes = 0
    for one in trajectories:
        nodes = _read_prompt(state, one, nodes, settings)
    while active := [
        one for one in trajectories if len(one.tokens) < budget and one.tokens[-1] not in model.eos_tokens
    ]:
        logits_NV = state.forward([one.tokens[-1] for one in active], [one.node for one in active]).logits
        for number, (one, law_V) in enumerate(zip(active, processed_law(logits_NV, settings), strict=True)):
            one.node = nodes + number
            one.tokens.append(int(one.chance.categorical(law_V)))
        nodes += len(active)


def _read_prompt(state: ModelState, one: Trajectory, first: int, settings: SamplingSettings) -> int:
    """Feed a prompt behind ``first`` nodes and draw its first token; returns the number of nodes."""
    end = first + len(one.prompt)
    logits_V = state.forward(list(one.prompt), [-1, *range(first, end - 1)], last=1).logits[-1]
    one.node = end - 1
    one.tokens.append(int(one.chance.categorical(processed_law(logits_V, settings))))
    return end
