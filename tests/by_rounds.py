"""The exact output law of a decoder, round by round: longer outputs fit than by whole decodes (`tests.toys.output_law`).

A round is run once per combination of its random outcomes, from a copy of the state before it. States that are equal in all
that they hold are merged; of the branch-parallel decoder those in which everything that a later round can read is equal: the
text, what survives of the branches, what the controller remembers.
"""

import dataclasses
import pickle
from io import BytesIO
from unittest import mock

from torch import Tensor, nn

from predictors.controllers import Controller, Session
from runtime.decoding.base import Decoder
from runtime.decoding.branch_parallel import BranchRun
from tests.toys import Forking, enumerate_outcomes

HELD = Tensor, nn.Module


class Relay:
    """Chance that passes on to the `Forking` of the moment."""

    def __init__(self):
        self.current: Forking | None = None

    def categorical(self, weights):
        return self.current.categorical(weights)


class Signal(Controller):
    """H-RAD's decision without a head: s from ``rule(root)``; s = 0 drafts nothing, s = 2 all, s = 1 while confident."""

    kind = "signal"

    def __init__(self, rule, epsilon=0.5, min_tokens=1):
        self.rule, self.epsilon, self.min_tokens = rule, epsilon, min_tokens

    def start(self, settings):
        return SignalSession(self)


class SignalSession(Session):
    def __init__(self, controller):
        self.controller, self.s = controller, 1

    def plan(self, root):
        self.s = self.controller.rule(root)
        return 0 if self.s == 0 else None

    def stop_before(self, law):
        return (
            self.s == 1 and law.drafted >= self.controller.min_tokens and bool(law.confidence < self.controller.epsilon)
        )


class Copies:
    """Copies of a state: its tensors anew; modules, and what ``kept`` holds by id, by reference. Much faster than
    `copy.deepcopy`."""

    def __init__(self, state, kept):
        stream, places, self.held, self.own = BytesIO(), {}, [], set()

        def place(value):
            if not isinstance(value, HELD) and id(value) not in kept:
                return None
            if id(value) not in places:
                places[id(value)] = len(self.held)
                self.held.append(value)
                if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                    self.own.add(places[id(value)])
            return places[id(value)]

        pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = place
        pickler.dump(state)
        self.state = stream.getvalue()

    @property
    def key(self):
        """Equal only for states in which everything is equal, to the last bit of their tensors."""
        return self.state, tuple(
            (value.dtype, value.shape, value.numpy().tobytes()) if place in self.own else id(value)
            for place, value in enumerate(self.held)
        )

    def copy(self):
        cloned = {}

        def held(place):
            if place not in self.own:
                return self.held[place]
            if place not in cloned:
                cloned[place] = self.held[place].clone()
            return cloned[place]

        unpickler = pickle.Unpickler(BytesIO(self.state))
        unpickler.persistent_load = held
        return unpickler.load()


class Rounds:
    """What follows a state of ``decoder``'s, whose chance is ``relay``, by one round."""

    def __init__(self, decoder, relay):
        self.relay = relay
        models = [model for model in (decoder.pair.target, decoder.pair.draft) if model is not None]
        parts = [vars(model).get(name) for model in models for name in ("model", "_weights")]
        parts += [getattr(part, "body", None) for part in parts]  # of a drafter's weights those of its layer
        parts += [vars(decoder).get(name) for name in ("host", "config", "verifier", "drafter", "guesser")]
        self.kept = {id(part): part for part in (relay, decoder.pair, decoder.controller, *models, *parts) if part}

    def held(self, run):
        """``run`` as it is, to be copied."""
        return Copies(run, self.kept)

    def after(self, held):
        """All states that a held run may be in after its next round, each with its step and probability."""

        def one(chance):
            self.relay.current = chance
            after = held.copy()
            return after, after.step()

        for (after, step), probability in enumerate_outcomes(one):
            yield after, step, probability


def opened(decoder, prompt, length, settings, eos_tokens=()):
    """The rounds of ``decoder``, and every run that a request may begin with, before its prefill, with its probability."""
    relay = Relay()
    decoder = decoder.route(settings)

    def run(chance):
        relay.current = chance
        options = {"max_new_tokens": length, "eos_token_id": eos_tokens, **dataclasses.asdict(settings)}
        with mock.patch.object(Decoder, "_steps", lambda decoder, request: iter([decoder._open(request)])):
            (run,) = decoder.stream(prompt, randomness=relay, **options)
        return run

    return Rounds(decoder, relay), enumerate_outcomes(run)


def decodes(decoder, prompt, length, settings):
    """Every decode of ``prompt``: its new tokens, the records of its rounds, its probability."""
    rounds, runs = opened(decoder, prompt, length, settings)

    def follow(run, tokens, records, mass):
        for after, step, probability in rounds.after(rounds.held(run)):
            found = (*tokens, *step.tokens), (*records, step.record), mass * probability
            if after.done:
                yield found
            else:
                yield from follow(after, *found)

    for run, probability in runs:
        yield from follow(run, (), (), probability)


def decoded_law(decoder, prompt, length, settings, records=None, eos_tokens=()):
    """Law of the tokens that ``decoder`` emits after ``prompt``; ``records`` takes those of the rounds behind the prefill.

    Runs that are equal in all that a later round reads go on as one (a branch-parallel decoder must have overlap none).
    """
    rounds, runs = opened(decoder, prompt, length, settings, eos_tokens)
    law: dict[tuple[int, ...], float] = {}
    states = {place: (rounds.held(run), mass) for place, (run, mass) in enumerate(runs)}
    while states:
        later: dict = {}
        for held, mass in states.values():
            for after, step, probability in rounds.after(held):
                tokens, share = tuple(after.text[len(prompt) :]), mass * probability
                if records is not None and len(tokens) > 1:
                    records.append(step.record)
                if after.done:
                    law[tokens] = law.get(tokens, 0.0) + share
                    continue
                timeless(step.record, after)
                made = None if isinstance(after, BranchRun) else rounds.held(after)
                key = state_key(after) if made is None else made.key
                known, mass_before = later.get(key, (made, 0.0))
                later[key] = (known or rounds.held(after), mass_before + share)
        states = later
    return law


def timeless(record, run):
    """Forget how long a round took."""
    record.seconds, record.overlapped = {}, 0.0
    run.clock._last = 0.0


def state_key(run):
    draft = run.jobs._draft
    branch = None if run.verdict.branch is None else tuple(draft._branches[run.verdict.branch].tokens)
    past = run.previous
    told = None if past is None else (past.accepted, past.submitted, past.levels)
    memory = tuple(sorted((name, repr(value)) for name, value in vars(draft._session).items() if name != "controller"))
    return (tuple(run.text), branch, told, memory)
