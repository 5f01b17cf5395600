"""Text traces of real models on disk: at temperature 0 every controller's replayed rounds are the real decoder's."""

import dataclasses
import json
import re
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest

from pipelines.measuring.reference import reference, replayed_counts, routed_reference
from predictors.bundle import read_bundle
from predictors.controllers import build_controller, learned_controller
from predictors.monitoring import OLD, RequestCounts, fractions_of
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import ChainPolicy, replayed
from predictors.training.tables import TextTable
from runtime import Randomness, build_decoder, load_decoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig
from runtime.verification import VERIFIERS
from tests.bundles import random_bundle, selector_bundle, stop_bundle, survival_bundle
from tests.trace_collection.collecting import GAMMA, TEXTS, gather
from trace_collection.texts import TextCollector

UNLEARNED = [
    {"kind": "fixed"},
    {"kind": "fixed", "gamma": 2},
    {"kind": "confidence", "epsilon": 0.5},
    {"kind": "entropy", "threshold": 0.3},
    {"kind": "roc", "min_pairs": 1},
    {"kind": "ema", "tiers": [1, 3, 5]},
    {"kind": "online", "cost": 0.3, "step": 0.5},
]
STOPPERS = [("early_stop", "before"), ("early_stop", "law"), ("specdecpp", "behind"), ("logistic", "law")]


def controllers(pair, folder):
    yield from map(build_controller, UNLEARNED)
    for kind, features in (("hrad", "paper"), ("hrad", "extended"), ("length", "extended")):
        name = folder / f"{kind}-{features}"
        yield learned_controller(read_bundle(random_bundle(name, pair, features, gamma=3, kind=kind)))
    for kind, inputs in STOPPERS:
        name = folder / f"{kind}-{inputs}"
        yield learned_controller(read_bundle(stop_bundle(name, pair, kind, inputs, change=reads_last_layer)))
    for least in (1, 2):
        yield learned_controller(read_bundle(survival_bundle(folder / f"survival-{least}", pair, least=least)))


def reads_last_layer(card):
    card["stop_spec"]["draft_layers"] = [2]


def test_replay_is_the_decoder_at_temperature_0(pair, prompts, folder, tmp_path):
    texts = [text for text in TextTable.read(folder).texts() if text.settings.greedy]
    assert [text.prompt_id for text in texts] == ["p1", "p2", "p3", "p4"]
    assert any(text.length < 24 for text in texts), "no text ends before its budget"
    assert {text.ends for text in texts} == {True, False}, (
        "static chains are walked where they may end, and nowhere else"
    )
    lengths, asked = set(), 0
    for controller in controllers(pair, tmp_path):
        decoder = SequentialDecoder(pair, ChainConfig(GAMMA), VERIFIERS["block"], controller)
        for text, prompt in zip(texts, prompts[1:], strict=True):
            out = decoder.generate(prompt.tokens, max_new_tokens=24, randomness=Randomness(0))
            rounds = list(replayed(text, ChainPolicy(controller, GAMMA)))
            expected = [
                (record.drafted, record.accepted, record.emitted, record.passes, record.asked)
                for record in out.rounds[1:]
            ]
            found = [(one.submitted, one.accepted, one.emitted, one.passes, one.asked) for one in rounds]
            assert found == expected, controller.kind
            lengths |= {one.submitted for one in rounds}
            asked += sum(one.asked for one in rounds)
    assert lengths == set(range(GAMMA + 1)) and asked > 100


def branch_bundle(folder, pair):
    decoder = {"method": "branch_parallel", "gamma": 4, "k_max": 2, "overlap": "none"}
    return random_bundle(folder, pair, "paper", gamma=3, change=lambda card: card.update(decoder=decoder))


def monitored(folder, pair):
    """Bundles of all kinds that text traces can replay."""
    yield random_bundle(folder / "hrad", pair, gamma=3)
    yield random_bundle(folder / "length", pair, "paper", gamma=3, kind="length")
    yield branch_bundle(folder / "branches", pair)
    for kind, inputs in STOPPERS:
        yield stop_bundle(folder / f"{kind}-{inputs}", pair, kind, inputs, change=reads_last_layer)
    yield survival_bundle(folder / "survival", pair)


def reference_of(bundle, folder):
    return reference(bundle.card, bundle.tensors, partial(TextTable.read, folder))


