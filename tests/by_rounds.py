"""Every decode of a decoder, round by round, and a controller for rounds of branches."""

from predictors.controllers import Controller, Session
from runtime.audit.rounds import opened


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
