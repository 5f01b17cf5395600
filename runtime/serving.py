"""Which number format and forward a model is fastest in on a device: timed once, in stage ``latency``, and recorded.

    seconds(candidate) = sum over rows of   the lowest decile, over turns, of one pass over so many nodes

A candidate is a number format and a forward, really loaded. Turns of a format's forwards are interleaved in shuffled order, and
formats in several visits, one of them in memory at a time: a slow moment of the machine meets all alike. Neighbours on a machine
only ever add time, hence the decile. The *incumbent* is the format of the pair's traces with the forward that
`CausalLanguageModel` takes by itself. It stays unless another saves at least `LEAST_SAVING` of its time: noise decides nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from predictors.latency.serving import ModelServing
from runtime.causal_model import FORWARDS, OTHER_FORWARDS, CausalLanguageModel
from runtime.device import is_out_of_memory, native_dtype
from runtime.identity import config_hash
from runtime.latency.cells import seconds_of
from runtime.latency.passes import CommittedState
from runtime.pair import load_model

TARGET_ROWS, DRAFT_ROWS = (1, 5, 9), (1,) * 8  # a plain step and verification passes; the steps of a chain
CONTEXT = 96  # committed tokens before a pass
VISITS, TURNS = 3, 8  # of every format, and of every candidate in a visit
VISIT_SECONDS = 10.0  # of timed passes end a visit, as large models take long
LEAST_TURNS = 2  # of every candidate before that
WARMUP = 2  # untimed turns of a visit: kernels are chosen, and on a CUDA device passes are graphed
LEAST_SAVING = 0.1  # of the incumbent's time
MOST_PARAMETERS = 4e9  # of a model that is tried in float32 though its traces are not

Turn = Callable[[], Sequence[float]]  # a pass over each of the row counts; seconds of each


@dataclass
class Decision:
    """What was ``chosen``, the ``seconds`` of every candidate, and ``notes`` on those that were left out."""

    chosen: ModelServing
    seconds: Mapping[ModelServing, float]
    notes: Sequence[str]


def fastest(seconds: Mapping[ModelServing, float], incumbent: ModelServing | None) -> ModelServing:
    """The incumbent, unless another takes clearly less time or the incumbent could not be timed."""
    best = min(seconds, key=seconds.__getitem__)
    if incumbent is not None and incumbent in seconds and seconds[best] > (1 - LEAST_SAVING) * seconds[incumbent]:
        return incumbent
    return best


def open_turn(model: CausalLanguageModel, rows: Sequence[int]) -> Turn:
    """Passes of ``model`` over each count of ``rows``, each after an untimed one."""
    context = max(1, min(CONTEXT, model.context_limit - max(rows)))
    state = CommittedState(model, context, max(rows), torch.Generator().manual_seed(0))

    def seconds(count: int) -> float:
        state.chain(count)
        return seconds_of(partial(state.chain, count), state.device)

    return torch.inference_mode()(lambda: [seconds(count) for count in rows])


@dataclass
class ServingDecision:
    """How to serve the model at ``path`` on ``device`` for passes over ``rows`` nodes, whose ``traces`` have that format.
    ``options``: what else `load_model` takes."""

    path: str | Path
    device: torch.device
    traces: torch.dtype
    rows: Sequence[int]
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    _turns: dict[ModelServing, list[Sequence[float]]] = field(default_factory=dict)
    _notes: list[str] = field(default_factory=list)
    _incumbent: ModelServing | None = None
    _config_hash: str = ""

    def decide(self) -> Decision:
        """Time all candidates; `ValueError` if not one of them could be loaded."""
        formats = self._formats()
        for visit in range(VISITS):
            order = Random(f"{self.seed}/{visit}")
            for dtype in order.sample(formats, len(formats)):
                self._visit(dtype, order)
        if not self._turns:
            raise ValueError(f"{self.path} fits {self.device} in no number format: {'; '.join(self._notes)}")
        seconds = {one: float(np.quantile(turns, 0.1, axis=0).sum()) for one, turns in self._turns.items()}
        chosen = fastest(seconds, self._incumbent)
        return Decision(replace(chosen, config_hash=self._config_hash), seconds, list(dict.fromkeys(self._notes)))

    def _formats(self) -> list[torch.dtype]:
        """The traces' own, the device's native one and float32, if that is not too wide for the model."""
        formats = list(dict.fromkeys((self.traces, native_dtype(self.device), torch.float32)))
        with torch.device("meta"):
            size = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(self.path)).num_parameters()
        if size <= MOST_PARAMETERS or self.traces is torch.float32:
            return formats
        self._notes.append(f"float32 is left out: {size / 1e9:.1f} billion parameters")
        return [dtype for dtype in formats if dtype is not torch.float32]

    def _visit(self, dtype: torch.dtype, order: Random) -> None:
        """Turns of all forwards in one number format."""
        turns, spent = dict(self._candidates(dtype)), 0.0
        for number in range(WARMUP + TURNS):
            for one in order.sample(list(turns), len(turns)):
                seconds = turns[one]()
                spent += sum(seconds)
                if number >= WARMUP:
                    self._turns.setdefault(one, []).append(seconds)
            if spent > VISIT_SECONDS and number + 1 >= WARMUP + LEAST_TURNS:
                return

    def _candidates(self, dtype: torch.dtype) -> Iterator[tuple[ModelServing, Turn]]:
        """What computes the model in ``dtype``, opened."""
        try:
            model = load_model(self.path, self.device, dtype, **self.options)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._notes.append(f"{_name(dtype)} is left out: {error}")
            return
        self._config_hash = config_hash(model.config)
        if dtype is self.traces:
            self._incumbent = ModelServing(_name(dtype), CausalLanguageModel(model).forward)
        for forward in FORWARDS.get(model.device.type, OTHER_FORWARDS):
            try:
                turn = open_turn(CausalLanguageModel(model, forward), self.rows)
            except (ValueError, MemoryError, RuntimeError) as error:
                if not isinstance(error, ValueError) and not is_out_of_memory(error):
                    raise
                self._notes.append(f"{_name(dtype)} {forward} is left out: {error}")
            else:
                yield ModelServing(_name(dtype), forward), turn


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
