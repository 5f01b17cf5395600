"""Led decodes with lookups: tokens that are not drawn leave no choice; text and rounds keep the real decoder's distribution."""

from functools import cache

import pytest

from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder
from runtime.drafting.chain import LookupDraft
from runtime.graphs import Programs
from runtime.leading import OffTapeError, plan, why_not_led
from runtime.leading.leader import Leader, LedChain
from tests.runtime.graphing import Traced
from tests.runtime.leading import SETTINGS, decoded, led_along_texts
from tests.runtime.lookups import CHOICES, PROMPT, lookup_decoder, mixed_decoder, toy_pair
from tests.runtime.test_led_tapes import recorded_text, rounds
from tests.toys import tiny_llama, total_variation

PAIR, LOG = toy_pair(), []
MIXED = {"gamma": 3, "length": 2}
SOURCES = {name: CHOICES[name] for name in ("then_drawn", "looked_up", "nothing", "by_found", "by_past")}


@pytest.fixture(autouse=True)
def logged(monkeypatch):
    """Every round's drafted tokens, drawn after a lookup or not."""
    honest = LookupDraft._drafted

    def logging(self, chain):
        drafted = honest(self, chain)
        LOG.append(tuple(drafted.tree.token_list))
        return drafted

    monkeypatch.setattr(LookupDraft, "_drafted", logging)
    LOG.clear()


def seen(decoder, generation):
    """Text, rounds, and what was drafted."""
    rounds = [(one.drafted, one.looked_up, one.accepted, one.emitted) for one in generation.rounds[1:]]
    drafted = tuple(LOG)
    LOG.clear()
    return tuple(generation.tokens), tuple(rounds), drafted


def real_joint(decoder, **options):
    return decoded(decoder, prompt=PROMPT, seen=seen, **options)


def missed(decoder, real=None, **options):
    """Total variation between the real decoder's joint distribution and that of text, then led."""
    joint = led_along_texts(decoder, prompt=PROMPT, seen=seen, **options)
    return total_variation(real or real_joint(decoder, **options), joint)


@cache
def block_joint():
    return real_joint(mixed_decoder(PAIR, CHOICES["then_drawn"], **MIXED))


@pytest.mark.parametrize("choice", SOURCES)
@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
def test_text_then_led_is_the_real_joint(verifier, choice):
    assert missed(mixed_decoder(PAIR, CHOICES[choice], verifier, **MIXED)) < 1e-9


@pytest.mark.parametrize("settings", [SamplingSettings(0.7, top_k=2), SamplingSettings(1.0, top_p=0.7)], ids=str)
def test_also_under_filters(settings):
    decoder = mixed_decoder(toy_pair(4), CHOICES["by_past"], draft_temperature=2.0, **MIXED)
    assert missed(decoder, settings=settings) < 1e-9


@pytest.mark.parametrize("verifier", ["tokenwise", "block", "match"])
def test_a_lookup_alone_is_led(verifier):
    decoder = lookup_decoder(ModelPair(PAIR.target), verifier, length=3)
    assert why_not_led(decoder, SETTINGS) is None
    assert missed(decoder) < 1e-9


def test_also_where_texts_end_early():
    pair = toy_pair()
    pair.target.eos_tokens = frozenset({0})
    assert missed(mixed_decoder(pair, CHOICES["by_past"], **MIXED)) < 1e-9
    assert missed(lookup_decoder(pair, length=3)) < 1e-9


@pytest.mark.parametrize("choice", ["then_drawn", "by_past"])
def test_free_tails_are_exact_for_rounds_that_look_at_no_token(choice):
    """What is drawn along the text after a lookup still weighs its tokens."""

    def counted(decoder, generation):
        return seen(decoder, generation)[:2]

    decoder = mixed_decoder(PAIR, CHOICES[choice], **MIXED)
    real = decoded(decoder, prompt=PROMPT, seen=counted)
    led = led_along_texts(decoder, prompt=PROMPT, seen=counted, tails=False)
    assert total_variation(real, led) < 1e-9


