"""Text traces against the models, and their replay: the law of a decode's rounds, its text among them, is the real decoder's."""

import dataclasses
import itertools
import weakref
from functools import cache, partial

import numpy as np
import pytest
import torch

from predictors.controllers import build_controller
from predictors.lookup import CONTEXT, LONGEST, Found, founds
from predictors.replay.acceptance import reached
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw
from predictors.stopping import StopSpec
from runtime import ModelPair, Randomness, build_decoder
from runtime.branching.draft import BranchConfig
from runtime.laws import processed_law
from tests.by_rounds import decodes
from tests.eagle3 import random_drafter
from tests.toys import TableModel, enumerate_outcomes, tiny_llama, total_variation
from trace_collection.text_tracer import TextTracer, candidate_hits
from trace_collection.texts import TextCollector, TextTraceConfig
from trace_collection.trajectories import Trajectory, continuations

PROMPT = [0, 1]
BUDGET = 4
PAIR = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
CONTROLLERS = [
    {"kind": "fixed"},
    {"kind": "fixed", "gamma": 1},
    {"kind": "confidence", "epsilon": 0.6},
    {"kind": "confidence", "epsilon": 0.6, "min_tokens": 0},
    {"kind": "entropy", "threshold": 0.5},
    {"kind": "roc", "threshold": 0.5, "min_pairs": 0},
    {"kind": "ema", "tiers": [1, 2], "decay": 0.0},
]


def summed(outcomes):
    """The law of ``outcomes``, which may repeat, each with its probability."""
    law = {}
    for outcome, probability in outcomes:
        law[outcome] = law.get(outcome, 0.0) + probability
    return law


class Uncoupled(TextTracer):
    """Beside the text goes any draft token, not one that was rejected: what the text says is ignored."""

    def _beside(self, state, along, target_NV, settings, chance):
        return super()._beside(state, along, torch.zeros_like(target_NV), settings, chance)


class Counting(TextTracer):
    """Knows how many levels were held at once."""

    def _level(self, *arguments):
        made, known = super()._level(*arguments), vars(self).setdefault("known", [])
        known.append(weakref.ref(made))
        self.most = max(vars(self).get("most", 0), sum(one() is not None for one in known))
        return made


def drawn(pair, settings, chance, budget=BUDGET):
    """A text of the target, as collections draw it."""
    return next(continuations(pair.target, [Trajectory(PROMPT, settings, chance)], budget)).tokens


@cache
def traced(settings, kind=TextTracer, candidates=1):
    """Every text of `PAIR` with its traces, and their probability: replays of all controllers read the same ones."""

    def run(chance):
        tokens = drawn(PAIR, settings, chance)
        return tokens, recorded(PAIR, tokens, settings, chance, kind, candidates)

    merged = {}  # of traces that are equal to the last byte, one
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


def recorded(pair, text, settings, chance, kind=TextTracer, candidates=1):
    tracer = kind(pair, 2, BUDGET, candidates, layers=(), spec=StopSpec((), 0, 2), state_slots=2)
    columns = tracer.trace(PROMPT, text, settings, chance)
    return RecordedText("p", "d", "s", settings, len(PROMPT), BUDGET, columns, pair.target.eos_tokens)


def decoded_rounds(pair, controller, settings, verifier="tokenwise"):
    drafter = {"kind": "chain", "gamma": 2}
    config = {"method": "speculative", "drafter": drafter, "verifier": verifier, "controller": controller}
    decoder = build_decoder(pair, config)

    def outcomes():
        for tokens, records, probability in decodes(decoder, PROMPT, BUDGET, settings):
            yield (*tokens, *((one.drafted, one.accepted, one.emitted) for one in records[1:])), probability

    return summed(outcomes())


def replayed_rounds(controller, settings, verifier="tokenwise", kind=TextTracer):
    policy = ChainPolicy(build_controller(controller), 2)

    def run(tokens, text, chance):

        def accepted(start, looked_up):
            at = (text.columns[name][start - 1 :] for name in ("ratio", "probability"))
            reached_G = np.concatenate([[1.0], reached(*at, verifier), [0.0]])
            return int(chance.categorical(torch.from_numpy(-np.diff(reached_G))))

        rounds = replayed(text, policy, accepted)
        return (*tokens, *((one.submitted, one.accepted, one.emitted) for one in rounds))

    return law_of_replays(traced(settings, kind), run)


