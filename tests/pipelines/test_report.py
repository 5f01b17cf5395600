"""The report stage: one page and its record from hand-made measurements; what was not measured is left out, and said."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from pipelines import report, reports
from pipelines.measuring.names import CHAIN, CHOICES
from pipelines.outputs import write_json
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.release import untimed_chains
from predictors.latency.profile import LatencyProfile
from predictors.latency.soundness import noise_warning
from tests.pipelines.hand_made_measured import CHOSEN, MAIN_SPEED, decodes, write_measured
from tests.pipelines.hand_made_profile import PROFILE
from tests.pipelines.report_stage import stage


@pytest.fixture(scope="module")
def record(report_folder):
    return json.loads((report_folder / "report.json").read_text())


def rows_of(record, section, table=0):
    """A table's rows by their first cell."""
    made = record["sections"][section]["tables"][table]
    return {row[made["columns"][0]]: row for row in made["rows"]}


def test_speeds_and_counts(record):
    """Speed-ups are paired by block, though prompts differ fourfold in pace."""
    rows = rows_of(record, "speed")
    hrad = rows["H-RAD"]
    speedup, gain = hrad["speed-up over plain"], hrad["gain over best static chain"]
    assert speedup["value"] == pytest.approx(1.76, rel=0.05) and speedup["high"] - speedup["low"] < 0.3
    assert gain["low"] > 0 and hrad["tokens/s"] > rows["plain decoding"]["tokens/s"]
    assert rows["plain decoding"]["speed-up over plain"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    chain = rows["chain, γ=3"]
    assert chain["gain over best static chain"] is None and chain["block efficiency"]["value"] == pytest.approx(59 / 30)
    assert (chain["drafted per round"], chain["rollback rate"], chain["same text"]) == (2.0, 0.5, "12/12")
    assert chain["m_incl"] == 1 + 30 / 30 and rows["plain decoding"]["m_incl"] == 1
    assert rows["HF generate"]["block efficiency"] is None and "roc" not in rows


def test_the_best_static_chain_is_that_of_tuning_where_it_was_timed(tmp_path):
    folder = tmp_path / "measured" / "toy-1c"
    write_measured(folder, chosen=CHOSEN | {CHAIN: "chain-1"})
    alone = Inputs(tmp_path, "toy-1c").measured
    assert {alone.chosen(CHAIN, setting) for setting in alone.settings} == {"chain-1"}
    tuned = [{"setting": "T=0", "static": "chain-3"}, {"setting": "T=1", "static": "chain-99"}]
    write_json(tmp_path / "tuning" / "toy-1c" / CHOICES, tuned)
    both = Inputs(tmp_path, "toy-1c").measured
    assert [both.chosen(CHAIN, setting) for setting in both.settings] == ["chain-3", "chain-1"]
    (untimed,) = untimed_chains(Inputs(tmp_path, "toy-1c"))
    assert untimed.startswith("At T=1 ") and "chain, γ=99" in untimed and "over chain, γ=1." in untimed


def test_checks_collect_those_of_all_sections(record):
    checks = rows_of(record, "checks")
    faster = checks["plain decoding over HF generate, T=0"]
    assert (faster["bar"], faster["met"], faster["surely"]) == ("at least 1.15x", True, True)


class Page(HTMLParser):
    """Open tags, links, images, and the text outside of folded parts."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.images, self.unfolded, self.folded = [], [], 0, "", ""

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.images += tag == "img"
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "details" in self.open:
            self.folded += data
        elif "style" not in self.open:
            self.unfolded += data


def test_the_page_is_short_well_formed_and_works_offline(report_folder, record):
    text = (report_folder / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.open and page.images == len(list(report_folder.glob("*.png")))
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;b&gt;note" in text and record["decision"] in page.unfolded
    assert len(page.unfolded) <= 3500 and len(page.folded) <= 30_000
    assert set(re.findall(r'<details id="(\w+)"', text)) == set(record["sections"])


def test_tables_are_no_wider_than_the_page(record):
    for section in record["sections"].values():
        for table in section["tables"]:
            assert all(len(row) <= 9 for row in table["rows"])


def test_report_is_a_function_of_its_inputs(report_inputs, report_folder, tmp_path):
    again = stage(report_inputs, tmp_path)
    for name in ("report.json", "report.md", "index.html"):
        assert (again / name).read_bytes() == (report_folder / name).read_bytes()


def small_inputs(report_inputs, folder):
    """Main arms without H-RAD, and nothing besides."""
    for name in ("device.json", "pair/pair.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((report_inputs / name).read_bytes())
    rows = [row for row in decodes(MAIN_SPEED) if row["arm"] != "hrad"]
    write_measured(folder / "measured" / "toy-1c", rows)
    return folder


def test_what_was_not_measured_is_left_out_and_said(report_inputs, tmp_path):
    folder = stage(small_inputs(report_inputs, tmp_path), tmp_path / "reports")
    record = json.loads((folder / "report.json").read_text())
    assert set(record["sections"]) == {"speed", "stopping", "pair", "checks", "origin"}
    assert "rules" in (folder / "report.md").read_text().split("Nothing was measured of:")[1]


def test_a_noisy_profile_is_named_above_the_fold(report_inputs, report_folder, tmp_path):
    warning = noise_warning(LatencyProfile.from_record(noisy := PROFILE | {"noise": ["draft rows=1: spread 85%"]}, ""))
    assert warning not in (report_folder / "index.html").read_text()
    inputs = small_inputs(report_inputs, tmp_path)
    write_json(inputs / "latency" / "toy-1c.json", noisy)
    text = (stage(inputs, tmp_path / "reports") / "index.html").read_text()
    assert text.index(warning) < text.index("<figure>")


def test_a_missing_measurement_is_one_clear_message(report_inputs, tmp_path):
    args = SimpleNamespace(data=tmp_path, device=report_inputs / "device.json", output=tmp_path)
    with pytest.raises(ValueError, match="holds no finished measurement"):
        report.run(args)


def test_reports_lists_pages_and_decisions(report_inputs, report_folder, record, capsys):
    reports.run(SimpleNamespace(data=report_inputs / "data"))
    printed = capsys.readouterr().out
    assert str(report_folder / "index.html") in printed and record["decision"] in printed
    promoted = [line.split()[-1] for line in printed.splitlines() if line.startswith("  draftwright promote --pair p ")]
    assert promoted == ["auto"]
    with pytest.raises(ValueError, match="no report below"):
        reports.run(SimpleNamespace(data=report_inputs / "pair"))
