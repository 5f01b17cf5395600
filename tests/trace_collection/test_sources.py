"""Lookups on recorded texts: the distribution of a decode's rounds is the real decoder's, and arrays count as the loop does."""

import dataclasses

import numpy as np
import pytest

from predictors.controllers import build_controller
from predictors.replay.acceptance import reached
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.text import RecordedText, onward
from predictors.sampling import SamplingSettings
from predictors.stopping import StopSpec
from runtime import ModelPair, build_decoder
from runtime.audit.enumeration import enumerate_outcomes, summed, total_variation
from runtime.audit.tables import TableModel
from runtime.drafting.chain import LookupConfig
from tests.trace_collection.collecting import kept_shares, middle
from trace_collection.text_tracer import TextTracer
from trace_collection.trajectories import Trajectory, continuations

PROMPT, BUDGET, GAMMA = [0, 1, 2, 0, 1], 4, 3
FIXED = {"kind": "fixed", "gamma": 1}
DRAFTERS = {
    "mixture": {"kind": "chain", "gamma": GAMMA, "lookup": {"length": 2}},
    "least": {"kind": "chain", "gamma": GAMMA, "lookup": {"length": 2, "least": 2}},
    "lookup": {"kind": "lookup", "length": 2},
}
CASES = [
    ("mixture", "block", {"kind": "takeover", "match": 1, "length": 2, "otherwise": FIXED}),
    ("mixture", "block", {"kind": "takeover", "match": 2, "length": 1, "tail": 2, "otherwise": FIXED}),
    ("mixture", "tokenwise", {"kind": "takeover", "match": 1, "length": 1, "tail": 1, "otherwise": FIXED}),
    ("least", "block", {"kind": "takeover", "match": 1, "length": 2, "tail": 1, "otherwise": FIXED}),
    ("lookup", "block", {"kind": "fixed"}),
    ("lookup", "tokenwise", {"kind": "fixed", "gamma": 1}),
    ("lookup", "match", {"kind": "takeover", "match": 2, "length": 2}),
]


@pytest.fixture(scope="module")
def toy():
    return ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))


def policy_of(drafter, verifier, controller):
    config = dict(DRAFTERS[drafter])
    alone = config.pop("kind") == "lookup"
    lookup = LookupConfig(**(config if alone else config["lookup"]))
    depth = lookup.length if alone else GAMMA
    return ChainPolicy(build_controller(controller), depth, verifier, lookup, drafts=not alone)


def decoded_rounds(pair, drafter, verifier, controller, settings):
    config = {"drafter": DRAFTERS[drafter], "verifier": verifier, "controller": controller}
    decoder = build_decoder(pair, {"method": "speculative", **config})

    def run(chance):
        out = decoder.generate(PROMPT, max_new_tokens=BUDGET, randomness=chance, **dataclasses.asdict(settings))
        rounds = ((one.drafted, one.looked_up, one.passes, one.accepted, one.emitted) for one in out.rounds[1:])
        return (*out.tokens, *rounds)

    return summed(enumerate_outcomes(run))


def recorded(pair, settings, chance, verifier):
    text = next(continuations(pair.target, [Trajectory(PROMPT, settings, chance, said=[])], BUDGET))
    spec, rows = StopSpec((), 0, 2), len(text.tokens) - 1
    tracer = TextTracer(pair, GAMMA, BUDGET, 1, layers=(), spec=spec, state_slots=1, verifier=verifier)

    def traced(kept_N):
        luck_2N = np.stack([kept_N, kept_N])
        columns = tracer.trace(PROMPT, text.tokens, settings, Certain(), luck_2N, text.written)
        return RecordedText("p", "d", "s", settings, len(PROMPT), BUDGET, verifier, columns)

    some = traced(np.zeros(rows))
    limits = [kept_shares(reached(*some._sourced(looked_up), verifier)) for looked_up in range(3)]
    return traced(np.array([middle(limits, place, chance) for place in range(rows)]))


class Certain:
    """What is drawn beside the text decides nothing here."""

    def categorical(self, weights):
        return weights.argmax(-1)


def replayed_rounds(pair, policy, settings, wrong=lambda text: text):
    def run(chance):
        text = wrong(recorded(pair, settings, chance, policy.verifier))
        rounds = replayed(text, policy)
        counts = ((one.submitted, one.looked_up, one.passes, one.accepted, one.emitted) for one in rounds)
        return (*text.tokens, *counts)

    return summed(enumerate_outcomes(run))


@pytest.mark.parametrize(("drafter", "verifier", "controller"), CASES, ids=str)
@pytest.mark.parametrize("settings", [SamplingSettings(1.0), SamplingSettings(0.7, top_k=2)], ids=str)
def test_replayed_rounds_have_the_decoders_distribution(toy, drafter, verifier, controller, settings):
    real = decoded_rounds(toy, drafter, verifier, controller, settings)
    again = replayed_rounds(toy, policy_of(drafter, verifier, controller), settings)
    assert total_variation(real, again) < 1e-6, "recorded numbers are float32"
    looked_up = {one[1] for outcome in real for one in outcome if isinstance(one, tuple)}
    assert looked_up - {0} and len(real) > 10


def weight_of_1(text):
    """Wrong: a tail is verified as if nothing had been looked up before it."""
    return changed(text, target_probability=np.ones_like(text.columns["target_probability"]))


def all_right(text):
    """Wrong: whatever was looked up is accepted."""
    return changed(text, lookup=onward(text.columns["token"], GAMMA, -2))


class Tokenwise(RecordedText):
    """Wrong: another rule's counts."""

    def accepted(self, looked_up=0):
        return RecordedText.accepted(dataclasses.replace(self, verifier="tokenwise"), looked_up)


def tokenwise(text):
    return Tokenwise(**{one.name: getattr(text, one.name) for one in dataclasses.fields(text)})


def changed(text, **columns):
    return dataclasses.replace(text, columns={**text.columns, **columns})


@pytest.mark.parametrize("wrong", [weight_of_1, tokenwise, all_right])
def test_other_counts_after_a_lookup_are_wrong(toy, wrong):
    settings, case = SamplingSettings(1.0), CASES[1]
    real = decoded_rounds(toy, *case, settings)
    assert total_variation(real, replayed_rounds(toy, policy_of(*case), settings, wrong)) > 1e-3
