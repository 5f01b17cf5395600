"""The report stage: the values of one page, the page itself, and what is left out."""

import json
import math
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pandas as pd
import pytest

from pipelines.commands.releases import reports
from pipelines.measuring.names import CHAIN, CHOICES, DECODES_FILE
from pipelines.outputs import write_json
from pipelines.report.inputs import Inputs
from pipelines.report.release import untimed_chains
from pipelines.report.speed import main
from pipelines.stages import report
from predictors.latency.profile import LatencyProfile
from predictors.latency.soundness import noise_warning
from tests.pipelines.golden_page import GOLDEN, golden, known, rounded, values, write_data, write_page
from tests.pipelines.hand_made_measured import CHOSEN, MAIN_SPEED, decodes, write_measured
from tests.pipelines.hand_made_profile import PROFILE

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_data(folder)
    return folder


@pytest.fixture(scope="module")
def page(data):
    return write_page(data, data / "data" / "p" / "reports")


@pytest.fixture(scope="module")
def record(page):
    return json.loads((page / "report.json").read_text())


def differences(found, wanted, place="page"):
    """Where two nests of values differ by more than the tolerance."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            line
            for key in sorted(found.keys() | wanted.keys())
            for line in differences(found.get(key), wanted.get(key), f"{place} > {key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        pairs = enumerate(zip(found, wanted, strict=True))
        return [line for number, both in pairs for line in differences(*both, f"{place} > {number}")]
    if isinstance(wanted, float) and isinstance(found, float | int):
        alike = math.isclose(found, wanted, rel_tol=TOLERANCE, abs_tol=1e-9)
    else:
        alike = found == wanted
    return [] if alike else [f"{place}: {found}, was {wanted}"]


def test_the_page_has_its_golden_values(page):
    changed = differences(golden(page), json.loads(GOLDEN.read_text()))
    assert not changed, "\n".join([*changed[:20], "If this is meant: python -m tests.pipelines.golden_page"])


def test_the_golden_values_tell_a_decode_that_took_a_hundredth_longer(tmp_path):
    folder = tmp_path / "measured" / "toy-1c"
    write_measured(folder)
    rows = pd.read_parquet(folder / DECODES_FILE)
    rows.loc[rows.index[rows["arm"] == "hrad"][0], "seconds"] *= 1.01
    rows.to_parquet(folder / DECODES_FILE)
    table = main(Inputs(tmp_path, "toy-1c")).record()["tables"][0]
    wanted = json.loads(GOLDEN.read_text())["speed"]["T=0"]
    changed = {line.split(" > ")[1] for line in differences([rounded(known(row)) for row in table["rows"]], wanted)}
    assert [wanted[int(number)]["arm"] for number in changed] == ["hrad"]


class Page(HTMLParser):
    """Open tags, links, images, and the text outside of folded parts."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.images, self.unfolded = [], [], 0, ""

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.images += tag == "img"
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"details", "style"} & set(self.open):
            self.unfolded += data


def test_the_page_is_well_formed_and_works_offline(page, record):
    text = (page / "index.html").read_text()
    read = Page()
    read.feed(text)
    assert not read.open and read.images == len(list(page.glob("*.png"))) > 0
    assert all(link.startswith("data:image/png;base64,") for link in read.links)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;b&gt;note" in text and record["decision"] in read.unfolded
    assert set(re.findall(r'<details id="(\w+)"', text)) == set(record["sections"])


def small_inputs(data, folder):
    """Main arms without H-RAD, and nothing besides."""
    for name in ("device.json", "pair/pair.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((data / name).read_bytes())
    rows = [row for row in decodes(MAIN_SPEED) if row["arm"] != "hrad"]
    write_measured(folder / "measured" / "toy-1c", rows)
    return folder


def test_what_was_not_measured_is_left_out_and_said_and_noise_is_named_above_the_fold(data, page, tmp_path):
    warning = noise_warning(LatencyProfile.from_record(noisy := PROFILE | {"noise": ["draft rows=1: spread 85%"]}, ""))
    assert warning not in (page / "index.html").read_text()
    inputs = small_inputs(data, tmp_path)
    write_json(inputs / "latency" / "toy-1c.json", noisy)
    folder = write_page(inputs, tmp_path / "reports")
    assert set(values(folder)) == {"speed", "stopping", "latency"}
    assert "self_drafting" in (folder / "report.md").read_text().split("| not measured |")[1]
    text = (folder / "index.html").read_text()
    assert text.index(warning) < text.index("<figure")


def test_a_missing_measurement_is_one_clear_message(data, tmp_path):
    args = SimpleNamespace(data=tmp_path, device=data / "device.json", output=tmp_path)
    with pytest.raises(ValueError, match="holds no finished measurement"):
        report.run(args)


def test_the_best_static_chain_is_that_of_tuning_where_it_was_timed(tmp_path):
    folder = tmp_path / "measured" / "toy-1c"
    write_measured(folder, decodes(MAIN_SPEED), chosen=CHOSEN | {CHAIN: "chain-1"})
    alone = Inputs(tmp_path, "toy-1c").measured
    assert {alone.chosen(CHAIN, setting) for setting in alone.settings} == {"chain-1"}
    tuned = [{"setting": "T=0", "static": "chain-3"}, {"setting": "T=1", "static": "chain-99"}]
    write_json(tmp_path / "tuning" / "toy-1c" / CHOICES, tuned)
    both = Inputs(tmp_path, "toy-1c").measured
    assert [both.chosen(CHAIN, setting) for setting in both.settings] == ["chain-3", "chain-1"]
    (untimed,) = untimed_chains(Inputs(tmp_path, "toy-1c"))
    assert untimed.startswith("At T=1 ") and "chain-99" in untimed


def test_reports_lists_pages_and_what_may_be_promoted(data, page, record, capsys):
    reports(SimpleNamespace(data=data / "data"))
    printed = capsys.readouterr().out
    assert str(page / "index.html") in printed and record["decision"] in printed
    promoted = [line.split()[-1] for line in printed.splitlines() if line.startswith("  draftwright promote --pair p ")]
    assert promoted == ["auto"]
    with pytest.raises(ValueError, match="no report below"):
        reports(SimpleNamespace(data=data / "pair"))
