"""Sampling settings of the target, which a request is decoded with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

LEAST_TEMPERATURE = 1e-30  # but 0: logits divided by less may leave float32's range


@dataclass(frozen=True)
class SamplingSettings:
    """Sampling settings: temperature and filters of one request, applied in this order.

    temperature    0 means greedy: an exact one-hot of the first maximal logit; others start at `LEAST_TEMPERATURE`
    top_k          keep the k most probable tokens (ties with the k-th are kept); 0 keeps all
    top_p          keep the smallest set of most probable tokens whose mass reaches ``top_p``; 1.0 keeps all
    invariant      above temperature 0: the text follows from the seed, whatever drafts (`runtime.invariant`)
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    invariant: bool = False

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or self.temperature < 0:
            raise ValueError(f"temperature must be a finite number >= 0 (0 = greedy), got {self.temperature!r}.")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"temperature {self.temperature!r} takes logits out of float32's range: use 0 (greedy) or >= {LEAST_TEMPERATURE}."
            )
        if not isinstance(self.invariant, bool) or (self.invariant and not self.temperature):
            raise ValueError(f"invariant must be true or false, and false at temperature 0, got {self.invariant!r}.")
        if not isinstance(self.top_k, int) or isinstance(self.top_k, bool) or self.top_k < 0:
            raise ValueError(f"top_k must be a whole number >= 0 (0 = off), got {self.top_k!r}.")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1] (1 = off), got {self.top_p!r}.")

    @property
    def greedy(self) -> bool:
        """True if the processed distribution is one-hot."""
        return self.temperature == 0

    @property
    def read_off(self) -> bool:
        """True if a token is the largest of logits, perturbed ones perhaps, and nothing is drawn."""
        return self.greedy or self.invariant

    @property
    def unfiltered(self) -> bool:
        """True if the processed distribution is the plain softmax of the logits at temperature 1."""
        return self.temperature == 1 and self.top_k == 0 and self.top_p == 1

    @property
    def filters(self) -> dict[str, Any]:
        """Temperature and filters by name."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    @property
    def name(self) -> str:
        """Name of the setting, such as ``T=1, top-p 0.9``."""
        parts = [f"T={self.temperature:g}"]
        parts += [f"top-k {self.top_k}"] if self.top_k else []
        parts += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        parts += ["invariant"] if self.invariant else []
        return ", ".join(parts)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Settings as a row of numbers, which a contract holds; the last is there if texts are invariant."""
        return (self.temperature, float(self.top_k), self.top_p, *[1.0] * self.invariant)

    @staticmethod
    def of(row: Mapping[str, Any]) -> "SamplingSettings":
        """Settings that the columns of a row name; filters that are missing are off."""
        filters = int(row.get("top_k") or 0), row.get("top_p") or 1.0
        return SamplingSettings(row["temperature"], *filters, bool(row.get("invariant")))

    def distance(self, other: "SamplingSettings") -> tuple[float, float, int, bool]:
        """Measure how far two settings are apart: in temperature, in top-p, in top-k, then in whether texts are invariant."""
        filters = abs(self.top_p - other.top_p), abs(self.top_k - other.top_k)
        return (abs(self.temperature - other.temperature), *filters, self.invariant != other.invariant)


SAMPLING = tuple(one.name for one in fields(SamplingSettings))  # columns of a row that tell its setting


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
