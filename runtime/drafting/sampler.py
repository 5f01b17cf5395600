"""From a draft's logits to its law and a token drawn from it: plain calls, or programs recorded once per shape.

Shape suffixes: ... any rows, E laws, V vocabulary.
"""

from typing import TypeAlias

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.drafting.distinct import DistinctProgram, distinct
from runtime.laws import processed_law
from runtime.randomness import Chance, Uniform, inverted
from runtime.recorder import Programs, Recorder


class PlainSampler:
    """Calls one operation after the other. It is asked for a law, then, if at all, for a token of it."""

    reads = True  # whether tokens may be looked at on the host while a round is drafted, as that waits for no device

    def __init__(self, settings: SamplingSettings, chance: Chance) -> None:
        self._settings = settings
        self._chance = chance

    def law(self, logits: Tensor) -> Tensor:
        """Processed laws [..., V] of logits [..., V]."""
        return processed_law(logits, self._settings)

    def token(self, probs: Tensor) -> Tensor:
        """A token [...] of each row of laws ``probs`` [..., V]."""
        return probs.argmax(dim=-1) if self._settings.greedy else self._chance.categorical(probs)

    def distinct(self, probs_EV: Tensor, width: int, likeliest: int = 0) -> Tensor:
        """Rows [E, width + 1] of distinct tokens of laws [E, V] (`runtime.drafting.distinct`): the ``likeliest`` most likely
        ones, then draws without replacement."""
        return distinct(probs_EV, width, likeliest, self._chance)


class RecordedSampler:
    """Runs recorded programs: a token's reads the law that was computed last. Same ``chance``, same tokens as `PlainSampler`."""

    reads = False

    def __init__(self, settings: SamplingSettings, chance: Uniform, programs: Programs) -> None:
        self._settings = settings
        self._chance = chance
        self._programs = programs
        self._plain = PlainSampler(settings, chance)
        self._last: tuple[Tensor, SamplingProgram] | None = None

    def law(self, logits: Tensor) -> Tensor:
        key = ("sample", self._settings, logits.shape, logits.dtype)
        program = self._programs.get(key, lambda recorder: SamplingProgram(recorder, logits, self._settings))
        probs = program.law(logits)
        self._last = probs, program
        return probs

    def token(self, probs: Tensor) -> Tensor:
        if self._last is None or self._last[0] is not probs:
            return self._plain.token(probs)
        return self._last[1].token(self._chance)

    def distinct(self, probs_EV: Tensor, width: int, likeliest: int = 0) -> Tensor:
        width = min(width, probs_EV.shape[1])
        likeliest = min(likeliest, width)
        key = ("distinct", probs_EV.shape, probs_EV.dtype, width, likeliest)
        program = self._programs.get(key, lambda recorder: DistinctProgram(recorder, probs_EV, width, likeliest))
        return program(probs_EV, self._chance)


class SamplingProgram:
    """One shape of logits under one setting: the law of what was filled in last, and a token of that law. The law has memory of
    its own, as other programs (a controller's model) may run before its token is drawn."""

    def __init__(self, recorder: Recorder, logits: Tensor, settings: SamplingSettings) -> None:
        self._settings = settings
        self._logits = torch.zeros_like(logits)
        self._uniform = torch.zeros((*logits.shape[:-1], 1), dtype=torch.float64, device=logits.device)
        self._probs = processed_law(self._logits, settings)
        self._run_law = recorder.record(self._law)
        self._run_token = recorder.record(self._token)

    def law(self, logits: Tensor) -> Tensor:
        self._logits.copy_(logits)
        return self._run_law().clone()

    def token(self, chance: Uniform) -> Tensor:
        if not self._settings.greedy:
            chance.fill(self._uniform)
        return self._run_token().clone()

    def _law(self) -> Tensor:
        return self._probs.copy_(processed_law(self._logits, self._settings))

    def _token(self) -> Tensor:
        return self._probs.argmax(dim=-1) if self._settings.greedy else inverted(self._probs, self._uniform)


Sampler: TypeAlias = PlainSampler | RecordedSampler


def sampler_for(settings: SamplingSettings, chance: Chance, programs: Programs | None) -> Sampler:
    """Recorded where the model's passes are and ``chance`` allows it, else plain. Plain over recorded
    passes, it leaves tokens unread, too: what is drafted does not depend on where draws come from."""
    if programs is not None and isinstance(chance, Uniform):
        return RecordedSampler(settings, chance, programs)
    plain = PlainSampler(settings, chance)
    if programs is not None:
        plain.reads = False
    return plain
