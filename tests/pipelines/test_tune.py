"""Tuning: candidates by replay, the best of them by the clock as well, and a bundle that decodes as its winners do."""

import json
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from pipelines.measuring.names import CHOICES, DECODES_FILE, PLAIN, ROUNDS_FILE
from pipelines.measuring.tables import POLICIES, read_decodes, read_rounds
from pipelines.measuring.tuning import study as study_module
from pipelines.measuring.tuning.candidates import PROFILE, ROOTS, TEXTS, candidates, shortlist
from pipelines.outputs import write_json
from pipelines.stages import measure, tune
from predictors.bundle import bundle_hash, read_bundle
from predictors.monitoring import OLD
from runtime import ModelPair, Randomness, load_decoder
from tests.bundles import random_bundle
from tests.pipelines.hand_made_replay import write_replay
from tests.pipelines.toy_bench import toy_bench


def chain(gamma):
    return {"decoder": {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}}}


CHAINS = (("chain-1", 1), ("chain-3", 3))
NOISE = "toy-1c was noisy"
PLAIN_ARM = {"name": PLAIN, "family": "plain", "decoder": {"method": PLAIN}}
SERVED = {"chain-1": chain(1), "chain-3": chain(3), "entropy": chain(2), "hrad": {"bundle": "hrad"}}


@pytest.fixture
def replayed(tmp_path):
    write_replay(tmp_path / "replay")
    write_json(tmp_path / "replay" / POLICIES, SERVED)
    way = {"method": "lookahead", "ngram": 3}
    rows = [
        {"way": way, "setting": "T=0", "speedup": {"value": 1.62}},
        {"way": {**way, "ngram": 4}, "setting": "T=0", "speedup": {"value": 9.0}},
        {"way": way, "setting": "T=1", "speedup": {"value": 8.0}},
    ]
    write_json(tmp_path / "fit" / "lookahead.json", {"method": "lookahead", "chosen": way, "rows": rows})
    return tmp_path


def test_candidates_are_ranked_by_what_was_replayed(replayed):
    found = candidates(*(replayed / name for name in ("replay", "fit")), "T=0")
    assert [one.name for one in found] == ["entropy", "lookahead", "chain-3", "chain-1", PLAIN]
    assert found[0].predicted == pytest.approx(168 * 6 / 9) and found[1].served == {"bundle": "lookahead"}
    assert [one.name for one in shortlist(found, 1, ())] == ["entropy", "chain-3", "chain-1", PLAIN]
    assert [one.name for one in shortlist(found, 1, {"lookahead"})] == [one.name for one in found]
    assert [one.complexity for one in found] == [2, 3, 1, 1, 0]
    assert {one.name for one in found if one.basis == PROFILE} == {"lookahead"}
    weighing, simple = (replace(found[1], name=name, served={"bundle": name}) for name in ("source", "takeover"))
    assert weighing.complexity > simple.complexity
    assert [one.name for one in found if one.static] == ["chain-3", "chain-1"]


def test_one_policy_by_several_names_is_one_candidate(replayed):
    """A rule whose model is left unasked is the chain it falls back to, and takes no place of another candidate."""
    table = pd.read_parquet(replayed / "replay" / "replay.parquet")
    alike = table[table["drafter"] == "chain-3"].assign(drafter="hrad", family="rule")
    pd.concat([alike, table]).to_parquet(replayed / "replay" / "replay.parquet")
    places = [replayed / name for name in ("replay", "fit")]
    names = [one.name for one in candidates(*places, "T=0")]
    assert names == ["entropy", "lookahead", "chain-3", "chain-1", PLAIN]
    other = alike.assign(seconds=alike["seconds"] * 1.001)
    pd.concat([other, table]).to_parquet(replayed / "replay" / "replay.parquet")
    assert [one.name for one in candidates(*places, "T=0")][2:4] == ["chain-3", "hrad"]


def test_trees_are_worth_what_their_roots_say_beside_chains(replayed):
    places = [replayed / name for name in ("replay", "fit")]
    for rule, static, selector, action in (("block", 50.0, 60.0, "chain-3"), ("nss", 30.0, 40.0, "delayed-2.0.2")):
        rates = {"T=0": {"static": static, "selector": selector}, "T=1": {"static": 1.0, "selector": 9.0}}
        record = {"family": "tree", "validation": rates, "static_actions": {"T=0": action}}
        write_json(replayed / "fit" / f"delayed_tree-{rule}.json", record)
    found = {one.name: one for one in candidates(*places, "T=0")}
    assert found["delayed_tree-nss"].predicted == pytest.approx(found["chain-3"].predicted * 40 / 50)
    assert found["delayed_tree-nss"].served == {"bundle": "delayed_tree-nss"}
    assert (found["delayed_tree-nss"].basis, found["chain-3"].basis) == (ROOTS, TEXTS)
    mine = {"family": "head", "validation": {}}
    write_json(replayed / "fit" / "delayed_tree-mine.json", mine)
    write_json(replayed / "fit" / "mine.json", record)
    found = {one.name: one for one in candidates(*places, "T=0")}
    assert found["mine"].predicted == found["delayed_tree-nss"].predicted, "whatever a predictor is called"
    assert "delayed_tree-mine" not in found
    unknown = {"family": "tree", "validation": rates, "static_actions": {"T=0": "chain-99"}}
    write_json(replayed / "fit" / "delayed_tree-block.json", unknown)
    assert "delayed_tree-nss" not in {one.name for one in candidates(*places, "T=0")}


