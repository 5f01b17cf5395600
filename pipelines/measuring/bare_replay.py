"""What the decoding loop costs beyond its forward passes: the same passes again, without any decoding logic.

A recorder notes the calls a decoder makes on its models' states (open, forward, keep; same tokens, shapes and order). Replaying
them on fresh states leaves out laws, verdicts, controllers and records; what the loop takes longer is its own overhead.
"""

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, product
from typing import Any

from torch import Tensor

from pipelines.measuring.arms import TimedArm
from pipelines.measuring.harness import seed_of
from pipelines.measuring.measurement_log import Rows
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Randomness
from runtime.adapter import Forward, LanguageModel, ModelState
from runtime.decoding.sequential import SequentialDecoder
from runtime.latency.cells import seconds_of

Call = Callable[[list[ModelState]], object]  # of the states that were opened so far


def loop_rows(
    prompts: Iterable[Prompt],
    arms: Mapping[float, Sequence[TimedArm]],
    max_new_tokens: int,
    repeats: int,
    once: Callable[[str, Callable[[], Rows]], Rows],
) -> Rows:
    """Seconds of a decode in the ``loop``, and of its model calls alone (``passes``), in random order, for the ``arms`` of every
    temperature; ``once(key, measure)`` keeps what is finished."""

    def measure(key: str, prompt: Prompt, temperature: float, arm: TimedArm) -> Rows:
        assert isinstance(arm.decoder, SequentialDecoder)
        decoder, device = arm.decoder, arm.decoder.pair.target.device

        def options() -> dict[str, Any]:
            randomness = Randomness(seed_of(key))
            return {"max_new_tokens": max_new_tokens, "temperature": temperature, "randomness": randomness}

        work = {
            "loop": lambda: decoder.generate(prompt.tokens, **options()),
            "passes": record(decoder, prompt.tokens, **options()),
        }
        order = random.Random(key)
        who = {"prompt": prompt.id, "document": prompt.document, "temperature": temperature, "arm": arm.name}
        orders = [order.sample(sorted(work), len(work)) for _ in range(repeats)]
        return [
            {**who, "repeat": repeat, **{kind: seconds_of(work[kind], device) for kind in kinds}}
            for repeat, kinds in enumerate(orders)
        ]

    rows = Rows()
    for prompt, (temperature, some) in product(prompts, arms.items()):
        for arm in some:
            key = f"loop/{prompt.id}/{SamplingSettings(temperature).name}/{arm.name}"
            rows += once(key, partial(measure, key, prompt, temperature, arm))
    return rows


class RecordedModel:
    """A language model that notes the calls on its states in ``calls``, each a function of the states opened so far."""

    def __init__(self, model: LanguageModel, calls: list[Call], numbers: Iterator[int]) -> None:
        self._model, self._calls, self._numbers = model, calls, numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> "RecordedState":
        model = self._model
        self._calls.append(lambda states: states.append(model.open(max_length, layers)))
        return RecordedState(model.open(max_length, layers), next(self._numbers), self._calls)


class RecordedState:
    """One request's state, noting each call before it is made."""

    def __init__(self, state: ModelState, number: int, calls: list[Call]) -> None:
        self._state, self._number, self._calls = state, number, calls

    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        fixed, number = tokens.clone() if isinstance(tokens, Tensor) else list(tokens), self._number
        self._calls.append(lambda states: states[number].forward(fixed, parents, last))
        return self._state.forward(tokens, parents, last)

    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        number = self._number
        self._calls.append(lambda states: states[number].keep(path, pending))
        self._state.keep(path, pending)


def record(decoder: SequentialDecoder, prompt: list[int], **options: Any) -> Callable[[], None]:
    """Decode once and return a function that repeats the decoder's model calls."""
    calls: list[Call] = []
    numbers, pair = count(), decoder.pair
    recorded = copy.copy(pair)
    recorded.target = RecordedModel(pair.target, calls, numbers)
    recorded.draft = None if pair.draft is None else RecordedModel(pair.draft, calls, numbers)
    SequentialDecoder(recorded, decoder.drafter, decoder.verifier, decoder.controller).generate(prompt, **options)

    def replay() -> None:
        states: list[ModelState] = []
        for call in calls:
            call(states)

    return replay
