"""Tapes of led decodes: every arm emits the text in the rounds planned; luck by position; what cannot be led is refused."""

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.decoding.base import RoutedDecoder
from runtime.drafting.sampler import GraphedSampler, PlainSampler, sampler_for
from runtime.graphs import Programs
from runtime.leading import GivenText, OffTapeError, plan, why_not_led
from runtime.leading.leader import KEEP, luck_of, seeded_uniforms
from runtime.leading.tape import led
from tests.ancestral import LlamaLogits
from tests.runtime.graphing import Traced
from tests.runtime.leading import PROMPT, SETTINGS, chain_decoder, toy_pair
from tests.toys import Forking, tiny_llama

TEXT_LENGTH = 24


@pytest.fixture(scope="module")
def pair():
    return ModelPair(*(tiny_llama(seed=seed).double() for seed in (0, 1)))


ARMS = {
    "plain": {"method": "autoregressive"},
    "fixed": {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}},
    "long": {"method": "speculative", "drafter": {"kind": "chain", "gamma": 5}, "verifier": "tokenwise"},
    "entropy": {"method": "speculative", "drafter": {"kind": "chain", "gamma": 6}, "controller": {"kind": "entropy"}},
    "ema": {"method": "speculative", "drafter": {"kind": "chain", "gamma": 6}, "controller": {"kind": "ema"}},
    "hsd": {
        "method": "speculative",
        "drafter": {"kind": "chain", "gamma": 4, "draft_temperature": 0.5},
        "verifier": "hsd",
    },
}


