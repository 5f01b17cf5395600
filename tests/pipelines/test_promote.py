"""The commands of release: promote, refuse, force, roll back, status and history, against every kind of registry."""

import dataclasses
import json
import re
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from pipelines import trial as trial_stage
from pipelines.cli import main
from pipelines.measuring.arms import Run
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.outputs import write_json
from pipelines.promote import read_evidence
from pipelines.promotion import trial
from pipelines.promotion.champions import CHAMPION, VERDICT_TAG, Champions, names_of
from pipelines.promotion.gate import Bounds, judge
from pipelines.promotion.names import BEST_STATIC, DECODING, VERDICT
from pipelines.registry import BUNDLE_TAG, CHALLENGER, PAIR_TAG
from pipelines.tracking import new_client
from predictors.bundle import bundle_hash
from runtime import ModelPair
from tests.bundles import auto_bundle, random_bundle, routed_bundle, selector_bundle, settings_bundle, stop_bundle
from tests.pipelines.test_gate import GOOD
from tests.pipelines.toy_bench import toy_bench, toy_prompts
from tests.toys import tiny_llama

NAME = "p-hrad"


@pytest.fixture
def released(tmp_path, monkeypatch, tracking_uri):
    """A workspace whose registry has contents a, b and c as versions; `challenge(client, content, …)` writes evidence on one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"promotion": {}}}}))
    write_json(tmp_path / "data" / "device.json", {"slug": "toy-1c"})
    client = new_client(tracking_uri)
    client.create_registered_model(NAME)
    for content in "abc":
        client.create_model_version(NAME, f"s3://nowhere/{content}", tags={BUNDLE_TAG: content * 64, PAIR_TAG: "p"})
    return client


def challenge(client, content, **changes):
    """Make a version the challenger; the file of evidence on it."""
    client.set_registered_model_alias(NAME, CHALLENGER, str("abc".index(content) + 1))
    made = dataclasses.replace(GOOD, bundle_sha256=content * 64, **changes)
    write_json(Path("evidence.json"), dataclasses.asdict(made))
    return "evidence.json"


def command(capsys, *arguments):
    capsys.readouterr()
    main([*arguments, "--pair", "p", *([] if arguments[0] == "status" else ["--predictor", "hrad"])])
    return capsys.readouterr().out


def test_promote_refuse_force_and_roll_back(released, capsys):
    out = command(capsys, "promote", "--evidence", challenge(released, "a"))
    assert "p-hrad version 1 is champion" in out and json.loads(out[: out.rindex("}") + 1])["passed"]
    assert "is the champion already" in command(capsys, "promote", "--evidence", challenge(released, "a"))

    worse = {"baseline": "a" * 64, "gain": {"value": 0.01, "low": -0.02, "high": 0.04}}
    with pytest.raises(
        SystemExit, match=r"version 2 is refused: gain: \+1\.0% \(-2\.0% to \+4\.0%\) over champion aaaaaaaaaaaa"
    ):
        command(capsys, "promote", "--evidence", challenge(released, "b", **worse))
    record = json.loads((Path("data") / "p" / "promotion" / "hrad-2" / VERDICT).read_text())
    assert not record["passed"] and record["bounds"] == dataclasses.asdict(Bounds())
    assert not json.loads(released.get_model_version(NAME, "2").tags[VERDICT_TAG])["passed"]
    assert "champion version 1 (aaaaaaaaaaaa), challenger version 2 (bbbbbbbbbbbb)" in command(capsys, "status")

    again = challenge(released, "b", **worse)
    with pytest.raises(SystemExit, match=r"dry run: would be refused: gain: \+1\.0%.*; nothing was changed") as refusal:
        command(capsys, "promote", "--dry-run", "--evidence", again)
    assert isinstance(refusal.value.code, str), "exit code 1"
    assert "look number 2 at version 2; before: 1 refused, 0 passed" in capsys.readouterr().out
    assert "would pass, forced" in command(capsys, "promote", "--dry-run", "--force", "an outage", "--evidence", again)
    assert len(Champions(released, NAME).verdicts("2")) == 1

    forced = command(capsys, "promote", "--force", "an outage", "--evidence", challenge(released, "b", **worse))
    assert "version 2 is champion, forced: an outage" in forced
    better = challenge(released, "c", baseline="b" * 64)
    assert "dry run: would pass" in command(capsys, "promote", "--dry-run", "--evidence", better)
    assert "version 3 is champion" in command(capsys, "promote", "--evidence", better)
    assert "version 3 rolled back, version 2 is champion again" in command(capsys, "rollback")
    assert "version 2 rolled back, version 1 is champion again" in command(capsys, "rollback")
    with pytest.raises(SystemExit, match="has no earlier champion to go back to"):
        command(capsys, "rollback")
    lines = command(capsys, "history").splitlines()
    assert [line.split()[2:4] for line in lines] == [
        ["version", number] for number in "12332"
    ] and "an outage" in lines[1]


def test_evidence_must_be_on_the_challenger_and_over_the_champion(released, capsys):
    file = challenge(released, "a")
    released.set_registered_model_alias(NAME, CHALLENGER, "2")
    with pytest.raises(SystemExit, match="on content aaaaaaaaaaaa, and the challenger, version 2, is bbbbbbbbbbbb"):
        command(capsys, "promote", "--evidence", file)
    command(capsys, "promote", "--evidence", challenge(released, "a"))
    for options in ([], ["--dry-run"], ["--force", "an outage"]):
        with pytest.raises(SystemExit, match="compares with best static, and the champion is another"):
            command(capsys, "promote", *options, "--evidence", challenge(released, "b"))
    assert Champions(released, NAME).verdicts("2") == [] and not Path("data/p/promotion/hrad-2").exists()
    with pytest.raises(SystemExit, match="holds no evidence"):
        command(capsys, "promote", "--evidence", "nowhere.json")
    with pytest.raises(SystemExit, match="nothing of pair q is registered"):
        main(["status", "--pair", "q"])


def test_status_is_of_one_pair_and_changes_nothing(released, capsys):
    for name, pair in (("p-big-hrad", "p-big"), ("p-lookahead", "p")):
        released.create_registered_model(name)
        released.create_model_version(name, "s3://nowhere/d", tags={BUNDLE_TAG: "d" * 64, PAIR_TAG: pair})
    command(capsys, "promote", "--evidence", challenge(released, "a"))
    released.set_registered_model_alias(NAME, CHAMPION, "3")
    said = command(capsys, "status").splitlines()
    assert [line.split(":")[0] for line in said] == [NAME, "p-lookahead"]
    assert "champion version 1 (aaaaaaaaaaaa)" in said[0] and "the alias is behind" in said[0]
    assert str(released.get_registered_model(NAME).aliases[CHAMPION]) == "3"
    with Champions(released, NAME).lock():
        assert command(capsys, "status").splitlines() == said


def test_models_of_a_pair_are_found_page_by_page():
    class Page(list):
        token = None

    def version(number):
        return SimpleNamespace(name=f"p-{number}", tags={PAIR_TAG: "p" if number % 2 else "q"})

    def search(filter_string, page_token):
        start = int(page_token or 0)
        page = Page(version(number) for number in range(start, start + 2))
        page.token = str(start + 2) if start < 4 else None
        return page

    assert names_of(SimpleNamespace(search_model_versions=search), "p") == ["p-1", "p-3", "p-5"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[]", "expected a mapping"),
        (b"\xff\x00", "decode"),
        ({"gain": None}, "gain: expected Mapping, got None"),
        ({"gain": {"low": "much"}}, "gain must be an interval of numbers"),
        ({"slices": {"T=0": None}}, "T=0 must be an interval of numbers, got None"),
        ({"exactness": {"hrad": "false"}}, "exactness check 'hrad' must be true or false"),
        ({"verdict": 1}, "unknown key 'verdict'"),
    ],
)
def test_what_is_no_evidence_is_named(tmp_path, content, problem):
    file = tmp_path / "evidence.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(dataclasses.asdict(GOOD) | content).encode())
    with pytest.raises(ValueError, match=f"(?s)evidence.json holds no evidence.*{problem}.*Leave --evidence out"):
        read_evidence(file)


def test_evidence_is_read_as_it_was_written(tmp_path):
    write_json(tmp_path / "evidence.json", dataclasses.asdict(GOOD))
    assert read_evidence(tmp_path / "evidence.json") == GOOD


def test_a_trial_of_no_bundle_says_so(tmp_path):
    args = toy_bench(tmp_path, "trial", {})
    args.bundle = tmp_path / "nowhere"
    parameters = yaml.safe_load(args.params.read_text())
    parameters["pairs"]["p"]["promotion"] = {}
    args.params.write_text(yaml.safe_dump(parameters))
    with pytest.raises(ValueError, match="nowhere is no bundle, it lacks card.json and controller.safetensors"):
        trial_stage.run(args)


def of_a_newer_kind(card):
    card["kind"] = "prophet"


@pytest.mark.parametrize(
    ("seed", "change", "problem"),
    [(5, None, "does not belong here: target.weights"), (0, of_a_newer_kind, "unknown controller kind 'prophet'")],
)
def test_a_bundle_that_does_not_serve_the_pair_is_refused_by_contract(
    tmp_path, monkeypatch, capsys, seed, change, problem
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    toy_bench(tmp_path / "data" / "p", "promotion", {}).params.rename("params.yaml")
    Path("data/p/device.json").rename("data/device.json")
    random_bundle(
        Path("data/p/bundles/hrad"), ModelPair(tiny_llama(seed=seed), tiny_llama(seed=1, layers=1)), change=change
    )
    main(["register"])
    for forced in ([], ["--force", "an outage"]):
        with pytest.raises(SystemExit, match=f"version 1 is refused: contract: .*{problem}"):
            command(capsys, "promote", *forced)
    record = json.loads(Path("data/p/promotion/hrad-1/verdict.json").read_text())
    assert Path("data/p/promotion/hrad-1/challenger/card.json").is_file(), "a folder for every predictor and version"
    assert problem in record["evidence"]["problem"] and not record["evidence"]["documents"]
    champions = Champions(new_client(f"sqlite:///{tmp_path}/mlflow.db"), NAME)
    kept = json.loads(champions.client.get_model_version(NAME, "1").tags[VERDICT_TAG])
    assert len(champions.verdicts("1")) == 2, "the forced one, too"
    assert not kept["passed"] and kept["checks"] == record["checks"] and not kept["checks"][0]["passed"]
    assert champions.champion() is None and champions.history() == []


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A trial of one random controller beside another on a toy pair."""
    folder = tmp_path_factory.mktemp("trial")
    toy_bench(folder, "unused", {})
    pair = ModelPair.load(target=str(folder / "pair" / "target"), draft=str(folder / "pair" / "draft"))
    bundles = {
        who: random_bundle(folder / who, pair, seed=seed, temperatures=temperatures, change=measured)
        for who, seed, temperatures in ((trial.CHALLENGER, 0, (0.0,)), (trial.CHAMPION, 1, (0.0, 1.0)))
    }
    config = trial.TrialConfig(
        validation_prompts=2,
        test_prompts=4,
        gammas=(1, 2),
        sampling=trial.settings_of(*bundles.values()),
        max_new_tokens=10,
        repeats=1,
        threads=1,
    )
    prompts = {split: toy_prompts(4, split) for split in ("validation", "test")}
    study = trial.TrialStudy(pair, config, bundles, prompts, MeasurementLog(folder / "log.jsonl", "f"))
    return pair, bundles, config, pd.DataFrame(study.run())


