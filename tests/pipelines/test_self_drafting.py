"""From a model to measured self-drafting, on tiny models: guess traces, prices, bundles, timed decodes, report."""

import json
import warnings
from argparse import Namespace

import pandas as pd
import pytest
import yaml

from pipelines import guesser, guesses, register, self_drafting
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.self_drafting.names import CALIBRATED, DECODING, METHODS, PROMPT_LOOKUP
from pipelines.measuring.self_drafting.study import SelfDraftingConfig, SelfDraftingStudy
from pipelines.outputs import write_json
from pipelines.reporting.self_drafting_folder import SelfDraftingResults, read_self_drafting
from pipelines.reporting.self_drafting_plots import self_drafting_passes, self_drafting_speeds
from pipelines.reporting.self_drafting_report import SelfDraftingReport, sentences
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
PARAMETERS = {
    "traces": {"guesses": {"ways": WAYS, "prompts": 3, "max_new_tokens": 16, "threads": 1}},
    "guesser": {"bootstrap_replicates": 20},
    "self_drafting": {
        "validation_prompts": 2,
        "test_prompts": 3,
        "gammas": [1, 3],
        "given": {"progressive_tree-paper": {"method": "progressive_tree", "geometry": "paper"}},
        "lookup_tokens": 3,
        "max_new_tokens": 12,
        "threads": 1,
    },
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
        args.out = args.guesses = place / "guesses"
        guesses.run(args)
        args.latency = place / "latency"
        for method in METHODS:
            args.method = method
            args.record, args.bundle = place / "guessers" / f"{method}.json", place / "bundles" / method
            guesser.run(args)
        args.bundles, args.output = place / "bundles", place / "self_drafting"
        self_drafting.run(args)
    return place


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


def test_every_arm_is_timed_on_every_prompt(folder):
    table = pd.read_parquet(folder / "self_drafting" / "toy-1c" / DECODING)
    test = table[table["split"] == "test"]
    expected = {
        "autoregressive",
        "chain-1",
        "chain-3",
        *METHODS,
        "progressive_tree-paper",
        "hf_generate",
        PROMPT_LOOKUP,
    }
    assert set(test["drafter"]) == expected
    assert set(table[table["split"] == "validation"]["drafter"]) == {"chain-1", "chain-3"}
    assert set(test.groupby(["drafter", "setting"])["prompt"].nunique()) == {3}
    greedy = test[(test["setting"] == "T=0") & (test["family"] != "hugging_face")]
    assert set(greedy.groupby("prompt")["tokens"].nunique()) == {1}
    own = test[test["family"] == CALIBRATED]
    assert (own["guessed"] > 0).all() and (own["tried"] <= own["rounds"]).all()


def test_the_report_reads_what_the_stages_left(folder):
    results = read_self_drafting(folder / "self_drafting" / "toy-1c", folder / "guessers")
    report = SelfDraftingReport(results, replicates=20, seed=0)
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
        assert over == {"lookahead", "self_draft", PROMPT_LOOKUP}
        assert 0 < arms["lookahead"]["upkeep"]["value"] < 1 and arms[PROMPT_LOOKUP]["upkeep"] is None
        assert set(row["slices"]) == {"code", "prose"}
        assert row["slices"]["code"]["progressive_tree"]["over"]["lookahead"]["value"] > 0
        assert row["slices"]["code"]["lookahead"]["over"]["lookahead"] is None
        parts = arms["lookahead"]["milliseconds"]
        rows = report.rows(row["setting"], "lookahead")
        assert sum(parts.values()) == pytest.approx(1e3 * rows["seconds_rounds"].sum() / rows["rounds"].sum())
    assert len(sentences(quality, timing)) == 4
    for figure in (self_drafting_speeds(timing), self_drafting_passes(timing)):
        assert [axes.get_title() for axes in figure.axes] == ["T=0", "T=1"]
    json.dumps([quality, timing], allow_nan=False)
    assert read_self_drafting(folder / "nowhere", folder / "guessers") is None


def test_the_study_has_every_arm_in_its_tables(folder, tmp_path):
    results = read_self_drafting(folder / "self_drafting" / "toy-1c", folder / "guessers")
    report = SelfDraftingReport(results, replicates=20, seed=0)
    write_report(tmp_path / "toy-1c", "p", report)
    text = (tmp_path / "toy-1c" / "self_drafting.md").read_text()
    for arm in (*METHODS, "progressive_tree-paper", "autoregressive", PROMPT_LOOKUP):
        assert text.count(f"| {arm} |") == 2
    (count,) = [row for row in report.quality()["counts"] if (row["setting"], row["arm"]) == ("T=1", "lookahead")]
    assert f"| lookahead | {count['decoding_efficiency']:.2f} | {count['hit_rate']:.2f} |" in text.split("## T=1")[1]
    assert (tmp_path / "toy-1c" / "self_drafting.png").is_file() and "Measured on toy-1c" in text


def test_a_model_alone_can_be_measured(folder, tmp_path):
    """No draft model, so no chains to compare with."""
    alone = ModelPair.load(target=str(folder / "pair" / "target"))
    config = SelfDraftingConfig(**{**PARAMETERS["self_drafting"], "gammas": (), "temperatures": (1.0,), "repeats": 1})
    bundles = {method: folder / "bundles" / method for method in METHODS}
    prompts = {split: toy_prompts(4, split) for split in ("validation", "test")}
    rows = SelfDraftingStudy(alone, config, bundles, prompts, MeasurementLog(tmp_path / "log.jsonl", "f")).run()
    results = SelfDraftingResults({}, pd.DataFrame(rows), {"capped": False})
    (row,) = SelfDraftingReport(results, replicates=20, seed=0).timing()["settings"]
    assert row["best"] is None and all(arm["gain"] is None for arm in row["arms"])
    assert len(sentences({}, {"settings": [row]})) == 1


def test_a_stage_needs_exported_methods(tmp_path):
    args = toy_bench(tmp_path, "self_drafting", {})
    args.bundles = tmp_path / "bundles"
    with pytest.raises(ValueError, match="no method without a draft under"):
        self_drafting.run(args)
