"""Led decodes: the target's text, then rounds given it, have the real decoder's joint distribution."""

from functools import cache

import pytest

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.drafting.sampler import PlainSampler
from runtime.leading import GivenText, plan
from runtime.leading.leader import LedChain
from tests.eagle3 import random_drafter
from tests.runtime.leading import CONTROLLERS, PROMPT, SETTINGS, chain_decoder, decoded, led_along_texts, toy_pair
from tests.toys import tiny_llama, total_variation


@cache
def real_joint(verifier, controller):
    """The real decoder's, which the honest leader and its wrong twins are compared with."""
    return decoded(chain_decoder(toy_pair(), verifier, CONTROLLERS[controller]))


def missed(verifier, controller="fixed", **options):
    """Total variation between the real decoder's joint distribution and that of text, then led."""
    joint = led_along_texts(chain_decoder(toy_pair(), verifier, CONTROLLERS[controller]), **options)
    return total_variation(real_joint(verifier, controller), joint)


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
def test_text_then_led_is_the_real_joint(verifier, controller):
    assert sum(real_joint(verifier, controller).values()) == pytest.approx(1.0, abs=1e-9)
    assert missed(verifier, controller) < 1e-9


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (SamplingSettings(0.7, top_k=2), {}),
        (SamplingSettings(1.0, top_p=0.7), {}),
        (SETTINGS, {"draft_temperature": 2.0}),
    ],
    ids=str,
)
def test_also_under_filters_and_other_draft_temperatures(settings, options):
    decoder = chain_decoder(toy_pair(5), "block", CONTROLLERS["by_rejected"], **options)
    assert total_variation(decoded(decoder, settings), led_along_texts(decoder, settings)) < 1e-9


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
def test_also_where_texts_end_early(monkeypatch, verifier, reads):
    """Unread drafts go on after the end of the text, which the target continues."""
    monkeypatch.setattr(PlainSampler, "reads", reads)
    decoder = chain_decoder(toy_pair(eos=(2,)), verifier, CONTROLLERS["by_rejected"])
    assert total_variation(decoded(decoder), led_along_texts(decoder)) < 1e-9


@pytest.mark.parametrize("tails", [True, False])
def test_a_draft_that_reads_states_is_led_by_the_models_themselves(tails):
    target = tiny_llama(32, layers=3)
    pair = ModelPair(target, random_drafter(target))
    options = {"max_new_tokens": 12, "temperature": 1.0, "eos_token_id": []}
    tokens = (
        build_decoder(pair, {"method": "autoregressive"}).generate(PROMPT, randomness=Randomness(0), **options).tokens
    )
    text = GivenText.of(pair, PROMPT, tokens, SETTINGS, 12, ())
    decoder = build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}})
    tape = plan(decoder, text, 0, tails)
    out = decoder.generate(PROMPT, randomness=tape.chance(), **options)
    assert tape.followed(out) and out.tokens == tokens
    assert any(record.accepted for record in out.rounds)


def test_free_tails_are_exact_for_rounds_that_look_at_no_token():
    decoder = chain_decoder(toy_pair(), "block")

    def without_log(joint):
        rounds = {}
        for (tokens, counts, _), probability in joint.items():
            rounds[tokens, counts] = rounds.get((tokens, counts), 0.0) + probability
        return rounds

    joint, led = map(without_log, (real_joint("block", "fixed"), led_along_texts(decoder, tails=False)))
    assert total_variation(joint, led) < 1e-9


# ---- deliberately wrong twins


def test_tokenwise_substitutes_are_noticed_under_block(monkeypatch):
    monkeypatch.setattr("runtime.leading.tape.block", None)
    assert missed("block") > 1e-3


def test_tokens_that_tokenwise_would_reject_are_noticed_under_block(monkeypatch):
    honest = LedChain.surplus

    def tokenwise(self, draft_V, target_V):
        return (draft_V - target_V).clamp(min=0) if self.on_text else honest(self, draft_V, target_V)

    monkeypatch.setattr(LedChain, "surplus", tokenwise)
    assert missed("block") > 1e-3


def test_counts_that_ignore_the_text_are_noticed(monkeypatch):
    monkeypatch.setattr(LedChain, "keep_probability", lambda self, draft, target: 0.6)
    assert missed("block") > 1e-3


def test_free_tails_are_noticed_by_who_reads_them():
    assert missed("block", "by_rejected", tails=False) > 1e-3
