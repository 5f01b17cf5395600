"""What the gate reads, from hand-made tables: rivals, the reference, settings and slices."""

import pytest

from pipelines.promotion.bounds import Bounds
from pipelines.promotion.evidence import compared
from tests.pipelines.hand_made_decodes import decodes

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


def test_a_champion_is_a_rival_and_the_reference():
    """Even where a static chain is closer: a release must not slow down what is served."""
    closer = decodes(lambda arm, *where: 11.5 if arm == "chain-2" else RATES[arm])
    found = compared(closer, BOUNDS, champion="champion")
    assert found.reference == "champion" and found.gains["champion"].gain == pytest.approx(12 / 11 - 1)
    assert found.settings["T=1"].gain == pytest.approx(12 / 11 - 1)
    assert compared(closer, BOUNDS).reference == "chain-2"


def test_the_arm_of_a_bundle_in_the_measured_table_goes_by_its_name():
    rows = [row | {"arm": "hrad"} if row["arm"] == "challenger" else row for row in decodes(rate)]
    assert compared(rows, BOUNDS, arm="hrad").gains["chain-4"].gain == pytest.approx(0.2)


def test_sampling_settings_with_filters_are_their_own():
    rows = [row | {"setting": "T=1, top-k 20"} if row["temperature"] else row for row in decodes(rate)]
    assert set(compared(rows, BOUNDS).settings) == {"T=0", "T=1, top-k 20"}


def test_without_a_static_chain_there_is_no_evidence():
    rows = [row for row in decodes(rate) if row["family"] != "chain"]
    with pytest.raises(ValueError, match="no static chain was timed"):
        compared(rows, BOUNDS)
