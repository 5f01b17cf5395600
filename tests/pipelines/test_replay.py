"""From a pair to replayed policies on tiny models: text traces and replay."""

import json
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from pipelines.measuring.names import LOOKUP, PLAIN, TAKEOVER
from pipelines.measuring.tables import ORACLE, POLICIES, REPLAYED, replayed_at
from pipelines.outputs import write_json
from pipelines.stages import replay, traces
from predictors.bundle import read_bundle
from predictors.controllers import CONTROLLERS, build_controller
from predictors.latency.prices import RoundPrices
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.decode import Clock
from predictors.training.tables import TextTable
from runtime import Randomness, build_decoder
from runtime.branching.draft import BranchConfig
from tests.bundles import random_bundle, selector_bundle, stop_bundle
from tests.pipelines.toy_bench import toy_bench, toy_pair, toy_prompts
from tests.predictors.affine_profile import PROFILE, toy_profile

GAMMAS = [1, 2, 4]
CHEAP = 40.0
PARAMETERS = yaml.safe_load("""
traces:
  texts: {gamma_max: 4, candidates: 6, prompts: [1, 2, 4], max_new_tokens: 20, top: 4, layers: 2, threads: 1}
replay:
  gammas: [1, 2, 4]
  epsilons: [0.1]
  rivals:
  - name: takeover-{match}
    family: static takeover
    each: {match: [1, 2]}
    decoder:
      method: speculative
      drafter: &looking {kind: chain, gamma: 4, lookup: {length: 3}}
      controller: {kind: takeover, match: '{match}', otherwise: {kind: fixed, gamma: 2}}
  - {name: lookup, family: lookup, decoder: {method: speculative, drafter: {kind: lookup, length: 3}}}
  - name: takeover of hrad
    family: static takeover
    decoder:
      method: speculative
      drafter: *looking
      controller: {kind: takeover, otherwise: {kind: hrad, bundle: '{bundles}/hrad'}}
  - {name: of another pair, family: static takeover, bundle: missing}
  branch_gammas: [[2], [1, 3]]
  cost_ratios: [40.0]
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which texts were traced and replayed, with bundles of all kinds."""
    place = tmp_path_factory.mktemp("replay")
    args = toy_bench(place, "unused", {})
    (place / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS}}))
    write_json(place / "latency" / "toy-1c.json", PROFILE.to_record())
    pair = toy_pair(place)
    random_bundle(place / "bundles" / "hrad", pair, gamma=3, temperatures=(0.0,))
    stop_bundle(place / "bundles" / "early_stop-1", pair)
    stop_bundle(place / "bundles" / "unasked", pair, change=unasked)
    selector_bundle(place / "bundles" / "delayed_tree-nss", pair)
    args.out = args.texts = place / "texts"
    args.of = "texts"
    traces.run(args)
    args.bundles, args.output, args.latency = place / "bundles", place / "replay", place / "latency"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay.run(args)
    return place


def unasked(card):
    for setting in card["settings"]:
        setting["rule"] = {"threshold": 0.0}


@pytest.fixture(scope="module")
def pair(folder):
    return toy_pair(folder)


@pytest.fixture(scope="module")
def table(folder):
    return pd.read_parquet(folder / "replay" / "toy-1c" / REPLAYED)


def test_every_policy_for_chains_is_replayed_on_every_text(table):
    names = {PLAIN, ORACLE, *(f"chain-{gamma}" for gamma in GAMMAS), "confidence-0.1", "roc", "ema"}
    names |= {"entropy-0.3", "entropy-0.5", "entropy-0.7", "early_stop-1", "unasked", "unasked, forced"}
    names |= {"takeover-1", "takeover-2", "lookup", "pearl-2", "specbranch-no-hrad-2", "specbranch-no-hrad-1-3"}
    for setting, learned in (("T=0", {"hrad", "takeover of hrad"}), ("T=1", set())):
        rows = table[table["setting"] == setting]
        assert set(rows["drafter"]) == names | learned
        assert set(rows.groupby("drafter")["prompt"].nunique()) == {6}
        assert (rows.groupby("prompt")["tokens"].nunique() == 1).all()