def measured(card):
    card["measured_quality"] = {"metrics": {"ece": 0.02}}


def test_a_trial_is_evidence(tried):
    pair, bundles, config, rows = tried
    greedy = trial.exact(pair, bundles["challenger"], [[1, 2, 3], [4, 5]], 8)
    assert greedy == {"greedy text 1, float32": True, "greedy text 2, float32": True}
    champion = bundle_hash(bundles["champion"])
    validation, test = (rows[rows["split"] == split] for split in ("validation", "test"))
    chosen, fastest = ({one: fastest_chain(part, one) for one in ("T=0", "T=1")} for part in (validation, test))
    for over in (None, champion):
        made = trial.evidence_of(
            "p", "hrad", bundles["challenger"], over, rows, greedy, ["t"], config, {"device": "toy"}
        )
        assert made.baseline == (over or BEST_STATIC) and made.calibration_error == 0.02
        assert set(made.slices) == {
            f"{setting}{name}" for setting in ("T=0", "T=1") for name in ("", " code", " prose")
        }
        assert len(made.documents) == 2 and made.origin["static"]["chosen"] == chosen
        base = dict.fromkeys(chosen, "champion") if over else chosen
        assert made.gain["value"] == pytest.approx(gain_over(test, base))
        assert made.hindsight["value"] == pytest.approx(gain_over(test, fastest))
        assert made.slices["T=1"]["value"] == pytest.approx(gain_over(test, {"T=1": base["T=1"]}))
        prose = gain_over(test[test["slice"] == "prose"], {"T=0": base["T=0"]})
        assert made.slices["T=0 prose"]["value"] == pytest.approx(prose)
        verdict = judge(made, Bounds(min_documents=2, slice_margin=9))
        sure = made.gain["low"] > 0 and (over is not None or made.hindsight["value"] >= 0)
        assert [check.name for check in verdict.checks if not check.passed] == ([] if sure else ["gain"])


