import copy
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import yaml

from pipelines import report, reports
from pipelines.outputs import write_json
from pipelines.reporting.headline import headline, percent, times, title, verdict
from tests.pipelines.hand_made_benchmark import PHASES, calibration, measurement_rows, write_benchmark
from tests.pipelines.hand_made_comparison import write_comparison
from tests.pipelines.hand_made_profile import PROFILE
from tests.pipelines.hand_made_release import write_release
from tests.pipelines.hand_made_replay import write_replay
from tests.pipelines.hand_made_selection import write_selection
from tests.pipelines.hand_made_self_drafting import write_self_drafting
from tests.pipelines.hand_made_stopping import write_stopping
from tests.pipelines.report_stage import stage


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_json(folder / "device.json", {"slug": "toy-1c"})
    write_benchmark(folder / "benchmark" / "toy-1c", measurement_rows())
    for name in ("paper", "extended"):
        write_json(folder / "calibration" / f"{name}.json", calibration(name))
    write_json(folder / "calibration" / "length.json", calibration("extended", "length"))
    write_json(folder / "pair" / "pair.json", {"source": "builtin", "pair": "p"})
    write_comparison(folder / "verifiers" / "toy-1c")
    write_selection(folder / "selection" / "toy-1c", folder / "selectors")
    write_stopping(folder / "stopping" / "toy-1c", folder / "stoppers")
    write_self_drafting(folder / "self_drafting" / "toy-1c", folder / "guessers")
    write_replay(folder / "replay" / "toy-1c")
    decoded = {(row["prompt"], row["document"]) for row in measurement_rows() if row["split"] == "test"}
    write_release(folder / "tuning", folder / "trials", "toy-1c", sorted(decoded))
    write_json(folder / "latency" / "toy-1c.json", PROFILE)
    write_json(folder / "labels" / "hrad.json", {"classes": {"test": {"none": 9, "some": 13, "all": 7}}})
    (folder / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"report": {"bootstrap_replicates": 200}}}}))
    return folder


@pytest.fixture(scope="module")
def folder(inputs):
    return stage(inputs, inputs / "data" / "p" / "reports")


@pytest.fixture(scope="module")
def timing(folder):
    return json.loads((folder / "timing.json").read_text())


@pytest.fixture(scope="module")
def quality(folder):
    return json.loads((folder / "quality.json").read_text())


