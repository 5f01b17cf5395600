"""Replay with the luck of a led decode: the same text, and round for round the same counts."""

import dataclasses

import numpy as np
import pytest

from predictors.controllers import build_controller
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.stopping import StopSpec
from runtime import ModelPair, Randomness, build_decoder
from runtime.leading import GivenText, plan
from runtime.leading.leader import KEEP, seeded_uniforms
from tests.toys import TableModel
from trace_collection.text_tracer import TextTracer

PROMPT, BUDGET, GAMMA = [0, 1, 2], 24, 4
SEEDS = range(20)
SETTINGS = [SamplingSettings(1.0), SamplingSettings(0.7, top_k=3)]
CONFIDENT = {"kind": "confidence", "epsilon": 0.45, "min_tokens": 0}


class ByLength(TableModel):
    """A draft whose distributions depend on how long the context is, and not on what was drafted beside the text."""

    def logits(self, context):
        return self.table[len(context) % (self.vocabulary_size + 1), 0]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(TableModel(4, seed=3), ByLength(4, seed=4))


def own_text(pair, settings, seed):
    """A text of the target's own."""
    plain = build_decoder(pair, {"method": "autoregressive"})
    options = {"max_new_tokens": BUDGET, **dataclasses.asdict(settings)}
    return plain.generate(PROMPT, randomness=Randomness(seed), **options).tokens


def led_rounds(pair, tokens, verifier, settings, seed):
    """Submitted and accepted tokens of a decode that is led along ``tokens``."""
    config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": GAMMA}, "verifier": verifier}
    decoder = build_decoder(pair, config | {"controller": CONFIDENT})
    text = GivenText.of(pair, PROMPT, tokens, settings, BUDGET)
    out = decoder.generate(PROMPT, randomness=plan(decoder, text, seed).chance(), **text.options)
    assert out.tokens == tokens
    return [(record.drafted, record.accepted) for record in out.rounds[1:]]


def replayed_rounds(pair, tokens, settings, verifier, seed):
    uniforms = seeded_uniforms(seed)
    kept_N = np.array([uniforms(row, KEEP) for row in range(1, len(tokens))])
    spec = StopSpec((), 0, 2)
    tracer = TextTracer(pair, GAMMA, BUDGET, 1, layers=(), spec=spec, state_slots=1, verifier=verifier)
    columns = dict(tracer.trace(PROMPT, tokens, settings, Randomness(99), np.stack([kept_N, kept_N])))
    text = RecordedText("p", "d", "s", settings, len(PROMPT), BUDGET, verifier, columns)
    assert text.tokens == tokens
    policy = ChainPolicy(build_controller(CONFIDENT), GAMMA, verifier)
    return [(one.submitted, one.accepted) for one in replayed(text, policy)]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
def test_replay_with_a_led_decodes_luck_has_its_rounds(pair, verifier, settings):
    same = other_luck = other_rule = 0
    for seed in SEEDS:
        tokens = own_text(pair, settings, seed)
        led = led_rounds(pair, tokens, verifier, settings, seed)
        assert len({submitted for submitted, _ in led}) > 1, "the controller stops, and does not always"
        same += replayed_rounds(pair, tokens, settings, verifier, seed) == led
        other_luck += replayed_rounds(pair, tokens, settings, verifier, seed + 1000) == led
        other_rule += replayed_rounds(pair, tokens, settings, "nss", seed) == led
    assert same == len(SEEDS)
    assert other_luck < len(SEEDS) / 2 and other_rule < len(SEEDS) / 2