# ---- deliberately wrong twins


def test_a_tail_that_forgets_the_lookups_weight_is_noticed(monkeypatch):
    assert missed(mixed_decoder(PAIR, CHOICES["then_drawn"], **MIXED), block_joint()) < 1e-9
    honest = Leader._take_certain
    monkeypatch.setattr(Leader, "_take_certain", lambda self, chain, weigh: honest(self, chain, False))
    assert missed(mixed_decoder(PAIR, CHOICES["then_drawn"], **MIXED), block_joint()) > 1e-3


def test_a_tail_drawn_as_if_the_lookup_was_right_is_noticed(monkeypatch):
    monkeypatch.setattr(LedChain, "leave", lambda self, token, draft, target: self.tokens.append(token))
    assert missed(mixed_decoder(PAIR, CHOICES["then_drawn"], **MIXED), block_joint()) > 1e-3


def test_a_lookup_that_is_not_noted_is_noticed(monkeypatch):
    monkeypatch.setattr("runtime.drafting.chain.note", lambda randomness, tokens: None)
    with pytest.raises(AssertionError, match="every drafted token was drawn"):
        missed(mixed_decoder(PAIR, CHOICES["looked_up"], **MIXED))


# ---- tapes


@pytest.fixture(scope="module")
def llamas():
    return [tiny_llama(3, seed=seed).double() for seed in (0, 1)]


def arms(pair):
    return [
        mixed_decoder(pair, CHOICES["by_past"], gamma=4, length=3),
        mixed_decoder(pair, CHOICES["then_drawn"], "tokenwise", gamma=3),
        lookup_decoder(pair, length=4),
        lookup_decoder(pair, "match", length=4, least=2),
    ]


@pytest.mark.parametrize("number", range(4))
def test_every_arm_emits_the_text_and_replays_its_rounds(llamas, number):
    pair = ModelPair(*llamas)
    decoder, text = arms(pair)[number], recorded_text(pair)
    tape = plan(decoder, text, seed=3)
    first, second = (decoder.generate(list(text.prompt), randomness=tape.chance(), **text.options) for _ in range(2))
    assert tuple(first.tokens) == text.tokens and tape.followed(first)
    assert rounds(first) == rounds(second)
    assert any(one.looked_up for one in first.rounds) and any(one.accepted for one in first.rounds)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_recorded_programs_read_the_tape_too(llamas, number, recorded):
    pair = ModelPair(*llamas, forward="graphed")
    for model in (pair.target, pair.draft):
        model.programs = Programs(Traced())
    decoder, text = arms(pair)[number], recorded_text(pair, length=10)
    tape = plan(decoder, text, seed=3)
    assert tape.followed(decoder.generate(list(text.prompt), randomness=tape.chance(recorded), **text.options))


def test_another_lookup_is_off_the_tape(llamas):
    pair = ModelPair(*llamas)
    text = recorded_text(pair)
    tape = plan(lookup_decoder(pair, length=4, longest=8), text, seed=3)
    with pytest.raises(OffTapeError, match="planned"):
        lookup_decoder(pair, length=4, longest=1).generate(list(text.prompt), randomness=tape.chance(), **text.options)


def test_what_cannot_be_led_says_why():
    config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2, "lookup": {"length": 2}}}
    assert why_not_led(build_decoder(PAIR, config), SETTINGS) is None
    assert "'match'" in why_not_led(build_decoder(PAIR, config | {"verifier": "match"}), SETTINGS)
    alone = {"method": "speculative", "drafter": {"kind": "lookup"}}
    assert why_not_led(build_decoder(PAIR, alone | {"verifier": "match"}), SETTINGS) is None
    assert "'traversal'" in why_not_led(build_decoder(PAIR, alone | {"verifier": "traversal"}), SETTINGS)
