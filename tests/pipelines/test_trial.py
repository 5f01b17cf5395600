"""A bundle on trial: what keeps it from being tried, what is timed with it, on which prompts, what an interruption leaves."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from tqdm import tqdm

from pipelines.cli import main
from pipelines.gate import trial
from pipelines.gate.evidence import read_evidence
from pipelines.gate.plan import TrialConfig, load_plan
from pipelines.gate.trial import CalibrationCheck, attempt, calibration_of, prompts_of
from pipelines.gate.verdict import CHALLENGER, CHAMPION, VERDICT, judge
from pipelines.measuring import exactness
from pipelines.measuring.arms import ArmBuilder, ArmRun
from pipelines.measuring.bench import Blocks, MeasurementLog, allocated
from pipelines.measuring.harness import Harness, apart
from pipelines.measuring.names import DECODES_FILE
from pipelines.measuring.recorded import RecordedTexts
from pipelines.measuring.tables import read_decodes
from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, Prompt, write_prompts
from pipelines.registry.champions import Champions
from pipelines.registry.tracking import new_client
from pipelines.stages import trial as trial_stage
from predictors.bundle import bundle_hash
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from tests.bundles import auto_bundle, random_bundle, routed_bundle, selector_bundle, settings_bundle, stop_bundle
from tests.pipelines.toy_bench import bench, measured, own_documents, quietly, toy_bench, toy_prompts
from tests.toys import tiny_llama


def test_arms_take_turns_in_blocks_and_finished_blocks_are_kept(tried, tmp_path):
    pair, bundles = tried
    arms = ArmBuilder(pair, tmp_path, 6).build(trial.arms_of(TrialConfig(gammas=(1, 2)), bundles))
    assert set(arms) == {"autoregressive", "chain-1", "chain-2", "challenger", "champion"}
    timing = Blocks(MeasurementLog(tmp_path / "log.jsonl", "f"), tqdm(disable=True))
    racing = Harness(timing, trial.settings_of(*bundles.values()), repeats=2)
    rows, rounds = apart(racing.race(arms, toy_prompts(3)))
    blocks = {row["block"] for row in rows}
    assert len(blocks) == 3 * 2 * 2 and {one["block"] for one in rounds} == blocks
    seeds = {(row["block"], row["seed"]) for row in rows}
    assert len({(row["block"], row["order"]) for row in rows}) == len(rows) == 5 * len(blocks) == 5 * len(seeds)
    greedy = {(row["prompt"], row["arm"]): row["tokens"] for row in rows if row["temperature"] == 0}
    assert all(greedy[prompt, arm] == greedy[prompt, "autoregressive"] for prompt, arm in greedy)
    assert {row["family"] for row in rows} == {"plain", "chain", "challenger", "champion"}
    assert apart(racing.race({}, toy_prompts(3)))[0] == rows, "all blocks are in the log"


def test_the_reserve_adds_new_documents(tmp_path):
    """Its first two documents are test documents, too: alone they are nothing new."""
    reserve = own_documents(8, "reserve")
    reserve[:2] = [Prompt(**(vars(one) | {"document": f"test-document-{n}"})) for n, one in enumerate(reserve[:2])]
    write_prompts(tmp_path / FILE, [*own_documents(4, "test"), *reserve])
    config, nothing = TrialConfig(test_prompts=4, reserve_prompts=3), RecordedTexts(None, 6)
    first, both = (prompts_of(tmp_path, config, nothing, more) for more in (False, True))
    assert both[:4] == first and len(both) == 7 and len({one.document for one in both}) == 5
    with pytest.raises(ValueError, match="the reserve has no new document"):
        prompts_of(tmp_path, TrialConfig(test_prompts=4, reserve_prompts=2), nothing, True)
    write_prompts(tmp_path / FILE, reserve)
    with pytest.raises(ValueError, match="no test prompts"):
        prompts_of(tmp_path, config, nothing, False)


def test_slices_are_timed_in_proportion_to_their_documents():
    """87, 21 and 11 documents: of 60 prompts 44, 11 and 5; or 8 of the smallest. Every slice keeps its own order."""
    mix = {"code": 87.0, "prose": 21.0, "tables": 11.0}
    prompts = [
        Prompt(f"{name}{n}", f"{name}{n}", "", name, "test", "", []) for n in range(80) for name in (*mix, "chat")
    ]

    def counted(least, count=60):
        made = allocated(prompts, mix, count, least)
        for name in mix:
            own = [prompt.id for prompt in made if prompt.slice == name]
            assert own == [f"{name}{n}" for n in range(len(own))]
        return [sum(prompt.slice == name for prompt in made) for name in mix]

    assert counted(0) == [44, 11, 5] and counted(8) == [42, 10, 8]
    assert allocated(prompts, mix, 60)[:30] == allocated(prompts, mix, 30), "more only adds"
    assert len(allocated(prompts, mix, 999)) == 240, "no more than there are, and none of another slice"
    few = allocated([*prompts[:1], *(one for one in prompts if one.slice == "prose")], mix, 4)
    assert [prompt.slice for prompt in few] == ["code", "prose", "prose", "prose"] and allocated([], mix, 3) == []


def test_a_trial_beside_a_champion_is_at_the_settings_of_both(tmp_path):
    args, pair = bench(tmp_path, gammas=[1])
    bundles = {
        CHALLENGER: random_bundle(tmp_path / "new", pair, temperatures=(0.0,)),
        CHAMPION: random_bundle(tmp_path / "old", pair, seed=1, change=filtered((0.6, 20.0, 0.9))),
    }
    evidence = quietly(attempt, args, "hrad", bundles)
    assert evidence.champion == bundle_hash(bundles[CHAMPION]) and evidence.reference == CHAMPION
    assert "validation-document-0" in evidence.trained_documents
    assert set(evidence.settings) == {"T=0", "T=0.6, top-k 20, top-p 0.9"} and set(evidence.slices) == {"code", "prose"}
    assert set(evidence.gains) == {"autoregressive", "chain-1", "champion"}
    args.tuning = tmp_path / "tuning"  # where a length was the fastest that the trial does not name
    served = {gamma: {"decoder": {"drafter": {"kind": "chain", "gamma": gamma}}} for gamma in (2, 3)}
    candidates = [{"name": f"chain-{gamma}", "served": decoder} for gamma, decoder in served.items()]
    choices = [{"static": static, "candidates": candidates} for static in ("chain-3", "chain-3", None)]
    write_json(args.tuning / "toy-1c" / "choices.json", choices)
    evidence = quietly(attempt, args, "hrad", bundles)
    assert set(evidence.gains) == {"autoregressive", "chain-1", "chain-3", "champion"}
    bundles[CHAMPION] = settings_bundle(tmp_path / "virtual", pair, VIRTUAL)
    with pytest.raises(ValueError, match=r"the champion cannot be timed \(.*virtual clock.*Roll it back first"):
        attempt(args, "hrad", bundles)


def test_a_route_that_is_a_static_chain_gains_nothing_over_it(tmp_path):
    args, pair = bench(tmp_path, gammas=[2])
    hrad = random_bundle(tmp_path / "hrad", pair, temperatures=(0.0,))
    route = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}, "verifier": "block"}
    evidence = quietly(attempt, args, "auto", {CHALLENGER: routed_bundle(tmp_path / "auto", pair, hrad, route)})
    assert evidence.reference == "chain-2" and evidence.settings["T=1"].value == evidence.settings["T=1"].error == 0
    assert evidence.settings["T=0"].error > 0 and evidence.gains["chain-2"].value != 0


def test_what_was_timed_outlives_a_failure_behind_it(tmp_path, monkeypatch):
    """And a trial on one document has a verdict."""
    args, pair = bench(tmp_path, gammas=[1])
    prompts = [prompt for split in ("validation", "test", "reserve") for prompt in own_documents(4, split)]
    write_prompts(args.prompts / FILE, [Prompt(**(vars(one) | {"document": one.split})) for one in prompts])
    bundles = {CHALLENGER: random_bundle(tmp_path / "new", pair, temperatures=(0.0,), change=measured)}
    with monkeypatch.context() as patched:
        patched.setattr(trial, "compared", None)
        with pytest.raises(TypeError):
            quietly(attempt, args, "hrad", bundles)
    log = args.output / "toy-1c" / "partial.jsonl"
    seconds = [row["seconds"] for row in read_decodes(args.output / "toy-1c" / DECODES_FILE)]
    assert log.is_file() and len(seconds) == 4 * 3
    evidence = quietly(attempt, args, "hrad", bundles)
    assert [row["seconds"] for row in read_decodes(args.output / "toy-1c" / DECODES_FILE)] == seconds
    assert not log.is_file() and evidence.documents == ("test",)
    assert evidence.gains == {"autoregressive": None, "chain-1": None} and evidence.settings == {"T=0": None}
    verdict = judge(evidence, load_plan("p", args.params)[1])
    assert verdict.outcome == "inconclusive" and verdict.smallest_gain is None


def test_the_stage_leaves_evidence_that_promote_reads(tmp_path):
    args, pair = bench(tmp_path)
    parameters = yaml.safe_load(args.params.read_text())
    parameters["pairs"]["p"]["promotion"] |= {"margin": 9.0, "promised": 10.0, "guardrail": 9.0}
    args.params.write_text(yaml.safe_dump(parameters))
    args.bundle = random_bundle(tmp_path / "hrad", pair, temperatures=(0.0,), change=measured)
    quietly(trial_stage.run, args)
    record = json.loads((args.output / "toy-1c" / VERDICT).read_text())
    failed = {check["name"] for check in record["checks"] if not check["passed"]}
    assert record["verdict"] != "passed" and failed == {f"gain over {name}" for name in record["evidence"]["gains"]}
    evidence = read_evidence(args.output / "toy-1c" / VERDICT)
    assert (evidence.predictor, evidence.bundle_sha256, evidence.reserve) == ("hrad", bundle_hash(args.bundle), False)
    timed = read_decodes(args.output / "toy-1c" / DECODES_FILE)
    assert {row["arm"] for row in timed} == {"challenger", "chain-1", "chain-2", "autoregressive"}


def filtered(*settings):
    """Change a card: its bundle serves these settings."""
    return lambda card: card["contract"]["serving_range"].update(settings=[list(one) for one in settings])


def test_settings_are_those_of_challenger_and_champion_with_their_filters(tried, tmp_path):
    pair, bundles = tried
    other = random_bundle(tmp_path / "other", pair, change=filtered((0.0, 0.0, 1.0), (1.0, 20.0, 0.9)))
    settings = trial.settings_of(bundles[CHAMPION], other)
    assert [made.name for made in settings] == ["T=0", "T=1", "T=1, top-k 20, top-p 0.9"]
    assert settings[0] == SamplingSettings(0.0)


def test_a_model_of_unknown_calibration_is_not_exempt(tried, tmp_path):
    pair, bundles = tried
    unmeasured = lambda card: card.update(measured_quality={"tokens": {"ece": None}})  # noqa: E731
    made = {
        "good": bundles["challenger"],
        "hrad": random_bundle(tmp_path / "hrad", pair, change=unmeasured),
        "other": random_bundle(tmp_path / "other", pair),
        "stop": stop_bundle(tmp_path / "stop", pair, change=unmeasured),
        "selector": selector_bundle(tmp_path / "selector", pair),
    }
    found = {name: calibration_of(bundle) for name, bundle in made.items()}
    assert found["hrad"] == found["other"] == found["stop"] == CalibrationCheck(None) and found[
        "good"
    ] == CalibrationCheck(0.02)
    assert found["selector"].error is None and "delayed-tree" in found["selector"].exemption
    for names, wanted in ((("hrad", "good"), "hrad"), (("selector", "good"), "good"), (("selector",), "selector")):
        routes = [{"settings": {}, "bundle": name} for name in names]
        whole = auto_bundle(tmp_path / f"auto-{names[0]}", pair, routes)
        for name in names:
            shutil.copytree(made[name], whole / name)
        assert calibration_of(whole) == found[wanted], "auto is calibrated as badly as the worst of its bundles"
    settings = {"settings": {"temperature": 0.0}, "decoder": {"method": "autoregressive"}}
    alone = calibration_of(auto_bundle(tmp_path / "alone", pair, [settings]))
    assert alone.error is None and alone.exemption


VIRTUAL = {"method": "branch_parallel", "overlap": "none"}


@pytest.mark.parametrize("decoder", [VIRTUAL, VIRTUAL | {"overlap": "auto"}])
def test_what_is_on_a_virtual_clock_is_not_tried(tried, tmp_path, monkeypatch, decoder):
    pair, bundles = tried
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    alone = settings_bundle(tmp_path / "alone", pair, decoder)
    routed = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], decoder)
    for bundle, part in ((alone, "its decoder"), (routed, "route 2 (T=1)")):
        problem = trial.problem_of(bundle, pair)
        assert problem.startswith(f"{bundle}: {part} ") and "(overlap 'none')" in problem
    assert trial.problem_of(bundles["challenger"], pair) is None


def test_every_route_must_be_exact(tried, tmp_path, monkeypatch):
    """The greedy route is right; the route for temperature 1 says something else."""
    pair, bundles = tried
    form = exactness.format_of(pair)
    routed = routed_bundle(tmp_path / "auto", pair, bundles["challenger"], {"method": "autoregressive"})
    names = [f"route {number} (T={t}), greedy text 1, {form}" for number, t in ((1, 0), (2, 1))]
    assert trial.exact(pair, routed, [[1, 2, 3]], 8) == dict.fromkeys(names, True)
    arm_of = exactness.decoder_arm

    def broken(decoder, budget):
        right = arm_of(decoder, budget)
        learned = decoder.controller.kind == "hrad"
        return right if learned else lambda prompt, settings, seed: ArmRun([0, 1, 2], None)

    monkeypatch.setattr(exactness, "decoder_arm", broken)
    assert not trial.exact(pair, routed, [[1, 2, 3]], 8)[names[1]]


@pytest.mark.parametrize(
    ("seed", "change", "problem"),
    [
        (5, None, "does not belong here: target.weights"),
        (0, lambda card: card.update(kind="prophet"), "unknown controller kind 'prophet'"),
    ],
)
def test_a_bundle_that_does_not_serve_the_pair_is_refused_by_contract(workspace, tmp_path, seed, change, problem):
    args = toy_bench(tmp_path / "data" / "p", "promotion", {})
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"promotion": {}, "trial": {}}}}))
    args.device.rename("data/device.json")
    pair = ModelPair(tiny_llama(seed=seed), tiny_llama(seed=1, layers=1))
    random_bundle(Path("data/p/bundles/hrad"), pair, change=change)
    main(["register"])
    with pytest.raises(SystemExit, match=f"version 1 is refused: contract: .*{problem}"):
        main(["promote", "--pair", "p", "--predictor", "hrad", "--force", "an outage"])
    record = json.loads(Path("data/p/promotion/hrad-1/verdict.json").read_text())
    assert problem in record["evidence"]["problem"] and not record["evidence"]["documents"]
    champions = Champions(new_client(workspace), "p-hrad")
    (kept,) = champions.verdicts("1")
    assert kept["verdict"] == "refused" and kept["checks"] == record["checks"] and kept["smallest_gain"] is None
    assert champions.champion() is None and champions.history() == []