def fastest_chain(rows, setting):
    sums = (
        rows[(rows["family"] == "chain") & (rows["setting"] == setting)].groupby("drafter")[["tokens", "seconds"]].sum()
    )
    return (sums["tokens"] / sums["seconds"]).idxmax()


def gain_over(rows, base):
    """Of the challenger, over the arm that ``base`` names for every setting."""
    arms = [rows[(rows["setting"] == setting) & (rows["drafter"] == name)] for setting, name in base.items()]
    arms = [pd.concat(arms), rows[rows["setting"].isin(list(base)) & (rows["drafter"] == "challenger")]]
    slow, fast = (arm["tokens"].sum() / arm["seconds"].sum() for arm in arms)
    return fast / slow - 1


def test_the_static_chain_is_chosen_on_validation_prompts_and_judged_in_hindsight_too(tried):
    """Chain-1 is the fastest on validation prompts and chain-2 on test prompts, at temperature 1 alone."""
    _, bundles, config, rows = tried
    rates = {("validation", "chain-1"): 60, ("test", "chain-2"): 60, ("test", "challenger"): 55}
    told = rows[rows["setting"] == "T=1"].assign(tokens=50, seconds=1.0)
    told["tokens"] = [rates.get(place, 50) for place in zip(told["split"], told["drafter"], strict=True)]
    made = trial.evidence_of("p", "hrad", bundles["challenger"], None, told, {"one": True}, ["t"], config, {})
    assert made.gain["value"] == made.slices["T=1"]["value"] == pytest.approx(55 / 50 - 1)
    assert made.hindsight["value"] == pytest.approx(55 / 60 - 1) and made.origin["static"]["chosen"] == {
        "T=1": "chain-1"
    }
    assert [check.name for check in judge(made, Bounds(min_documents=2)).checks if not check.passed] == ["gain"]


