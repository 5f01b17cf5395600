"""The one reader of a measurement: incomplete blocks compared in pairs, texts counted once, what is refused."""

import json

import pandas as pd
import pytest

from pipelines.measuring.names import DECODES_FILE, FINDINGS
from pipelines.outputs import write_json
from pipelines.report.comparison import ALL, By
from pipelines.report.inputs import Inputs, read_measured
from pipelines.report.section import UNDEFINED
from tests.pipelines.hand_made_measured import MAIN_SPEED, decodes, write_measured

AT = By("T=0")


def paired(folder, rows):
    write_measured(folder, rows)
    return read_measured(folder)


def incomplete(rows):
    """Plain decoding everywhere, chain-3 on four prompts of six, hrad on three, of which it shares two with chain-3; chain-1 and
    length on none in common. Prompts differ fourfold in pace, and tenfold here."""
    where = {"chain-3": (0, 1, 2, 3), "hrad": (2, 3, 4), "chain-1": (0, 1), "length": (4, 5)}
    kept = [row for row in rows if int(row["prompt"][1]) in where.get(row["arm"], range(6))]
    return [row | {"seconds": row["seconds"] * (10 if row["prompt"] in ("p0", "p1") else 1)} for row in kept]


def test_arms_are_compared_on_the_blocks_that_both_decoded(tmp_path):
    """Of what each decoded by itself, the ratio says which prompts it was given: the wrong twin is tenfold off."""
    rows = incomplete(decodes(MAIN_SPEED, noise=0.0))
    made = paired(tmp_path, rows)
    for arm, base in (("hrad", "chain-3"), ("hrad", "autoregressive"), ("chain-3", "autoregressive")):
        for by in (AT, By("T=1"), ALL):
            assert made.speedup(arm, base, by)["value"] == pytest.approx(MAIN_SPEED[arm] / MAIN_SPEED[base])
    assert made.speedup("hrad", "chain-3", AT)["low"] is None, "two prompts of one document"
    assert made.speedup("hrad", "autoregressive", AT)["low"] == pytest.approx(1.76)
    hrad, chain = (made.rows(arm, AT)[["tokens", "seconds"]].sum() for arm in ("hrad", "chain-3"))
    wrong = hrad["tokens"] / hrad["seconds"] / (chain["tokens"] / chain["seconds"])
    assert abs(wrong / 1.1 - 1) > 1
    assert made.speedup("chain-1", "length", AT) == UNDEFINED
    assert made.speedup("hrad", "nobody", AT) == UNDEFINED


def test_a_block_pairs_repeats_and_settings_not_prompts_alone(tmp_path):
    """A repeat that took ten times as long for both says nothing of either."""
    rows = [row | {"seconds": row["seconds"] * (1 + 9 * row["repeat"])} for row in decodes(MAIN_SPEED, noise=0.0)]
    once = [row for row in rows if row["arm"] != "hrad" or row["repeat"] == 0]
    assert paired(tmp_path, once).speedup("hrad", "chain-3", AT)["value"] == pytest.approx(1.1)
    assert len(paired(tmp_path, once).pair("hrad", "chain-3", AT)[0]) == 6


def test_a_family_stands_for_what_was_chosen_of_it_at_each_temperature(tmp_path):
    write_measured(tmp_path, decodes(MAIN_SPEED, noise=0.0))
    findings = json.loads((tmp_path / FINDINGS).read_text())
    for choice in findings["choices"]:
        if choice["temperature"] == 1 and choice["family"] == "chain":
            choice["arm"] = "chain-1"
    write_json(tmp_path / FINDINGS, findings)
    made = read_measured(tmp_path)
    assert (made.chosen("chain", "T=0"), made.chosen("chain", "T=1")) == ("chain-3", "chain-1")
    assert made.speedup("hrad", "chain", By("T=0"))["value"] == pytest.approx(1.1)
    assert made.speedup("hrad", "chain", By("T=1"))["value"] == pytest.approx(176 / 130)
    assert made.speedup("chain", "chain")["value"] == 1.0
    with pytest.raises(ValueError, match="no arm of family 'fork' was chosen at T=0"):
        made.chosen("fork", "T=0")


def test_what_is_missing_or_of_another_version_is_one_clear_message(tmp_path):
    with pytest.raises(ValueError, match="holds no finished measurement"):
        read_measured(tmp_path)
    write_measured(tmp_path, decodes(MAIN_SPEED))
    table = pd.read_parquet(tmp_path / DECODES_FILE)
    table.drop(columns="family").to_parquet(tmp_path / DECODES_FILE)
    with pytest.raises(ValueError, match=r"columns \['family'\] are of another version"):
        read_measured(tmp_path)
    (tmp_path / DECODES_FILE).write_bytes(b"no table")
    with pytest.raises(ValueError, match="missing or damaged"):
        read_measured(tmp_path)


def test_two_settings_at_one_temperature_are_two(tmp_path):
    """The filtered one is twice as fast: taken for one, both speed-ups would be the mean."""
    rows = [row for row in decodes(MAIN_SPEED, noise=0.0) if row["temperature"]]
    faster = [row | {"seconds": row["seconds"] / (1 + (row["arm"] == "hrad"))} for row in rows]
    made = paired(tmp_path, rows + [row | {"top_p": 0.9, "block": f"{row['block']}/0.9"} for row in faster])
    assert made.settings == ["T=1", "T=1, top-p 0.9"]
    speedups = [made.speedup("hrad", "autoregressive", By(setting))["value"] for setting in made.settings]
    assert speedups == pytest.approx([1.76, 3.52])
    assert made.speedup("hrad", "autoregressive")["value"] not in speedups, "the wrong twin"


def test_records_of_predictors_are_read_by_name(tmp_path):
    folder = tmp_path / "fit"
    folder.mkdir()
    write_json(folder / "b.json", {"family": "stop"})
    assert Inputs(tmp_path, "toy").fitted == {"b": {"family": "stop"}}
    assert Inputs(tmp_path / "nowhere", "toy").fitted == {}
    (folder / "c.json").write_text("{")
    with pytest.raises(ValueError, match="c.json: missing or damaged"):
        Inputs(tmp_path, "toy").fitted  # noqa: B018
