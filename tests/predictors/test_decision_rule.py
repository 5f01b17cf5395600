"""The explicit predictor's rules, by hand: the likeliest length, and the length worth most."""

import pytest
import torch

from predictors.head import Calibration, DecisionRule, HeadSetting, LengthRule
from predictors.sampling import SamplingSettings

# laws of the accepted length over γ = 3
LAWS = torch.tensor(
    [
        [0.5, 0.0, 0.0, 0.5],  # none or all
        [0.1, 0.6, 0.2, 0.1],
        [0.25, 0.25, 0.25, 0.25],  # of equals the shortest
        [0.0, 0.0, 0.0, 1.0],
    ],
    dtype=torch.float64,
)


def lengths(choice, draft_cost, laws=LAWS):
    return LengthRule(choice, draft_cost).decisions(laws).tolist()


def worth(law, draft_cost):
    """E[min(A, n) + 1] / (1 + draft cost · n) for every n, summed outcome by outcome."""
    gamma = len(law) - 1
    return [
        sum(share * (min(accepted, n) + 1) for accepted, share in enumerate(law)) / (1 + draft_cost * n)
        for n in range(gamma + 1)
    ]


def test_argmax_is_the_likeliest_length():
    assert lengths("argmax", 0.1) == [0, 1, 0, 3] == lengths("argmax", 10.0)


def test_expectation_by_hand():
    """None or all of three, a tenth of a pass a token: 1, 1.5/1.1, 2/1.2, 2.5/1.3 for n = 0..3, so all are drafted; neither the
    likeliest length (0) nor the mean rounded (2) is."""
    assert worth([0.5, 0, 0, 0.5], 0.1) == pytest.approx([1, 1.5 / 1.1, 2 / 1.2, 2.5 / 1.3])
    assert worth([0.1, 0.6, 0.2, 0.1], 0.1) == pytest.approx([1, 1.9 / 1.1, 2.2 / 1.2, 2.3 / 1.3])
    assert worth([0.1, 0.6, 0.2, 0.1], 0.3) == pytest.approx([1, 1.9 / 1.3, 2.2 / 1.6, 2.3 / 1.9])
    assert lengths("expectation", 0.1) == [3, 2, 3, 3]
    assert lengths("expectation", 0.3) == [3, 1, 2, 3]
    assert lengths("expectation", 0.7) == [0, 1, 1, 3]


def test_expectation_against_enumeration_of_outcomes():
    generator = torch.Generator().manual_seed(0)
    laws = torch.rand(200, 7, generator=generator, dtype=torch.float64) ** 4
    laws /= laws.sum(dim=1, keepdim=True)
    for draft_cost in (0.0, 0.05, 0.3, 1.5):
        for law, length in zip(laws.tolist(), lengths("expectation", draft_cost, laws), strict=True):
            assert worth(law, draft_cost)[length] == pytest.approx(max(worth(law, draft_cost)), rel=1e-12)


def test_dear_drafts_are_not_drawn_and_free_ones_all():
    assert lengths("expectation", 1.0) == [0, 0, 0, 0]
    assert lengths("expectation", 0.0, LAWS[:3]) == [3, 3, 3]


def test_a_row_by_itself_is_decided_as_among_others():
    for choice in ("argmax", "expectation"):
        alone = [lengths(choice, 0.2, row.unsqueeze(0))[0] for row in LAWS]
        assert alone == lengths(choice, 0.2)


def test_a_setting_keeps_drafting_and_retention_apart():
    rule = DecisionRule(0.3)
    made = HeadSetting(SamplingSettings(0.0), Calibration(), 4, 8, None, rule, rule, rule)
    assert (made.of(False), made.of(True), made.static(False), made.static(True)) == (None, rule, 4, 8)
