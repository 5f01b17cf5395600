"""Decoding over graphed passes, draws and verdicts gives the text of plain calls, and reads the device once a round."""

import gc

import pytest
import torch

from runtime import ModelPair, Randomness, build_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.graphs import Programs
from tests.runtime.graphing import HiddenReads, Marked, OnDevice, Traced
from tests.toys import tiny_llama

CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}}
METHODS = {
    "plain": {"method": "autoregressive"},
    "block": {**CHAIN, "verifier": "block"},
    "tokenwise": {**CHAIN, "verifier": "tokenwise"},
    "traversal": {**CHAIN, "verifier": "traversal"},
    "entropy": {**CHAIN, "verifier": "block", "controller": {"kind": "entropy"}},
    "confidence": {**CHAIN, "verifier": "block", "controller": {"kind": "confidence", "epsilon": 0.3}},
    "never_stops": {**CHAIN, "verifier": "block", "controller": {"kind": "confidence", "epsilon": 0.0}},
    "roc": {**CHAIN, "verifier": "block", "controller": {"kind": "roc"}},
    "ema": {**CHAIN, "verifier": "block", "controller": {"kind": "ema"}},
    "delayed_tree": {
        "method": "speculative",
        "drafter": {"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 2},
        "verifier": "traversal",
    },
    "fork": {"method": "speculative", "drafter": {"kind": "fork", "width": 2, "depth": 2}, "verifier": "nss"},
    "likeliest_chain": {
        "method": "speculative",
        "drafter": {"kind": "multi_candidate", "config": [1, 1, 1], "candidates": "top_k"},
        "verifier": "block",
    },
    "lookup": {"method": "speculative", "drafter": {"kind": "lookup", "length": 4}},
    "progressive_tree": {"method": "progressive_tree"},
    "lookahead": {"method": "lookahead", "ngram": 3, "window": 3},
}
BRANCHES = {
    "specbranch": {"preset": "specbranch-no-hrad", "gamma": 3, "k_max": 2},
    "prior": {
        "method": "branch_parallel",
        "gamma": 3,
        "k_max": 2,
        "retention": "prior",
        "controller": {"kind": "confidence"},
    },
    "hybrid": {"method": "branch_parallel", "gamma": 2, "k_max": 2, "branch_verifier": "hybrid"},
    "pearl": {"preset": "pearl", "gamma": 3},
}
PROMPT = [3, 5, 1, 8]


@pytest.fixture(scope="module")
def models():
    return [tiny_llama(seed=0).double(), tiny_llama(seed=1, layers=1).double()]


def pair(models, forward, maker=Traced):
    pair = ModelPair(*models, forward=forward)
    if forward == "graphed":
        for model in (pair.target, pair.draft):
            model.programs = Programs(maker())
    return pair


def text(pair, config, **options):
    decoder = build_decoder(pair, config)
    out = decoder.generate(PROMPT, max_new_tokens=24, randomness=Randomness(7), eos_token_id=[], **options)
    return out.tokens, [(record.drafted, record.accepted, record.emitted) for record in out.rounds]


@pytest.mark.parametrize("name", METHODS)
def test_the_text_is_that_of_plain_calls(models, name):
    """And the passes that were graphed at one temperature serve the other."""
    plain, graphed = (pair(models, path) for path in ("compact", "graphed"))
    for temperature in (0.0, 1.0):
        texts = [text(some, METHODS[name], temperature=temperature) for some in (plain, graphed)]
        assert texts[0] == texts[1], temperature


@pytest.mark.parametrize("overlap", ["none", "threads"])
@pytest.mark.parametrize("name", BRANCHES)
def test_branches_too(models, name, overlap):
    config = BRANCHES[name] | {"overlap": overlap}
    plain, graphed = (text(pair(models, path), config) for path in ("compact", "graphed"))
    assert plain == graphed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("name", "reads"),
    [
        *((name, 1) for name in ("plain", "block", "tokenwise", "ema", "lookup")),
        *((name, 2) for name in ("delayed_tree", "fork", "likeliest_chain")),
        ("never_stops", 3),
    ],
)
def test_the_host_reads_once_a_round(models, name, reads, temperature):
    """Once more for a tree's tokens, and for every decision that a rule takes from a law (here from the second token on)."""
    graphed = pair(models, "graphed", Marked)
    decoder = build_decoder(graphed, METHODS[name])
    assert max(reads_of(decoder, temperature)) == reads


