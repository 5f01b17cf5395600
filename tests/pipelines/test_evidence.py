"""What the gate reads, from hand-made tables: rivals, the reference, settings and slices."""

import pytest

from pipelines.gate.evidence import compared
from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import FEW, INCONCLUSIVE, REFUSED, judge
from pipelines.measuring.gain import Timed
from tests.pipelines.hand_made_decodes import decodes
from tests.pipelines.hand_made_evidence import change

BOUNDS = Bounds(slice_documents=2)
RATES = {"autoregressive": 5.0, "chain-2": 9.0, "chain-4": 10.0, "champion": 11.0, "challenger": 12.0}


def rate(arm, *where):
    return RATES[arm]


def test_rivals_are_plain_decoding_and_every_static_chain():
    found = compared(Timed.of(decodes(rate)), BOUNDS)
    assert {name: round(one.gain, 3) for name, one in found.gains.items()} == {
        "autoregressive": 1.4,
        "chain-2": 0.333,
        "chain-4": 0.2,
    }
    assert found.reference == "chain-4" and set(found.settings) == {"T=0", "T=1"}
    assert found.slices["prose"].gain == pytest.approx(0.2, abs=1e-6) and found.documents == tuple("abcde")


def verdict_on(found, **origin):
    """By check, of evidence that is good but for what was compared."""
    verdict = judge(change(**vars(found), origin=origin), Bounds(slice_documents=2, min_documents=2))
    return verdict, {check.name: check for check in verdict.checks}


def test_without_a_static_chain_the_gate_refuses_unless_the_pair_has_no_draft():
    rows = [row for row in decodes(rate) if row["family"] != "chain"]
    found = compared(Timed.of(rows), BOUNDS)
    assert found.reference == "autoregressive" and set(found.gains) == {"autoregressive"}
    verdict, checks = verdict_on(found)
    assert (verdict.outcome, checks["gain"].outcome) == (REFUSED, REFUSED)
    (unknown,) = change(**vars(found)).unknown_rivals
    assert unknown in checks["gain"].found and "chain" in unknown
    assert "gain" in verdict_on(found, models={"target": {}, "draft": {}})[1]
    verdict, checks = verdict_on(found, models={"target": {}})
    assert "gain" not in checks and verdict.outcome != REFUSED


def test_a_gain_of_one_document_is_not_known():
    """At T=1 only document a was timed: neither there nor over all settings has any gain an error."""
    rows = [row for row in decodes(rate) if row["temperature"] == 0 or row["document"] == "a"]
    found = compared(Timed.of(rows), BOUNDS)
    assert found.gains == dict.fromkeys(("autoregressive", "chain-2", "chain-4")) and found.settings["T=1"] is None
    assert found.reference == "chain-2" and not found.known
    assert found.settings["T=0"].gain == pytest.approx(12 / 9 - 1)
    verdict, checks = verdict_on(found)
    assert verdict.outcome == INCONCLUSIVE and verdict.smallest_gain is None
    for name in ("gain over autoregressive", "gain over chain-4", "guardrail T=1"):
        assert (checks[name].outcome, checks[name].found) == (INCONCLUSIVE, FEW[0])
    assert checks["guardrail T=0"].passed


def test_a_slice_of_few_documents_is_not_judged():
    found = compared(Timed.of(decodes(rate)), Bounds(slice_documents=3))
    assert found.slices["prose"] is None and found.slices["code"].gain == pytest.approx(0.2)
    assert verdict_on(found)[0].static_slices == ("prose",)
    assert verdict_on(compared(Timed.of(decodes(rate)), BOUNDS))[0].static_slices == ()