def test_settings_are_those_of_challenger_and_champion_with_their_filters(tried, tmp_path):
    pair, bundles, config, rows = tried
    assert [made.name for made in config.settings] == ["T=0", "T=1"] == sorted(rows["setting"].unique())

    def filtered(card):
        card["contract"]["serving_range"]["settings"] = [[0.0, 0.0, 1.0], [1.0, 20.0, 0.9]]

    other = random_bundle(tmp_path / "other", pair, change=filtered)
    settings = trial.settings_of(bundles["champion"], other)
    assert [made.name for made in settings] == ["T=0", "T=1", "T=1, top-k 20, top-p 0.9"]
    assert trial.TrialConfig(sampling=settings).settings == list(settings)


def test_auto_is_calibrated_as_badly_as_the_worst_of_its_bundles(tried, tmp_path):
    pair, bundles, _, _ = tried
    settings = {"method": "autoregressive"}
    whole = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], settings)
    assert trial.calibration_of(whole) == trial.calibration_of(bundles["challenger"]) == trial.Calibration(0.02)
    alone = auto_bundle(tmp_path / "alone", pair, [{"settings": {"temperature": 0.0}, "decoder": settings}])
    assert trial.calibration_of(alone) == trial.Calibration(None, "no model to calibrate")


def unmeasured(card):
    card["measured_quality"] = {"tokens": {"ece": None}}


