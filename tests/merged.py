"""The exact output law of the branch-parallel decoder, round by round: equal states are merged, so that longer outputs fit.

A round is run once per combination of its random outcomes, from a copy of the state before it. Two states are equal if everything
that a later round can read is: the text, what survives of the branches, what the controller remembers.
"""

import copy

from predictors.controllers import Controller, Session
from runtime.decoding.branch_parallel import BranchRun
from runtime.request import Request
from tests.toys import Forking, enumerate_outcomes


class Relay:
    """Chance that passes on to the `Forking` of the moment; copies of a state share it."""

    def __init__(self):
        self.current: Forking | None = None

    def categorical(self, weights):
        return self.current.categorical(weights)

    def __deepcopy__(self, memo):
        return self


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


def merged_law(decoder, prompt, length, settings, eos_tokens=frozenset()):
    """Law of the ``length`` tokens that ``decoder`` (overlap none, table models) emits after ``prompt``."""
    relay = Relay()
    request = Request(
        list(prompt), length, settings, relay, frozenset(eos_tokens), (), False, decoder.controller.draft_layers
    )
    states = {"start": (BranchRun(decoder, request), 1.0)}
    law: dict[tuple[int, ...], float] = {}
    while states:
        later: dict = {}
        for run, mass in states.values():
            for after, probability in enumerate_outcomes(lambda chance, run=run: one_round(run, relay, chance)):
                share = mass * probability
                if after.done:
                    tokens = tuple(after.text[len(prompt) :])
                    law[tokens] = law.get(tokens, 0.0) + share
                else:
                    key = state_key(after)
                    later[key] = (after, later[key][1] + share if key in later else share)
        states = later
    return law


def one_round(run, relay, chance):
    """The state after one more round of a copy of ``run``."""
    relay.current = chance
    after = copy.deepcopy(run, {id(run.pair): run.pair})
    if after.emitted:
        after.round()
    else:
        after.prefill()
    return after


def state_key(run):
    draft = run.jobs._executor._service._draft
    branch = None if run.verdict.branch is None else tuple(draft._branches[run.verdict.branch].tokens)
    past = run.previous
    told = None if past is None else (past.accepted, past.submitted, past.levels)
    memory = tuple(sorted((name, repr(value)) for name, value in vars(draft._session).items() if name != "controller"))
    return (tuple(run.text), branch, told, memory)