@pytest.fixture
def stage(replayed, tmp_path, monkeypatch):
    """The stage's arguments, on tiny models: bundle hrad is a candidate, and is chosen wherever it can be."""
    args = toy_bench(tmp_path, "unused", {})
    args.json = False
    section = {"temperatures": [0.0], "candidates": 3, "validation_prompts": 3, "test_prompts": 4, "threads": 1}
    arms = [{"name": name, "family": "chain", "choose": True, **chain(gamma)} for name, gamma in CHAINS]
    arms += [PLAIN_ARM, {"name": "hrad", "family": "learned", "bundle": "hrad"}]
    measuring = {
        "arms": arms,
        "temperatures": [0.0],
        "validation_prompts": 4,
        "test_prompts": 4,
        "threads": 1,
        "led": False,
    }
    measuring |= {"max_new_tokens": 8, "exactness_prompts": 0}
    sections = {"tune": section | {"max_new_tokens": 8}, "measure": measuring}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": sections}}))
    args.pair_of_models = ModelPair.load(
        target=str(tmp_path / "pair" / "target"), draft=str(tmp_path / "pair" / "draft")
    )
    random_bundle(tmp_path / "bundles" / "hrad", args.pair_of_models)
    table = pd.read_parquet(tmp_path / "replay" / "replay.parquet")
    table.loc[table["drafter"] == "entropy", "drafter"] = "hrad"
    table.to_parquet(tmp_path / "replay" / "replay.parquet")
    (tmp_path / "replay").rename(tmp_path / "toy-1c")
    (tmp_path / "replay").mkdir()
    (tmp_path / "toy-1c").rename(tmp_path / "replay" / "toy-1c")
    (tmp_path / "fit" / "lookahead.json").unlink()
    known = {"hrad": bundle_hash(tmp_path / "bundles" / "hrad")}
    write_json(tmp_path / "replay" / "toy-1c" / "provenance.json", {"bundles_sha256": known, "noise": NOISE})
    args.data, args.bundles, args.bundle = tmp_path, tmp_path / "bundles", tmp_path / "bundles" / "auto"
    args.replay, args.fit, args.output = tmp_path / "replay", tmp_path / "fit", tmp_path / "tuning"
    args.measured, args.texts = tmp_path / "measured", tmp_path / "texts"
    monkeypatch.setattr(
        study_module, "fastest", lambda some, *_: next((one for one in some if one.name == "hrad"), some[0])
    )
    return args


def run(args):
    """Run the stage; its one choice and what it timed itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tune.run(args)
    (choice,) = json.loads((args.output / "toy-1c" / CHOICES).read_text())
    return choice, pd.DataFrame(read_decodes(args.output / "toy-1c" / DECODES_FILE))


def test_bundles_that_changed_since_they_were_replayed_are_refused(stage):
    write_json(stage.replay / "toy-1c" / "provenance.json", {"bundles_sha256": {"hrad": "another"}})
    with pytest.raises(ValueError, match="hrad: other content than was replayed"):
        tune.run(stage)


def test_what_stage_measure_has_timed_is_not_timed_again(stage):
    measuring = SimpleNamespace(**{**vars(stage), "output": stage.measured})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure.run(measuring)
    choice, timed = run(stage)
    assert set(timed["arm"]) == {"hrad", choice["static"], PLAIN} and set(timed["split"]) == {"validation"}
    considered = {one["name"]: one["speedup"] for one in choice["candidates"]}
    assert [considered[name]["documents"] for name, _ in CHAINS] == [2, 2]
    assert choice["winner"] == "hrad" and {one["prompts"] for one in choice["score"].values()} == {4}


def test_the_bundle_decodes_as_its_winners_do(stage, capsys):
    tmp_path, stage.json = stage.data, True
    choice, timed = run(stage)
    assert choice["winner"] == "hrad" and choice["static"] in ("chain-1", "chain-3")
    said, warned = capsys.readouterr()
    assert json.loads(said)["choices"] == [choice] and f"warning: {NOISE}" in warned
    assert (
        set(timed[timed["split"] == "test"]["arm"]) == {"hrad", choice["static"], PLAIN} == {"hrad", *choice["score"]}
    )
    assert set(timed[timed["split"] == "validation"]["arm"]) == {"hrad", "chain-1", "chain-3", PLAIN}
    assert all(one["prompts"] == 4 for one in choice["score"].values())
    assert {row["arm"] for row in read_rounds(tmp_path / "tuning" / "toy-1c" / ROUNDS_FILE)} == set(timed["arm"])
    card = read_bundle(tmp_path / "bundles" / "auto").card
    assert card["routes"][0]["bundle"] == "hrad"
    assert card["reference"] == {"settings": {}, "missing": f"T=0: {OLD}"}
    texts = [
        load_decoder(tmp_path / "bundles" / folder, stage.pair_of_models).generate(
            [1, 2, 3], max_new_tokens=12, randomness=Randomness(0)
        )
        for folder in ("auto", "hrad")
    ]
    rounds = [[(record.drafted, record.accepted) for record in text.rounds] for text in texts]
    assert texts[0].tokens == texts[1].tokens and rounds[0] == rounds[1]