def test_a_model_of_unknown_calibration_is_not_exempt(tried, tmp_path):
    pair, bundles, _, _ = tried
    for name, change in (("hrad", unmeasured), ("other", None)):
        assert trial.calibration_of(random_bundle(tmp_path / name, pair, change=change)) == trial.Calibration(None)
    assert trial.calibration_of(stop_bundle(tmp_path / "stop", pair, change=unmeasured)) == trial.Calibration(None)
    selector = selector_bundle(tmp_path / "selector", pair)
    assert "forecasts no probabilities" in trial.calibration_of(selector).exemption

    def routed(place, *names):
        return auto_bundle(tmp_path / place, pair, [{"settings": {}, "bundle": name} for name in names])

    for place, names, wanted in (
        ("a", ("hrad", "good"), trial.Calibration(None)),
        ("b", ("selector", "good"), trial.Calibration(0.02)),
        ("c", ("selector",), trial.calibration_of(selector)),
    ):
        whole = routed(place, *names)
        for name in names:
            shutil.copytree(bundles["challenger"] if name == "good" else tmp_path / name, whole / name)
        assert trial.calibration_of(whole) == wanted


def test_a_trial_beside_a_champion_is_at_the_settings_of_both(tmp_path):
    section = {
        "validation_prompts": 1,
        "test_prompts": 2,
        "gammas": [1],
        "max_new_tokens": 4,
        "repeats": 1,
        "threads": 1,
    }
    args = toy_bench(tmp_path, "trial", {**section, "exactness_prompts": 1, "bootstrap_replicates": 20})
    pair = ModelPair.load(target=str(args.pair_folder / "target"), draft=str(args.pair_folder / "draft"))

    def filtered(card):
        card["contract"]["serving_range"]["settings"] = [[0.6, 20.0, 0.9]]

    bundles = {
        trial.CHALLENGER: random_bundle(tmp_path / "new", pair, temperatures=(0.0,)),
        trial.CHAMPION: random_bundle(tmp_path / "old", pair, seed=1, change=filtered),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evidence = trial_stage.tried(args, "hrad", bundles)
    assert evidence.baseline == bundle_hash(bundles[trial.CHAMPION])
    assert {"T=0", "T=0.6, top-k 20, top-p 0.9", "T=0.6, top-k 20, top-p 0.9 prose"} <= set(evidence.slices)
    bundles[trial.CHAMPION] = settings_bundle(tmp_path / "lossy", pair, LOSSY)
    with pytest.raises(ValueError, match=r"the champion cannot be timed \(.*is lossy.*Roll it back first"):
        trial_stage.tried(args, "hrad", bundles)


LOSSY = {"method": "speculative", "verifier": "hsd_as_published", "lossy": True}
IN_TURN = {"method": "branch_parallel", "overlap": "none"}
OVERLAP_AUTO = {"method": "branch_parallel", "overlap": "auto"}


@pytest.mark.parametrize(
    ("decoder", "problem"),
    [
        (LOSSY, "is lossy: its output need not follow the target's law. Export it without lossy"),
        (IN_TURN, "drafts and verifies in turn .*a virtual clock's.* Export it with overlap 'auto'"),
        (OVERLAP_AUTO, ".*a virtual clock's.* Its overlap 'auto' finds a single core here"),
    ],
)
def test_what_is_lossy_or_on_a_virtual_clock_is_not_tried(tried, tmp_path, monkeypatch, decoder, problem):
    pair, bundles, _, _ = tried
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    alone = settings_bundle(tmp_path / "alone", pair, decoder)
    assert re.search("its decoder " + problem, trial.problem_of(alone, pair))
    routed = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], decoder)
    assert re.search(r"route 2 \(T=1\) " + problem, trial.problem_of(routed, pair))
    assert trial.problem_of(bundles["challenger"], pair) is None


