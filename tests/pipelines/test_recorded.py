"""What replay knows of timed arms: at temperature 0 a decode's own rounds, and every recorded text, priced alike."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import yaml

from pipelines.gate.trial import attempt
from pipelines.gate.verdict import CHALLENGER
from pipelines.measuring.gain import CLOCK, REPLAYED
from pipelines.measuring.names import DECODES_FILE, ROUNDS_FILE
from pipelines.measuring.recorded import Accounts, RecordedTexts, same_decoders
from pipelines.measuring.tables import read_decodes, read_rounds
from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, write_prompts
from pipelines.stages import measure, traces
from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder
from tests.bundles import random_bundle
from tests.pipelines.toy_bench import own_documents, quietly, toy_bench
from tests.predictors.affine_profile import PROFILE

BUDGET = 16
GREEDY, SAMPLED = SamplingSettings(0.0), SamplingSettings(1.0)
CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}, "verifier": "block"}
FIXED = {"kind": "fixed", "gamma": 2}
DECODERS = {
    "autoregressive": {"method": "autoregressive"},
    "chain-4": CHAIN,
    "chain-2": {**CHAIN, "drafter": {"kind": "chain", "gamma": 2}},
    "two of four": {**CHAIN, "controller": FIXED},
    "ema": {**CHAIN, "controller": {"kind": "ema", "tiers": [1, 4], "decay": 0.5}},
    "takeover": {
        **CHAIN,
        "drafter": {"kind": "chain", "gamma": 4, "lookup": {"length": 3}},
        "controller": {"kind": "takeover", "match": 1, "length": 2, "tail": 1, "otherwise": FIXED},
    },
    "lookup": {**CHAIN, "drafter": {"kind": "lookup", "length": 4}},
    "tree": {"method": "speculative", "drafter": {"kind": "fork", "width": 2, "depth": 2}, "verifier": "traversal"},
}
ARMS = [{"name": name, "family": name, "decoder": one} for name, one in DECODERS.items()]
TEXTS = {"gamma_max": 4, "candidates": 2, "prompts": [1, 4, 2], "max_new_tokens": BUDGET, "top": 4, "layers": 2}
SHORT = {"max_new_tokens": BUDGET, "threads": 1}
PARAMETERS = {
    "traces": {"texts": TEXTS | {"threads": 1}},
    "measure": {"arms": ARMS, "validation_prompts": 1, "test_prompts": 3, "exactness_prompts": 0, **SHORT},
    "trial": {"gammas": [2, 3], "test_prompts": 4, "reserve_prompts": 2, "exactness_prompts": 1, **SHORT},
    "promotion": {"slice_documents": 2, "min_documents": 2},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A measurement of three test prompts, of which two are recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    args = toy_bench(folder, "unused", {})
    (folder / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS}}))
    prompts = [one for split in ("validation", "test", "reserve") for one in own_documents(4, split)]
    write_prompts(args.prompts / FILE, prompts)
    write_json(args.latency / "toy-1c.json", PROFILE.to_record())
    args.out = args.texts = folder / "texts"
    args.of, args.bundles = "texts", folder / "bundles"
    traces.run(args)
    measure.run(args)
    return folder


@pytest.fixture(scope="module")
def pair(place):
    return ModelPair.load(target=str(place / "pair" / "target"), draft=str(place / "pair" / "draft"), dtype="float32")


@pytest.fixture(scope="module")
def decoders(pair):
    return {name: build_decoder(pair, one) for name, one in DECODERS.items()}


@pytest.fixture(scope="module")
def recorded(place):
    return RecordedTexts(place / "texts", BUDGET).of("test")


def accounts(decoders):
    return Accounts(PROFILE, decoders, (GREEDY, SAMPLED))


def test_greedy_rounds_that_ran_cost_what_replay_says_of_their_text(place, decoders, recorded):
    """Round for round, of every arm that replay covers; of trees nothing is known."""
    folder, known = place / "output" / "toy-1c", accounts(decoders)
    decodes = [row for row in read_decodes(folder / DECODES_FILE) if row["split"] == "test"]
    profiled = known.profiled(decodes, read_rounds(folder / ROUNDS_FILE))
    replayed = {(row["arm"], row["prompt"], row["setting"]): row for row in known.replayed(recorded)}
    assert {name for name, *_ in replayed} == set(DECODERS) - {"tree"}
    compared = 0
    for row in profiled:
        assert math.isnan(row["profiled"]) == (row["arm"] == "tree")
        if row["temperature"] == 0 and (row["arm"], row["prompt"], "T=0") in replayed:
            one = replayed[row["arm"], row["prompt"], "T=0"]
            assert (row["profiled"], row["tokens"]) == (pytest.approx(one["seconds"]), one["tokens"])
            compared += 1
    assert compared == 2 * 7 and len({row["profiled"] for row in profiled if row["temperature"] > 0}) > 7


def test_an_arm_that_reads_more_than_was_recorded_is_left_out(pair, recorded):
    deep = {"deep": build_decoder(pair, {**CHAIN, "drafter": {"kind": "chain", "gamma": 5}})}
    with pytest.warns(UserWarning, match="deep is not replayed at T=0: chains of 5 tokens"):
        assert accounts(deep).replayed(recorded) == []


def test_arms_that_are_one_decoder_are_known(decoders):
    """By what they draft, whatever they are called: a fixed controller's length is the chain's."""
    found = same_decoders(decoders, [GREEDY])["T=0"]
    alike = {tuple(sorted(names)) for names in found if len(names) == 2}
    assert alike == {("chain-2", "two of four")}


def test_a_text_cut_to_a_budget_ends_there(place, recorded):
    text = recorded[0]
    (short, *_) = RecordedTexts(place / "texts", 6).of("test")
    assert short.tokens == text.tokens[:6] and short.budget == 6 and short.roots.states_NS.shape[0] == 5
    assert not RecordedTexts(place / "texts", BUDGET + 1).of("test")  # nothing was recorded that far
    ended = replace(text, eos_tokens=frozenset(text.tokens[-1:]))
    assert ended.within(BUDGET + 1) is None, "those that ended early alone would be chosen by how they came out"


def test_a_trial_s_gains_rest_on_replay_where_there_are_texts(place, pair):
    """Of four test prompts two are recorded; those of the reserve are timed only."""
    bundle = random_bundle(place / "new", pair, temperatures=(0.0,))
    names = {"params": "params.yaml", "device": "device.json", "pair_folder": "pair"}
    places = {name: place / names.get(name, name) for name in (*names, "prompts", "latency", "texts")}
    args = SimpleNamespace(pair="p", **places, output=place / "trial")
    tried = partial(quietly, attempt, args, "hrad", {CHALLENGER: bundle})
    first, second = tried(False), tried(True)
    args.texts, args.output = None, place / "clock"
    alone = tried()
    assert {one.basis for some in (first, second) for one in some.gains.values()} == {REPLAYED}
    assert set(first.gains) == {"autoregressive", "chain-2", "chain-3"} and len(first.documents) == 4
    assert len(second.documents) == 6 and second.reserve
    assert {one.basis for one in alone.gains.values()} == {CLOCK}
