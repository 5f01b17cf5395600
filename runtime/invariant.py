"""Sampling as greedy decoding of perturbed logits: one text per prompt and seed, whatever drafts.

    y_t = argmax_v  log p_t(v) - log E_t(v)        E_t(v) ~ Exp(1), independent: numbers of seed and absolute position t alone

-log E is a Gumbel number, so y_t is a draw from p_t, the target's processed distribution, and the text is a function of target,
prompt and seed. A drafted token is accepted if it equals y_t; the draft draws the largest of its own log q_t - log E_t. So a
request is decoded as at temperature 0 over the perturbed logits of both models, and any drafter, shape and rule leaves its text
alone. Positions count from the prompt's first token: a text that is sent again as a prompt goes on as if it had not stopped.

Numbers of a position come from a counter-based function, the same on every device. Most of a vocabulary can never win, so they
are made sparsely, and exactly: with V numbers in rising order at places π, of which the first k are made,

    E(π_i) = Σ_{j<=i} X_j / (V - j + 1),   i <= k        all others: E(v) = E(π_k) + X'(v), as Exp(1) has no memory

whoever is neither among π_1 … π_k nor as likely as θ has a ratio E / p above E(π_k) / θ. Where the best one of the others is not
below that, all numbers of the position are made. Source: arXiv 2408.07978 (shared Gumbel noise). Shape suffixes: R rows, V
vocabulary, K sparse numbers.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.adapter import Forward, ModelState, ReadingState, Scratch
from runtime.laws import fit_vocabulary, processed_law, says_something
from runtime.randomness import Chance

SPARSE = 256  # numbers made in rising order, of vocabularies at least four times as large
PER_WINNER = 8.0  # E / p of the winner is Exp(1): above this with a chance of 3e-4, and then all numbers are made
OTHERS = 1 << 32  # counters of X'
KEPT = 256  # positions whose numbers are kept
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


class Noise(Protocol):
    """Noise by absolute position of one request."""

    def perturbed(self, law_RV: Tensor, positions: Sequence[int]) -> Tensor:
        """Perturb log ``law_RV`` [R, V] by the numbers of its rows' positions: the largest value is the winner's. NaN stays."""


class ExponentialNoise:
    """Noise of a ``seed``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._known: dict[int, Numbers] = {}

    def perturbed(self, law_RV: Tensor, positions: Sequence[int]) -> Tensor:
        return perturbed(law_RV, [self._numbers(position, law_RV.shape[1]) for position in positions])

    def _numbers(self, position: int, size: int) -> "Numbers":
        numbers = self._known.get(position)
        if numbers is None or numbers.size != size:
            numbers = self._known[position] = Numbers(key_of(self.seed, position), size)
            if len(self._known) > KEPT:
                self._known.pop(min(self._known))
        return numbers


@dataclass(frozen=True)
class DrawnNoise:
    """Noise of any source of ``chance``: a draw, of which one-hot values are left. What reads it is as exact, though draft and
    target share nothing; an enumerator's outcomes fork here."""

    chance: Chance

    def perturbed(self, law_RV: Tensor, positions: Sequence[int]) -> Tensor:
        winners_R = torch.stack([self.chance.categorical(law_V) for law_V in law_RV])
        certain_RV = torch.full_like(law_RV, -torch.inf).scatter_(1, winners_R.unsqueeze(1), 0.0)
        return certain_RV + 0 * law_RV  # NaN where there is no law


def perturbed(law_RV: Tensor, numbers: Sequence["Numbers"]) -> Tensor:
    """Perturb log ``law_RV`` by the ``numbers`` of the rows' positions, where a token may win, and have -inf elsewhere.

    All rows at once, as what a call takes is mostly memory that the models' passes have made cold.
    """
    if law_RV.device.type != "cpu" or not len(numbers) or not len(numbers[0].sparse[0]):
        return torch.stack([one.all(law_V) for one, law_V in zip(numbers, law_RV, strict=True)]) if numbers else law_RV
    size, out_RV = law_RV.shape[1], torch.full_like(law_RV, -torch.inf, memory_format=torch.contiguous_format)
    probs_RV, probs, out = law_RV.numpy(), law_RV.reshape(-1).numpy(), out_RV.view(-1).numpy()
    keys_R, bases_R = np.array([one.key for one in numbers]), np.array([one.sparse[2] for one in numbers])
    likely_N = np.flatnonzero(probs_RV > (bases_R / PER_WINNER).astype(probs_RV.dtype)[:, None])
    row_N, token_N = np.divmod(likely_N, size)
    numbers_N = bases_R[row_N] - np.log1p(-_uniforms(_bits(OTHERS + token_N, keys_R[row_N])))
    out[likely_N] = np.log(probs[likely_N] / numbers_N)
    first_R = np.cumsum([0, *(len(one.sparse[0]) for one in numbers[:-1])])
    places = np.concatenate([row * size + one.sparse[0] for row, one in enumerate(numbers)])
    with np.errstate(divide="ignore"):  # of the sparse ones some may be impossible
        values = np.log(probs[places] / np.concatenate([one.sparse[1] for one in numbers]))
    best_R = np.maximum.reduceat(values, first_R)
    np.maximum.at(best_R, row_N, out[likely_N])
    out[places] = values
    for row in np.flatnonzero(~(best_R > -math.log(PER_WINNER))).tolist():
        out_RV[row] = numbers[row].all(law_RV[row])
    return out_RV


