"""A trial on decodes that were timed before: of stage ``measure``, and of earlier looks."""

import dataclasses
from types import SimpleNamespace

import pytest

from pipelines.gate import attempt as one_look
from pipelines.gate import trial
from pipelines.gate.attempt import attempt
from pipelines.gate.conditions import judge
from pipelines.gate.plan import load_plan
from pipelines.gate.verdict import CHALLENGER
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.names import DECODES_FILE, PROVENANCE, ROUNDS_FILE
from pipelines.measuring.provenance import MEASURED_CODE, source_hash, versions
from pipelines.measuring.tables import write_decodes, write_rounds
from pipelines.outputs import digest, write_json
from pipelines.places import read_device, read_facts
from predictors.bundle import bundle_hash
from runtime import ModelPair
from tests.bundles import random_bundle, routed_bundle
from tests.pipelines.hand_made_decodes import decodes
from tests.pipelines.toy_trial import RATES, bench, measured, quietly

GAMMAS = {"method": "speculative", "drafter": {"kind": "chain", "gamma": "{gamma}"}, "verifier": "block"}


ARMS = [
    ArmRow("autoregressive", "plain", {"method": "autoregressive"}),
    ArmRow("chain-{gamma}", "chain", GAMMAS, each={"gamma": [2, 4]}, choose=True),
    ArmRow("hrad", "learned", bundle="hrad"),
]


def timed(row):
    """A row as stage ``measure`` writes it; at T=1 the bundle is slow."""
    slower = row["temperature"] > 0 and row["arm"] == "challenger"
    named = {"arm": "hrad"} if row["arm"] == "challenger" else {}
    named |= {"prompt": f"test-{'abcde'.index(row['prompt'])}"}
    return row | named | {"output": [1], "seconds": 10 / 7.1 if slower else row["seconds"]}


ROWS = [timed(row) for row in decodes(lambda arm, *where: RATES[arm]) if row["arm"] != "champion"]


def write_table(args, bundle, rows=ROWS, arms=ARMS, parameters=None, **changes):
    """The measured table of this pair, and of the bundle beside static chains."""
    place = args.measured / "toy-1c"
    write_decodes(place / DECODES_FILE, rows)
    write_rounds(place / ROUNDS_FILE, [])
    given = {"max_new_tokens": 6, "threads": 1, "arms": [dataclasses.asdict(arm) for arm in arms]} | (parameters or {})
    origin = {"hrad_bundle_sha256": bundle_hash(bundle), "pair_sha256": digest(read_facts(args.pair_folder))}
    origin |= {"parameters": given, "versions": versions(), "device": read_device(args.device)}
    origin |= {"code_sha256": source_hash(MEASURED_CODE)}
    write_json(place / PROVENANCE, origin | changes)


def known_of(args, bundle, predictor="hrad"):
    """Temperatures of known decodes, and those that are missing."""
    config, _ = load_plan("p", args.params)
    known = one_look._measured(args, config, bundle, predictor, trial.Look.of(1, args.prompts, config))
    return {row["temperature"] for row in known.decodes}, {one.temperature for one in known.missing}


@pytest.fixture
def table(tmp_path):
    """A trial's arguments, with the place of a measured table, and a bundle that was captured at T=0."""
    args, pair = bench(tmp_path, gammas=[2, 4])
    args.measured = tmp_path / "measured"
    return args, random_bundle(tmp_path / "hrad", pair, temperatures=(0.0,), change=measured)


def test_a_bundle_that_the_measured_table_has_is_not_timed_again(table, monkeypatch):
    args, bundle = table
    write_table(args, bundle)
    monkeypatch.setattr(one_look, "Harness", None)
    evidence = quietly(attempt, args, "hrad", {CHALLENGER: bundle})
    assert evidence.gains["chain-4"].gain == pytest.approx(0.2, abs=0.001) and evidence.documents == tuple("abcd")
    assert set(evidence.settings) == {"T=0"} and set(evidence.gains) == {"autoregressive", "chain-2", "chain-4"}
    assert (evidence.reference, evidence.champion, evidence.calibration_error) == ("chain-4", None, 0.02)
    assert (evidence.look, evidence.documents_left, evidence.bundle_sha256) == (1, 4, bundle_hash(bundle))
    assert evidence.origin["capped"] is False and evidence.origin["measured"].endswith("toy-1c")
    bounds = load_plan("p", args.params)[1]
    assert "gain" not in {check.name for check in judge(evidence, bounds).checks}


