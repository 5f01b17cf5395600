"""Decoders to lead, controllers that read what was drafted, and the joint distribution of text and rounds by enumeration."""

import dataclasses

import torch

from predictors.controllers import Controller, Session
from predictors.sampling import SamplingSettings
from runtime import VERIFIERS, ModelPair
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig
from runtime.laws import processed_law
from runtime.leading import GivenText
from runtime.leading.tape import led
from tests.toys import TableModel, enumerate_outcomes

PROMPT = [0, 1]
LENGTH = 4
SETTINGS = SamplingSettings(1.0)


class Watching(Controller):
    """Logs every drafted token. It stops before a token where the draft's likeliest has less than ``confidence``, after a token
    ``stops_after``, and, if it ``recalls``, plans one token where the token drafted last was 0."""

    kind = "watching"

    def __init__(self, confidence=0.0, stops_after=None, recalls=False):
        self.confidence, self.stops_after, self.recalls = confidence, stops_after, recalls

    def start(self, settings):
        self.session = WatchingSession(self)
        return self.session


class WatchingSession(Session):
    def __init__(self, controller):
        self.controller, self.log = controller, []

    def plan(self, root):
        drafted = [token for token in self.log if token is not None]
        self.log.append(None)  # a round begins
        return 1 if self.controller.recalls and drafted and drafted[-1] == 0 else None

    def stop_before(self, law):
        return bool(law.confidence < self.controller.confidence)

    def stop_after(self, drawn):
        self.log.append(int(drawn.token))
        return self.log[-1] == self.controller.stops_after


CONTROLLERS = {
    "fixed": {},
    "by_distribution": {"confidence": 0.5},
    "by_token": {"stops_after": 1},
    "by_rejected": {"recalls": True},
    "all": {"confidence": 0.5, "stops_after": 1, "recalls": True},
}


def toy_pair(seed=1, eos=(), **options):
    pair = ModelPair(TableModel(3, seed=seed, **options), TableModel(3, seed=seed + 1, **options))
    pair.target.eos_tokens = frozenset(eos)
    return pair


def chain_decoder(pair, verifier, controller=None, **drafter):
    return SequentialDecoder(pair, ChainConfig(2, **drafter), VERIFIERS[verifier], Watching(**(controller or {})))


def seen(decoder, generation):
    """All that a decode shows: its text, its rounds, and what the controller read."""
    rounds = [(record.drafted, record.accepted, record.emitted) for record in generation.rounds[1:]]
    return (tuple(generation.tokens), tuple(rounds), tuple(decoder.controller.session.log))


def decoded(decoder, settings=SETTINGS, length=LENGTH, prompt=PROMPT, seen=seen):
    """The real decoder's joint distribution of `seen`."""
    options = dataclasses.asdict(settings)

    def run(chance):
        return seen(decoder, decoder.generate(prompt, max_new_tokens=length, randomness=chance, **options))

    return summed(enumerate_outcomes(run))


def led_along_texts(decoder, settings=SETTINGS, length=LENGTH, tails=True, prompt=PROMPT, seen=seen):
    """The joint distribution of a text of the target, and of what the decoder shows when it is led along it."""
    joint = {}
    for tokens, probability in texts(decoder.pair.target, settings, length, prompt).items():
        text = GivenText.of(decoder.pair, prompt, tokens, settings, length)
        given = summed(
            enumerate_outcomes(
                lambda chance, text=text: seen(decoder, led(decoder, text, 0, ForkingLuck(chance), tails)[1])
            )
        )
        for outcome, share in given.items():
            joint[outcome] = joint.get(outcome, 0.0) + probability * share
    return joint


class ForkingLuck:
    """`Luck` that forks at every draw; a position that is drawn twice is an error."""

    def __init__(self, chance):
        self.chance, self.drawn = chance, set()

    def __call__(self, weights_V, row, slot):
        assert (row, slot) not in self.drawn, "rounds do not overlap"
        self.drawn.add((row, slot))
        return int(self.chance.categorical(weights_V))


def texts(target, settings, length, prompt=PROMPT):
    """The distribution of the target's own generations of at most ``length`` tokens."""
    open_texts, ended = {(): 1.0}, {}
    for _ in range(length):
        longer = {}
        for tokens, probability in open_texts.items():
            for token, share in enumerate(processed_law(target.logits([*prompt, *tokens]), settings).tolist()):
                if share:
                    kind = ended if token in target.eos_tokens else longer
                    kind[*tokens, token] = probability * share
        open_texts = longer
    return ended | open_texts


def summed(outcomes):
    """The distribution of outcomes with probabilities."""
    distribution = {}
    for outcome, probability in outcomes:
        distribution[outcome] = distribution.get(outcome, 0.0) + probability
    return distribution


def random_probs(rows, vocabulary, generator, zeros=False):
    """Rows of random probabilities [rows, V] in float64."""
    weights = torch.rand(rows, vocabulary, generator=generator, dtype=torch.float64) ** 2
    if zeros:
        weights[:, 1:] *= (torch.rand(rows, vocabulary - 1, generator=generator) < 0.7).double()
    return weights / weights.sum(dim=1, keepdim=True)