def recorded_text(pair, length=TEXT_LENGTH, seed=0, eos=(), settings=SETTINGS):
    plain = build_decoder(pair, {"method": "autoregressive"})
    options = {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
    out = plain.generate(PROMPT, max_new_tokens=length, randomness=Randomness(seed), eos_token_id=eos, **options)
    return GivenText.of(pair, PROMPT, out.tokens, settings, length, eos)


def rounds(generation):
    return [(record.drafted, record.accepted, record.emitted) for record in generation.rounds]


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_emits_the_text_and_replays_its_rounds(pair, arm):
    decoder, text = build_decoder(pair, ARMS[arm]), recorded_text(pair)
    tape = plan(decoder, text, seed=3)
    first, second = (decoder.generate(PROMPT, randomness=tape.chance(), **text.options) for _ in range(2))
    assert tuple(first.tokens) == text.tokens
    assert tape.followed(first) and rounds(first) == rounds(second)
    assert sum(record.emitted for record in first.rounds) == TEXT_LENGTH
    other = plan(decoder, text, seed=4)
    assert arm == "plain" or other.rounds != tape.rounds


@pytest.mark.parametrize("arm", ARMS)
def test_the_text_ends_where_it_ended(pair, arm):
    whole = recorded_text(pair)
    end = whole.tokens[9]
    text = recorded_text(pair, eos=(end,))
    assert len(text.tokens) == whole.tokens.index(end) + 1 < TEXT_LENGTH
    decoder = build_decoder(pair, ARMS[arm])
    for seed in range(3):
        tape = plan(decoder, text, seed)
        out = decoder.generate(PROMPT, randomness=tape.chance(), **text.options)
        assert tuple(out.tokens) == text.tokens and tape.followed(out)


def test_arms_that_decide_the_same_have_the_same_rounds(pair):
    text = recorded_text(pair)
    never = {**ARMS["fixed"], "controller": {"kind": "confidence", "epsilon": 0.0}}
    one, other = (plan(build_decoder(pair, config), text, seed=3) for config in (ARMS["fixed"], never))
    assert one.rounds == other.rounds
    longer = plan(build_decoder(pair, {**ARMS["fixed"], "drafter": {"kind": "chain", "gamma": 4}}), text, seed=3)
    assert longer.rounds[0].tokens[:3] == one.rounds[0].tokens
    assert min(longer.rounds[0].kept, 3) == one.rounds[0].kept


def test_a_tokenwise_verifiers_luck_is_the_positions_own(pair):
    """A round that starts elsewhere rejects the same position: chains of 2 and of 5 tokens leave the text where they can."""
    text = recorded_text(pair)
    arms = [{**ARMS["long"], "drafter": {"kind": "chain", "gamma": gamma}} for gamma in (2, 5)]
    left, kept = [], []
    for config in arms:
        row, leaves, keeps = 1, set(), set()
        for one in plan(build_decoder(pair, config), text, seed=3).rounds:
            keeps |= set(range(row, row + one.kept))
            leaves |= {row + one.kept} if one.kept < len(one.tokens) else set()
            row += one.kept + 1
        left.append(leaves)
        kept.append(keeps)
    assert left[0] and kept[0]
    assert not left[0] & kept[1] and not left[1] & kept[0]


def test_plans_of_a_text_share_the_targets_probabilities_beside_it(pair):
    """In any order, and they are those of the whole context."""
    text, arms = recorded_text(pair), [ARMS[name] for name in ("entropy", "fixed", "ema")]
    alone = [plan(build_decoder(pair, arm), recorded_text(pair), seed=3).rounds for arm in arms]
    assert [plan(build_decoder(pair, arm), text, seed=3).rounds for arm in arms] == alone
    known = text.logits(pair.target).beside_V
    assert len({row for row, _ in known}) > 2 and max(len(tokens) for _, tokens in known) > 1
    reference = LlamaLogits(pair.target.model)
    for (row, beside), logits_V in known.items():
        expected_V = reference.logits([*PROMPT, *text.tokens[:row], *beside])
        torch.testing.assert_close(logits_V, expected_V, rtol=0, atol=1e-5)
    before = dict(known)
    plan(build_decoder(pair, arms[0]), text, seed=3)
    assert known == before, "nothing is asked for twice"


@pytest.mark.parametrize("tails", [True, False])
@pytest.mark.parametrize("arm", ["fixed", "long", "hsd", "entropy", "ema"])
@pytest.mark.parametrize("ends", [False, True])
def test_plans_with_stand_ins_are_those_with_the_models(pair, arm, tails, ends, monkeypatch):
    """With free tails the target is not run again, and the draft once along the text and where one leaves it."""
    decoder, eos = build_decoder(pair, ARMS[arm]), (recorded_text(pair).tokens[9],) if ends else ()
    with monkeypatch.context() as patch:
        patch.setattr("runtime.leading.tape._over_text", lambda decoder, text, tails: decoder)
        expected = [plan(decoder, recorded_text(pair, eos=eos), seed, tails=tails) for seed in range(4)]
    text, opened = recorded_text(pair, eos=eos), []
    with monkeypatch.context() as patch:
        for name, model in (("target", pair.target), ("draft", pair.draft)):
            real = model.open
            patch.setattr(model, "open", lambda *sizes, name=name, real=real: opened.append(name) or real(*sizes))
        found = [plan(decoder, text, seed, tails=tails) for seed in range(4)]
    assert [decided(tape) for tape in found] == [decided(tape) for tape in expected]
    assert sum(map(len, (tape.rounds for tape in found))) > 8 and expected[0].rounds != expected[1].rounds
    if tails:
        assert opened.count("draft") == 4, "a controller may read it: it is the model itself"
    elif not ends:  # after its end a text goes on with the target's own tokens
        assert "target" not in opened and opened.count("draft") <= 5


def decided(tape):
    return [(one.tokens, one.kept, one.next_token) for one in tape.rounds]


def test_given_uniforms_take_the_place_of_seeded_ones(pair):
    decoder, text = build_decoder(pair, ARMS["fixed"]), recorded_text(pair)
    seeded, _ = led(decoder, text, 0, luck_of(seeded_uniforms(3)), tails=True)
    assert seeded.rounds == plan(decoder, text, 3).rounds
    lucky, _ = led(decoder, text, 3, luck_of(lambda row, slot: 0.0 if slot == KEEP else 0.5), tails=True)
    assert all(one.kept == len(one.tokens) for one in lucky.rounds)


def test_uniforms_are_uniform_and_unlike():
    uniform = seeded_uniforms(0)
    numbers = torch.tensor([[uniform(row, slot) for slot in range(-1, 9)] for row in range(400)], dtype=torch.float64)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.02 and abs(numbers.var() - 1 / 12) < 0.01
    assert numbers.unique().numel() == numbers.numel()
    assert torch.corrcoef(numbers.T).fill_diagonal_(0).abs().max() < 0.25


@pytest.mark.parametrize("gamma", [2, 4])
def test_a_decoder_that_asks_otherwise_is_off_the_tape(pair, gamma):
    text = recorded_text(pair)
    tape = plan(build_decoder(pair, ARMS["fixed"]), text, seed=3)
    other = build_decoder(pair, {**ARMS["fixed"], "drafter": {"kind": "chain", "gamma": gamma}})
    with pytest.raises(OffTapeError, match="planned"):
        other.generate(PROMPT, randomness=tape.chance(), **text.options)
    decoder = build_decoder(pair, ARMS["fixed"])
    with pytest.raises(OffTapeError, match="planned"):
        decoder.generate(PROMPT, randomness=tape.chance(), **{**text.options, "max_new_tokens": TEXT_LENGTH + 9})


def test_at_temperature_0_nothing_is_led(pair):
    greedy = SamplingSettings(0.0)
    text = recorded_text(pair, settings=greedy)
    tree = {"method": "speculative", "drafter": {"kind": "fork", "width": 2, "depth": 2}, "verifier": "nss"}
    for config in (ARMS["fixed"], tree, {"method": "lookahead", "ngram": 3, "window": 3}):
        decoder = build_decoder(pair, config)
        tape = plan(decoder, text, seed=0)
        assert tape.rounds is None
        assert tape.followed(decoder.generate(PROMPT, randomness=tape.chance(), **text.options))


# ---- recorded programs


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("arm", ["plain", "fixed", "long", "entropy"])
def test_recorded_programs_read_the_tape_too(arm, recorded):
    pair = ModelPair(*(tiny_llama(seed=seed).double() for seed in (0, 1)), forward="graphed")
    for model in (pair.target, pair.draft):
        model.programs = Programs(Traced())
    decoder, text = build_decoder(pair, ARMS[arm]), recorded_text(pair, length=10)
    tape = plan(decoder, text, seed=3)
    assert tape.followed(decoder.generate(PROMPT, randomness=tape.chance(recorded), **text.options))
    kind = GraphedSampler if recorded else PlainSampler
    sampler = sampler_for(SETTINGS, tape.chance(recorded).stream("draft"), pair.draft.programs)
    assert type(sampler) is kind and sampler.reads is False


def test_plain_sampling_over_recorded_passes_leaves_tokens_unread():
    assert PlainSampler(SETTINGS, Forking([])).reads and sampler_for(SETTINGS, Forking([]), None).reads
    assert not sampler_for(SETTINGS, Forking([]), Programs(Traced())).reads


# ---- refusals


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"method": "branch_parallel", "gamma": 2, "overlap": "none"}, "branch-parallel"),
        ({"method": "progressive_tree"}, "drafts for itself"),
        ({"method": "speculative", "drafter": {"kind": "fork"}, "verifier": "nss"}, "trees"),
        ({"method": "speculative", "drafter": {"kind": "delayed_tree"}, "verifier": "traversal"}, "trees"),
        ({"method": "speculative", "drafter": {"kind": "chain"}, "verifier": "traversal"}, "traversal"),
        ({"method": "speculative", "drafter": {"kind": "chain", "draft_temperature": 0.0}}, "draft_temperature"),
    ],
)
def test_what_cannot_be_led_says_why(pair, config, reason):
    decoder = build_decoder(pair, config)
    assert reason in why_not_led(decoder, SETTINGS)
    with pytest.raises(ValueError, match=reason):
        plan(decoder, recorded_text(pair), seed=0)
    assert why_not_led(decoder, SamplingSettings(0.0)) is None
    led = build_decoder(pair, ARMS["fixed"])
    routed = RoutedDecoder(pair, [(SETTINGS, led), (SamplingSettings(0.5), decoder)])
    assert why_not_led(routed, SETTINGS) is None
    assert reason in why_not_led(routed, SamplingSettings(0.6))


