"""The one door of chance: every random choice of the runtime is a call of ``categorical``.

An accept test is a draw from two weights; drawing without replacement is a sequence of draws. Tests substitute an object
that forks at every call and so obtain the exact output distribution of the real decoder.

A token is drawn by inverting the cumulative distribution in float64: the first x of positive weight with Σ_{y<=x} w(y) > u Σ w,
u uniform. So P(x) = w(x) / Σ w, a token of weight zero is impossible, and nothing waits for the host.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from runtime.invariant import ExponentialNoise

BELOW_ONE = 1 - 2.0**-50  # keeps u Σ w below the last cumulative weight, whatever the rounding


@runtime_checkable
class Chance(Protocol):
    """A source of randomness as the runtime uses it."""

    def categorical(self, weights: Tensor) -> Tensor:
        """Draw from unnormalised ``weights`` [..., V], each row with positive mass; returns int64 [...]."""
        ...


@runtime_checkable
class Uniform(Chance, Protocol):
    """A source that gives the uniform numbers its draws are made of, for what is drawn later by `inverted`."""

    def fill(self, uniform: Tensor) -> None:
        """Fill a float64 tensor [..., 1], one number for each draw."""
        ...


class Randomness:
    """Seeded chance, resident on the device of the weights it is given. Same seed, same draws, per stream and device.

    A source that is used again goes on where it was: two requests with one source are independent.

    Examples
    --------
    >>> import torch
    >>> randomness = Randomness(seed=0)
    >>> int(randomness.categorical(torch.tensor([0.0, 1.0, 0.0])))
    1
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)
        self._generators: dict[torch.device, torch.Generator] = {}
        self._streams: dict[str, Randomness] = {}
        self._spawned = self._noises = 0

    def categorical(self, weights: Tensor) -> Tensor:
        uniform = torch.empty((*weights.shape[:-1], 1), dtype=torch.float64, device=weights.device)
        self.fill(uniform)
        return inverted(weights, uniform)

    def fill(self, uniform: Tensor) -> None:
        """Fill a float64 tensor [..., 1] with the uniform numbers that `categorical` would draw with."""
        generator = self._generators.get(uniform.device)
        if generator is None:
            generator = torch.Generator(uniform.device).manual_seed(self.seed)
            self._generators[uniform.device] = generator
        uniform.uniform_(generator=generator)

    def stream(self, purpose: str) -> "Randomness":
        """Return an independent source keyed by seed and purpose (two overlap modes draw the same, whatever their order)."""
        if purpose not in self._streams:
            self._streams[purpose] = self._keyed(purpose)
        return self._streams[purpose]

    def spawn(self) -> "Randomness":
        """Return an independent source to give away, another one with every call (same calls, same sources)."""
        self._spawned += 1
        return self._keyed(f"spawned/{self._spawned}")

    def noise(self) -> "ExponentialNoise":
        """Return the noise of an invariant request, another one with every call."""
        from runtime.invariant import ExponentialNoise

        self._noises += 1
        return ExponentialNoise(self._keyed(f"noise/{self._noises}").seed)

    def _keyed(self, purpose: str) -> "Randomness":
        key = hashlib.sha256(f"{self.seed}/{purpose}".encode()).digest()
        return Randomness(int.from_bytes(key[:8], "little") >> 1)


def inverted(weights: Tensor, uniform: Tensor) -> Tensor:
    """Invert the cumulative distribution: the draws [...] that ``uniform`` numbers [..., 1] make of ``weights`` [..., V]."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    reached = cumulative > uniform * (BELOW_ONE * cumulative[..., -1:])
    reached &= weights > 0
    return reached.view(torch.uint8).argmax(dim=-1)


def stream(randomness: Any, purpose: str) -> Chance:
    """Return ``randomness``'s stream for ``purpose``; the object itself where it has no streams."""
    found: Chance = randomness.stream(purpose) if hasattr(randomness, "stream") else randomness
    return found


def spawn(randomness: Any) -> Chance:
    """Return a source to give away to another thread; ``randomness`` itself where it spawns none."""
    found: Chance = randomness.spawn() if hasattr(randomness, "spawn") else randomness
    return found


def note(randomness: Any, tokens: Sequence[int]) -> None:
    """Tell a source that has to know it that ``tokens`` are drafted without a draw, as there is no choice."""
    if hasattr(randomness, "note"):
        randomness.note(tokens)