def test_requests_are_counted_alike_by_runtime_and_replay(pair, prompts, folder, tmp_path):
    """At temperature 0 a record of the real decoder is what the replay counts, so the reference is of what is served."""
    texts = [text for text in TextTable.read(folder).texts() if text.settings.greedy]
    tested = outcomes = 0
    for bundle in monitored(tmp_path, pair):
        records, loaded = tmp_path / f"{bundle.name}.jsonl", read_bundle(bundle)
        decoder = load_decoder(bundle, pair, monitor=records)
        for text, prompt in zip(texts, prompts[1:], strict=True):
            decoder.generate(prompt.tokens, max_new_tokens=24, randomness=Randomness(0))
            record = json.loads(records.read_text().splitlines()[-1])
            counts = asdict(replayed_counts(loaded.card["decoder"], learned_controller(loaded), text))
            assert record["sketch"] == pytest.approx(counts.pop("sketch"), rel=1e-3, abs=1e-3), bundle.name
            assert {name: record[name] for name in counts} == pytest.approx(counts, rel=1e-4), bundle.name
            tested, outcomes = tested + counts["tested"], outcomes + counts["outcomes"]
        made = reference_of(loaded, folder)["settings"]["T=0"]
        lines = records.read_text().splitlines()
        of_test = [
            fractions_of(json.loads(line)) for line, text in zip(lines, texts, strict=True) if text.prompt_id != "p1"
        ]
        for name, level in made["levels"].items():
            fractions = np.array([one[name] for one in of_test if name in one])
            above, below = fractions.sum(axis=0)
            assert level["mean"] == pytest.approx(above / below, rel=1e-3, abs=1e-3), (bundle.name, name)
            assert level["requests"] == len(fractions) <= 3, "a validation text, on which thresholds are chosen, counts"
    assert tested > 100 and 0 < outcomes < tested


def test_lookups_are_counted_alike_by_runtime_and_replay(pair, prompts, folder, tmp_path):
    drafter = {"kind": "chain", "gamma": GAMMA, "lookup": {"length": 4}}
    controller = {"kind": "takeover", "match": 1, "length": 4, "otherwise": {"kind": "fixed", "gamma": 2}}
    texts = [text for text in TextTable.read(folder).texts() if text.settings.greedy]
    looked_up = 0
    for config in ({"drafter": drafter, "controller": controller}, {"drafter": {"kind": "lookup", "length": 4}}):
        config |= {"method": "speculative", "verifier": "block"}
        decoder = build_decoder(pair, config)
        for text, prompt in zip(texts, prompts[1:], strict=True):
            counts = RequestCounts(24, decoder.depth)
            for made in decoder.generate(prompt.tokens, max_new_tokens=24, randomness=Randomness(0)).rounds[1:]:
                counts.add(made.emitted, made.submitted, made.accepted, made.forecasts, made.looked_up)
            assert replayed_counts(config, decoder.controller, text) == counts
            looked_up += counts.looked_up
        route = {"settings": {"temperature": 0.0}, "decoder": config}
        assert set(routed_reference([route], tmp_path, folder)["settings"]["T=0"]["levels"]) == {"accepted"}
    assert looked_up > 20


def test_what_cannot_be_replayed_has_no_reference(pair, folder, tmp_path):
    tree = read_bundle(selector_bundle(tmp_path / "tree", pair))
    made = reference_of(tree, folder)
    assert made["settings"] == {} and made["missing"].startswith("delayed_tree ")
    chain = read_bundle(random_bundle(tmp_path / "long", pair, gamma=6))
    assert re.match(r"chains of (\d+) .*gamma_max=", reference_of(chain, folder)["missing"])[1] == "6"
    with pytest.raises(ValueError, match="did not finish"):
        reference_of(chain, tmp_path)


def test_routes_have_the_reference_of_what_they_name(pair, folder, tmp_path):
    bundle = read_bundle(random_bundle(tmp_path / "hrad", pair, gamma=3))
    made = reference_of(bundle, folder)
    exported = tmp_path / "exported" / "hrad"
    random_bundle(exported, pair, gamma=3, change=lambda card: card.update(reference=made))
    chain = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}
    routes = [
        {"settings": {"temperature": 0.0}, "bundle": "hrad"},
        {"settings": {"temperature": 1.0}, "decoder": chain},
    ]
    routed = routed_reference(routes, exported.parent, folder)
    assert routed["settings"]["T=0"] == made["settings"]["T=0"] != made["settings"]["T=1"]
    assert set(routed["settings"]["T=1"]["levels"]) == {"accepted"} and routed["missing"] is None
    random_bundle(exported, pair, gamma=3)
    routes[1]["decoder"] = {"method": "lookahead"}
    missing = routed_reference(routes, exported.parent, folder)["missing"]
    assert missing.startswith(f"T=0: {OLD}; T=1: lookahead ")


def test_routes_without_a_controller_are_replayed_under_the_methods_own(folder, tmp_path):
    branches = {"method": "branch_parallel", "gamma": 4, "k_max": 2}
    confidence = {"controller": {"kind": "confidence", "epsilon": 0.2}}

    def of(changes):
        route = {"settings": {"temperature": 0.0}, "decoder": branches | changes}
        return routed_reference([route], tmp_path, folder)

    assert of({})["settings"] == of(confidence)["settings"] != of({"controller": {"kind": "fixed"}})["settings"]


BRANCHING = [
    {"gamma": 4, "k_max": 3},
    {"gamma": 3, "k_max": 4, "k_rule": "const", "draft_stage_gamma": 2, "controller": {"kind": "fixed"}},
    {"gamma": 4, "k_max": 1, "draft_stage": "preverify", "controller": {"kind": "fixed"}},
    {"gamma": 4, "k_max": 2, "controller": {"kind": "roc", "min_pairs": 1}},
]


