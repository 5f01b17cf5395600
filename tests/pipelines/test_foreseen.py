"""What replay foresees of measured arms: a timed decode's own rounds, and every recorded text."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from pipelines.gate.attempt import attempt
from pipelines.gate.evidence.gain import CLOCK, CORRECTED
from pipelines.gate.verdict import CHALLENGER
from pipelines.measuring.foreseen import Foresight, recorder
from pipelines.measuring.led import RecordedTexts
from pipelines.measuring.names import DECODES_FILE, FORESEEN, ROUNDS_FILE
from pipelines.measuring.tables import read_decodes, read_foreseen, read_rounds
from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, read_prompts, write_prompts
from pipelines.stages import measure, traces
from runtime import ModelPair, build_decoder
from tests.bundles import random_bundle
from tests.pipelines.toy_bench import toy_bench, toy_prompts
from tests.predictors.affine_profile import PROFILE

BUDGET = 16
CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}, "verifier": "block"}
DECODERS = {
    "autoregressive": {"method": "autoregressive"},
    "chain-4": CHAIN,
    "chain-3": {**CHAIN, "drafter": {"kind": "chain", "gamma": 3}},
    "ema": {**CHAIN, "controller": {"kind": "ema", "tiers": [1, 4], "decay": 0.5}},
    "takeover": {
        **CHAIN,
        "drafter": {"kind": "chain", "gamma": 4, "lookup": {"length": 3}},
        "controller": {
            "kind": "takeover",
            "match": 1,
            "length": 2,
            "tail": 1,
            "otherwise": {"kind": "fixed", "gamma": 2},
        },
    },
    "lookup": {**CHAIN, "drafter": {"kind": "lookup", "length": 4}},
    "tree": {"method": "speculative", "drafter": {"kind": "fork", "width": 2, "depth": 2}, "verifier": "traversal"},
}
ARMS = [{"name": name, "family": name, "decoder": one} for name, one in DECODERS.items()]
TEXTS = {"gamma_max": 4, "candidates": 2, "prompts": [1, 4, 2], "max_new_tokens": BUDGET, "top": 4, "layers": 2}
TEXTS |= {"threads": 1}
PARAMETERS = {
    "traces": {"texts": TEXTS},
    "measure": {"arms": ARMS, "max_new_tokens": BUDGET, "validation_prompts": 1, "test_prompts": 3, "threads": 1}
    | {"exactness_prompts": 0},
    "trial": {
        "gammas": [2, 3],
        "test_prompts": 4,
        "reserve_prompts": 2,
        "exactness_prompts": 1,
        "max_new_tokens": BUDGET,
    }
    | {"threads": 1},
    "promotion": {"looks": [0.67, 1.0], "slice_documents": 2, "min_documents": 2},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A measurement of three test prompts, of which two are recorded."""
    prompts = [prompt for split in ("validation", "test", "reserve") for prompt in toy_prompts(4, split)]
    return measured(tmp_path_factory.mktemp("foreseen"), PARAMETERS, prompts)