def test_speedups_are_paired_and_take_the_fastest_repeat(timing):
    row = timing["temperatures"][0]
    speedup = row["arms"]["hrad"]["speedup"]
    assert speedup["value"] == pytest.approx(1.76, rel=0.05)
    assert speedup["high"] - speedup["low"] < 0.2  # prompts differ fourfold in pace
    assert row["arms"]["autoregressive"]["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert row["arms"]["hrad"]["median_speedup"]["value"] == pytest.approx(1.76, rel=0.05)
    assert row["arms"]["hrad"]["gain_over_best_static"]["low"] > 0
    assert row["arms"]["chain-3"]["gain_over_best_static"]["value"] == 0
    assert row["chosen"] == {"static": "chain-3", "confidence": "confidence-0.4"}
    assert row["arms"]["hrad"]["time_shares"] == pytest.approx(dict.fromkeys(PHASES, 0.2))
    assert row["arms"]["hf_generate"]["time_shares"] is None


def test_bars_and_slices(timing):
    bars = {bar["name"]: bar for bar in timing["bars"]}
    overhead = bars["loop overhead, plain"]
    assert overhead["measured"]["value"] == pytest.approx(0.05)
    assert overhead["met"] and overhead["interval_met"]
    assert bars["plain / HF generate, T=0"]["met"]
    assert bars["best static / HF assisted, T=1"]["bar"] == 1.1
    assert timing["slices"].keys() == {"code", "prose"}
    assert timing["pooled"]["hrad"]["gain_over_best_static"]["value"] == pytest.approx(0.1, abs=0.05)


def test_quality_holds_counts_and_no_time(quality):
    arms = quality["temperatures"][0]["arms"]
    assert "hf_generate" not in arms
    chain = arms["chain-3"]
    assert chain["block_efficiency"]["value"] == pytest.approx(59 / 30)
    assert (chain["m_excl"]["value"], chain["m_incl"]["value"]) == (1.0, 2.0)
    assert chain["rollback_rate"]["value"] == 0.5
    assert chain["accepted_histogram"] == [60, 60, 60]
    assert arms["autoregressive"]["rollback_rate"]["value"] is None
    assert quality["equals_plain"]["chain-3"] == {"equal": 6, "texts": 6}
    assert "seconds" not in json.dumps(quality)
    assert "date" not in quality["provenance"]
    assert quality["predictors"].keys() == {"paper", "extended", "length"}


def test_report_is_a_function_of_its_inputs(inputs, folder, tmp_path):
    again = stage(inputs, tmp_path)
    for name in ("quality.json", "timing.json", "index.html"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links, self.images = [], [], 0

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.images += tag == "img"
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_and_works_offline(folder, timing):
    text = (folder / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.open
    assert page.images == 20
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;b&gt;note" in text
    assert timing["title"] in text
    assert text.count("<td>explicit length</td>") == 4  # speed and counts at both temperatures
    assert "<td>explicit length, extended features</td>" in text and "<td>H-RAD, paper features</td>" in text
    assert {path.stem for path in folder.glob("*.png")} == {
        *("speedup", "sweep", "slices", "accepted", "shares", "confusion", "reliability", "verifiers", "acceptance"),
        *("latency", "prediction", "selection", "choices", "stops", "places"),
        *("self_drafting", "self_drafting_slices", "self_drafting_passes", "guesses", "replay"),
    }


def test_sections_on_latency_and_predictions(folder, timing):
    text = (folder / "index.html").read_text()
    assert "What a pass costs here" in text and "Predicted and measured" in text
    assert "2.00x (1.50–2.67)" in text  # the compact draft step
    assert "Note: contexts [512] are cut to 128" in text
    names = [row["name"] for row in timing["bars"]]
    assert "their ranking, Spearman" in names and "bars" not in timing["latency"]


def test_a_missing_profile_leaves_its_sections_out(inputs, tmp_path, monkeypatch, capsys):
    args_of = inputs / "latency" / "toy-1c.json"
    hidden = args_of.rename(tmp_path / "hidden.json")
    try:
        folder = stage(inputs, tmp_path)
    finally:
        hidden.rename(args_of)
    assert "no latency profile of toy-1c in" in capsys.readouterr().out
    text = (folder / "index.html").read_text()
    assert "No latency profile was measured" in text and "Predicted and measured" not in text
    assert json.loads((folder / "timing.json").read_text())["latency"] is None


def test_section_on_verification_rules(folder, timing, quality):
    text = (folder / "index.html").read_text()
    assert "Which verification rule" in text
    assert (
        "traversal is first (3.20 tokens per target pass, 3.00–3.40), but the data do not tell it apart from block"
        in text
    )
    assert "<td>block</td><td>chain-2</td><td>3.00 (2.50–3.50)</td><td>2.36 (1.97–2.95)</td>" in text
    timed, untimed = (text.split(f"<caption>{name}</caption>")[1].split("</table>")[0] for name in ("T=1", "T=2"))
    assert "tokens/s" in timed and "tokens/s" not in untimed
    assert "<td>block</td><td>chain-2</td><td>3.00 (2.50–3.50)</td></tr>" in untimed
    assert quality["verifiers"]["winner"]["tied"] == ["block"]
    assert timing["verifiers"]["pooled"][1]["speedup"]["value"] == pytest.approx(2.4)
    assert "seconds" not in json.dumps(quality["verifiers"])


def test_section_on_stop_rules(folder, timing, quality):
    text = (folder / "index.html").read_text()
    over = "+4.0% (+4.0% to +4.0%) over chain-2"
    assert f"these surely pay: confidence-0.2 {over} and {over}, early_stop-1 +10.0%" in text
    assert "A perfect stop rule, which knows what will be accepted, would bring, in replay: T=1 +30.0%" in text
    arms = {arm["arm"]: arm for arm in timing["stopping"]["settings"][0]["arms"]}
    assert "chain-4" not in arms, "chain-2 was faster on validation prompts"
    assert arms["fork-4.2 early_stop-1"]["gain_over_fork"]["value"] == pytest.approx(0.1)
    assert arms["roc"]["gain"]["value"] == pytest.approx(-0.05)
    assert [model["model"] for model in quality["stopping"]["models"]] == ["logistic", "early_stop-1"]
    assert "seconds" not in json.dumps(quality["stopping"]).replace("tokens_per_second", "")
    assert (folder / "stops.png").is_file() and (folder / "places.png").is_file()


def test_section_on_self_drafting(folder, timing, quality):
    text = (folder / "index.html").read_text()
    assert (
        "surely faster than plain decoding: progressive_tree, lookahead (progressive_tree 1.50x (1.50 to 1.50)" in text
    )
    assert "the pair&#39;s best static chain (chain-4) reaches 2.00x" in text
    assert "<td>progressive_tree</td><td>2.95</td><td>0.50</td><td>4.90</td><td>5.0</td><td>4.0</td>" in text
    arms = {arm["arm"]: arm for arm in timing["self_drafting"]["settings"][0]["arms"]}
    assert "chain-2" not in arms and arms["progressive_tree"]["gain"]["value"] == pytest.approx(-0.25)
    assert arms["progressive_tree"]["over"]["hf_prompt_lookup"]["value"] == pytest.approx(1.5)
    assert arms["hf_prompt_lookup"]["over_hugging_face"]["value"] == pytest.approx(1.25)
    assert any(bar["name"] == "T=1: upkeep of lookahead, share of a step" and bar["met"] for bar in timing["bars"])


def test_section_on_release(folder, timing, quality):
    """What was tuned is 2.2 times plain decoding here; in the benchmark, at another pace, other arms are other multiples."""
    (row,) = timing["release"]["tuned"]
    assert (row["winner"], row["static"]) == ("ema", "chain-2")
    assert row["speedup"]["value"] == pytest.approx(2.2) and row["gain"]["value"] == pytest.approx(0.1)
    assert row["predicted"] == pytest.approx(2.2)
    greedy = next(one for one in timing["temperatures"] if one["temperature"] == 0)
    (fastest,) = row["beside"]["fastest"]
    best = greedy["arms"][fastest]["speedup"]["value"]
    assert best == max(arm["speedup"]["value"] for arm in greedy["arms"].values() if arm["speedup"] is not None)
    assert row["beside"]["gain"]["value"] == pytest.approx(2.2 / best - 1)
    auto, hrad = timing["release"]["verdicts"]
    assert auto["passed"] and not hrad["passed"] and quality["release"] == {"tried": ["auto", "hrad"]}
    text = (folder / "index.html").read_text()
    assert "T=0: of 3 candidates on the clock ema was the fastest: 2.20x" in text
    assert "The gate would let auto pass." in text
    assert (
        "T=0: +6 % (+2…+10) over chain-4, which validation prompts chose; +1 % (−3…+5) over chain-6, the fastest static chain in "
        "hindsight." in text
    )
    assert "The gate would refuse hrad (gain: +1.0% (-2.0% to +4.0%) over best static" in text


def test_section_on_replay(folder, timing, quality):
    text = (folder / "index.html").read_text()
    assert text.index("What choosing well is worth") < text.index("<h2>The pair</h2>"), "the report's first table"
    row = text.split("speed-up over plain decoding, step by step")[1].split("</table>")[0].split("<tr>")[2]
    assert row.startswith("<td>all (6)</td><td>1.00x</td><td>1.60x (1.60–1.60)</td><td>1.68x (1.68–1.68)</td><td>2.00x")
    assert "<td>+5 % (+5…+5)</td><td>+25 % (+25…+25)</td><td>+20 % (+20…+20)</td>" in row
    assert "T=0: on 6 prompts of stage benchmark, replayed speed-ups are" in text
    assert timing["replay"]["settings"][0]["agreement"]["benchmark"]["prompts"] == 6
    assert quality["replay"] == {"T=0": {"texts": 6, "documents": 3}}


def test_section_on_selectors(folder, timing, quality):
    text = (folder / "index.html").read_text()
    assert "Which tree to draft, chosen at every root" in text
    row = text.split("Expected, on exact labels")[1].split("</table>")[0].split("<tr>")[2]
    assert row.startswith("<td>specinfer</td><td>T=1: chain-2</td><td>2.00 (1.90–2.40)</td><td>2.05")
    assert "<td>specinfer</td><td>100</td>" in text.split("Measured: 2 prompts")[1]
    assert timing["selection"]["rules"][0]["gain"]["value"] == pytest.approx(0.1)
    assert "seconds" not in json.dumps(quality["selection"]) and (folder / "choices.png").is_file()


def test_report_says_so_where_the_rules_were_not_compared(inputs, tmp_path, capsys):
    for name in ("device.json", "params.yaml", "pair/pair.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((inputs / name).read_bytes())
    write_benchmark(tmp_path / "benchmark" / "toy-1c", measurement_rows())
    folder = stage(tmp_path, tmp_path / "reports")
    assert "The rules were not compared on this machine" in (folder / "index.html").read_text()
    said = capsys.readouterr().out
    assert "no comparison of verification rules in" in said and "no measurement of selectors in" in said
    assert "No selector was measured on this machine" in (folder / "index.html").read_text()
    assert json.loads((folder / "quality.json").read_text())["verifiers"] is None
    assert not (folder / "verifiers.png").exists()


def test_report_without_hrad_has_no_head_section(inputs, tmp_path):
    for name in ("device.json", "params.yaml", "pair/pair.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((inputs / name).read_bytes())
    rows = [row for row in measurement_rows() if row["arm"] != "hrad"]
    write_benchmark(tmp_path / "benchmark" / "toy-1c", rows)
    folder = stage(tmp_path, tmp_path / "reports")
    text = (folder / "index.html").read_text()
    assert "The H-RAD head" not in text
    assert "H-RAD gains" not in text


def test_missing_benchmark_is_one_clear_message(inputs, tmp_path):
    args = SimpleNamespace(benchmark=tmp_path, pair="p", params=inputs / "params.yaml")
    args.device = inputs / "device.json"
    with pytest.raises(ValueError, match="holds no finished benchmark"):
        report.run(args)


def test_headline_pays_only_where_the_interval_is_above_zero(timing):
    changed = copy.deepcopy(timing)
    row = changed["temperatures"][0]
    gain = row["arms"]["hrad"]["gain_over_best_static"]
    row["arms"]["hrad"]["speedup"].update(value=1.6, low=1.5, high=1.7)
    for low, high, expected in ((0.01, 0.2, "it pays here"), (-0.1, 0.2, "it does not pay here")):
        gain.update(value=0.05, low=low, high=high)
        sentence = next(s for s in headline(changed) if s.startswith("T=0: H-RAD"))
        assert expected in sentence
        assert expected.removesuffix(" here") + " there" in title(changed)
        assert "at temperature 0 over it" in title(changed) and "elsewhere it falls back" in title(changed)
        assert ("not" in sentence) == (low < 0)
    fast, slow = ({"value": value, "low": value - 0.1, "high": value + 0.1} for value in (1.6, 0.9))
    assert verdict({"value": -0.1, "low": -0.2, "high": -0.05}, fast).startswith("it does not pay here")
    assert verdict({"value": 0.1, "low": 0.05, "high": 0.2}, fast) == "it pays here"
    assert "not surely faster than plain" in verdict({"value": 0.1, "low": 0.05, "high": 0.2}, slow)


def test_headline_says_where_hrad_is_not_calibrated_and_where_speculation_loses(timing):
    changed = copy.deepcopy(timing)
    assert any(
        s.startswith("T=1: H-RAD is not calibrated here and falls back to static γ=3") for s in headline(changed)
    )
    changed["temperatures"][0]["arms"]["chain-3"]["speedup"].update(value=1.02, low=0.97, high=1.1)
    assert "speculation does not pay here" in headline(changed)[0]


def test_numbers_as_people_read_them():
    assert times({"value": 1.617, "low": 1.55, "high": 1.7}) == "1.62x (1.55–1.70)"
    assert percent({"value": -0.02, "low": -0.05, "high": 0.012}) == "−2 % (−5…+1)"


def test_reports_lists_pages_and_headlines(inputs, folder, timing, capsys):
    reports.run(SimpleNamespace(data=inputs / "data"))
    printed = capsys.readouterr().out
    assert str(folder / "index.html") in printed
    assert timing["headline"][0] in printed
    assert "The gate would refuse hrad" in printed
    with pytest.raises(ValueError, match="no report below"):
        reports.run(SimpleNamespace(data=inputs / "pair"))
