"""Chance that forks at every draw: the exact distribution of whatever draws through the one door (`runtime.randomness`).

P(outcome) = Σ over the sequences of draws that lead to it of Π P(draw | draws before it)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Law = dict[Any, float]  # outcomes with their probabilities
T = TypeVar("T")


class NotReproducibleError(ValueError):
    """Error of a function that does something else when it is run again under the same draws."""

    def __init__(self) -> None:
        told = "the same draws do not give the same text again. Draw by `randomness` alone, and keep state in a request's session"
        super().__init__(f"{told} or draft.")


class NotDrawableError(ValueError):
    """Error of a draw by weights of no distribution."""


class Forking:
    """Chance that forks at every draw: `enumerate_outcomes` runs a function once per combination of outcomes. It follows a
    ``script`` of draws, each from one of the ``supports``, and then takes the first possible outcomes."""

    def __init__(self, script: list[int], supports: Sequence[list[int]] = ()) -> None:
        self.script, self.supports = script, list(supports)
        self.taken, self.probability = 0, 1.0

    def categorical(self, weights: Tensor) -> Tensor:
        if weights.dim() == 1:
            return torch.tensor(self._draw(weights.tolist()))
        rows = weights.reshape(-1, weights.shape[-1]).tolist()
        return torch.tensor([self._draw(row) for row in rows]).reshape(weights.shape[:-1])

    def _draw(self, weights: list[float]) -> int:
        possible = [token for token, weight in enumerate(weights) if weight > 0]
        if not possible or not all(-1e-9 < weight < torch.inf for weight in weights):
            raise NotDrawableError(f"a draw by weights of no distribution: {[round(weight, 3) for weight in weights]}")
        if self.taken == len(self.supports):
            self.supports.append(possible)
        elif self.supports[self.taken] != possible:
            raise NotReproducibleError
        if self.taken == len(self.script):
            self.script.append(possible[0])
        choice = self.script[self.taken]
        self.taken += 1
        self.probability *= weights[choice] / sum(weights)
        return choice


def enumerate_outcomes(run: Callable[[Forking], T]) -> Iterator[tuple[T, float]]:
    """Every outcome of ``run`` with its probability; outcomes may repeat. `NotReproducibleError` where it follows from more than
    its draws."""
    script, supports = list[int](), list[list[int]]()
    while True:
        chance = Forking(script, supports)
        outcome = run(chance)
        if chance.taken < len(chance.script):
            raise NotReproducibleError
        yield outcome, chance.probability
        script, supports = chance.script, chance.supports
        while script and script[-1] == supports[-1][-1]:
            script, supports = script[:-1], supports[:-1]
        if not script:
            return
        script = [*script[:-1], next(token for token in supports[-1] if token > script[-1])]


def summed(outcomes: Iterable[tuple[object, float]]) -> Law:
    """Sum the probabilities of ``outcomes``, which may repeat."""
    law: Law = {}
    for outcome, probability in outcomes:
        law[outcome] = law.get(outcome, 0.0) + probability
    return law


def output_law(run: Callable[[Forking], Iterable[int]]) -> Law:
    """Compute the distribution of the token sequence that ``run(chance)`` returns."""
    return summed((tuple(outcome), probability) for outcome, probability in enumerate_outcomes(run))


def total_variation(law: Law, other: Law) -> float:
    return 0.5 * sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in {*law, *other})
