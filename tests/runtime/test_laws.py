"""Sampling laws and chance."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from predictors.sampling import SamplingSettings
from runtime.audit.enumeration import Forking
from runtime.laws import processed_law
from runtime.randomness import Randomness, stream

SETTINGS = [
    SamplingSettings(1.0),
    SamplingSettings(0.3),
    SamplingSettings(1.7, top_k=5),
    SamplingSettings(1.0, top_p=0.8),
    SamplingSettings(0.9, top_k=7, top_p=0.5),
    SamplingSettings(1.0, top_k=1000, top_p=0.01),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_laws_equal_hugging_faces(settings):
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(0)) * 3
    logits[:, 7] = logits[:, 8]  # ties
    expected = TemperatureLogitsWarper(settings.temperature)(None, logits) if settings.temperature != 1 else logits
    if settings.top_k:
        expected = TopKLogitsWarper(settings.top_k)(None, expected)
    if settings.top_p < 1:
        expected = TopPLogitsWarper(settings.top_p)(None, expected)
    law = processed_law(logits, settings)
    torch.testing.assert_close(law, expected.softmax(-1), atol=1e-6, rtol=1e-5)
    assert torch.equal(law > 0, expected > -torch.inf)


def test_greedy_is_an_exact_one_hot_of_the_first_maximum():
    law = processed_law(torch.tensor([[0.0, 3.0, 3.0, -1.0]]), SamplingSettings(0.0))
    assert law.tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "settings", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}]
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        SamplingSettings(**settings)


def test_draws_follow_the_weights():
    weights = torch.tensor([0.1, 0.0, 0.6, 0.3])
    draws = Randomness(0).categorical((5 * weights).expand(40_000, 4))
    shares = torch.bincount(draws, minlength=4) / 40_000
    assert draws.dtype == torch.int64 and shares[1] == 0
    assert (shares - weights).abs().max() < 0.01


def test_streams_are_reproducible_and_independent():
    weights = torch.ones(64, 1000)
    one, again = (Randomness(5).stream("draft").categorical(weights) for _ in range(2))
    other = Randomness(5).stream("verify").categorical(weights)
    assert torch.equal(one, again)
    assert float((one == other).float().mean()) < 0.05
    plain = Forking([])
    assert stream(plain, "draft") is plain


def test_a_source_used_again_goes_on():
    """Two requests with one source are independent; a fresh source of the same seed starts over."""
    weights = torch.ones(64, 1000)
    source = Randomness(5)
    first, second = (source.stream("draft").categorical(weights) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, Randomness(5).stream("draft").categorical(weights))