def test_every_route_must_be_exact(tried, tmp_path, monkeypatch):
    """The greedy route is right; the route for temperature 1 says something else."""
    pair, bundles, _, _ = tried
    routed = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], {"method": "autoregressive"})
    assert trial.exact(pair, routed, [[1, 2, 3]], 8) == {
        "route 1 (T=0), greedy text 1, float32": True,
        "route 2 (T=1), greedy text 1, float32": True,
    }
    arm_of = trial.decoder_arm

    def broken(decoder, budget):
        right = arm_of(decoder, budget)
        learned = decoder.controller.kind == "hrad"
        return right if learned else lambda prompt, settings, seed: Run([0, 1, 2], None)

    monkeypatch.setattr(trial, "decoder_arm", broken)
    assert not trial.exact(pair, routed, [[1, 2, 3]], 8)["route 2 (T=1), greedy text 1, float32"]


def test_the_stage_leaves_evidence_that_promote_reads(tmp_path):
    section = {"validation_prompts": 2, "test_prompts": 4, "gammas": [1, 2], "max_new_tokens": 8, "repeats": 1}
    args = toy_bench(tmp_path, "trial", {**section, "exactness_prompts": 1, "threads": 1, "bootstrap_replicates": 50})
    parameters = yaml.safe_load(args.params.read_text())
    parameters["pairs"]["p"]["promotion"] = {"margin": 9.0, "slice_margin": 9.0, "min_documents": 2}
    args.params.write_text(yaml.safe_dump(parameters))
    pair = ModelPair.load(target=str(args.pair_folder / "target"), draft=str(args.pair_folder / "draft"))
    args.bundle = random_bundle(tmp_path / "hrad", pair, temperatures=(0.0,), change=measured)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial_stage.run(args)
    record = json.loads((args.output / "toy-1c" / VERDICT).read_text())
    assert [check["name"] for check in record["checks"] if not check["passed"]] == ["gain"]
    evidence = read_evidence(args.output / "toy-1c" / VERDICT)
    assert (evidence.predictor, evidence.bundle_sha256) == ("hrad", bundle_hash(args.bundle))
    timed = pd.read_parquet(args.output / "toy-1c" / DECODING)
    assert set(timed["drafter"]) == {"challenger", "chain-1", "chain-2", "autoregressive"}


def test_a_decoder_of_other_text_is_not_exact(tried, monkeypatch):
    pair, bundles, _, _ = tried
    wrong = lambda decoder, budget: lambda prompt, settings, seed: Run([0, 1, 2], None)  # noqa: E731
    monkeypatch.setattr(trial, "decoder_arm", wrong)
    assert trial.exact(pair, bundles["challenger"], [[1, 2, 3]], 8) == {"greedy text 1, float32": False}


def test_bad_parameters_are_named():
    for name, value in (("gammas", ()), ("exactness_prompts", 0), ("bootstrap_replicates", 0)):
        with pytest.raises(ValueError, match=name):
            trial.TrialConfig(**{name: value})
