"""Text traces against the models, and their replay: the law of a decode's rounds, its text among them, is the real decoder's."""

import dataclasses
import itertools
from contextlib import nullcontext
from functools import cache, partial
from unittest import mock

import numpy as np
import pytest
import torch

from predictors.controllers import build_controller
from predictors.replay.acceptance import BeyondRecordError, reached
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.stopping import StopSpec
from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.enumeration import enumerate_outcomes, summed, total_variation
from runtime.audit.tables import TableModel
from runtime.branching.draft import BranchConfig
from runtime.laws import processed_law
from tests.by_rounds import decodes
from tests.eagle3 import random_drafter
from tests.toys import tiny_llama
from tests.trace_collection.collecting import kept_shares, middle
from trace_collection import drafts
from trace_collection.rejections import candidate_hits
from trace_collection.text_tracer import TextTracer
from trace_collection.trajectories import Trajectory, continuations

PROMPT = [0, 1]
BUDGET = 4
PAIR = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
FILTERED, HOT = SamplingSettings(0.7, top_k=2), SamplingSettings(3.0, top_k=2)


def reading_pair(vocabulary):
    """A target and a draft that reads its states."""
    target = tiny_llama(vocabulary, hidden=16)
    return ModelPair(target, random_drafter(target, ids=list(range(vocabulary - 1))))


READING = reading_pair(3)
CONTROLLERS = [
    {"kind": "fixed"},
    {"kind": "fixed", "gamma": 1},
    {"kind": "confidence", "epsilon": 0.6},
    {"kind": "confidence", "epsilon": 0.6, "min_tokens": 0},
    {"kind": "entropy", "threshold": 0.5},
    {"kind": "roc", "threshold": 0.5, "min_pairs": 0},
    {"kind": "ema", "tiers": [1, 2], "decay": 0.0},
]


def drawn(pair, settings, chance, budget=BUDGET):
    """A text of the target, as collections draw it."""
    return next(continuations(pair.target, [Trajectory(PROMPT, settings, chance)], budget)).tokens


@cache
def traced(pair, settings, verifier="tokenwise", twin=None, candidates=1, length=BUDGET):
    """Every text of ``length`` tokens with its traces, and their probability: replays of all controllers read the same ones.
    ``twin`` names a function, with its module, that is another one's."""
    tracer = TextTracer(
        pair, 2, BUDGET, candidates, layers=(), spec=StopSpec((), 0, 2), state_slots=2, verifier=verifier
    )

    def run(chance):
        tokens = drawn(pair, settings, chance, length)
        count = len(tokens) - 1
        some = tracer.trace(PROMPT, tokens, settings, Randomness(0), np.full((2, count), 0.5))
        limits = [kept_shares(reached(some["ratio"], some["probability"], verifier))]
        kept_N = [middle(limits, place, chance) for place in range(count)]
        columns = tracer.trace(PROMPT, tokens, settings, chance, np.array([kept_N, [0.5] * count]))
        where = "p", "d", "s", settings, len(PROMPT), BUDGET, verifier
        return tokens, RecordedText(*where, columns, pair.target.eos_tokens)

    merged = {}  # of traces that are equal to the last byte, one
    with mock.patch(*twin) if twin else nullcontext():
        for (tokens, text), probability in enumerate_outcomes(run):
            columns = ((name, column.tobytes()) for name, column in sorted(text.columns.items()))
            merged.setdefault((*tokens, *columns), [(tokens, text), 0.0])[1] += probability
    return list(merged.values())


def law_of_replays(texts, replay):
    """The law of ``replay(tokens, text, chance)`` over all ``texts``, without tracing them anew for every outcome."""
    return summed(
        (outcome, probability * conditional)
        for (tokens, text), probability in texts
        for outcome, conditional in enumerate_outcomes(partial(replay, tokens, text))
    )


def decoded_rounds(pair, controller, settings, verifier="tokenwise"):
    drafter = {"kind": "chain", "gamma": 2}
    config = {"method": "speculative", "drafter": drafter, "verifier": verifier, "controller": controller}
    decoder = build_decoder(pair, config)

    def outcomes():
        for tokens, records, probability in decodes(decoder, PROMPT, BUDGET, settings):
            yield (*tokens, *((one.drafted, one.accepted, one.emitted) for one in records[1:])), probability

    return summed(outcomes())


