"""Each rule without a network by hand, and what rules see; roc and ema learn from a request's own rounds."""

import pytest
import torch

from predictors.controllers import build_controller
from predictors.controllers.unlearned import best_threshold
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw
from tests.signals import SETTINGS, law, root


def test_signals():
    signal = law([0.5, 0.25, 0.25, 0.0])
    assert float(signal.confidence) == 0.5
    assert float(signal.entropy) == pytest.approx(1.5 * torch.tensor(2.0).log().item())
    hot = SamplingSettings(2.0)
    logits = torch.tensor([2.0, 0.0], dtype=torch.float64)
    signal = NextLaw(root(hot), hot, 0, logits, (logits / 2).softmax(0))
    assert float(signal.confidence) == pytest.approx(float(logits.softmax(0).max()))
    assert float(DrawnToken(signal, torch.tensor(1)).probability) == pytest.approx(float((logits / 2).softmax(0)[1]))


def test_signals_follow_the_drafts_settings():
    """With a draft temperature of its own the temperature-1 scalars are still those of temperature 1."""
    logits = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    cold = NextLaw(root(SETTINGS), SamplingSettings(0.0), 0, logits, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    assert float(cold.confidence) == pytest.approx(float(logits.softmax(0).max()))
    assert float(cold.law_entropy) == 0


def test_what_is_decided_before_a_draw_cannot_see_it():
    """The type of ``stop_before`` holds no token: the biased rule cannot be written by accident."""
    signal = law([0.5, 0.5])
    assert not hasattr(signal, "token") and not hasattr(signal, "probability")


def test_fixed():
    assert build_controller({"kind": "fixed", "gamma": 3}).start(SETTINGS).plan(root()) == 3
    assert build_controller({"kind": "fixed"}).start(SETTINGS).plan(root()) is None


def test_entropy_rule():
    """1 - sqrt(.2 H) < .7 iff H > .45 nats."""
    session = build_controller({"kind": "entropy"}).start(SETTINGS)
    session.plan(root())
    assert not session.stop_before(law([0.5, 0.5], drafted=0)), "at least one token is drafted"
    assert session.stop_before(law([0.5, 0.5], drafted=1))  # H = .693
    assert not session.stop_before(law([0.9, 0.1], drafted=1))  # H = .325


def test_entropy_update_by_hand():
    session = build_controller({"kind": "entropy"}).start(SETTINGS)
    session.plan(root(cap=4))
    session.end_round(RoundRecord(drafted=4, accepted=2))  # AR .7 < .9: λ' = .71
    assert session.acceptance_rate == pytest.approx(0.7) and session.threshold == pytest.approx(0.9 * 0.7 + 0.1 * 0.71)
    session.acceptance_rate, session.threshold = 0.95, 0.7
    session.end_round(RoundRecord(drafted=3, accepted=3))  # AR .975, not the cap: λ' = .69
    assert session.threshold == pytest.approx(0.9 * 0.7 + 0.1 * 0.69)
    session.threshold = 0.7
    session.end_round(RoundRecord(drafted=4, accepted=4))  # the cap: unchanged
    assert session.threshold == pytest.approx(0.7)
    session.end_round(RoundRecord(drafted=0, accepted=0))  # nothing drafted: nothing learned
    assert session.threshold == pytest.approx(0.7)


def drawn(probability, drafted=1, settings=SETTINGS):
    """A token of this probability."""
    return DrawnToken(law([probability, 1 - probability], drafted - 1, settings), torch.tensor(0))


def test_roc_threshold_is_the_best_on_scikit_learns_curve():
    metrics = pytest.importorskip("sklearn.metrics")
    random = torch.Generator().manual_seed(0)
    for count in range(6, 60):
        scores = (torch.rand(count, generator=random) * 8).round().div(8).tolist()
        accepted = (torch.rand(count, generator=random) < torch.tensor(scores)).tolist()
        accepted[:2] = [True, False]
        fpr, tpr, thresholds = metrics.roc_curve(accepted, scores)
        costs, found = fpr + 3 * (1 - tpr), best_threshold(scores, accepted, 3.0)
        assert costs[list(thresholds).index(found)] == pytest.approx(costs.min())


def test_roc_learns_from_tested_tokens_of_chains():
    session = build_controller({"kind": "roc"}).start(SETTINGS)
    for _ in range(2):
        session.plan(root())
        assert not session.stop_after(drawn(0.9, 1)) and not session.stop_after(drawn(0.6, 2))
        assert not session.stop_after(drawn(0.8, 3))
        session.end_round(RoundRecord(drafted=3, accepted=1))  # the third was never tested
    assert session.scores == pytest.approx([0.9, 0.6] * 2) and session.accepted == [True, False] * 2
    session.plan(root())
    session.stop_after(drawn(0.7, 1)), session.stop_after(drawn(0.95, 2))
    session.end_round(RoundRecord(drafted=2, accepted=2))
    assert session.threshold == pytest.approx(0.7), "what was accepted was at least so likely"
    session.plan(root())
    for token in (drawn(0.5, 1), drawn(0.5, 1), drawn(0.5, 2)):
        assert session.stop_after(token)
    session.end_round(RoundRecord(drafted=3, levels=2, accepted=2))
    assert len(session.scores) == 6, "which of a tree's tokens were tested is not known"


@pytest.mark.parametrize("kind", ["entropy", "roc"])
def test_the_temperature_1_law_is_read_when_greedy(kind):
    greedy, flat = SamplingSettings(0.0), torch.tensor([0.1, 0.0, 0.0], dtype=torch.float64)
    law_V = NextLaw(root(greedy), greedy, 1, flat, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    session = build_controller({"kind": kind}).start(greedy)
    session.plan(root(greedy))
    assert session.stop_before(law_V) if kind == "entropy" else session.stop_after(DrawnToken(law_V, torch.tensor(0)))


def test_ema_by_hand():
    session = build_controller({"kind": "ema", "decay": 0.5}).start(SETTINGS)
    assert session.plan(root()) == 4 and session.average == 3
    session.end_round(RoundRecord(drafted=4, accepted=4))  # 3.5, and one more: the next tier
    assert session.plan(root()) == 8
    session.end_round(RoundRecord(drafted=8, accepted=0))  # 1.75
    assert session.plan(root()) == 4
    session.end_round(RoundRecord(drafted=4, accepted=0))  # 0.875
    assert session.plan(root()) == 2
    session.end_round(RoundRecord(drafted=0, accepted=0))  # nothing drafted: nothing learned
    assert session.plan(root()) == 2
