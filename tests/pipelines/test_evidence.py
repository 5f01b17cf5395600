"""What the gate reads, from hand-made tables: rivals, the reference, settings and slices."""

import pytest

from pipelines.gate.conditions import FEW, judge
from pipelines.gate.evidence.gain import SliceGain
from pipelines.gate.plan import Bounds
from pipelines.gate.trial_evidence import compared
from pipelines.gate.verdict import INCONCLUSIVE, REFUSED
from tests.pipelines.hand_made_decodes import decodes
from tests.pipelines.hand_made_evidence import change

BOUNDS = Bounds(slice_documents=2)
RATES = {"autoregressive": 5.0, "chain-2": 9.0, "chain-4": 10.0, "champion": 11.0, "challenger": 12.0}


def rate(arm, *where):
    return RATES[arm]


def test_rivals_are_plain_decoding_and_every_static_chain():
    found = compared(decodes(rate), BOUNDS)
    assert {name: round(one.gain, 3) for name, one in found.gains.items()} == {
        "autoregressive": 1.4,
        "chain-2": 0.333,
        "chain-4": 0.2,
    }
    assert found.reference == "chain-4" and set(found.settings) == {"T=0", "T=1"}
    assert found.slices["prose"].value == pytest.approx(0.2, abs=1e-6) and found.documents == tuple("abcde")


def verdict_on(found, **origin):
    """By check, of evidence that is good but for what was compared."""
    verdict = judge(change(**vars(found), origin=origin), Bounds(slice_documents=2, min_documents=2))
    return verdict, {check.name: check for check in verdict.checks}


def test_without_a_static_chain_the_gate_refuses_unless_the_pair_has_no_draft():
    rows = [row for row in decodes(rate) if row["family"] != "chain"]
    found = compared(rows, BOUNDS)
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
    found = compared(rows, BOUNDS)
    assert found.gains == {} and found.few_rivals == ("autoregressive", "chain-2", "chain-4")
    assert found.reference == "chain-2" and found.few_settings == ("T=1",)
    assert found.settings["T=0"].gain == pytest.approx(12 / 9 - 1)
    verdict, checks = verdict_on(found)
    assert verdict.outcome == INCONCLUSIVE and verdict.smallest_gain is None
    for name in ("gain over autoregressive", "gain over chain-4", "guardrail T=1"):
        assert (checks[name].outcome, checks[name].found) == (INCONCLUSIVE, FEW[0])
    assert checks["guardrail T=0"].passed


def test_a_slice_of_the_mix_that_was_not_timed_is_not_judged():
    found = compared(decodes(rate), BOUNDS, mix={"code": 3.0, "prose": 2.0, "tables": 1.0})
    assert found.slices["tables"] == SliceGain(None, None, None, 0, False) and found.slices["code"].judged
    assert verdict_on(found)[0].static_slices == ("tables",)
    assert verdict_on(compared(decodes(rate), BOUNDS))[0].static_slices == (), "without the mix nobody misses it"
