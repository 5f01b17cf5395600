"""Tuning: candidates by replay, the best of them by the clock, and a bundle that decodes as its winners do."""

import json
import warnings
from dataclasses import replace

import pandas as pd
import pytest
import yaml

from pipelines.measuring import tuning
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.gain import TimedDecodes
from pipelines.measuring.names import CHAIN, CHOICES, DECODES_FILE, PLAIN, ROUNDS_FILE, SELECTOR
from pipelines.measuring.tables import POLICIES, read_decodes, read_rounds
from pipelines.measuring.tuning import Contender, TuneStudy, candidates, shortlist
from pipelines.outputs import write_json
from pipelines.stages import tune
from predictors.bundle import bundle_hash, read_bundle
from predictors.monitoring import OLD
from predictors.sampling import SamplingSettings
from runtime import Randomness, load_decoder
from tests.bundles import random_bundle
from tests.pipelines.hand_made_decodes import decode
from tests.pipelines.hand_made_replay import write_replay
from tests.pipelines.toy_bench import toy_bench, toy_pair
from tests.predictors.affine_profile import PROFILE


def chain(gamma):
    return {"decoder": {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}}}


CHAINS = (("chain-1", 1), ("chain-3", 3))
NOISE = "toy-1c was noisy"
FORK = ArmRow("fork", "fork", {"method": "speculative", "drafter": {"kind": "fork", "width": 2, "depth": 2}})
SERVED = {"chain-1": chain(1), "chain-3": chain(3), "entropy": chain(2), "hrad": {"bundle": "hrad"}}


@pytest.fixture
def replayed(tmp_path):
    write_replay(tmp_path / "replay")
    write_json(tmp_path / "replay" / POLICIES, SERVED)
    write_json(tmp_path / "fit" / "lookahead.json", {"method": "lookahead", "rows": [{"setting": "T=0"}]})
    return tmp_path


def found(folder, *rivals):
    return candidates(folder / "replay", folder / "fit", SamplingSettings(0.0), rivals)


def names(some):
    return [one.name for one in some]


def test_candidates_are_ranked_by_replay_and_what_it_does_not_know_is_always_timed(replayed):
    some = found(replayed, FORK, replace(FORK, name="entropy"))
    assert names(some) == ["entropy", "chain-3", "chain-1", PLAIN, "lookahead", "fork"]
    assert some[0].predicted == pytest.approx(168 * 6 / 9) and some[4].served == {"bundle": "lookahead"}
    assert names(shortlist(some, 1)) == names(some), "two static chains, plain decoding, and the unknown ones"
    third = replace(some[1], name="chain-2", predicted=1.0)
    assert "chain-2" not in names(shortlist([*some, third], 1))
    with pytest.raises(ValueError, match="tune.rivals: 'hrad' must be a decoder's configuration"):
        found(replayed, ArmRow("hrad", "rule", bundle="hrad"))


def test_a_bundle_that_samples_invariantly_is_ranked_by_the_texts_of_that(replayed):
    """And others, and greedy decoding, by those that they write."""
    place, warm = replayed / "replay" / "replay.parquet", SamplingSettings(1.0)
    table = pd.read_parquet(place)
    table = pd.concat([table, *(table.assign(setting=one.name) for one in (warm, replace(warm, invariant=True)))])
    hrad = table[table["drafter"] == "chain-3"].assign(drafter="hrad", family="rule")
    hrad["seconds"] *= hrad["setting"].map({"T=0": 2.0, "T=1": 4.0, "T=1, invariant": 0.25})
    pd.concat([table, hrad]).to_parquet(place)
    sampled = {invariant: [] for invariant in (False, True)}
    for invariant in sampled:
        write_json(replayed / "fit" / "hrad.json", {"family": "grow", "invariant": invariant})
        sampled[invariant] = candidates(replayed / "replay", replayed / "fit", warm, ())
        assert found(replayed)[-2].name == "hrad", "what it is at temperature 0"
    assert [some[0].name for some in sampled.values()] == ["entropy", "hrad"]
    assert names(sampled[True]).count("hrad") == 1


def test_a_family_has_one_place_and_a_bundle_its_own(replayed):
    some = [Contender(f"rule-{n}", "rule", {"decoder": {"method": PLAIN}}, 99.0 - n) for n in range(3)]
    some += [Contender(name, "rule", {"bundle": name}, 50.0) for name in ("hrad", "length")]
    assert names(shortlist(some, 2)) == ["rule-0", "hrad"]


def test_one_policy_by_several_names_is_one_candidate(replayed):
    """A rule whose model is left unasked is the chain it falls back to, and takes no place of another candidate."""
    table = pd.read_parquet(replayed / "replay" / "replay.parquet")
    alike = table[table["drafter"] == "chain-3"].assign(drafter="hrad", family="rule")
    pd.concat([alike, table]).to_parquet(replayed / "replay" / "replay.parquet")
    assert names(found(replayed))[:3] == ["entropy", "chain-3", "chain-1"]
    other = alike.assign(seconds=alike["seconds"] * 1.001)
    pd.concat([other, table]).to_parquet(replayed / "replay" / "replay.parquet")
    assert names(found(replayed))[1:3] == ["chain-3", "hrad"]