def replayed_rounds(controller, texts, verifier="tokenwise"):
    policy = ChainPolicy(build_controller(controller), 2, verifier)

    def run(tokens, text, chance):
        rounds = replayed(text, policy)
        return (*tokens, *((one.submitted, one.accepted, one.emitted) for one in rounds))

    return law_of_replays(texts, run)


@pytest.mark.parametrize("controller", CONTROLLERS, ids=str)
@pytest.mark.parametrize("verifier", ["tokenwise", "block", "nss"])
def test_replayed_rounds_have_the_decoders_law(controller, verifier):
    """Of two tokens no decision looks beyond the first rejected one, so that those of block verification are exact, too."""
    settings = FILTERED
    decoded = decoded_rounds(PAIR, controller, settings, verifier)
    again = replayed_rounds(controller, traced(PAIR, settings, verifier), verifier)
    assert len(decoded) > 20 and total_variation(decoded, again) < 1e-6  # recorded numbers are float32


@pytest.mark.parametrize("controller", [CONTROLLERS[0], CONTROLLERS[3]], ids=str)
@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
def test_replay_of_a_draft_that_reads_states_has_the_decoders_law(controller, verifier):
    """Its distribution depends on where the round began; a trace of roots' first distributions alone is another one's."""
    decoded = decoded_rounds(READING, controller, HOT, verifier)
    again = replayed_rounds(controller, traced(READING, HOT, verifier), verifier)
    assert len(decoded) > 20 and total_variation(decoded, again) < 1e-5
    twin = traced(READING, HOT, verifier, ("trace_collection.text_tracer.reads_states", lambda model: False))
    assert total_variation(decoded, replayed_rounds(controller, twin, verifier)) > 1e-3


def any_token(q_RV, p_RV, y_R, weight_R, verifier):
    """What the text says is ignored."""
    return q_RV


def tokenwise_rejected(q_RV, p_RV, y_R, weight_R, verifier):
    return REJECTED(q_RV, p_RV, y_R, weight_R, "tokenwise")


REJECTED = drafts.rejected_law


def first_rounds(verifier):
    """Law of the first round: the token in front of it, its draft up to the first rejected one, two that come out."""
    chain = {"kind": "chain", "gamma": 2}
    decoder = build_decoder(PAIR, {"method": "speculative", "drafter": chain, "verifier": verifier})

    def run(chance):
        options = {"max_new_tokens": BUDGET, "randomness": chance, "temperature": 1.0}
        first, step = itertools.islice(decoder.stream(PROMPT, observe=True, **options), 2)
        accepted = step.record.accepted
        return (*first.tokens, *step.evidence.tree.token_list[: accepted + 1], accepted, *step.tokens[:2])

    return summed(enumerate_outcomes(run))


def recorded_rounds(verifier, twin=None):
    texts = traced(
        PAIR,
        SamplingSettings(1.0),
        verifier,
        ("trace_collection.drafts.rejected_law", twin) if twin else None,
        length=3,
    )

    def of(tokens, text):
        accepted = text.accepted()[1]
        return (tokens[0], *text.columns["tokens"][0, : accepted + 1], accepted, *tokens[1 : min(accepted + 2, 3)])

    return summed((of(tokens, text), probability) for (tokens, text), probability in texts)


@pytest.mark.parametrize(
    ("verifier", "twin"), [("tokenwise", any_token), ("nss", any_token), ("block", tokenwise_rejected)]
)
def test_rejected_tokens_have_the_decoders_law(verifier, twin):
    decoded = first_rounds(verifier)
    assert len(decoded) > 20 and total_variation(decoded, recorded_rounds(verifier)) < 1e-6
    assert total_variation(decoded, recorded_rounds(verifier, twin)) > 1e-3


def test_chains_of_another_verifier_are_refused():
    (_, text), _ = traced(PAIR, FILTERED, "tokenwise")[0]
    for verifier in ("block", "nss"):
        with pytest.raises(BeyondRecordError, match="traces.texts.verifier"):
            list(replayed(text, ChainPolicy(build_controller(CONTROLLERS[0]), 2, verifier)))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("settings", [SamplingSettings(1.0), SamplingSettings(0.8, top_k=3)], ids=str)