def test_lookups_are_replayed_as_they_would_be_decoded(folder, pair, table):
    """Rounds of the real decoders, and only of those whose configuration says all can be built elsewhere."""
    served = json.loads((folder / "replay" / "toy-1c" / POLICIES).read_text())
    assert "takeover of hrad" not in served and "decoder" in served["pearl-2"]
    texts = {one.prompt_id: one.tokens for one in TextTable.read(folder / "texts").texts() if one.settings.greedy}
    rows = table[table["setting"] == "T=0"].set_index(["drafter", "prompt"])
    looked_up = same = 0
    for name in ("takeover-1", "takeover-2", "lookup"):
        decoder = build_decoder(pair, served[name]["decoder"])
        for prompt in toy_prompts(4):
            out = decoder.generate(prompt.tokens, max_new_tokens=20, randomness=Randomness(0))
            if out.tokens == texts[prompt.id]:  # passes of another width may round a near-tie differently
                made, same = rows.loc[name, prompt.id], same + 1
                for count in ("submitted", "passes", "accepted", "looked_up"):
                    assert made[count] == sum(getattr(one, count) for one in out.rounds[1:]), (name, count)
                looked_up += sum(one.looked_up for one in out.rounds[1:])
    assert looked_up > 20 and same >= 9


def test_no_chain_is_faster_than_who_knows_the_outcome(table):
    elsewhere = table["family"].str.startswith("branches") | table["family"].isin([LOOKUP, TAKEOVER])
    for _, rows in table[~elsewhere].groupby(["setting", "prompt"]):
        seconds = rows.set_index("drafter")["seconds"]
        assert (seconds.drop(PLAIN) >= seconds[ORACLE] - 1e-9).all()


def test_greedy_chains_take_what_their_rounds_cost(pair, table):
    """Rounds of the real decoder, priced by hand."""
    decoder = build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}})
    for prompt in toy_prompts(4):
        out = decoder.generate(prompt.tokens, max_new_tokens=20, randomness=Randomness(0))
        cached, seconds = len(prompt.tokens), 0.5 * (12 + 5 * len(prompt.tokens) / 8)
        for record in out.rounds[1:]:
            drafting = sum(1.25 + (cached + place) / 64 for place in range(record.drafted))
            target = 9 + 0.5 * (1 + record.drafted) + cached / 16
            outside = 0.125 * record.drafted + 0.5 + 0.25 * record.drafted
            seconds += 0.5 * (drafting + target + outside)
            cached += record.emitted
        row = table[(table["prompt"] == prompt.id) & (table["setting"] == "T=0") & (table["drafter"] == "chain-4")]
        assert row["seconds"].item() == pytest.approx(seconds, rel=1e-6)
        assert row["rounds"].item() == len(out.rounds) - 1


def again(folder, machine, output):
    """What a replay of the same texts for a machine leaves in another folder."""
    places = {name: folder / name for name in ("texts", "bundles", "latency")}
    files = {"params": folder / "params.yaml", "device": folder / f"{machine}.json"}
    replay.run(SimpleNamespace(pair="p", **files, **places, output=folder / output))
    return pd.read_parquet(folder / output / ("toy-1c" if machine == "device" else machine) / REPLAYED)


def test_another_machine_ranks_the_same_texts_anew(folder):
    """Where drafting is dear the shortest chain is the fastest, where it is free and wide passes cost no more, the longest."""
    best, rounds = {}, {}
    for machine, costs in (
        ("dear", {"draft": lambda rows, context: 100 + rows + context}),
        ("free", {"draft": lambda rows, context: rows / 1e6, "target": lambda tokens, context: 9 + context / 16}),
    ):
        quiet = {name: lambda drafted, sampled: 1e-6 for name in ("chain_drawing", "chain_verification")}
        device = {"slug": machine, "cpu": "toy", "cores": 1, "gpus": [], "bfloat16_flags": []}
        write_json(folder / "latency" / f"{machine}.json", toy_profile(**quiet, **costs).to_record())
        write_json(folder / f"{machine}.json", device)
        table = again(folder, machine, "elsewhere")
        chains = table[(table["family"] == "chain") & (table["setting"] == "T=1")]
        best[machine] = chains.groupby("drafter")["seconds"].sum().idxmin()
        rounds[machine] = list(chains["rounds"])
    assert best == {"dear": "chain-1", "free": "chain-4"} and rounds["dear"] == rounds["free"]


