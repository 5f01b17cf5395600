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
from predictors.lookup import CONTEXT, LONGEST, Found, founds
from predictors.replay.acceptance import BeyondRecordError, reached
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw
from predictors.stopping import StopSpec
from runtime import ModelPair, Randomness, build_decoder
from runtime.adapter import features_of
from runtime.branching.draft import BranchConfig
from runtime.drafting.draft import fit_vocabulary
from runtime.laws import processed_law
from tests.by_rounds import decodes
from tests.eagle3 import random_drafter
from tests.toys import TableModel, enumerate_outcomes, summed, tiny_llama, total_variation
from tests.trace_collection.collecting import kept_shares, middle
from trace_collection import text_tracer
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
    ``twin`` names a function of `text_tracer` that is another one's."""
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
    with mock.patch.object(text_tracer, *twin) if twin else nullcontext():
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
    twin = traced(READING, HOT, verifier, ("reads_states", lambda model: False))
    assert total_variation(decoded, replayed_rounds(controller, twin, verifier)) > 1e-3


def any_token(q_RV, p_RV, y_R, weight_R, verifier):
    """What the text says is ignored."""
    return q_RV


def tokenwise_rejected(q_RV, p_RV, y_R, weight_R, verifier):
    return REJECTED(q_RV, p_RV, y_R, weight_R, "tokenwise")


REJECTED = text_tracer.rejected_law


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
    texts = traced(PAIR, SamplingSettings(1.0), verifier, ("rejected_law", twin) if twin else None, length=3)

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
    tracer = TextTracer(pair, 3, 30, 1, layers=(), spec=StopSpec((), 0, 2), state_slots=3, verifier="block")
    lengths = set()
    for period in (1, 2, 5, 30):
        text = (torch.randint(3, (period,), generator=generator).tolist() * 30)[:30]
        columns = tracer.trace(PROMPT, text, SamplingSettings(1.0), Randomness(0), np.full((2, 29), 0.5))
        for row in range(29):
            known = [*PROMPT, *text[: row + 1]]
            length, follows = continuation_of_longest_match(known, LONGEST)
            assert columns["match"][row] == length
            assert columns["lookup"][row].tolist() == (follows + [-1] * 3)[:3]
            after = followers(known, min(length, CONTEXT))
            assert (columns["seen"][row], columns["agreed"][row]) == (len(after), after.count((follows or [-1])[0]))
            lengths.add(length)
    assert lengths >= {1, 2, LONGEST}


@pytest.mark.parametrize("settings", [SamplingSettings(0.0), SamplingSettings(1.0), FILTERED], ids=str)
@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
@pytest.mark.parametrize("reads", [False, True], ids=["tokens", "states"])
def test_columns_are_what_the_models_say(reads, settings, verifier):
    """Along the text and along the chain from every root, distributions are computed anew, one token at a time."""
    size, budget, pair = 3, 10, reading_pair(4) if reads else ModelPair(TableModel(4, seed=1), TableModel(4, seed=2))
    text, luck_2N = drawn(pair, settings, Randomness(1), budget), np.random.default_rng(0).random((2, budget - 1))
    tracer = TextTracer(pair, size, budget, 2, layers=(), spec=StopSpec((), 0, 3), state_slots=3, verifier=verifier)
    columns = tracer.trace(PROMPT, text, settings, Randomness(3), luck_2N)
    assert columns["newest"].tolist() == text[:-1] and columns["token"].tolist() == text[1:]
    rejected = 0
    for row in range(len(text) - 1):
        context, accepted, product, before, weight = [*PROMPT, *text[: row + 1]], 0, 1.0, 1.0, 1.0
        tokens = [token for token in columns["tokens"][row].tolist() if token >= 0]
        on_text = True
        for slot in range(size):
            if row + slot < len(text) - 1:
                token = text[row + 1 + slot]
                p_V = target_law(pair, [*context, *text[row + 1 : row + 1 + slot]], settings, token)
                q_V, unit_V = draft_laws(pair, context, text[row + 1 : row + 1 + slot], settings)
                ratio = float(q_V[token] / p_V[token])
                assert columns["ratio"][row, slot] == pytest.approx(ratio, rel=1e-4)
                assert columns["probability"][row, slot] == pytest.approx(float(q_V[token]), rel=1e-4)
                product *= ratio if verifier == "block" else min(1.0, ratio)
                after = min(before, product)
                kept = luck_2N[0, row + slot] * before < after
                if on_text:
                    assert columns["overlap"][row, slot] == pytest.approx(
                        float(torch.minimum(p_V, q_V).sum()), rel=1e-4
                    )
                    assert columns["rank"][row, slot] == int((unit_V > unit_V[token]).sum())
                    if kept:
                        assert tokens[slot] == token
                        accepted += 1
                    else:
                        other, rejected = tokens[slot], rejected + 1
                        surplus = q_V[other] - weight * p_V[other]
                        assert other != token and surplus > 0, "it could be rejected"
                        assert columns["rejected_ratio"][row] == pytest.approx(float(q_V[other] / p_V[other]), rel=1e-4)
                on_text, before = on_text and kept, after
                weight = min(1.0, weight / ratio) if ratio and verifier == "block" else 1.0
            else:
                assert columns["ratio"][row, slot] == columns["probability"][row, slot] == 0
                on_text = False
            if slot < len(tokens):
                q_V, _ = draft_laws(pair, context, tokens[:slot], settings)
                logits_V = draft_logits(pair, context, tokens[:slot])
                law = NextLaw(None, settings, 0, logits_V, q_V)
                for name in ("confidence", "entropy", "law_entropy"):
                    assert columns[name][row, slot] == pytest.approx(float(getattr(law, name)), abs=1e-5)
                assert columns["tops"][row, slot] == pytest.approx(law.likeliest(3).numpy(), abs=1e-5)
                assert columns["probabilities"][row, slot] == pytest.approx(float(q_V[tokens[slot]]), abs=1e-5)
                own = float(law.unit_probs_V[tokens[slot]])
                assert columns["unit_probabilities"][row, slot] == pytest.approx(own, abs=1e-5)
        assert columns["accepted"][row] == accepted
        assert np.isnan(columns["entropy"][row, len(tokens) :]).all()
        assert len(tokens) >= min(size, budget - 2 - row), "up to gamma_max, as far as the budget goes"
    assert rejected > 2


def target_law(pair, tokens, settings, decided):
    if settings.greedy:
        return torch.nn.functional.one_hot(torch.tensor(decided), pair.target.vocabulary_size).double()
    return processed_law(pair.target.open(64).forward(tokens).logits[-1], settings).double()


def draft_logits(pair, context, tokens):
    """Of a draft of ``tokens`` from a root after ``context``, in passes of one token."""
    state, reads = pair.draft.open(64), features_of(pair.draft)
    if reads:
        hidden_NKD = pair.target.open(64, reads).forward(context).hidden_NKD
        state.offer(hidden_NKD[: len(context) - 1])
    out = state.forward(context[1:] if reads else context)
    state.keep(range(len(context) - bool(reads)))
    for token in tokens:
        out = state.forward([token])
    return fit_vocabulary(out.logits[-1], pair.target.vocabulary_size)


def draft_laws(pair, context, tokens, settings):
    logits_V = draft_logits(pair, context, tokens)
    return processed_law(logits_V, settings).double(), processed_law(logits_V, SamplingSettings(1.0)).double()


def test_a_draft_that_says_nothing_is_not_recorded():
    draft = TableModel(3, seed=2)
    draft.table[:, :, 1] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        traced(ModelPair(TableModel(3, seed=1), draft), SamplingSettings(1.0))
