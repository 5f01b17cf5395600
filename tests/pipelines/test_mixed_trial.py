"""A trial of a bundle that stage ``measure`` timed at one of its sampling settings: only the other one is timed."""

import json
import shutil
from collections import Counter

import pytest

from pipelines.gate import attempt as one_look
from pipelines.gate.attempt import attempt
from pipelines.gate.evidence.gain import CLOCK, CORRECTED
from pipelines.gate.verdict import CHALLENGER
from pipelines.measuring.names import DECODES_FILE, PROVENANCE, ROUNDS_FILE
from pipelines.measuring.tables import read_decodes, read_rounds
from pipelines.measuring.tuning.candidates import HERE
from pipelines.outputs import write_json
from runtime import ModelPair
from tests.bundles import auto_bundle
from tests.pipelines import test_foreseen as foreseen
from tests.pipelines.toy_trial import own_documents, quietly

TAKEOVER, CHAIN, TREE = (foreseen.DECODERS[name] for name in ("takeover", "chain-3", "tree"))
DECODERS = {
    "autoregressive": {"method": "autoregressive"},
    "static of two": {**CHAIN, "drafter": {"kind": "chain", "gamma": 2}, "verifier": "block"},
    "takeover": TAKEOVER,
}
FAMILIES = {"autoregressive": "plain", "chain-2": "chain", CHALLENGER: CHALLENGER}
NAMES = dict(zip(DECODERS, FAMILIES, strict=True))  # of measured arms in the trial
PARAMETERS = foreseen.PARAMETERS | {
    "measure": foreseen.PARAMETERS["measure"]
    | {"arms": [{"name": name, "family": name, "decoder": one} for name, one in DECODERS.items()]}
    | {"test_prompts": 5},
    "trial": foreseen.PARAMETERS["trial"] | {"gammas": [2]},
}
PLACE = "toy-1c"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A measurement of five test documents, one more than a look has; two prompts have recorded texts."""
    prompts = [prompt for split in ("validation", "test", "reserve") for prompt in own_documents(5, split)]
    return foreseen.measured(tmp_path_factory.mktemp("mixed"), PARAMETERS, prompts)


@pytest.fixture
def args(place, tmp_path):
    """A trial's arguments, with a copy of the measured table."""
    table = shutil.copytree(place / "output", tmp_path / "measured")
    return foreseen.arguments(place, texts=place / "texts", output=tmp_path / "trial", measured=table)


def routed(args, folder, sampled):
    """A bundle that serves greedy requests as the measured table has it, others by the decoder ``sampled``."""
    pair = ModelPair.load(target=str(args.pair_folder / "target"), draft=str(args.pair_folder / "draft"))
    routes = {0.0: TAKEOVER, 1.0: sampled}
    settings = [{"settings": {"temperature": heat}, "decoder": one} for heat, one in routes.items()]
    return {CHALLENGER: auto_bundle(folder / "auto", pair, settings)}


@pytest.fixture
def replayed(monkeypatch):
    """What replay says of every look."""
    said, compute = [], one_look.foreseen
    monkeypatch.setattr(one_look, "foreseen", lambda *some: said.append(compute(*some)) or said[-1])
    return said


def rows_of(args):
    return read_decodes(args.output / PLACE / DECODES_FILE)


def by_decode(rows, column):
    return {(row["arm"], row["block"]): row[column] for row in rows}