def test_a_law_that_is_read_is_paid_for(folder):
    """Rules read the laws behind a token, a static length none, and a model that is asked pays for what it reads itself."""
    text = next(text for text in TextTable.read(folder / "texts").texts() if text.settings.greedy)
    model = CONTROLLERS["early_stop"].from_bundle(read_bundle(folder / "bundles" / "early_stop-1"))
    prices = RoundPrices(PROFILE, sampled=False)
    fixed, sure, entropic = ({"kind": "fixed"}, {"kind": "confidence", "epsilon": 0.1}, {"kind": "entropy"})
    reads = [(build_controller(one), *costs) for one, costs in ((fixed, (0, 0)), (sure, (1, 0)), (entropic, (0, 1)))]
    for controller, confidence, entropy in (*reads, (model, 0, 0)):
        rounds = list(replayed(text, ChainPolicy(controller, 4)))
        asked = sum(one.asked for one in rounds)
        laws = sum(max(0, one.passes - 1) for one in rounds)  # both rules draft one token whatever its law
        assert sum(one.confidences for one in rounds) == confidence * laws
        assert sum(one.entropies for one in rounds) == entropy * laws
        assert (asked > 0) == (controller is model)
        read = sum(prices.reading(one.confidences, one.entropies) for one in rounds)
        assert read == pytest.approx(0.5 * laws * (0.125 * confidence + (0.125 + 0.0625) * entropy))
        unread = [replace(one, confidences=0, entropies=0) for one in rounds]
        assert prices.rounds(rounds) == pytest.approx(prices.rounds(unread) + read)


@pytest.mark.parametrize("stage", ["idle", "preverify"])
def test_branches_pay_for_what_they_read_while_the_target_waits(folder, stage):
    """Drafting in idle stages, and retaining; with draft stages that are not idle only the latter."""
    text = next(text for text in TextTable.read(folder / "texts").texts() if text.settings.greedy)
    config = BranchConfig(gamma=2, k_max=64, draft_stage=stage)
    controller = build_controller({"kind": "confidence", "epsilon": 0.1})
    rounds = list(replayed_branches(text, controller, config, "block"))
    read = sum(one.confidences for one in rounds)
    reads = [one for one in rounds if one.confidences]
    assert read == len(reads), "the law behind the first token of a stage is read, and no other"
    assert (stage == "preverify") in {one.survived for one in reads}
    free = toy_profile(reading=lambda entropy: 1e-12)
    paid, unpaid = (Clock(profile).branches(text, controller, config, "block") for profile in (PROFILE, free))
    assert paid.seconds - unpaid.seconds == pytest.approx(0.5 * 0.125 * read)


def test_recorded_counts_approach_the_law(folder):
    """The share of roots that accept a token is its mean probability."""
    texts = [text for text in TextTable.read(folder / "texts").texts() if not text.settings.greedy]
    chance_N = np.concatenate([np.minimum(text.columns["ratio"][:, 0], 1.0) for text in texts])
    hits_N = np.concatenate([text.columns["accepted"] >= 1 for text in texts])
    assert abs(hits_N.mean() - chance_N.mean()) < 4 * np.sqrt((chance_N * (1 - chance_N)).sum()) / len(chance_N)
    assert Clock(PROFILE).plain(texts[0]).rounds == texts[0].length - 1


def test_cheap_drafting_is_replayed_on_the_same_texts(folder, table):
    """Plain decoding takes what it took, as only the draft's passes have another price; a long chain takes less."""
    cheap = pd.read_parquet(folder / "replay" / "toy-1c" / replayed_at(CHEAP))
    assert not cheap["family"].str.startswith("branches").any()
    plain, chains = (cheap[cheap["drafter"] == arm].set_index("prompt") for arm in (PLAIN, "chain-4"))
    assert set(plain.index) == set(table["prompt"])
    real = table[table["drafter"] == "chain-4"].set_index("prompt")
    for setting in ("T=0", "T=1"):
        before, after = (rows[rows["setting"] == setting].sort_index()["seconds"] for rows in (real, chains))
        assert (after < before).all()
    was, now = (rows[rows["drafter"] == PLAIN].sort_values(["setting", "prompt"]) for rows in (table, cheap))
    assert now["seconds"].to_numpy() == pytest.approx(was["seconds"].to_numpy())


def test_a_table_that_is_shared_out_is_the_same(folder, table, monkeypatch):
    """Two processes, each with every other text; the last text has no partner."""
    monkeypatch.setattr(replay, "LEAST_TEXTS", len(table.groupby(["prompt", "setting"])) - 1)
    again(folder, "device", "shared")
    for name in (REPLAYED, replayed_at(CHEAP)):
        alone, shared = (pd.read_parquet(folder / of / "toy-1c" / name) for of in ("replay", "shared"))
        pd.testing.assert_frame_equal(alone, shared)