@pytest.mark.parametrize("drafter", [METHODS["delayed_tree"]["drafter"], METHODS["fork"]["drafter"]], ids=str)
def test_a_rule_that_stops_reads_a_tree_level_by_level(models, drafter):
    """Its tokens, and what the rule made of the laws of a level; then the verdict."""
    controller = {"kind": "confidence", "epsilon": 0.0, "min_tokens": 0}
    config = {"method": "speculative", "drafter": drafter, "verifier": "nss", "controller": controller}
    decoder = build_decoder(pair(models, "graphed", Marked), config)
    assert max(reads_of(decoder, temperature=1.0)) == 2 * decoder.depth + 1


@pytest.mark.parametrize("verifier", ["naive_tree", "spectr", "specinfer"])
def test_verdicts_on_trees_read_nothing_on_their_way(models, verifier):
    drafter = {"kind": "delayed_tree", "k": 3, "l1": 1, "l2": 2}
    config = {"method": "speculative", "drafter": drafter, "verifier": verifier}
    assert max(reads_of(build_decoder(pair(models, "graphed", Marked), config), temperature=1.0)) == 2


def test_what_waits_without_saying_so_is_counted():
    law_V, token = (value.as_subclass(OnDevice) for value in (torch.arange(3.0), torch.tensor(2)))
    before = OnDevice.reads
    with HiddenReads():
        law_V.index_select(0, token.reshape(1))
        assert OnDevice.reads == before
        law_V[token]
        law_V[law_V > 1]
        law_V.repeat_interleave(torch.tensor([0, 1, 1]).as_subclass(OnDevice))
    assert OnDevice.reads == before + 3


def reads_of(decoder, temperature):
    """How often the host reads in each round; the prefill also looks whether the logits are finite."""
    counts = []
    with HiddenReads():
        for _ in decoder.stream(PROMPT, max_new_tokens=24, temperature=temperature, randomness=Randomness(7)):
            counts.append(OnDevice.reads)
            OnDevice.reads = 0
    return counts[1:]


@pytest.mark.parametrize("overlap", ["none", "threads"])
def test_a_request_that_is_over_holds_no_memory(models, overlap):
    """Three decoders of one pair take turns with one memory a model."""
    graphed = pair(models, "graphed")
    decoders = [build_decoder(graphed, BRANCHES["specbranch"] | {"overlap": overlap}) for _ in range(3)]
    for decoder in decoders:
        decoder.generate(PROMPT, max_new_tokens=8, randomness=Randomness(7))
        gc.collect()
    assert [len(model._slots) for model in (graphed.target, graphed.draft)] == [1, 1]


def test_a_model_may_be_its_own_draft(models):
    wrapped = CausalLanguageModel(models[0], "graphed")
    wrapped.programs = Programs(Traced())
    both = ModelPair(wrapped, wrapped)
    assert both.draft is not both.target and both.draft.model is both.target.model
    config = BRANCHES["specbranch"] | {"overlap": "none"}
    texts = [
        build_decoder(made, config).generate(PROMPT, max_new_tokens=24, randomness=Randomness(7)).tokens
        for made in (ModelPair(models[0], models[0], forward="compact"), both)
    ]
    assert texts[0] == texts[1]


def test_a_pair_serves_rules_and_settings_in_turn(models):
    plain, shared = pair(models, "compact"), pair(models, "graphed")
    for options in ({"temperature": 1.0}, {"temperature": 0.6}, {"temperature": 1.0, "top_k": 4}):
        for name in ("block", "tokenwise"):
            texts = [
                build_decoder(some, METHODS[name])
                .generate(PROMPT, max_new_tokens=24, randomness=Randomness(7), eos_token_id=[], **options)
                .tokens
                for some in (plain, shared)
            ]
            assert texts[0] == texts[1], (name, options)