def test_levels_are_numbers_as_soon_as_their_tokens_are_drawn():
    """The text's own level stays, and that before the newest."""
    settings, chance = SamplingSettings(1.0), Randomness(0)
    pair = ModelPair(TableModel(4, seed=3), TableModel(4, seed=4))
    tracer = Counting(pair, 6, 12, 1, layers=(), spec=StopSpec((), 0, 2), state_slots=2)
    tracer.trace(PROMPT, drawn(pair, settings, chance, 12), settings, chance)
    assert len(tracer.known) > 4 and tracer.most <= 3


@pytest.mark.parametrize("controller", CONTROLLERS, ids=str)
@pytest.mark.parametrize("settings", [SamplingSettings(1.0), SamplingSettings(0.7, top_k=2)], ids=str)
def test_replayed_rounds_have_the_decoders_law(controller, settings):
    decoded, again = decoded_rounds(PAIR, controller, settings), replayed_rounds(controller, settings)
    assert len(decoded) > 20 and total_variation(decoded, again) < 1e-6  # recorded numbers are float32


def test_replay_that_ignores_the_text_is_wrong():
    """Confidence behind a rejected token is not what it is behind any draft token, and counts follow the verifier's own rule."""
    settings, controller = SamplingSettings(0.7, top_k=2), {"kind": "confidence", "epsilon": 0.6}
    decoded = decoded_rounds(PAIR, controller, settings)
    for wrong in ({"kind": Uncoupled}, {"verifier": "nss"}):
        assert total_variation(decoded, replayed_rounds(controller, settings, **wrong)) > 1e-3


def test_block_replay_is_exact_where_no_decision_looks_behind_a_rejection():
    settings, controller = SamplingSettings(1.0), {"kind": "ema", "tiers": [1, 2], "decay": 0.0}
    decoded = decoded_rounds(PAIR, controller, settings, "block")
    again = replayed_rounds(controller, settings, "block")
    assert total_variation(decoded, again) < 1e-6


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


def replayed_branch_rounds(config, settings, wrong=lambda probability: probability):
    options = dict(config)
    controller = build_controller(options.pop("controller", {"kind": "confidence", "epsilon": 0.2}))

    def run(tokens, text, chance):
        def would(start):
            at = (text.columns[name][start - 1 :] for name in ("ratio", "probability"))
            reached_G = np.concatenate([[1.0], reached(*at, "tokenwise"), [0.0]])
            return int(chance.categorical(torch.from_numpy(-np.diff(reached_G))))

        def hit(row, probability):
            return bool(chance.categorical(torch.tensor([1 - wrong(probability), wrong(probability)])))

        rounds = replayed_branches(text, controller, BranchConfig(**options), would, hit)
        counts = [
            (one.submitted, one.idle_levels, one.levels, one.candidates, one.law_known, one.accepted, one.emitted)
            for one in rounds
        ]
        return (*tokens, *counts)

    return law_of_replays(traced(settings, candidates=config["k_max"]), run)


@pytest.mark.parametrize("config", BRANCHING, ids=str)
def test_replayed_branch_rounds_have_the_decoders_law(config):
    settings = SamplingSettings(1.0)
    decoded, again = decoded_branch_rounds(PAIR, config, settings), replayed_branch_rounds(config, settings)
    assert len(decoded) > 20 and total_variation(decoded, again) < 1e-6
    rounds = {count for outcome in decoded for count in outcome if isinstance(count, tuple)}
    assert {accepted > submitted for submitted, *_, candidates, _, accepted, _ in rounds if candidates} == {True, False}


def test_branch_replay_with_another_chance_of_hits_is_wrong():
    settings = SamplingSettings(1.0)
    decoded = decoded_branch_rounds(PAIR, BRANCHING[0], settings)
    assert total_variation(decoded, replayed_branch_rounds(BRANCHING[0], settings, lambda chance: 0.5)) > 1e-2


# ---- columns against the models' own distributions