def test_hits_of_candidates_drawn_without_replacement(count, settings):
    """P(a candidate was accepted | the next token), of the real decoder and of the recorded numbers on average."""
    pair = ModelPair(TableModel(4, seed=3), TableModel(4, seed=4))
    drafter = {"kind": "multi_candidate", "config": [count]}
    config = {"method": "speculative", "drafter": drafter, "verifier": "rrs_without_replacement"}
    decoder = build_decoder(pair, config)

    def run(chance):
        out = decoder.generate(PROMPT, max_new_tokens=3, randomness=chance, **dataclasses.asdict(settings))
        return (*out.tokens[:2], out.rounds[1].accepted)

    decoded = summed(enumerate_outcomes(run))
    for first, second in {outcome[:2] for outcome in decoded}:
        context = [*PROMPT, first]
        target_1V, draft_1V = (
            processed_law(model.logits(context), settings)[None] for model in (pair.target, pair.draft)
        )
        token = torch.tensor([second])
        outcomes = enumerate_outcomes(partial(candidate_hits, target_1V, draft_1V, token, count))
        hit = sum(float(hits_1C[0, -1]) * probability for hits_1C, probability in outcomes)
        both = [decoded.get((first, second, accepted), 0.0) for accepted in (0, 1)]
        assert hit == pytest.approx(both[1] / sum(both), abs=1e-6)


FIXED = {"kind": "fixed"}
BRANCHING = [
    {"gamma": 1, "k_max": 1, "draft_stage": "preverify", "controller": FIXED},
    {"gamma": 1, "k_max": 2, "k_rule": "const", "draft_stage": "preverify", "controller": FIXED},
    {"gamma": 1, "k_max": 1, "k_rule": "const", "controller": {"kind": "confidence", "epsilon": 0.6, "min_tokens": 0}},
]


def decoded_branch_rounds(pair, config, settings):
    decoder = build_decoder(pair, {"method": "branch_parallel", "overlap": "none", "verifier": "tokenwise", **config})

    def outcomes():
        for tokens, records, probability in decodes(decoder, PROMPT, BUDGET, settings):
            counts = [
                (one.submitted, one.idle_levels, one.levels, one.candidates, one.law_known, one.accepted, one.emitted)
                for one in records[1:]
            ]
            yield (*tokens, *counts), probability

    return summed(outcomes())


def replayed_branch_rounds(config, settings, wrong=lambda hits: hits):
    options = dict(config)
    controller = build_controller(options.pop("controller", {"kind": "confidence", "epsilon": 0.2}))

    def run(tokens, text, chance):
        hits_RG = wrong(text.columns["hits"][..., options["k_max"] - 1])
        tried_N = np.array([middle([hits_RG], place, chance) for place in range(len(hits_RG))])
        columns = {**text.columns, "tried": tried_N, "hits": np.repeat(hits_RG[..., None], options["k_max"], axis=2)}
        known = dataclasses.replace(text, columns=columns)
        rounds = replayed_branches(known, controller, BranchConfig(**options), "tokenwise")
        counts = [
            (one.submitted, one.idle_levels, one.levels, one.candidates, one.law_known, one.accepted, one.emitted)
            for one in rounds
        ]
        return (*tokens, *counts)

    return law_of_replays(traced(PAIR, settings, candidates=config["k_max"]), run)


@pytest.mark.parametrize("config", BRANCHING, ids=str)
def test_replayed_branch_rounds_have_the_decoders_law(config):
    decoded, again = decoded_branch_rounds(PAIR, config, FILTERED), replayed_branch_rounds(config, FILTERED)
    assert len(decoded) > 20 and total_variation(decoded, again) < 1e-6
    rounds = {count for outcome in decoded for count in outcome if isinstance(count, tuple)}
    assert {accepted > submitted for submitted, *_, candidates, _, accepted, _ in rounds if candidates} == {True, False}


def test_branch_replay_with_another_chance_of_hits_is_wrong():
    decoded = decoded_branch_rounds(PAIR, BRANCHING[0], FILTERED)
    wrong = replayed_branch_rounds(BRANCHING[0], FILTERED, lambda hits: np.full_like(hits, 0.5))
    assert total_variation(decoded, wrong) > 1e-2


# ---- columns against the models' own distributions


def test_a_draft_that_says_nothing_is_not_recorded():
    draft = TableModel(3, seed=2)
    draft.table[:, :, 1] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        traced(ModelPair(TableModel(3, seed=1), draft), SamplingSettings(1.0))
