"""Blocks whose arms are led along one text: which drafts need the target's passes, and what is not led."""

import warnings
from contextlib import suppress

import pytest
import torch

from pipelines.measuring.arms import TimedArm, decoder_arm
from pipelines.measuring.led import TextLeader, looks_at_nothing, static_chain
from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder, load_decoder
from runtime.decoding.base import RoutedDecoder
from runtime.graphs import PlainCalls, Programs
from runtime.leading import GivenText, OffTapeError, plan
from tests.bundles import sourced_bundle, survival_bundle
from tests.pipelines.toy_bench import toy_prompts
from tests.toys import tiny_llama

CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "block"}
GREEDY, SAMPLED = SamplingSettings(0.0), SamplingSettings(1.0)
PROMPT = toy_prompts(1)[0]


def arm_of(name, family, decoder, max_new_tokens):
    return TimedArm(name, family, decoder_arm(decoder, max_new_tokens), decoder)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(target=tiny_llama(32, seed=0, layers=2), draft=tiny_llama(32, seed=1, layers=1))


@pytest.fixture(scope="module")
def fixed(pair):
    return build_decoder(pair, CHAIN)


@pytest.fixture(scope="module")
def confident(pair):
    return build_decoder(pair, {**CHAIN, "controller": {"kind": "confidence", "epsilon": 0.3}})


def test_a_routed_decoder_looks_at_drafts_where_its_route_does(pair, fixed, confident):
    """Its own controller is the static fallback, which says nothing of its routes."""
    routed = RoutedDecoder(pair, [(GREEDY, fixed), (SAMPLED, confident)])
    assert looks_at_nothing(fixed, SAMPLED) and looks_at_nothing(routed, GREEDY)
    assert not looks_at_nothing(confident, SAMPLED) and not looks_at_nothing(routed, SAMPLED)


def test_routed_and_direct_decoders_are_led_to_the_same_rounds(pair, fixed, confident):
    routed = RoutedDecoder(pair, [(GREEDY, fixed), (SAMPLED, confident)])
    block = TextLeader(pair, 24).block(PROMPT, SAMPLED, seed=5)
    runs = [block.decode(arm_of(name, name, one, 24))() for name, one in (("routed", routed), ("direct", confident))]
    assert runs[0].tokens == runs[1].tokens == list(block.text.tokens)
    counts = [[(record.drafted, record.accepted) for record in run.rounds] for run in runs]
    assert counts[0] == counts[1] and len(counts[0]) > 3


def test_what_serves_a_static_chain_is_led_by_the_tape_of_that_chain(pair, fixed, confident, tmp_path):
    """Bundles whose rules do not pay, with a lookup and without one, plan that tape themselves; whatever decides has its own."""
    idle = load_decoder(survival_bundle(tmp_path / "idle", pair, pays=False), pair)
    found = {
        kind: load_decoder(sourced_bundle(tmp_path / kind, pair, kind, pays=False, chains_pay=False), pair)
        for kind in ("source", "takeover")
    }
    one = build_decoder(pair, {**CHAIN, "drafter": {"kind": "chain", "gamma": 1}})
    capped = build_decoder(pair, {**CHAIN, "controller": {"kind": "fixed", "gamma": 1}})
    same = {"idle": idle, "one": one, "capped": capped, **found}
    assert {static_chain(decoder, SAMPLED) for decoder in same.values()} == {(1, None, "block")}
    assert static_chain(fixed, SAMPLED) == (3, None, "block")
    asked = load_decoder(survival_bundle(tmp_path / "asked", pair), pair)
    looking = load_decoder(sourced_bundle(tmp_path / "looking", pair, "takeover", chains_pay=False), pair)
    assert [static_chain(decoder, SAMPLED) for decoder in (asked, looking, confident)] == [None] * 3
    block = TextLeader(pair, 24).block(PROMPT, SAMPLED, seed=5)
    own = [plan(decoder, block.text, block.seed, tails=False) for decoder in same.values()]
    assert len(own[0].rounds) > 5 and all(tape == own[0] for tape in own)
    for name, decoder in {**same, "fixed": fixed, "asked": asked}.items():
        run = block.decode(arm_of(name, name, decoder, 24))()
        assert run.tokens == list(block.text.tokens), name
    assert list(block.tapes) == [(1, None, "block"), (3, None, "block")]
    assert block.tapes[1, None, "block"] == own[0] != block.tapes[3, None, "block"]


def test_static_chains_follow_their_tape_by_recorded_chance():
    """Which needs a number for every verdict: tails that were drawn freely may be accepted where the text says otherwise."""
    near = tiny_llama(32, seed=0, layers=2)
    with torch.no_grad():
        near.lm_head.weight.add_(
            0.02 * torch.randn(near.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
        )
    close = ModelPair(target=tiny_llama(32, seed=0, layers=2), draft=near)
    for model in (close.target, close.draft):
        model.programs = Programs(PlainCalls())
    decoder = build_decoder(close, {**CHAIN, "drafter": {"kind": "chain", "gamma": 6}})
    leader, free = TextLeader(close, 24), 0
    for seed in range(12):
        block = leader.block(PROMPT, SAMPLED, seed)
        assert block.recorded
        assert block.decode(arm_of("chain-6", "chain", decoder, 24))().tokens == list(block.text.tokens)
        tape = plan(decoder, block.text, seed, tails=False)
        with suppress(OffTapeError):
            run = decoder.generate(PROMPT.tokens, randomness=tape.chance(recorded=True), **block.text.options)
            free += tape.followed(run)
    assert free < 12, "the twin"


def test_what_cannot_be_led_decodes_freely_and_says_why(pair, fixed, monkeypatch):
    tree = {"method": "speculative", "drafter": {"kind": "fork", "width": 2, "depth": 2}, "verifier": "traversal"}
    leader = TextLeader(pair, 12)
    block = leader.block(PROMPT, SAMPLED, seed=1)
    assert block.decode(arm_of("tree", "fork", build_decoder(pair, tree), 12)) is None

    def impossible(*arguments, **options):
        raise ValueError("token 3 at position 2 of the text has probability 0.0 under the target.")

    monkeypatch.setattr(GivenText, "of", impossible)
    with pytest.warns(UserWarning, match="no arm is led: token 3"):
        assert leader.block(PROMPT, SAMPLED, seed=1) is None
    monkeypatch.setattr("pipelines.measuring.led.plan", impossible)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert block.decode(arm_of("chain-3", "chain", fixed, 12)) is None
    (warned,) = (str(one.message) for one in caught)
    assert warned.startswith("chain-3 ") and "token 3 at position 2" in warned


def test_a_blocks_text_is_plain_decodings_own_by_its_seed(pair):
    plain = arm_of("plain", "plain", build_decoder(pair, {"method": "autoregressive"}), 12)
    block = TextLeader(pair, 12).block(PROMPT, SAMPLED, seed=9)
    assert list(block.text.tokens) == plain.run(PROMPT.tokens, SAMPLED, 9).tokens
