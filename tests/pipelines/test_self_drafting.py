"""From a model to measured self-drafting, on tiny models: guess traces, prices, bundles, timed decodes, pages."""

import json
import warnings
from argparse import Namespace

import pandas as pd
import pytest
import yaml

from pipelines import fit, measure, register, traces
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.harness import apart
from pipelines.measuring.measurement import MeasureConfig, Measurement
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.names import CALIBRATED, HF_LOOKUP, METHODS, PLAIN
from pipelines.outputs import write_json
from pipelines.reporting.inputs import read_fitted
from pipelines.reporting.measured_folder import Measured, read_measured
from pipelines.reporting.self_drafting_plots import self_drafting_passes, self_drafting_speeds
from pipelines.reporting.self_drafting_report import SelfDraftingReport
from pipelines.studies.self_drafting_report import write_report
from predictors.bundle import read_bundle
from predictors.contract import ContractError
from predictors.latency import LatencyProfile
from runtime import ModelPair, build_decoder, load_decoder
from tests.pipelines.toy_bench import toy_bench, toy_prompts
from tests.predictors.affine_profile import PROFILE
from tests.toys import tiny_llama

SMALL = {"method": "progressive_tree", "max_children": 2, "max_depth": 3}
WAYS = [
    SMALL,
    {"method": "progressive_tree", "geometry": "paper"},
    {"method": "lookahead", "ngram": 3, "window": 3, "guesses": 2},
    {"method": "self_draft", "branches": 2, "length": 4, "ngram": 3},
]
ALONE = [
    {"name": "autoregressive", "family": "plain", "always": True, "decoder": {"method": "autoregressive"}},
    {"name": "{method}", "family": "calibrated", "each": {"method": list(METHODS)}, "bundle": "{method}"},
    {"name": "progressive_tree-paper", "family": "given", "decoder": WAYS[1]},
    {"name": "hf_generate", "family": "hugging_face", "hugging_face": "generate"},
    {
        "name": "hf_prompt_lookup",
        "family": "hugging_face",
        "hugging_face": "prompt_lookup",
        "options": {"prompt_lookup_num_tokens": 3},
    },
]
CHAINS = {"name": "chain-{gamma}", "family": "chain", "always": True, "choose": True, "each": {"gamma": [1, 3]}}
CHAINS |= {"decoder": {"method": "speculative", "drafter": {"kind": "chain", "gamma": "{gamma}"}}}
SHORT = {"validation_prompts": 2, "test_prompts": 3, "group": 20, "max_new_tokens": 12, "threads": 1}
SHORT |= {"led": False, "loop_prompts": 0, "exactness_prompts": 0, "timelines": False}
PARAMETERS = {
    "traces": {"guesses": {"ways": WAYS, "prompts": 3, "max_new_tokens": 16, "threads": 1}},
    "fit": {method: {"family": "guess", "method": method, "bootstrap_replicates": 20} for method in METHODS},
    "measure": {"arms": [*ALONE, CHAINS], **SHORT},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which guesses, all methods and their measurement were made."""
    place = tmp_path_factory.mktemp("self_drafting")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = toy_bench(place, "unused", {})
        (place / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS}}))
        write_json(place / "latency" / "toy-1c.json", PROFILE.to_record())
        args.out = place / "traces" / "guesses"
        args.of = "guesses"
        traces.run(args)
        args.latency, args.traces, args.labels = place / "latency", place / "traces", place / "labels"
        for method in METHODS:
            args.predictor = method
            args.quality, args.bundle = place / "fit" / f"{method}.json", place / "bundles" / method
            fit.run(args)
        args.bundles, args.output, args.section = place / "bundles", place / "measured", "measure"
        measure.run(args)
    return place


def report_of(folder):
    measured = read_measured(folder / "measured" / "toy-1c")
    return SelfDraftingReport(measured, read_fitted(folder / "fit", "guess"), replicates=20, seed=0)


@pytest.fixture(scope="module")
def pair(folder):
    return ModelPair.load(target=str(folder / "pair" / "target"), draft=str(folder / "pair" / "draft"))


def test_bundles_decode_as_their_cards_say_with_and_without_a_draft(folder, pair):
    plain = build_decoder(pair, {"method": "autoregressive"}).generate(list(range(6)), max_new_tokens=16).tokens
    for method in METHODS:
        card = read_bundle(folder / "bundles" / method).card
        assert card["serving"] == PROFILE.serving.to_record()
        assert card["decoder"]["method"] == method and "T=0" in card["selection"]["reason"]
        for served in (pair, ModelPair(pair.target)):
            assert (
                load_decoder(folder / "bundles" / method, served).generate(list(range(6)), max_new_tokens=16).tokens
                == plain
            )


def test_settings_alone_are_registered_but_not_repriced(folder, pair, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "data" / "p").mkdir(parents=True)
    (tmp_path / "data" / "p" / "bundles").symlink_to(folder / "bundles")
    register.run(Namespace(data=tmp_path / "data"))
    out = capsys.readouterr().out
    assert all(f"registered as p-{method} version 1, alias challenger" in out for method in METHODS)
    bundle, latency = folder / "bundles" / "lookahead", folder / "latency" / "toy-1c.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_decoder(bundle, pair, latency=latency)
    other = LatencyProfile({"target": PROFILE.tables["target"]}, "toy", {}, {})
    write_json(tmp_path / "other.json", other.to_record())
    with pytest.warns(UserWarning, match="chosen by another latency profile"):
        load_decoder(bundle, pair, latency=tmp_path / "other.json")
    with pytest.raises(ValueError, match="Run the stage that exports them again"):
        load_decoder(bundle, pair, latency=latency, reprice=True)


def test_a_bundle_belongs_to_its_model(folder):
    with pytest.raises(ContractError, match=r"target\.weights was .* Load the pair it was made for"):
        load_decoder(folder / "bundles" / "lookahead", ModelPair(tiny_llama(32, seed=5)))


def test_the_page_reads_what_was_measured(folder):
    report = report_of(folder)
    own = report.measured.test[report.measured.test["family"] == CALIBRATED]
    assert (own["guessed"] > 0).all() and (own["tried"] <= own["rounds"]).all()
    assert own[own["temperature"] == 0]["equals_plain"].all()
    assert not report.empty and SelfDraftingReport(report.measured.only([PLAIN, "chain-3"]), {}, 20, 0).empty
    quality, timing = report.quality(), report.timing()
    assert set(quality["chosen"]) == set(METHODS) and len(quality["ways"]) == 2 * len(WAYS)
    for row in quality["counts"]:
        hits, length = row["hit_rate"], row["accept_length"]
        assert row["decoding_efficiency"] == pytest.approx((hits * length if length else 0) + 1 - hits)
    assert len(timing["bars"]) == 2 * 4 and all(bar["at_most"] for bar in timing["bars"])
    for row in timing["settings"]:
        arms = {arm["arm"]: arm for arm in row["arms"]}
        assert len([arm for arm in arms if arm.startswith("chain")]) == 1 and row["best"] in arms
        assert arms["autoregressive"]["speedup"]["value"] == 1 and arms[row["best"]]["gain"]["value"] == 0
        over = {name for name, ratio in arms["progressive_tree"]["over"].items() if ratio is not None}
        assert over == {"lookahead", "self_draft", HF_LOOKUP}
        assert 0 < arms["lookahead"]["upkeep"]["value"] < 1 and arms[HF_LOOKUP]["upkeep"] is None
        assert set(row["slices"]) == {"code", "prose"}
        assert row["slices"]["code"]["progressive_tree"]["over"]["lookahead"]["value"] > 0
        assert row["slices"]["code"]["lookahead"]["over"]["lookahead"] is None
        parts = arms["lookahead"]["milliseconds"]
        rows = report.paired.rows("lookahead", [row["setting"]])
        assert sum(parts.values()) == pytest.approx(1e3 * rows["seconds_rounds"].sum() / rows["rounds"].sum())
    assert len(report.sentences(quality, timing)) == 4
    for figure in (self_drafting_speeds(timing), self_drafting_passes(timing)):
        assert [axes.get_title() for axes in figure.axes] == ["T=0", "T=1"]
    json.dumps([quality, timing], allow_nan=False)


def test_the_study_has_every_arm_in_its_tables(folder, tmp_path):
    report = report_of(folder)
    write_report(tmp_path / "toy-1c", "p", report)
    text = (tmp_path / "toy-1c" / "self_drafting.md").read_text()
    for arm in (*METHODS, "progressive_tree-paper", "autoregressive", HF_LOOKUP):
        assert text.count(f"| {arm} |") == 2
    (count,) = [row for row in report.quality()["counts"] if (row["setting"], row["arm"]) == ("T=1", "lookahead")]
    assert f"| lookahead | {count['decoding_efficiency']:.2f} | {count['hit_rate']:.2f} |" in text.split("## T=1")[1]
    assert (tmp_path / "toy-1c" / "self_drafting.png").is_file() and "Measured on toy-1c" in text


def test_a_model_alone_can_be_measured(folder, tmp_path):
    """No draft model, so no chains to compare with."""
    alone = ModelPair.load(target=str(folder / "pair" / "target"))
    config = MeasureConfig(arms=tuple(ArmRow(**row) for row in ALONE), temperatures=(1.0,), **SHORT)
    log = MeasurementLog(tmp_path / "log.jsonl", "f")
    measurement = Measurement(alone, config, folder / "bundles", log)
    tables = map(pd.DataFrame, apart(measurement.run(toy_prompts(2, "validation"), toy_prompts(2))))
    measured = Measured(*tables, {"choices": measurement.choices, "capped": False}, {"parameters": {}})
    (row,) = SelfDraftingReport(measured, {}, replicates=20, seed=0).timing()["settings"]
    assert row["best"] is None and all(arm["gain"] is None for arm in row["arms"])
    assert len(SelfDraftingReport.sentences({}, {"settings": [row]})) == 1