def measured(folder, parameters, prompts):
    """Record texts and measure with ``parameters``."""
    args = toy_bench(folder, "unused", {})
    (folder / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": parameters}}))
    write_prompts(args.prompts / FILE, prompts)
    write_json(args.latency / "toy-1c.json", PROFILE.to_record())
    args.out = args.texts = folder / "texts"
    args.of = "texts"
    traces.run(args)
    args.bundles = folder / "bundles"
    measure.run(args)
    return folder


def arguments(place, **others):
    names = {"params": "params.yaml", "device": "device.json", "pair_folder": "pair"}
    places = {name: place / names.get(name, name) for name in (*names, "prompts", "latency")}
    return SimpleNamespace(**{"pair": "p", "measured": None, **places, **others})


@pytest.fixture(scope="module")
def decodes(place):
    return [row for row in read_decodes(place / "output" / "toy-1c" / DECODES_FILE) if row["split"] == "test"]


@pytest.fixture(scope="module")
def pair(place):
    return ModelPair.load(target=str(place / "pair" / "target"), draft=str(place / "pair" / "draft"), dtype="float32")


def test_a_timed_decode_is_replayed_round_for_round(place, decodes):
    """The last component counts rounds; two arms of one text differ in theirs."""
    found = read_foreseen(place / "output" / "toy-1c" / FORESEEN)
    foreseen = {(row["arm"], row["block"]): row for row in found.timed}
    covered = [row for row in decodes if row["arm"] != "tree"]
    assert (
        len(foreseen) == len(covered) == 3 * 2 * 6
    )  # prompts, settings, arms: one prompt's texts were recorded for it
    for row in covered:
        made = foreseen[row["arm"], row["block"]]
        assert (made["tokens"], made["parts"][-1]) == (row["tokens"], row["rounds"])
    assert all(sum(row["looked_up"] for row in covered if row["arm"] == arm) for arm in ("takeover", "lookup"))
    sampled = [row for row in covered if row["temperature"] > 0]
    assert all(row["led"] for row in sampled) and len({row["rounds"] for row in sampled}) > 3


def test_other_luck_has_other_rounds(place, decodes, pair):
    texts = RecordedTexts(place / "texts", BUDGET)
    recorded, record = texts.of("test"), recorder(pair, texts, read_prompts(place / "prompts", "test"))
    rows = [row for row in decodes if row["arm"] == "chain-4" and row["temperature"] > 0]
    rows = [row for row in rows if row["prompt"] in {text.prompt_id for text in recorded}]
    assert len(rows) == 2
    others = [[{**row, "seed": seed} for row in rows] for seed in range(8)]
    decoder, counts = {"chain-4": build_decoder(pair, CHAIN)}, []
    for some in (rows, *others):
        made = Foresight(PROFILE, recorded, record).of(
            decoder, some, read_rounds(place / "output" / "toy-1c" / ROUNDS_FILE)
        )
        counts.append([row["parts"][-1] for row in made.timed])
    assert counts[0] == [row["rounds"] for row in rows]
    assert any(one != counts[0] for one in counts[1:])


def test_a_decode_whose_text_is_not_to_be_had_leaves_its_arm_out(place, decodes, pair):
    recorded = RecordedTexts(place / "texts", BUDGET).of("test")
    arms, rounds = {"chain-4": build_decoder(pair, CHAIN)}, read_rounds(place / "output" / "toy-1c" / ROUNDS_FILE)
    assert Foresight(PROFILE, recorded).of(arms, decodes, rounds) is None
    deep = {"chain-4": build_decoder(pair, {**CHAIN, "drafter": {"kind": "chain", "gamma": 5}})}
    some = [row for row in decodes if row["prompt"] in {text.prompt_id for text in recorded}]
    assert Foresight(PROFILE, recorded).of(arms, some, rounds) is not None
    with pytest.warns(UserWarning, match="chain-4 is not replayed: chains of 5 tokens"):
        assert Foresight(PROFILE, recorded).of(deep, some, rounds) is None


def test_texts_recorded_again_are_the_same(place, pair):
    recorded = RecordedTexts(place / "texts", BUDGET)
    record = recorder(pair, recorded, read_prompts(place / "prompts", "test"))
    for text in recorded.of("test"):
        settings = {name: getattr(text.settings, name) for name in ("temperature", "top_k", "top_p")}
        again = record({"prompt": text.prompt_id, "output": text.tokens, "seed": 3, **settings})
        assert again.tokens == text.tokens and again.budget == text.budget == BUDGET
        assert np.allclose(again.columns["ratio"], text.columns["ratio"], rtol=1e-3)
        assert np.allclose(again.roots.states_NS, np.asarray(text.roots.states_NS), atol=1e-2)


def test_a_text_cut_to_a_budget_ends_there(place):
    (text, *_) = RecordedTexts(place / "texts", BUDGET).of("test")
    (short, *_) = RecordedTexts(place / "texts", 6).of("test")
    assert short.tokens == text.tokens[:6] and short.budget == 6 and short.roots.states_NS.shape[0] == 5
    assert not RecordedTexts(place / "texts", BUDGET + 1).of("test")  # nothing was recorded that far
    ended = replace(text, eos_tokens=frozenset(text.tokens[-1:]))
    assert ended.within(BUDGET + 1) is None, "those that ended early alone would be chosen by how they came out"


def test_the_gate_reads_gains_that_rest_on_replay(place, pair):
    """Of a bundle at T=0. Of four test prompts two are recorded; those of the reserve are traced after they were timed."""
    bundle = random_bundle(place / "new", pair, temperatures=(0.0,))
    args = arguments(place, texts=place / "texts", output=place / "trial")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = (attempt(args, "hrad", {CHALLENGER: bundle}, number) for number in (1, 2))
        args.texts, args.output = None, place / "clock"
        alone = attempt(args, "hrad", {CHALLENGER: bundle})
    assert {one.basis for look in (first, second) for one in look.gains.values()} == {CORRECTED}
    assert set(first.gains) == {"autoregressive", "chain-2", "chain-3"} and len(first.documents) == 2
    assert len(second.documents) == 3 and {one.basis for one in alone.gains.values()} == {CLOCK}
