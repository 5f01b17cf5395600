"""Sources on texts of real models: rounds are the decoder's at temperature 0, and arrays count as the loop does."""

import dataclasses

import numpy as np
import pytest

from predictors.controllers import build_controller
from predictors.latency.prices import RoundPrices
from predictors.replay import chains
from predictors.replay.acceptance import BeyondRecordError
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.decode import Clock
from predictors.replay.grid import Drafts, Starts, decoded
from predictors.replay.policies import confidence, static
from predictors.training.source_contest import Sources
from predictors.training.tables import TextTable
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.drafting.chain import LookupConfig
from tests.bundles import sourced_bundle
from tests.predictors.affine_profile import AS_RUN
from tests.toys import near, tiny_llama
from tests.trace_collection.collecting import differing, gather, random_prompts
from tests.trace_collection.test_sources import FIXED
from trace_collection.texts import TextCollector, TextTraceConfig

TEXTS = TextTraceConfig(
    gamma_max=5, candidates=1, prompts=(0, 1, 4), max_new_tokens=24, layers=1, top=2, prompts_per_shard=3, threads=1
)
DEPTH, LOOKUP = 5, LookupConfig(length=4)
RULES = [
    {"match": 1, "length": 4},
    {"match": 2, "length": 3, "tail": 2},
    {"match": 1, "length": 4, "tail": 4, "score": 1.5},
    {"match": 1, "length": 4, "factor": 1.5, "score": 0.6, "tail": 1},
    {"match": 99},
]
OTHERS = [{"kind": "fixed", "gamma": 3}, {"kind": "fixed", "gamma": 0}, {"kind": "confidence", "epsilon": 0.5}]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(
        tiny_llama(seed=0, vocabulary_size=12, eos_token_id=7), near(tiny_llama(seed=0, vocabulary_size=12))
    )


@pytest.fixture(scope="module")
def prompts():
    made = random_prompts([9, 12, 15, 11, 10], ["validation", *["test"] * 4])
    return [prompt._replace(tokens=[token % 6 for token in prompt.tokens]) for prompt in made]