@pytest.mark.parametrize(("sampled", "basis"), [(CHAIN, CORRECTED), (TREE, CLOCK)])
def test_only_the_setting_that_nobody_measured_is_timed(args, tmp_path, replayed, sampled, basis):
    evidence = quietly(attempt, args, "auto", routed(args, tmp_path, sampled))
    rows, measured = rows_of(args), read_decodes(args.measured / PLACE / DECODES_FILE)
    counts = Counter((row["temperature"], row["block"].startswith(HERE), row["arm"], row["family"]) for row in rows)
    assert counts == {(*where, *arm): 4 for where in ((0.0, True), (1.0, False)) for arm in FAMILIES.items()}
    there = [row for row in measured if row["prompt"] in {row["prompt"] for row in rows} and row["temperature"] == 0]
    there = [row | {"arm": NAMES[row["arm"]], "block": HERE + row["block"]} for row in there]
    assert by_decode(there, "seconds").items() < by_decode(rows, "seconds").items()
    judged = {name: (one.documents, one.prompts, one.basis) for name, one in evidence.settings.items()}
    assert judged == {"T=0": (4, 4, basis), "T=1": (4, 4, basis)} and len(evidence.documents) == 4
    assert evidence.origin["measured"] == str(args.measured / PLACE) and evidence.origin["capped"] is False
    rounds = read_rounds(args.output / PLACE / ROUNDS_FILE)
    assert by_decode(rounds, "round").keys() == by_decode(rows, "tokens").keys()
    (said,) = replayed
    covered = [row for row in rows if said.covers(row["arm"])]
    assert {row["arm"] for row in covered} == FAMILIES.keys() - ({CHALLENGER} if basis == CLOCK else set())
    assert {key: parts[-1] for key, parts in by_decode(said.timed, "parts").items()} == by_decode(covered, "rounds")
    of_block = Counter()
    for row in covered:
        of_block[row["block"]] += row["rounds"]
    assert said.prices.rounds_BK[:, -1].tolist() == [of_block[name] for name in sorted(of_block)]


def test_a_further_look_goes_on_from_both(args, tmp_path):
    """It times two new prompts, at both settings: the measured table has none of the reserve."""
    bundles = routed(args, tmp_path, CHAIN)
    quietly(attempt, args, "auto", bundles)
    first = by_decode(rows_of(args), "seconds")
    evidence = quietly(attempt, args, "auto", bundles, 2)
    rows = rows_of(args)
    new = [row for row in rows if (row["arm"], row["block"]) not in first]
    assert first.items() < by_decode(rows, "seconds").items() and len(new) == len(rows) - len(first) == 2 * 2 * 3
    assert {row["split"] for row in new} == {"reserve"} and not any(row["block"].startswith(HERE) for row in new)
    assert {name: one.documents for name, one in evidence.settings.items()} == {"T=0": 6, "T=1": 6}
    assert {one.basis for one in evidence.settings.values()} == {CORRECTED}


def test_an_interrupted_trial_goes_on_where_it_stopped(args, tmp_path, monkeypatch):
    bundles = routed(args, tmp_path, CHAIN)
    with monkeypatch.context() as patched:
        patched.setattr(one_look, "compared", None)
        with pytest.raises(TypeError):
            quietly(attempt, args, "auto", bundles)
    before, log = by_decode(rows_of(args), "seconds"), args.output / PLACE / "partial.jsonl"
    assert len(log.read_text().splitlines()) == 1 + 4, "a block for each prompt, at one setting"
    quietly(attempt, args, "auto", bundles)
    assert by_decode(rows_of(args), "seconds") == before and len(before) == 2 * 4 * 3 and not log.exists()


@pytest.mark.parametrize("changed", [{"versions": {}}, {"code_sha256": "another"}, {"device": {"slug": PLACE}}])
def test_times_of_other_code_stand_beside_no_new_ones(args, tmp_path, changed):
    """By themselves they are evidence."""
    path = args.measured / PLACE / PROVENANCE
    write_json(path, json.loads(path.read_text()) | changed)
    config, _ = one_look.load_plan("p", args.params)
    look = one_look.trial.Look.of(1, args.prompts, config)
    missing = {}
    for name, sampled in (("mixed", CHAIN), ("measured", TAKEOVER)):
        known = one_look._measured(args, config, routed(args, tmp_path / name, sampled)[CHALLENGER], "auto", look)
        missing[name] = [one.temperature for one in known.missing]
        assert bool(known.decodes) == (name == "measured")
    assert missing == {"mixed": [0.0, 1.0], "measured": []}
