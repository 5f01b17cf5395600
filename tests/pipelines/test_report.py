import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from pipelines import report, reports
from pipelines.outputs import write_json
from tests.pipelines.hand_made_measured import MAIN_SPEED, PHASES, decodes, write_measured
from tests.pipelines.hand_made_profile import PROFILE
from tests.pipelines.report_stage import stage


def test_speedups_are_paired_by_block(report_timing):
    row = report_timing["settings"][0]
    speedup = row["arms"]["hrad"]["speedup"]
    assert speedup["value"] == pytest.approx(1.76, rel=0.05)
    assert speedup["high"] - speedup["low"] < 0.2  # prompts differ fourfold in pace
    assert row["arms"]["autoregressive"]["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert row["arms"]["hrad"]["median_speedup"]["value"] == pytest.approx(1.76, rel=0.05)
    assert row["arms"]["hrad"]["gain"]["low"] > 0
    assert row["arms"]["chain-3"]["gain"]["value"] == 0
    assert row["chosen"] == {"chain": "chain-3", "confidence": "confidence-0.4"}
    assert row["arms"]["hrad"]["prompts"] == 6 and "roc" not in row["arms"]
    assert row["arms"]["hrad"]["time_shares"] == pytest.approx(dict.fromkeys(PHASES, 0.2))
    assert row["arms"]["hf_generate"]["time_shares"] is None


def test_bars_and_slices(report_timing):
    bars = {bar["name"]: bar for bar in report_timing["bars"]}
    overhead = bars["loop overhead, plain"]
    assert overhead["measured"]["value"] == pytest.approx(0.05)
    assert overhead["met"] and overhead["interval_met"]
    assert bars["plain / HF generate, T=0"]["met"]
    assert bars["best static / HF assisted, T=1"]["bar"] == 1.1
    assert report_timing["slices"].keys() == {"code", "prose"}
    assert report_timing["pooled"]["hrad"]["gain"]["value"] == pytest.approx(0.1, abs=0.05)


def test_quality_holds_counts_and_no_time(report_quality):
    arms = report_quality["settings"][0]["arms"]
    assert "hf_generate" not in arms
    chain = arms["chain-3"]
    assert chain["block_efficiency"]["value"] == pytest.approx(59 / 30)
    assert (chain["m_excl"]["value"], chain["m_incl"]["value"]) == (1.0, 2.0)
    assert chain["rollback_rate"]["value"] == 0.5
    assert chain["accepted_histogram"] == [60, 60, 60]
    assert arms["autoregressive"]["rollback_rate"]["value"] is None
    assert report_quality["equals_plain"]["chain-3"] == {"equal": 6, "texts": 6}
    assert "seconds" not in json.dumps(report_quality)
    assert "date" not in report_quality["provenance"]
    assert report_quality["heads"]["heads"].keys() == {"hrad", "length"}


def test_report_is_a_function_of_its_inputs(report_inputs, report_folder, tmp_path):
    again = stage(report_inputs, tmp_path)
    for name in ("quality.json", "timing.json", "index.html"):
        assert (again / name).read_bytes() == (report_folder / name).read_bytes()


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


def test_page_is_well_formed_and_works_offline(report_folder, report_timing):
    text = (report_folder / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.open
    assert page.images == 20
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;b&gt;note" in text
    assert report_timing["title"] in text
    assert text.count("<td>explicit length</td>") == 4  # speed and counts at both temperatures
    assert {path.stem for path in report_folder.glob("*.png")} == {
        *("speedup", "sweep", "slices", "accepted", "shares", "confusion", "reliability", "verifiers", "acceptance"),
        *("latency", "prediction", "selection", "choices", "stops", "places"),
        *("self_drafting", "self_drafting_slices", "self_drafting_passes", "guesses", "replay"),
    }


def test_sections_on_latency_and_predictions(report_folder, report_timing):
    text = (report_folder / "index.html").read_text()
    assert "What a pass costs here" in text and "Predicted and measured" in text
    assert "draft step, HF / compact, context 32</td><td>at least 1.8x</td><td>2.00x (1.50–2.67)" in text
    assert "Note: contexts [512] are cut to 128" in text
    names = [row["name"] for row in report_timing["bars"]]
    assert "their ranking, Spearman" in names and "bars" not in report_timing["latency"]


def small_inputs(report_inputs, folder):
    """Main arms without H-RAD, and nothing besides."""
    for name in ("device.json", "params.yaml", "pair/pair.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((report_inputs / name).read_bytes())
    rows = [row for row in decodes(MAIN_SPEED) if row["arm"] != "hrad"]
    write_measured(folder / "measured" / "toy-1c", rows)
    return folder


def test_a_noisy_profile_is_named_at_the_pages_top_and_in_its_section(report_inputs, report_folder, tmp_path, capsys):
    assert '<p class="noisy">' not in (report_folder / "index.html").read_text()
    inputs = small_inputs(report_inputs, tmp_path)
    noisy = PROFILE | {"noise": ["draft rows=1: spread 85%"]}
    write_json(inputs / "latency" / "toy-1c.json", noisy)
    text = (stage(inputs, tmp_path / "reports") / "index.html").read_text()
    banner, verdict = text.index("toy-1c was noisy"), text.index('<section class="verdict">')
    assert banner < verdict < text.index("<li>draft rows=1: spread 85%</li>")
    assert "warning: toy-1c was noisy" in capsys.readouterr().err


def test_section_on_heads_and_what_they_learned_from(report_folder, report_quality):
    text = (report_folder / "index.html").read_text()
    section = text.split("What heads know before a draft")[1].split("<h2>")[0]
    assert "hrad, replayed over the best static length: +5 % (+3…+7) at T=0, −4 % (−6…−2) at T=1" in section
    row = section.split("<td>H-RAD, hrad</td>")[2].split("</tr>")[0]
    assert row == "<td>T=1</td><td>0.70 (0.60–0.80)</td>" + "".join(
        f"<td>{cell}</td>" for cell in ("0.600", "0.500", "0.030", "96", "−4 % (−6…−2)", "3")
    )
    assert "<td>2</td><td>0.2 %</td><td>0.710</td><td>–</td><td>0.710</td><td>–</td>" in section
    assert section.count("<td>oracle</td>") == 2 and "<td>explicit length, length</td>" in section
    assert report_quality["heads"]["shown"] == "hrad"
    assert report_quality["learned"]["traces"] == {"texts": {"rows": 20, "bytes": 3000, "bytes_per_row": 150.0}}
    assert "<td>labels chains</td><td>129</td><td>–</td><td>–</td><td>8, 2, 3</td>" in text


def test_section_on_verification_rules(report_folder, report_timing, report_quality):
    text = (report_folder / "index.html").read_text()
    assert "Which verification rule" in text
    assert (
        "traversal is first (3.20 tokens per target pass, 3.00–3.40), but the data do not tell it apart from block"
        in text
    )
    assert "<td>block</td><td>chain-2</td><td>3.00 (2.50–3.50)</td><td>2.36 (1.97–2.95)</td>" in text
    text = text.split("<h2>Which verification rule</h2>")[1]
    timed, untimed = (text.split(f"<caption>{name}</caption>")[1].split("</table>")[0] for name in ("T=1", "T=2"))
    assert "tokens/s" in timed and "tokens/s" not in untimed
    assert "<td>block</td><td>chain-2</td><td>3.00 (2.50–3.50)</td></tr>" in untimed
    assert report_quality["verifiers"]["winner"]["tied"] == ["block"]
    assert report_timing["verifiers"]["pooled"][1]["speedup"]["value"] == pytest.approx(2.4)
    assert "seconds" not in json.dumps(report_quality["verifiers"])


def test_section_on_stop_rules(report_folder, report_timing, report_quality):
    text = (report_folder / "index.html").read_text()
    assert "When to stop drafting" in text and "<caption>T=1, measured: 8 prompts" in text
    assert "T=1 +30 % (+28…+32)" in text  # what a perfect rule brings in replay
    row = report_timing["stopping"]["settings"][0]
    arms = {arm["arm"]: arm for arm in row["arms"]}
    assert "chain-1" not in arms and row["best"]["chain"] == "chain-3" == row["hindsight"]
    assert not {"hrad", "hf_generate", "lookahead", "plain_hf_forward"} & set(arms), "they have other sections"
    assert list(arms)[:2] == ["autoregressive", "chain-3"] and list(arms)[-1] == "fork-4.2 early_stop-1"
    assert arms["fork-4.2 early_stop-1"]["gain_over_fork"]["value"] == pytest.approx(0.1, abs=0.03)
    assert arms["roc"]["gain"]["value"] == pytest.approx(-0.05, abs=0.03) and arms["roc"]["gain_over_fork"] is None
    assert [model["model"] for model in report_quality["stopping"]["models"]] == ["early_stop-1", "logistic"]
    assert "seconds" not in json.dumps(report_quality["stopping"]).replace("tokens_per_second", "")
    assert (report_folder / "stops.png").is_file() and (report_folder / "places.png").is_file()


def test_section_on_self_drafting(report_folder, report_timing, report_quality):
    text = (report_folder / "index.html").read_text()
    assert "<td>progressive_tree</td><td>2.00</td><td>0.50</td><td>3.00</td><td>3.0</td><td>2.0</td>" in text
    row = report_timing["self_drafting"]["settings"][0]
    arms = {arm["arm"]: arm for arm in row["arms"]}
    assert "chain-1" not in arms and row["best"] == "chain-3" and "hf_assisted" not in arms
    assert arms["progressive_tree"]["gain"]["value"] == pytest.approx(150 / 160 - 1, abs=0.03)
    assert arms["progressive_tree"]["over"]["hf_prompt_lookup"]["value"] == pytest.approx(1.5, abs=0.05)
    assert arms["hf_prompt_lookup"]["over_hugging_face"]["value"] == pytest.approx(1.25, abs=0.05)
    assert arms["lookahead"]["over"]["lookahead"] is None and arms["hf_generate"]["upkeep"] is None
    assert set(row["slices"]) == {"code", "prose"} and "autoregressive" not in row["slices"]["code"]
    assert any(
        bar["name"] == "T=1: upkeep of lookahead, share of a step" and not bar["met"] for bar in report_timing["bars"]
    )  # a fifth


def test_section_on_release(report_folder, report_timing, report_quality):
    """What was tuned is 2.2 times plain decoding."""
    (row,) = report_timing["release"]["tuned"]
    assert (row["winner"], row["static"]) == ("ema", "chain-2")
    assert row["speedup"]["value"] == pytest.approx(2.2) and row["gain"]["value"] == pytest.approx(0.1)
    assert row["predicted"] == pytest.approx(3.4)
    auto, hrad, length = report_timing["release"]["verdicts"]
    assert [one["verdict"] for one in (auto, hrad, length)] == ["passed", "refused", "inconclusive"]
    assert report_quality["release"] == {"tried": ["auto", "hrad", "length"]}
    assert auto["gains"]["chain-4"]["value"] == pytest.approx(0.06)
    assert auto["settings"]["T=1"]["value"] == pytest.approx(0.05)
    assert hrad["gains"]["chain-4"]["value"] == pytest.approx(0.0) and 0.04 < hrad["smallest_gain"] < 0.06
    text = (report_folder / "index.html").read_text()
    assert "T=0: of 3 candidates on the clock ema was the fastest: 2.20x" in text
    assert "The gate would let auto pass." in text
    assert "The gate would refuse hrad (gain over chain-4: +0.0%" in text
    assert "On length the evidence is inconclusive (gain over chain-4: +3.0%" in text
    assert "<td>chain-4</td><td>+6 % (+3…+9)</td><td>clock</td>" in text


def test_section_on_replay(report_folder, report_timing, report_quality):
    text = (report_folder / "index.html").read_text()
    assert text.index("What choosing well is worth") < text.index("<h2>The pair</h2>"), "the report's first table"
    row = text.split("speed-up over plain decoding, step by step")[1].split("</table>")[0].split("<tr>")[2]
    assert row.startswith("<td>all (6)</td><td>1.00x</td><td>1.60x (1.60–1.60)</td><td>1.68x (1.68–1.68)</td><td>2.00x")
    assert "<td>+5 % (+5…+5)</td><td>+25 % (+25…+25)</td><td>+20 % (+20…+20)</td>" in row
    assert "T=0: on 6 prompts on the clock, replayed speed-ups are" in text
    assert report_timing["replay"]["settings"][0]["agreement"]["prompts"] == 6
    assert report_quality["replay"] == {"T=0": {"texts": 6, "documents": 3}}


def test_section_on_selectors(report_folder, report_timing, report_quality):
    text = (report_folder / "index.html").read_text()
    assert "Which tree to draft, chosen at every root" in text
    row = text.split("Expected, on exact labels")[1].split("</table>")[0].split("<tr>")[2]
    assert row.startswith("<td>specinfer</td><td>T=1: chain-2</td><td>2.00 (1.90–2.40)</td><td>2.05")
    assert "<td>specinfer</td>" in text.split("Measured: 2 prompts")[1]
    rule = report_timing["selection"]["rules"][0]
    assert rule["static"]["speedup"]["value"] == pytest.approx(2.0) and rule["gain"]["value"] == pytest.approx(0.1)
    assert "seconds" not in json.dumps(report_quality["selection"]) and (report_folder / "choices.png").is_file()


def test_what_was_not_measured_is_left_out_and_said(report_inputs, tmp_path, capsys):
    folder = stage(small_inputs(report_inputs, tmp_path), tmp_path / "reports")
    text, said = (folder / "index.html").read_text(), capsys.readouterr().out
    missing = ("comparison of verification rules", "measurement of selectors", "head", "latency profile", "replay")
    assert all(f"no {what} of toy-1c in {tmp_path}" in said for what in missing)
    assert "H-RAD gains" not in said and "What heads know" not in text and "Predicted and measured" not in text
    assert "The rules were not compared on this machine" in text and "No latency profile was measured" in text
    records = [json.loads((folder / name).read_text()) for name in ("quality.json", "timing.json")]
    assert all(record[name] is None for record in records for name in ("verifiers", "heads", "latency"))
    assert not (folder / "verifiers.png").exists()


def test_a_missing_measurement_is_one_clear_message(report_inputs, tmp_path):
    params, device = report_inputs / "params.yaml", report_inputs / "device.json"
    args = SimpleNamespace(data=tmp_path, pair="p", params=params, device=device, output=tmp_path)
    with pytest.raises(ValueError, match="holds no finished measurement"):
        report.run(args)


def test_reports_lists_pages_and_headlines(report_inputs, report_folder, report_timing, capsys):
    reports.run(SimpleNamespace(data=report_inputs / "data"))
    printed = capsys.readouterr().out
    assert str(report_folder / "index.html") in printed
    assert report_timing["headline"][0] in printed
    assert "The gate would refuse hrad" in printed
    promoted = [line.split()[-1] for line in printed.splitlines() if line.startswith("  draftwright promote --pair p ")]
    assert promoted == ["auto"]
    with pytest.raises(ValueError, match="no report below"):
        reports.run(SimpleNamespace(data=report_inputs / "pair"))
