"""A bundle on trial: what is timed beside it, over which static chain, and what keeps it from being tried."""

import json
import re
import shutil
import warnings

import pandas as pd
import pytest
import yaml

from pipelines import trial as trial_stage
from pipelines.measuring.arms import Run
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.promote import read_evidence
from pipelines.promotion import trial
from pipelines.promotion.gate import Bounds, judge
from pipelines.promotion.names import BEST_STATIC, DECODING, VERDICT
from predictors.bundle import bundle_hash
from runtime import ModelPair
from tests.bundles import auto_bundle, random_bundle, routed_bundle, selector_bundle, settings_bundle, stop_bundle
from tests.pipelines.toy_bench import toy_bench, toy_prompts


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


def test_what_the_pair_was_trained_on_is_known_too():
    """By the names that its documents would have among test prompts; a twin that forgets the pair passes the gate's check."""
    facts = {"source": "builtin", "corpus": {"trained_on": ["a.py", "topics/b"]}}
    validation, test = toy_prompts(2, "validation"), toy_prompts(2)
    learned = trial.learned_documents(validation, test, facts)
    assert learned == {"validation-document-0", "source/a.py", "source/topics/b"}
    assert trial.learned_documents(validation, test, {"source": "models"}) == {"validation-document-0"}


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
    assert "source/a.py" in evidence.trained_documents
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