def test_branch_replay_is_the_decoder_at_temperature_0(pair, prompts, folder, tmp_path):
    texts = [text for text in TextTable.read(folder).texts() if text.settings.greedy]
    bundle = random_bundle(tmp_path / "hrad", pair, "paper", gamma=3)
    hits, seen = 0, set()
    for config in (*BRANCHING, {"gamma": 4, "k_max": 2, "controller": {"kind": "hrad", "bundle": str(bundle)}}):
        decoder = build_decoder(pair, {"method": "branch_parallel", "overlap": "none", **config})
        for text, prompt in zip(texts, prompts[1:], strict=True):
            out = decoder.generate(prompt.tokens, max_new_tokens=24, randomness=Randomness(0))
            rounds = list(replayed_branches(text, decoder.controller, decoder.config, "block"))
            expected, counts = (
                [
                    (one.submitted, one.idle_levels, one.candidates, one.law_known, one.accepted, one.emitted)
                    for one in some
                ]
                for some in (out.rounds[1:], rounds)
            )
            assert counts == expected, config
            hits += sum(not one.ends_segment for one in rounds)
            seen |= {one.submitted for one in rounds}
    assert hits > 20 and len(seen) > 4


def test_layers_that_were_not_recorded_are_refused(pair, folder, tmp_path):
    text = next(TextTable.read(folder).texts())
    other = learned_controller(read_bundle(stop_bundle(tmp_path, pair)))
    with pytest.raises(
        ValueError, match=r"early_stop controller reads hidden states \[1\] of the draft, and \[2\] were"
    ):
        next(replayed(text, ChainPolicy(other, GAMMA)))
    with pytest.raises(ValueError, match="chains of 6 tokens cannot be replayed"):
        next(replayed(text, ChainPolicy(build_controller({"kind": "fixed"}), 6)))


def test_states_after_the_first_token_are_left_out_where_nobody_reads_them(pair, prompts, folder, tmp_path):
    config = dataclasses.replace(TEXTS, rollout_states=False)
    gather(TextCollector(pair, config, prompts), tmp_path / "traces")
    less, whole = TextTable.read(tmp_path / "traces"), TextTable.read(folder)
    assert whole.slots("states").shape == (len(whole), GAMMA, 32) and less.slots("states").shape == (len(less), 1, 32)
    assert np.array_equal(less.slots("states")[:, 0], whole.slots("states")[:, 0]) and whole.slots("states")[:, 1].any()
    assert np.array_equal(less.column("tops"), whole.column("tops"))
    reads = learned_controller(read_bundle(stop_bundle(tmp_path / "b", pair, threshold=1e-9, change=reads_last_layer)))
    with pytest.raises(ValueError, match=r"state at slot 1, and 1 were recorded\. Set traces.texts.rollout"):
        for text in less.texts():
            list(replayed(text, ChainPolicy(reads, GAMMA)))


def test_rows_know_their_texts_and_their_place_in_the_trace(folder):
    whole = TextTable.read(folder)
    test = whole.rows("test")
    for table in (whole, test):
        texts = list(table.texts())
        assert len(texts) == len(table.text_slices) and table.text_slices[-1].stop == len(table) == len(table.end_N)
        for text, rows in zip(texts, table.text_slices, strict=True):
            assert set(table.end_N[rows]) == {rows.stop - 1} and set(table.column("prompt_id")[rows]) == {
                text.prompt_id
            }
            assert text.columns["token"].tolist() == table.column("token")[rows].tolist()
            assert np.array_equal(text.columns["states"][-1, 1], table.slots("states")[rows][-1, 1])
            assert np.array_equal(text.within(3).columns["states"][-1, 0], table.slots("states")[rows][1, 0])
            assert text.columns["states"].shape == (text.length - 1, *table.slots("states").shape[1:])
    assert np.array_equal(whole.column("root")[test.index], test.column("root"))


def test_rows_describe_the_text(pair, prompts, folder):
    table = TextTable.read(folder)
    for text in table.texts():
        columns = text.columns
        assert text.length == 24 or text.columns["token"][-1] == 7
        tested_NG = columns["rank"] >= 0
        assert (tested_NG.sum(axis=1) <= columns["accepted"] + 1).all() and tested_NG[:, 0].all()
        hits_TC, first_T = columns["hits"][tested_NG], np.minimum(columns["ratio"][tested_NG], 1.0)
        assert (hits_TC[:, 1:] >= hits_TC[:, :-1]).all()
        if text.settings.greedy:
            assert (hits_TC[:, 0] == first_T).all()
            assert (hits_TC == (columns["rank"][tested_NG][:, None] < [1, 2, 3, 4])).all()
        else:
            np.testing.assert_allclose(hits_TC[:, 0], first_T, rtol=1e-5)
    assert len(list(table.rows("test").texts())) == 2 * 3
