"""Rules that learn from a request's own rounds: roc and ema."""

import pytest
import torch

from predictors.controllers import build_controller
from predictors.controllers.unlearned import best_threshold
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw
from tests.predictors.test_controllers import SETTINGS, law, root


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


def test_roc_reads_the_temperature_1_law_when_greedy():
    greedy = SamplingSettings(0.0)
    flat, one_hot = torch.tensor([0.1, 0.0, 0.0]), torch.tensor([1.0, 0.0, 0.0])
    session = build_controller({"kind": "roc"}).start(greedy)
    session.plan(root(greedy))
    assert session.stop_after(DrawnToken(NextLaw(root(greedy), greedy, 0, flat, one_hot), torch.tensor(0)))


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
    with pytest.raises(ValueError, match=r"tiers must ascend.*\(4, 2\)"):
        build_controller({"kind": "ema", "tiers": [4, 2]})