def test_selectors_and_the_best_static_tree_of_a_rule_are_candidates(replayed):
    """At the settings that trees were traced at; a static choice that is a chain is known by replay."""
    for rule, action in (("block", "chain-3"), ("nss", "delayed-2.0.4")):
        record = {"family": "tree", "rule": rule, "static_actions": {"T=0": action}}
        write_json(replayed / "fit" / f"delayed_tree-{rule}.json", record)
    write_json(replayed / "fit" / "delayed_tree-mine.json", {"family": "head"})
    made = {one.name: one for one in found(replayed) if one.predicted is None}
    assert set(made) == {"lookahead", "delayed_tree-block", "delayed_tree-nss", "delayed-2.0.4 nss"}
    assert made["delayed_tree-nss"].family == SELECTOR
    drafter = {"kind": "delayed_tree", "k": 2, "l1": 0, "l2": 4}
    assert made["delayed-2.0.4 nss"].served == {
        "decoder": {"method": "speculative", "drafter": drafter, "verifier": "nss"}
    }
    write_json(replayed / "fit" / "lookahead.json", {"method": "lookahead", "rows": [{"setting": "T=1"}]})
    elsewhere = candidates(
        replayed / "replay", replayed / "fit", SamplingSettings(0.0), (), lambda name: name != "delayed_tree-nss"
    )
    assert "lookahead" not in names(elsewhere), "it was not traced there"
    assert "delayed_tree-nss" not in names(elsewhere), "its predictor is fitted no more"


def choice(**rates):
    """What is chosen of candidates that decode at these rates, on prompts of their own; two numbers take turns."""
    some = [Contender(name, CHAIN if name.startswith("chain") else "rule", {}, 1.0) for name in rates]
    rows = [
        decode(name, f"p{number}", 10 / (rate[number % 2] if isinstance(rate, tuple) else rate))
        for name, rate in {**rates, PLAIN: 100.0}.items()
        for number in range(6)
    ]
    study = object.__new__(TuneStudy)
    return study._choice(SamplingSettings(0.0), [*some, tuning.BASE], TimedDecodes.of(rows))


def test_the_fastest_is_chosen_if_it_surely_beats_the_static_chain():
    made = choice(chain_2=150.0, chain_4=170.0, rule=200.0)
    assert (made["winner"], made["static"]) == ("rule", "chain_4")
    assert made["gains"]["chain_4"]["gain"]["value"] == pytest.approx(200 / 170 - 1)
    assert made["gains"][PLAIN]["gain"]["low"] == pytest.approx(1.0)
    unsure = choice(chain_4=170.0, rule=(250.0, 150.0))
    assert unsure["winner"] == "chain_4" and set(unsure["gains"]) == {PLAIN}
    slow = choice(chain_4=(80.0, 90.0), rule=95.0)
    assert slow["winner"] == PLAIN and slow["static"] == "chain_4", "nothing is faster than plain decoding"
    assert choice(chain_4=(150.0, 90.0), rule=100.0)["winner"] == "chain_4"
    assert choice(rule=120.0)["static"] is None


@pytest.fixture
def stage(replayed, tmp_path, monkeypatch):
    """The stage's arguments, on tiny models: bundle hrad is a candidate, and is chosen wherever it can be."""
    args = toy_bench(tmp_path, "unused", {})
    args.json = False
    section = {"temperatures": [0.0], "candidates": 3, "validation_prompts": 3, "threads": 1, "max_new_tokens": 8}
    args.params.write_text(yaml.safe_dump({"pairs": {"p": {"tune": section}}}))
    args.pair_of_models = toy_pair(tmp_path)
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
    args.texts = tmp_path / "texts"
    write_json(args.latency / "toy-1c.json", PROFILE.to_record())
    record = tuning.TuneStudy._choice
    monkeypatch.setattr(TuneStudy, "_choice", lambda *given: record(*given) | {"winner": "hrad"})
    return args


def run(args):
    """Run the stage; its one choice and what it timed itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tune.run(args)
    (choice,) = json.loads((args.output / "toy-1c" / CHOICES).read_text())
    return choice, pd.DataFrame(read_decodes(args.output / "toy-1c" / DECODES_FILE))


def test_the_bundle_decodes_as_its_winners_do(stage, capsys):
    """And bundles that changed since they were replayed are refused."""
    tmp_path, stage.json = stage.data, True
    choice, timed = run(stage)
    assert choice["winner"] == "hrad" and choice["static"] in ("chain-1", "chain-3")
    said, warned = capsys.readouterr()
    assert json.loads(said)["choices"] == [choice] and f"warning: {NOISE}" in warned
    assert set(timed["arm"]) == {"hrad", "chain-1", "chain-3", PLAIN} and set(timed["split"]) == {"validation"}
    assert {row["arm"] for row in read_rounds(tmp_path / "tuning" / "toy-1c" / ROUNDS_FILE)} == set(timed["arm"])
    card = read_bundle(tmp_path / "bundles" / "auto").card
    assert card["routes"][0]["bundle"] == "hrad"
    assert card["reference"] == {"settings": {}, "missing": f"T=0: {OLD}"}
    decoders = (load_decoder(tmp_path / "bundles" / name, stage.pair_of_models) for name in ("auto", "hrad"))
    texts = [decoder.generate([1, 2, 3], max_new_tokens=12, randomness=Randomness(0)) for decoder in decoders]
    rounds = [[(record.drafted, record.accepted) for record in text.rounds] for text in texts]
    assert texts[0].tokens == texts[1].tokens and rounds[0] == rounds[1]
    write_json(stage.replay / "toy-1c" / "provenance.json", {"bundles_sha256": {"hrad": "another"}})
    with pytest.raises(ValueError, match="hrad: other content than was replayed"):
        tune.run(stage)