def continuation_of_longest_match(tokens, most):
    """How many last tokens occurred before, and what followed them there: every earlier end is tried, the latest first."""
    for length in range(min(most, len(tokens) - 1), 0, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return length, tokens[end:]
    return 0, []


def followers(tokens, length):
    """What came after every earlier occurrence of the last ``length`` tokens."""
    ends = range(length, len(tokens)) if length else ()
    return [tokens[end] for end in ends if tokens[end - length : end] == tokens[-length:]]


def test_matches_are_the_longest_and_the_latest():
    generator = torch.Generator().manual_seed(0)
    for vocabulary, longest in itertools.product((1, 2, 3, 9), (1, 2, 4, 99)):
        tokens = torch.randint(vocabulary, (30,), generator=generator).tolist()
        for end, found in enumerate(founds(tokens, 5, longest), start=1):
            length, follows = continuation_of_longest_match(tokens[:end], longest)
            after = followers(tokens[:end], min(length, CONTEXT))
            assert found == Found(length, tuple(follows[:5]), len(after), after.count((follows or [-1])[0]))
    with pytest.raises(ValueError, match="longest must be >= 1"):
        founds([1], 1, longest=0)


def test_lookup_columns_are_what_followed_the_longest_match():
    pair, generator = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2)), torch.Generator().manual_seed(0)
    tracer = TextTracer(pair, 3, 30, 1, layers=(), spec=StopSpec((), 0, 2), state_slots=3)
    lengths = set()
    for period in (1, 2, 5, 30):
        text = (torch.randint(3, (period,), generator=generator).tolist() * 30)[:30]
        columns = tracer.trace(PROMPT, text, SamplingSettings(1.0), Randomness(0))
        for row in range(29):
            known = [*PROMPT, *text[: row + 1]]
            length, follows = continuation_of_longest_match(known, LONGEST)
            assert columns["match"][row] == length
            assert columns["lookup"][row].tolist() == (follows + [-1] * 3)[:3]
            after = followers(known, min(length, CONTEXT))
            assert (columns["seen"][row], columns["agreed"][row]) == (len(after), after.count((follows or [-1])[0]))
            lengths.add(length)
    assert lengths >= {1, 2, LONGEST}


@pytest.mark.parametrize(
    "settings", [SamplingSettings(0.0), SamplingSettings(1.0), SamplingSettings(0.7, top_k=2)], ids=str
)
def test_columns_are_what_the_models_say(settings):
    """Of the text's tokens, of those beside it and of every rollout, distributions are computed anew."""
    pair = ModelPair(TableModel(4, seed=1), TableModel(4, seed=2))
    text, unit = drawn(pair, settings, Randomness(1), 10), SamplingSettings(1.0)
    tracer = TextTracer(pair, 3, 10, 2, layers=(), spec=StopSpec((), 0, 3), state_slots=3)
    columns = tracer.trace(PROMPT, text, settings, Randomness(3))
    assert columns["newest"].tolist() == text[:-1] and columns["token"].tolist() == text[1:]
    beside = 0
    for row, token in enumerate(text[1:]):
        context = [*PROMPT, *text[: row + 1]]
        p_V, q_V, unit_V = (
            processed_law(model.logits(context), made)
            for model, made in ((pair.target, settings), (pair.draft, settings), (pair.draft, unit))
        )
        assert columns["probability"][row] == pytest.approx(float(q_V[token]))
        assert columns["target_probability"][row] == pytest.approx(float(p_V[token]))
        assert columns["ratio"][row] == pytest.approx(float(q_V[token] / p_V[token]))
        assert columns["overlap"][row] == pytest.approx(float(torch.minimum(p_V, q_V).sum()))
        assert columns["rank"][row] == int((unit_V > unit_V[token]).sum())
        tokens = [other for other in columns["tokens"][row].tolist() if other >= 0]
        if tokens:
            other, beside = tokens[0], beside + 1
            assert q_V[other] > p_V[other], "it could be rejected"
            expected = float(q_V[other] / p_V[other]) if p_V[other] else np.inf
            assert columns["beside_ratio"][row] == pytest.approx(expected)
        else:
            assert np.isnan(columns["beside_ratio"][row]) and torch.allclose(p_V, q_V)
        for slot in range(max(1, len(tokens))):
            law = NextLaw(None, settings, 0, pair.draft.logits([*context, *tokens[:slot]]), q_V)
            law.probs_V = processed_law(law.logits_V, settings)
            for name in ("confidence", "entropy", "law_entropy"):
                assert columns[name][row, slot] == pytest.approx(float(getattr(law, name)), abs=1e-9)
            assert columns["tops"][row, slot] == pytest.approx(law.likeliest(3).numpy())
            if tokens:
                assert columns["probabilities"][row, slot] == pytest.approx(float(law.probs_V[tokens[slot]]))
                assert columns["unit_probabilities"][row, slot] == pytest.approx(float(law.unit_probs_V[tokens[slot]]))
        assert np.isnan(columns["entropy"][row, max(1, len(tokens)) :]).all()
        assert len(tokens) in (0, min(3, 8 - row) or 1), "up to gamma_max, as far as the budget goes"
    assert beside > 3


def test_a_draft_that_reads_the_targets_states_is_refused():
    model = tiny_llama(seed=0)
    pair = ModelPair(model, random_drafter(model))
    with pytest.raises(ValueError, match="reads the target's states"):
        TextCollector(pair, TextTraceConfig(), [])