@dataclass(frozen=True)
class Numbers:
    """Numbers of one position over a vocabulary of ``size``."""

    key: int
    size: int

    def all(self, law_V: Tensor) -> Tensor:
        """Perturb all of log ``law_V``, where it lies."""
        places_K, sparse_K, base = (torch.as_tensor(one, device=law_V.device) for one in self.sparse)
        bits_V = _bits(OTHERS + torch.arange(self.size, device=law_V.device), self.key)
        numbers_V = base - torch.log1p(-(bits_V.double() + 0.5) * 2.0**-53)
        numbers_V[places_K] = sparse_K
        return torch.log(law_V / numbers_V).to(law_V.dtype)

    @cached_property
    def sparse(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Places and values [K] of the smallest numbers, in rising order, and the largest value; none of a small vocabulary."""
        if self.size < 4 * SPARSE:
            return np.empty(0, np.int64), np.empty(0), 0.0
        drawn = (_uniforms(_bits(np.arange(SPARSE), self.key)) * self.size).astype(np.int64)
        places_K = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        steps_K = -np.log1p(-_uniforms(_bits(SPARSE + np.arange(len(places_K)), self.key)))
        sparse_K = (steps_K / (self.size - np.arange(len(places_K)))).cumsum()
        return places_K, sparse_K, float(sparse_K[-1])


def key_of(seed: int, position: int) -> int:
    """Make the key of a position's numbers."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{position}".encode()).digest()[:8], "little", signed=True)


def _bits(counters: Any, key: Any) -> Any:
    """Mix a ``key`` and int64 ``counters``, an array or a tensor, into 53 random bits each (SplitMix64's output at a counter)."""
    bits = counters * GOLDEN + key
    for shift, factor in ((30, FIRST), (27, SECOND)):
        bits = (bits ^ _shifted(bits, shift)) * factor
    return _shifted(bits ^ _shifted(bits, 31), 11)


def _uniforms(bits: np.ndarray) -> np.ndarray:
    """Turn random bits into numbers in (0, 1)."""
    return np.asarray((bits + 0.5) * 2.0**-53)


def _shifted(bits: Any, by: int) -> Any:
    """Shift int64 ``bits`` right, with zeros coming in."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


@dataclass(frozen=True)
class Perturbation:
    """Invariant sampling of a request: its ``noise`` and its ``settings``."""

    noise: Noise
    settings: SamplingSettings

    def of(self, state: ModelState, size: int, ahead: int = 0, temperature: float | None = None) -> "PerturbedState":
        """Wrap a model's ``state``, whose text begins ``ahead`` tokens into the request's; ``temperature`` if it is another one.
        Logits are those of a vocabulary of ``size``."""
        settings = (
            self.settings if temperature is None else replace(self.settings, temperature=temperature, invariant=False)
        )
        return PerturbedState(state, self.noise, settings, size, ahead)


class PerturbedState:
    """A model's state whose logits are perturbed by the noise of the positions that they predict."""

    def __init__(self, state: ModelState, noise: Noise, settings: SamplingSettings, size: int, ahead: int) -> None:
        self._state, self._noise, self._settings, self._size, self._ahead = state, noise, settings, size, ahead
        self._scratch = Scratch()

    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        self._scratch.append(len(tokens), parents)
        out = self._state.forward(tokens, parents, last)
        logits_RV = fit_vocabulary(out.logits, self._size)
        law_RV = processed_law(logits_RV, self._settings)
        if self._settings.greedy:  # one-hot, whatever the logits; other laws are NaN where these say nothing
            law_RV = law_RV.masked_fill(~says_something(logits_RV).unsqueeze(1), torch.nan)
        positions = self._scratch.positions(len(tokens))[len(tokens) - len(logits_RV) :]
        return Forward(self._noise.perturbed(law_RV, [self._ahead + place + 1 for place in positions]), out.hidden_NKD)

    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        self._scratch.keep(path, pending)
        self._state.keep(path, pending)

    def offer(self, hidden_NKD: Tensor) -> None:
        cast(ReadingState, self._state).offer(hidden_NKD)


def noise_of(randomness: Any) -> Noise:
    """Return the noise of a request that draws by ``randomness``."""
    made: Noise = randomness.noise() if hasattr(randomness, "noise") else DrawnNoise(randomness)
    return made