@pytest.fixture(scope="module")
def texts(pair, prompts, tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    gather(TextCollector(pair, TEXTS, prompts), place)
    return list(TextTable.read(place).texts())


def counts_of(made):
    """A round's counts. What ends the tail after a wrong lookup is not recorded, only where it would end otherwise."""
    counts = made.looked_up, made.accepted, made.emitted
    return counts if made.accepted < made.looked_up else (*counts, made.submitted, made.passes)


def test_replay_is_the_decoder_at_temperature_0(pair, prompts, texts):
    sources = set()
    for rule in RULES:
        for other in OTHERS:
            controller = {"kind": "takeover", **rule, "otherwise": other}
            drafter = {"kind": "chain", "gamma": DEPTH, "lookup": {"length": LOOKUP.length}}
            decoder = build_decoder(pair, {"method": "speculative", "drafter": drafter, "controller": controller})
            policy = ChainPolicy(build_controller(controller), DEPTH, lookup=LOOKUP)
            for text, prompt in zip([one for one in texts if one.settings.greedy], prompts, strict=True):
                out = decoder.generate(prompt.tokens, max_new_tokens=24, randomness=Randomness(0))
                made = list(replayed(text, policy))
                assert [counts_of(one) for one in made] == [counts_of(one) for one in out.rounds[1:]]
                sources |= {(one.looked_up > 0, one.passes > 0, one.accepted > one.looked_up) for one in made}
    assert sources >= {(True, False, False), (True, True, True), (True, True, False), (False, True, True)}


@pytest.mark.parametrize("kind", ["takeover", "source"])
def test_bundles_decide_on_texts_as_they_decode(pair, prompts, texts, tmp_path, kind):
    """With what a model is asked about a source, and what survival knows of its own rounds alone."""
    decoder = load_decoder(sourced_bundle(tmp_path / "b", pair, kind), pair)
    policy = ChainPolicy(decoder.controller, 3, lookup=LookupConfig(length=3))
    sources = set()
    for text, prompt in zip([one for one in texts if one.settings.greedy], prompts, strict=True):
        out = decoder.generate(prompt.tokens, max_new_tokens=24, randomness=Randomness(0))
        made = list(replayed(text, policy))
        assert [counts_of(one) for one in made] == [counts_of(one) for one in out.rounds[1:]]
        for one, real in zip(made, out.rounds[1:], strict=True):
            said, really = ([forecast.probability for forecast in some.forecasts] for some in (one, real))
            assert one.asked == real.asked and said == pytest.approx(really, rel=1e-3)
        sources |= {(one.looked_up > 0, one.asked) for one in made}
    assert {(True, int(kind == "source"))} < sources


def starts_of(texts, greedy, verifier):
    some = [dataclasses.replace(one, verifier=verifier) for one in texts if one.settings.greedy == greedy]
    starts = Starts.of(some, DEPTH, verifier, RoundPrices(AS_RUN, not greedy))
    return dataclasses.replace(starts, lookup=LOOKUP)


def drafts_of(starts, other):
    if other["kind"] == "fixed":
        return static(starts, other["gamma"])
    return confidence(starts, starts.column("confidence"), other["epsilon"])


def chosen(takes_XS, first, second):
    """``first`` where it takes over, else ``second``."""
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return Drafts(*(np.where(takes_XS[..., None], one, other) for one, other in pairs))


def taken_over(starts, config, otherwise):
    """What `Sources.takeover` drafts at every start, where a chain would be ``otherwise``."""
    cells = np.indices(starts.left_XS.shape).reshape(2, -1)
    taken = Sources(starts, (config.tail,)).takeover(config)(*cells)
    submitted_XS, looked_up_XS, asked_XS, takes_XS = (column.reshape(starts.left_XS.shape) for column in taken)
    assert not asked_XS.any()
    drawn_XS = submitted_XS - looked_up_XS
    lookup = Drafts.of(submitted_XS[..., None], drawn_XS[..., None], looked_up=looked_up_XS[..., None])
    return chosen(takes_XS, lookup, otherwise)


def differences(starts, controller, totals):
    """Texts whose totals are not those of the controller's own session."""
    policy = ChainPolicy(controller, DEPTH, starts.verifier, LOOKUP)
    return list(differing(totals, (Clock(AS_RUN).policy(text, policy) for text in starts.texts)))


@pytest.mark.parametrize(("greedy", "verifier"), [(True, "block"), (False, "block"), (False, "tokenwise")])
def test_arrays_count_as_the_loop_does(texts, greedy, verifier):
    starts = starts_of(texts, greedy, verifier)
    lookups, wrong = Sources(starts), 0
    for rule in RULES:
        for other in OTHERS:
            controller = build_controller({"kind": "takeover", **rule, "otherwise": other})
            otherwise = drafts_of(starts, other)
            totals = decoded(starts, taken_over(starts, controller.config, otherwise))
            assert not differences(starts, controller, totals), (rule, other)
            everywhere = lookups.sourced(np.full_like(starts.left_XS, 4), np.zeros_like(starts.left_XS))
            taken = chosen(lookups.match_XS > 0, everywhere, otherwise)
            wrong += differences(starts, controller, decoded(starts, taken)) != []
    assert wrong > 6, "another rule would be seen"


def test_a_draft_model_that_is_behind_catches_up(texts):
    """Rounds that draw nothing leave their tokens to the first pass of the next that does, in the price and in arrays."""
    starts = starts_of(texts, True, "block")
    controller = build_controller({"kind": "takeover", "match": 2, "length": 4, "otherwise": FIXED})
    policy = ChainPolicy(controller, DEPTH, lookup=LOOKUP)
    rounds, waiting = list(replayed(starts.texts[0], policy)), 0
    for one in rounds:
        assert one.behind == (waiting if one.passes else 0)
        waiting = 0 if one.passes else waiting + one.emitted
    assert max(one.behind for one in rounds) > 2
    for one in rounds:
        drafting = sum(1.25 + (one.context + place) / 64 for place in range(one.passes)) + 0.25 * one.behind
        target = 9 + 0.5 * (1 + one.submitted) + one.context / 16
        seconds = 0.5 * (drafting + target + 0.125 * one.passes + 0.5 + 0.25 * one.submitted)
        assert starts.prices.rounds([one]) == pytest.approx(seconds, rel=1e-6)


def test_what_was_not_recorded_is_refused(texts):
    for lookup in (LookupConfig(length=6), LookupConfig(length=2, longest=8)):
        with pytest.raises(BeyondRecordError, match="lookups of"):
            list(replayed(texts[0], ChainPolicy(build_controller({"kind": "takeover"}), DEPTH, lookup=lookup)))


def test_drafts_end_with_an_end_of_sequence(texts, monkeypatch):
    """In a lookup and in a tail drawn after it; a replay that drafts on differs. Here many a token is one."""
    ending = [dataclasses.replace(text, eos_tokens=frozenset({0, 3, 7})) for text in texts]
    controller = build_controller({"kind": "takeover", "match": 1, "length": 1, "tail": 4, "otherwise": FIXED})
    found = []
    for greedy in (True, False):
        starts = starts_of(ending, greedy, "block")
        totals = decoded(starts, taken_over(starts, controller.config, static(starts, 1)))
        assert not differences(starts, controller, totals)
        found.append((starts, totals))
        assert differences(starts_of(texts, greedy, "block"), controller, totals), "where fewer drafts end"
    monkeypatch.setattr(chains.ChainRound, "drawn_after_lookup", lambda made, most: most)
    assert any(differences(starts, controller, totals) for starts, totals in found)
