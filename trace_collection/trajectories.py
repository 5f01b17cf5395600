"""Texts of the target, several at once: each is a chain of scratch nodes of one state, and a pass adds a token to all.

    y_t ~ p(. | prompt, y_<t)

A pass over sixteen rows takes little longer than one over a single row where reading the weights is what takes time, and texts of
one prompt at several sampling settings share its nodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime import ModelPair
from runtime.adapter import LanguageModel, Row, features_of
from runtime.invariant import Noise
from runtime.laws import recorded_law
from runtime.randomness import Chance

MOST_ROWS = 4096  # of one state: what a node sees of the others is a mask of so many rows and columns


@dataclass(frozen=True)
class Written:
    """Outputs of a model as it wrote a text: ``logits_NV`` in front of each token, tapped states ``hidden_NKD`` in front of each
    (``None`` without taps), and ``prompt_NKD`` along the whole prompt, the last of which are the first token's."""

    logits_NV: Tensor
    hidden_NKD: Tensor | None = None
    prompt_NKD: Tensor | None = None


def taps_of(pair: ModelPair, layers: Sequence[int]) -> tuple[int, ...]:
    """List the target's layers that are tapped: ``layers``, and those that the draft reads."""
    reads = () if pair.draft is None else features_of(pair.draft)
    return tuple(sorted({*layers, *reads}))


def of_layers(hidden_NKD: Tensor, taps: Sequence[int], layers: Sequence[int]) -> Tensor:
    """Select the states of some of the tapped layers."""
    return hidden_NKD[:, [taps.index(layer) for layer in layers]]


@dataclass
class Trajectory:
    """Continuation of a ``prompt`` so far, by its own ``chance``; ``node`` is its newest one in the state's scratch. ``said``, if
    it is a list, gets the model's outputs in front of every token, and ``prompt_NKD`` its tapped states along the prompt. With
    ``noise`` its tokens are those of invariant sampling."""

    prompt: Sequence[int]
    settings: SamplingSettings
    chance: Chance
    said: list[Row] | None = None
    noise: Noise | None = None
    tokens: list[int] = field(default_factory=list)
    node: int = -1
    prompt_NKD: Tensor | None = None

    @property
    def written(self) -> Written | None:
        """Outputs of the model along the text, if they are kept."""
        if self.said is None:
            return None
        logits, hidden = zip(*self.said, strict=True)
        known = [one for one in hidden if one is not None]
        return Written(torch.stack(logits), torch.stack(known) if known else None, self.prompt_NKD)


def continuations(
    model: LanguageModel, trajectories: Sequence[Trajectory], budget: int, layers: tuple[int, ...] = ()
) -> Iterator[Trajectory]:
    """Yield trajectories in order, continued by ``budget`` tokens or up to an end of sequence; ``layers`` are tapped."""
    while trajectories:
        rows = torch.tensor([len(one.prompt) + budget for one in trajectories]).cumsum(0)
        count = max(1, int((rows <= MOST_ROWS).sum()))
        grow(model, trajectories[:count], budget, layers)
        yield from trajectories[:count]
        trajectories = trajectories[count:]


@torch.inference_mode()
def grow(model: LanguageModel, trajectories: Sequence[Trajectory], budget: int, layers: tuple[int, ...] = ()) -> None:
    """Draw all ``trajectories`` together, a token each per pass."""
    prompts = list(dict.fromkeys(tuple(one.prompt) for one in trajectories))
    state = model.open(sum(map(len, prompts)) + budget * len(trajectories), layers)
    nodes = 0
    for prompt in prompts:
        out = state.forward(list(prompt), [-1, *range(nodes, nodes + len(prompt) - 1)], last=1)
        nodes += len(prompt)
        (row,) = out.rows()
        for one in trajectories:
            if tuple(one.prompt) == prompt:
                one.prompt_NKD = None if one.said is None else out.hidden_NKD
                _draw(one, row, nodes - 1)
    while active := [
        one for one in trajectories if len(one.tokens) < budget and one.tokens[-1] not in model.eos_tokens
    ]:
        out = state.forward([one.tokens[-1] for one in active], [one.node for one in active])
        for number, (one, row) in enumerate(zip(active, out.rows(), strict=True)):
            _draw(one, row, nodes + number)
        nodes += len(active)


def _draw(one: Trajectory, row: Row, node: int) -> None:
    """Draw the next token of a trajectory, from the logits after ``node``."""
    logits_V, hidden_KD = row
    if one.said is not None:
        own_KD = None if hidden_KD is None else hidden_KD.clone()  # no view of the whole prompt's
        one.said.append((logits_V, own_KD))
    one.node = node
    law_V, position = recorded_law(logits_V, one.settings), len(one.prompt) + len(one.tokens)
    values_V = None if one.noise is None else one.noise.perturbed(law_V.unsqueeze(0), [position])[0]
    one.tokens.append(int(one.chance.categorical(law_V) if values_V is None else values_V.argmax()))