def test_a_routed_bundle_is_what_the_table_has_of_its_routes(table, tmp_path, monkeypatch):
    """Greedy requests go to the bundle, others to a chain that was timed as such: over itself it gains nothing there."""
    args, bundle = table
    pair = ModelPair.load(target=str(args.pair_folder / "target"), draft=str(args.pair_folder / "draft"))
    route = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}, "verifier": "block"}
    auto = routed_bundle(tmp_path / "auto", pair, bundle, route)
    write_table(args, bundle)
    monkeypatch.setattr(one_look, "Harness", None)
    evidence = quietly(attempt, args, "auto", {CHALLENGER: auto})
    assert evidence.settings["T=0"].gain == pytest.approx(0.2, abs=0.001) and evidence.settings["T=1"].gain == 0
    assert 0.05 < evidence.gains["chain-4"].gain < 0.15
    for decoder in (route | {"verifier": "tokenwise"}, route | {"drafter": {"kind": "chain", "gamma": 3}}):
        other = routed_bundle(tmp_path / "other", pair, bundle, decoder)
        assert known_of(args, other, "auto") == ({0.0}, {1.0}), "a route that nobody timed"
    write_table(args, bundle, hrad_bundle_sha256="another")
    assert known_of(args, auto, "auto") == ({1.0}, {0.0})


def without(**where):
    """The table's rows but for those."""
    return [row for row in ROWS if not where.items() <= row.items()]


def replaced(place, **changes):
    """The table of arms with another row."""
    return [dataclasses.replace(arm, **changes) if number == place else arm for number, arm in enumerate(ARMS)]


@pytest.mark.parametrize(
    "changes",
    [
        {"hrad_bundle_sha256": "another"},
        {"pair_sha256": "another"},
        {"parameters": {"max_new_tokens": 7}},
        {"arms": replaced(2, options={"overlap": "none"})},
        {"arms": replaced(2, name="head")},
        {"arms": replaced(1, decoder=GAMMAS | {"verifier": "tokenwise"})},
        {"arms": replaced(1, each={"gamma": [2, 3]})},
        {"rows": without(arm="chain-4", temperature=0.0)},
        {"rows": without(arm="hrad", temperature=0.0)},
        {"rows": without(prompt="test-1")},  # as many prompts as the look has, and another one
    ],
)
def test_another_arm_or_less_than_the_look_asks_is_timed(table, changes):
    """The look has four prompts. By the bundle's hash alone, most of these would pass for its trial."""
    args, bundle = table
    config, _ = load_plan("p", args.params)
    look = trial.Look.of(1, args.prompts, config)
    write_table(args, bundle)
    rows = one_look._measured(args, config, bundle, "hrad", look).decodes
    assert {row["arm"] for row in rows} == {"autoregressive", "chain-2", "chain-4", CHALLENGER} and len(rows) == 4 * 4
    assert {row["prompt"] for row in rows} == {prompt.id for prompt in look.prompts}, "and not of the fifth"
    write_table(args, bundle, **changes)
    assert known_of(args, bundle) == (set(), {0.0})


def test_a_setting_without_an_arm_or_a_prompt_is_missing(table, tmp_path):
    args, _ = table
    pair = ModelPair.load(target=str(args.pair_folder / "target"), draft=str(args.pair_folder / "draft"))
    both = random_bundle(tmp_path / "both" / "hrad", pair, temperatures=(0.0, 1.0))
    write_table(args, both)
    assert known_of(args, both) == ({0.0, 1.0}, set())
    for left in ({}, {"arm": "hrad"}, {"arm": "chain-2"}, {"arm": "hrad", "prompt": "test-3"}):
        write_table(args, both, without(temperature=1.0, **left))
        assert known_of(args, both) == ({0.0}, {1.0})


def test_earlier_decodes_are_of_the_same_machine_libraries_and_arms(tmp_path):
    inputs = {"parameters": {"seed": 0}, "challenger_sha256": "a", "prompts_sha256": "x"}
    place = SimpleNamespace(folder=tmp_path, inputs=inputs, device={"slug": "toy-1c"})
    write_decodes(tmp_path / DECODES_FILE, ROWS)
    write_rounds(tmp_path / ROUNDS_FILE, [])
    origin = inputs | {"versions": versions(), "device": {"slug": "toy-1c"}}

    def kept(**changes):
        write_json(tmp_path / PROVENANCE, origin | changes)
        return len(one_look._earlier(place, ()).decodes)

    assert kept() == kept(prompts_sha256="y") == len(ROWS)
    others = {
        "versions": {},
        "device": {"slug": "h100"},
        "champion_sha256": "b",
        "challenger_sha256": "b",
        "capped": True,
    }
    assert [kept(**{name: value}) for name, value in others.items()] == [0] * 5
