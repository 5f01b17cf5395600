"""One contract suite for all controllers, and each one's rule."""

import pytest
import torch

from predictors.controllers import CONTROLLERS, build_controller
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root

SETTINGS = SamplingSettings(1.0)
UNLEARNED = [kind for kind in CONTROLLERS if kind != "hrad"]  # hrad: tests/runtime/test_hrad.py


def root(settings=SETTINGS, cap=4):
    return Root(position=10, cap=cap, settings=settings, previous=None)


def law(probs, drafted=1, settings=SETTINGS):
    probs_V = torch.tensor(probs, dtype=torch.float64)
    return NextLaw(root(settings), settings, drafted, probs_V.log(), probs_V)


@pytest.mark.parametrize("kind", UNLEARNED)
def test_contract_suite(kind):
    controller = build_controller({"kind": kind})
    first, second = controller.start(SETTINGS), controller.start(SETTINGS)
    assert first is not second, "state belongs to a request"
    plan = first.plan(root())
    assert plan is None or plan >= 0
    assert not bool(first.stop_before(law([1.0, 0.0]))), "no rule stops at a certain law"
    assert not bool(first.stop_after(DrawnToken(law([1.0, 0.0]), torch.tensor(0))))
    before = vars(second).copy()
    first.end_round(RoundRecord(drafted=4, accepted=1))
    assert vars(second) == before


@pytest.mark.parametrize("kind", UNLEARNED)
def test_unknown_options_are_refused(kind):
    with pytest.raises(ValueError, match=f"controller {kind}: unknown key 'epsilonn'"):
        build_controller({"kind": kind, "epsilonn": 1})


def test_signals():
    signal = law([0.5, 0.25, 0.25, 0.0])
    assert float(signal.confidence) == 0.5
    assert float(signal.entropy) == pytest.approx(1.5 * torch.tensor(2.0).log().item())
    hot = SamplingSettings(2.0)
    logits = torch.tensor([2.0, 0.0], dtype=torch.float64)
    signal = NextLaw(root(hot), hot, 0, logits, (logits / 2).softmax(0))
    assert float(signal.confidence) == pytest.approx(float(logits.softmax(0).max()))
    assert float(signal.law_confidence) == pytest.approx(float((logits / 2).softmax(0).max()))
    assert float(DrawnToken(signal, torch.tensor(1)).probability) == pytest.approx(float((logits / 2).softmax(0)[1]))


def test_signals_follow_the_drafts_settings():
    """With a draft temperature of its own the temperature-1 scalars are still those of temperature 1."""
    logits = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    cold = NextLaw(root(SETTINGS), SamplingSettings(0.0), 0, logits, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    assert float(cold.confidence) == pytest.approx(float(logits.softmax(0).max()))
    assert float(cold.law_confidence) == 1


def test_what_is_decided_before_a_draw_cannot_see_it():
    """The type of ``stop_before`` holds no token: the biased rule cannot be written by accident."""
    signal = law([0.5, 0.5])
    assert not hasattr(signal, "token") and not hasattr(signal, "probability")


def test_fixed():
    assert build_controller({"kind": "fixed", "gamma": 3}).start(SETTINGS).plan(root()) == 3
    assert build_controller({"kind": "fixed"}).start(SETTINGS).plan(root()) is None


def test_confidence():
    session = build_controller({"kind": "confidence", "epsilon": 0.6, "min_tokens": 2}).start(SETTINGS)
    assert not session.stop_before(law([0.5, 0.5], drafted=1))
    assert session.stop_before(law([0.5, 0.5], drafted=2))
    assert not session.stop_before(law([0.7, 0.3], drafted=2))


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


def test_entropy_reads_the_temperature_1_law_when_greedy():
    greedy = SamplingSettings(0.0)
    flat = torch.tensor([0.1, 0.0], dtype=torch.float64)
    one_hot = torch.tensor([1.0, 0.0], dtype=torch.float64)
    session = build_controller({"kind": "entropy"}).start(greedy)
    assert session.stop_before(NextLaw(root(greedy), greedy, 1, flat, one_hot))
