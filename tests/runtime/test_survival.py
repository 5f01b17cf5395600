"""The survival controller in the decoder: a biased twin noticed, caught up, repriced."""

import json
import warnings

import pytest
import torch

from predictors.latency.profile import undisturbed
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root, token_numbers
from predictors.survival import numbers_of
from runtime import Randomness, build_decoder, load_decoder
from runtime.drafting.chain import Chain, ChainDraft
from tests.ancestral import LlamaLogits, target_law
from tests.bundles import survival_bundle
from tests.predictors.affine_profile import PROFILE
from tests.runtime.test_controller_contract import undecided
from tests.runtime.test_exactness import PROMPT
from tests.selectors import law_of, tiniest_pair
from tests.toys import total_variation

SETTINGS = SamplingSettings(1.0)


@pytest.fixture(scope="module")
def pair():
    return tiniest_pair()


def lengths(decoder):
    """Drafted tokens of rounds that the budget does not cut."""
    found = []
    for seed, prompt in enumerate(((1, 2), (0,), (0, 2, 1))):
        options = {"max_new_tokens": 30, "temperature": 1.0, "randomness": Randomness(seed), "eos_token_id": ()}
        found += [record.levels for record in decoder.generate(list(prompt), **options).rounds[1:-3]]
    return found


def test_dropping_the_token_it_stopped_at_is_noticed(pair, tmp_path, monkeypatch):
    """Twin: a token that was looked at and then not verified."""
    decoder, draw = undecided("survival", tmp_path, pair, {}, {}, 1.0), ChainDraft.draw

    def dropped(self, root, cap, *others):
        chain = draw(self, root, cap, *others)
        return Chain(chain.tokens[:-1], chain.laws[:-1]) if len(chain) < cap else chain

    monkeypatch.setattr(ChainDraft, "draw", dropped)
    expected = target_law(LlamaLogits(pair.target.model), PROMPT, 4, SETTINGS)
    assert total_variation(law_of(decoder, 4, SETTINGS), expected) > 1e-3


def test_tokens_before_the_first_decision_are_caught_up(pair, tmp_path):
    """The same decisions from the second token on, if none is asked before it; and nothing is asked about the last one."""
    early, late = (
        load_decoder(survival_bundle(tmp_path / str(least), pair, seed=3, least=least), pair) for least in (1, 2)
    )
    for seed in range(12):
        options = {"max_new_tokens": 12, "temperature": 1.0, "eos_token_id": ()}
        one, other = (each.generate([1, seed % 3], randomness=Randomness(seed), **options) for each in (early, late))
        first, second = one.rounds[1], other.rounds[1]
        if first.levels > 1:
            assert first.levels == second.levels and first.forecasts == second.forecasts
        assert first.asked == min(first.levels, 2) and second.asked == 2 and second.levels >= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_of_a_token_are_alike_everywhere(dtype):
    """On the host, by the program for accelerators, and from recorded probabilities; an impossible token among them."""
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits_V = (2.5 * torch.randn(50, generator=random)).to(dtype)
        logits_V[3] = -torch.inf
        token = torch.randint(4, 50, (), generator=random)
        law = NextLaw(Root(5, 4, SETTINGS, None), SETTINGS, 0, logits_V, torch.softmax(logits_V.float(), 0))
        drawn = DrawnToken(law, token)
        probs_V = torch.softmax(logits_V.double(), 0)
        expected = numbers_of(float(probs_V.max()), float(probs_V[token]))
        given = torch.cat([logits_V.float(), token.reshape(1).float()])
        assert tuple(drawn.numbers(lambda _: torch.zeros(2))) == pytest.approx(tuple(expected), abs=1e-5)
        assert token_numbers(given).tolist() == pytest.approx(list(expected), abs=1e-5)


def test_a_rule_that_does_not_pay_is_followed_if_told(pair, tmp_path):
    """At no price it always drafts on."""
    folder = survival_bundle(tmp_path / "b", pair, pays=False, rate=0.0)
    asked = {"controller": {"kind": "survival", "bundle": str(folder), "asked": True}}
    chain = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "block"}
    assert set(lengths(build_decoder(pair, chain | asked))) == {3}


def test_another_machine_takes_its_rate_from_the_card(pair, tmp_path):
    elsewhere = [
        {"cost_ratio": ratio, "rule": {"rate": rate, "least": least}, "static_length": least}
        for ratio, rate, least in ((2.0, 1.0, 1), (200.0, 5.0, 3))
    ]

    def priced(card):
        for made in card["settings"]:
            made["elsewhere"] = elsewhere

    folder = survival_bundle(tmp_path / "b", pair, change=priced)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.to_record()))
    with warnings.catch_warnings(action="error"):
        made = load_decoder(folder, pair, latency=path, reprice=True).controller.settings[1]
    ratio = PROFILE.cost_ratio(40)
    share = torch.log(torch.tensor(ratio / 2)) / torch.log(torch.tensor(100.0))
    assert made.rule.rate == pytest.approx(1 + 4 * float(share)) and made.rule.least == made.static_length == 1
    quiet = undisturbed(PROFILE)
    one = quiet.latency("target", tokens=2, context=40).seconds + quiet.latency("draft", rows=1, context=40).seconds
    assert len(made.costs) == 4 and made.costs[0] == 1 and made.costs[1] * 30 > one
