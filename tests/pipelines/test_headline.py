"""The sentences that a report begins with."""

import copy

from pipelines.reporting.headline import headline, title, verdict
from pipelines.reporting.intervals import listed, percent, share, tenths, times


def test_headline_pays_only_where_the_interval_is_above_zero(report_timing):
    changed = copy.deepcopy(report_timing)
    row = changed["settings"][0]
    gain = row["arms"]["hrad"]["gain"]
    row["arms"]["hrad"]["speedup"].update(value=1.6, low=1.5, high=1.7)
    for low, high, expected in ((0.01, 0.2, "it pays here"), (-0.1, 0.2, "it does not pay here")):
        gain.update(value=0.05, low=low, high=high)
        sentence = next(s for s in headline(changed) if s.startswith("T=0: H-RAD"))
        assert expected in sentence
        assert expected.removesuffix(" here") + " there" in title(changed)
        assert "at T=0 over it" in title(changed) and "elsewhere it falls back" in title(changed)
        assert ("not" in sentence) == (low < 0)
    fast, slow = ({"value": value, "low": value - 0.1, "high": value + 0.1} for value in (1.6, 0.9))
    assert verdict({"value": -0.1, "low": -0.2, "high": -0.05}, fast).startswith("it does not pay here")
    assert verdict({"value": 0.1, "low": 0.05, "high": 0.2}, fast) == "it pays here"
    assert "not surely faster than plain" in verdict({"value": 0.1, "low": 0.05, "high": 0.2}, slow)


def test_headline_says_where_hrad_is_not_calibrated_and_where_speculation_loses(report_timing):
    changed = copy.deepcopy(report_timing)
    assert any(
        s.startswith("T=1: H-RAD is not calibrated here and falls back to a static draft") for s in headline(changed)
    )
    changed["settings"][0]["arms"]["chain-3"]["speedup"].update(value=1.02, low=0.97, high=1.1)
    assert "speculation does not pay here" in headline(changed)[0]


def test_numbers_as_people_read_them():
    assert times({"value": 1.617, "low": 1.55, "high": 1.7}) == "1.62x (1.55–1.70)"
    assert percent({"value": -0.02, "low": -0.05, "high": 0.012}) == "−2 % (−5…+1)"
    assert share({"value": 0.12, "low": 0.084, "high": 0.15}) == "12 % (8–15)"
    assert tenths({"value": 0.012, "low": None, "high": None}) == "1.2 %"
    assert percent({"value": 0.1, "low": None, "high": 0.2}) == times(None) == "–"
    assert (listed(["a"]), listed(["a", "b"]), listed([])) == ("a", "a and b", "none")