def test_a_routed_decoder_is_led_by_its_route(pair):
    text, led = recorded_text(pair), build_decoder(pair, ARMS["fixed"])
    routed = RoutedDecoder(pair, [(SETTINGS, led), (SamplingSettings(0.0), build_decoder(pair, ARMS["long"]))])
    tape = plan(routed, text, seed=3)
    assert tape.rounds == plan(led, text, seed=3).rounds
    assert tape.followed(routed.generate(PROMPT, randomness=tape.chance(), **text.options))


@pytest.mark.parametrize(
    ("tokens", "budget", "eos", "reason"),
    [
        ([], 4, (), "0 tokens"),
        ([0, 1], 4, (), "2 tokens"),
        ([0, 1, 0], 2, (), "3 tokens"),
        ([0, 2, 1, 0], 4, (2,), "goes on after token 2 at position 1"),
    ],
)
def test_texts_that_no_generation_ends_with_are_refused(tokens, budget, eos, reason):
    with pytest.raises(ValueError, match=reason):
        GivenText.of(toy_pair(), PROMPT, tokens, SETTINGS, budget, eos)


def test_texts_that_the_target_cannot_emit_are_refused():
    pair = toy_pair()
    pair.target.table[0, 1, 2] = -torch.inf
    with pytest.raises(ValueError, match="token 2 at position 0"):
        GivenText.of(pair, PROMPT, [2, 0], SETTINGS, 2)


def test_texts_of_another_pair_are_noticed():
    text = GivenText.of(toy_pair(1), PROMPT, [0, 1, 0, 1], SETTINGS, 4)
    with pytest.raises(ValueError, match="of another pair"):
        plan(chain_decoder(toy_pair(5), "block"), text, seed=0)
