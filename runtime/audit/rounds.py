"""The exact output distribution of a decoder, round by round: longer outputs fit than by whole decodes (`output_law`).

A round is run once per combination of its random outcomes, from a copy of the state before it. States that are equal in all that
they hold are merged; of the branch-parallel decoder those in which everything that a later round can read is equal: the text,
what survives of the branches, what the controller remembers.
"""

import copy
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from predictors.sampling import SamplingSettings
from runtime.audit.enumeration import Forking, Law, enumerate_outcomes
from runtime.decoding.base import Decoder, Step
from runtime.decoding.branch_parallel import BranchRun
from runtime.decoding.run import Run

HELD = Tensor, nn.Module, type, FunctionType  # the last two wherever they were defined


class Copies:
    """Copies of a state: its tensors anew; modules, classes, functions and what ``kept`` holds by id, by reference. Much faster
    than `copy.deepcopy`."""

    def __init__(self, state: Any, kept: Mapping[int, Any]) -> None:
        stream, places = BytesIO(), dict[int, int]()
        self.held: list[Any] = []
        self.own: set[int] = set()

        def place(value: Any) -> int | None:
            if not isinstance(value, HELD) and id(value) not in kept:
                return None
            if id(value) not in places:
                places[id(value)] = len(self.held)
                self.held.append(value)
                if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                    self.own.add(places[id(value)])
            return places[id(value)]

        pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = place  # type: ignore[method-assign]
        pickler.dump(state)
        self.state = stream.getvalue()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal only for states in which everything is equal, to the last bit of their tensors."""
        return self.state, tuple(
            (value.dtype, value.shape, value.numpy().tobytes()) if place in self.own else id(value)
            for place, value in enumerate(self.held)
        )

    def copy(self) -> Any:
        cloned: dict[int, Tensor] = {}

        def held(place: int) -> Any:
            if place not in self.own:
                return self.held[place]
            if place not in cloned:
                cloned[place] = self.held[place].clone()
            return cloned[place]

        unpickler = pickle.Unpickler(BytesIO(self.state))
        unpickler.persistent_load = held  # type: ignore[method-assign]
        return unpickler.load()


class Rounds:
    """What follows a state of ``decoder``'s by one round; its chance, too, which passes on to the `Forking` of the moment."""

    current: Forking

    def __init__(self, decoder: Decoder) -> None:
        models = [model for model in (decoder.pair.target, decoder.pair.draft) if model is not None]
        parts = [vars(model).get(name) for model in models for name in ("model", "_weights")]
        parts += [getattr(part, "body", None) for part in parts]  # of a drafter's weights those of its layer
        parts += [vars(decoder).get(name) for name in ("host", "config", "verifier", "drafter", "guesser")]
        self.kept = {id(part): part for part in (self, decoder.pair, decoder.controller, *models, *parts) if part}

    def categorical(self, weights: Tensor) -> Tensor:
        return self.current.categorical(weights)

    def held(self, run: Run) -> Copies:
        """Hold ``run`` as it is, to be copied."""
        return Copies(run, self.kept)

    def after(self, held: Copies) -> Iterator[tuple[Run, Step, float]]:
        """All states that a held run may be in after its next round, each with its step and probability."""

        def one(chance: Forking) -> tuple[Run, Step]:
            self.current = chance
            after = held.copy()
            return after, after.step()

        for (after, step), probability in enumerate_outcomes(one):
            yield after, step, probability


def opened(
    decoder: Decoder, prompt: Sequence[int], length: int, settings: SamplingSettings, eos_tokens: Collection[int] = ()
) -> tuple[Rounds, Iterator[tuple[Run, float]]]:
    """The rounds of ``decoder``, and every run that a request may begin with, before its prefill, with its probability."""
    decoder = copy.copy(decoder.route(settings))
    vars(decoder).update(monitor=None, _steps=lambda request: iter([decoder._open(request)]))
    rounds = Rounds(decoder)
    options: dict[str, Any] = {"max_new_tokens": length, "eos_token_id": eos_tokens, **asdict(settings)}

    def run(chance: Forking) -> Any:
        rounds.current = chance
        return next(iter(decoder.stream(prompt, randomness=rounds, **options)))

    return rounds, enumerate_outcomes(run)


def decoded_law(
    decoder: Decoder, prompt: Sequence[int], length: int, settings: SamplingSettings, eos_tokens: Collection[int] = ()
) -> Law:
    """Compute the distribution of the tokens that ``decoder`` emits after ``prompt``.

    Runs that are equal in all that a later round reads go on as one (a branch-parallel decoder must have overlap none).
    """
    rounds, runs = opened(decoder, prompt, length, settings, eos_tokens)
    law: Law = {}
    states: dict[object, tuple[Copies, float]]
    states = {place: (rounds.held(run), mass) for place, (run, mass) in enumerate(runs)}
    while states:
        later: dict[object, tuple[Copies, float]] = {}
        for held, mass in states.values():
            for after, step, probability in rounds.after(held):
                tokens, share = tuple(after.text[len(prompt) :]), mass * probability
                if after.done:
                    law[tokens] = law.get(tokens, 0.0) + share
                    continue
                step.record.seconds, step.record.overlapped, after.clock._last = {}, 0.0, 0.0  # time decides nothing
                made = None if isinstance(after, BranchRun) else rounds.held(after)
                key = _branch_key(after) if made is None else made.key
                known, before = later.get(key, (made, 0.0))
                later[key] = (known or rounds.held(after), before + share)
        states = later
    return law


def _branch_key(run: Any) -> tuple[object, ...]:
    draft, past = run.jobs._draft, run.previous
    branch = None if run.verdict.branch is None else tuple(draft._branches[run.verdict.branch].tokens)
    told = None if past is None else (past.accepted, past.submitted, past.levels)
    memory = tuple(sorted((name, repr(value)) for name, value in vars(draft._session).items() if name != "controller"))
    return (tuple(run.text), branch, told, memory)
