"""Decoding over graphed passes, draws, verdicts and controllers' models: the text of plain calls, few reads of the device."""

import gc

import pytest
import torch

from predictors.controllers.delayed_tree import DelayedTree
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.graphs import Programs
from tests.bundles import random_bundle, selector_bundle, stop_bundle
from tests.runtime.graphing import HiddenReads, Marked, OnDevice, Traced
from tests.toys import tiny_llama

SPECULATIVE = {"method": "speculative"}
CHAIN = SPECULATIVE | {"drafter": {"kind": "chain", "gamma": 3}}
DELAYED, FORK = {"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 2}, {"kind": "fork", "width": 2, "depth": 2}
LIKELIEST = {"kind": "multi_candidate", "config": [1, 1, 1], "candidates": "top_k"}
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
    "delayed_tree": {**SPECULATIVE, "drafter": DELAYED, "verifier": "traversal"},
    "fork": {**SPECULATIVE, "drafter": FORK, "verifier": "nss"},
    "leaves": {**SPECULATIVE, "drafter": {"kind": "chain", "gamma": 3, "leaves": [2, 0, 1]}, "verifier": "block"},
    "likeliest_chain": {**SPECULATIVE, "drafter": LIKELIEST, "verifier": "block"},
    "lookup": {**SPECULATIVE, "drafter": {"kind": "lookup", "length": 4}},
    "progressive_tree": {"method": "progressive_tree"},
    "lookahead": {"method": "lookahead", "ngram": 3, "window": 3},
}
BRANCH_PARALLEL = {"method": "branch_parallel", "gamma": 3, "k_max": 2}
BRANCHES = {
    "specbranch": {"preset": "specbranch-no-hrad", "gamma": 3, "k_max": 2},
    "prior": {**BRANCH_PARALLEL, "retention": "prior", "controller": {"kind": "confidence"}},
    "hybrid": {**BRANCH_PARALLEL, "gamma": 2, "branch_verifier": "hybrid"},
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


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_in_a_thread_too(models, name):
    config = BRANCHES[name] | {"overlap": "threads"}
    plain, graphed = (text(pair(models, path), config) for path in ("compact", "graphed"))
    assert plain == graphed


THREE_PATHS = {**SPECULATIVE, "drafter": DELAYED | {"k": 3}}
READS = [(METHODS[name], 1) for name in ("plain", "block", "tokenwise", "ema", "lookup")]
READS += [(METHODS[name], 2) for name in ("delayed_tree", "fork", "likeliest_chain")] + [(METHODS["never_stops"], 3)]
READS += [(THREE_PATHS | {"verifier": rule}, 2) for rule in ("naive_tree", "spectr", "specinfer")]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("config", "reads"), READS, ids=str)
def test_the_host_reads_once_a_round(models, config, reads, temperature):
    """Once more for a tree's tokens, and for every decision that a rule takes from a law (here from the second token on)."""
    assert max(reads_of(build_decoder(pair(models, "graphed", Marked), config), temperature)) == reads


@pytest.mark.parametrize("drafter", [DELAYED, FORK], ids=str)
def test_a_rule_that_stops_reads_a_tree_level_by_level(models, drafter):
    """Its tokens, and what the rule made of the laws of a level; then the verdict."""
    controller = {"kind": "confidence", "epsilon": 0.0, "min_tokens": 0}
    config = {"method": "speculative", "drafter": drafter, "verifier": "nss", "controller": controller}
    decoder = build_decoder(pair(models, "graphed", Marked), config)
    assert max(reads_of(decoder, temperature=1.0)) == 2 * decoder.depth + 1


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


# ---- controllers' models, asked by programs


@pytest.fixture(scope="module")
def two_layers():
    return [tiny_llama(seed=seed).double() for seed in (0, 1)]


def forked(card):
    drafter = {"kind": "fork", "width": 2, "depth": 3}
    card["decoder"] = {"method": "speculative", "drafter": drafter, "verifier": "nss"}


CALIBRATION = {"temperature": 2.0, "bias": [-1.0, 0.5, 1.0]}
ASKED = [  # of heads, stop models and selectors
    *(
        (random_bundle, {"feature_set": features, "gamma": 3, "calibration": CALIBRATION}, temperature)
        for features in ("paper", "extended")
        for temperature in (0.0, 1.0)
    ),
    *(
        (stop_bundle, {"kind": kind, "change": change, "product": kind == "specdecpp"}, temperature)
        for kind in ("early_stop", "specdecpp")
        for change in (None, forked)
        for temperature in (0.0, 1.0)
    ),
    *((selector_bundle, {"states": states}, 1.0) for states in (False, True)),
]


@pytest.mark.parametrize(("made", "options", "temperature"), ASKED)
def test_a_controllers_model_is_asked_by_a_program(two_layers, tmp_path, made, options, temperature):
    folder = made(tmp_path / "b", pair(two_layers, "compact"), **options)
    decoders = [load_decoder(folder, pair(two_layers, path)) for path in ("compact", "graphed")]
    request = {"max_new_tokens": 24, "temperature": temperature, "eos_token_id": []}
    plain, graphed = (one.generate(PROMPT, **request, randomness=Randomness(7)) for one in decoders)
    counts = [[(one.drafted, one.accepted, one.forecasts) for one in out.rounds] for out in (plain, graphed)]
    assert graphed.tokens == plain.tokens and counts[0] == counts[1]
    assert len({drafted for drafted, *_ in counts[0]}) > 1, "the model decides something"
    programs = decoders[1].controller._asked[1]._graphed
    assert programs
    if made is stop_bundle:  # one for every number of nodes
        assert (max(shape[0] for shape in programs) > 1) == (options["change"] is not None)


ALWAYS_SOME = {"epsilon": 0.0, "none_probability": 1.0, "all_probability": 1.0}
QUESTIONS = [  # beside the verdict: three tokens' chances; the head, and ε twice
    (stop_bundle, {"kind": "early_stop", "threshold": 1e-30}, 1 + 3),
    (random_bundle, {"feature_set": "paper", "gamma": 3, "rule": ALWAYS_SOME}, 1 + 1 + 2),
    (random_bundle, {"feature_set": "extended", "gamma": 3, "rule": ALWAYS_SOME}, 1 + 1 + 2),
]


@pytest.mark.parametrize(("made", "options", "reads"), QUESTIONS)
def test_a_question_is_one_read(two_layers, tmp_path, made, options, reads):
    graphed = pair(two_layers, "graphed", Marked)
    assert max(reads_of(load_decoder(made(tmp_path / "b", graphed, **options), graphed), temperature=1.0)) == reads


def test_a_choice_among_trees_is_one_read(two_layers, tmp_path, monkeypatch):
    reads, expected = [], DelayedTree.expected

    def counted(controller, root):
        before = OnDevice.reads
        said = expected(controller, root)
        reads.append(OnDevice.reads - before)
        return said

    monkeypatch.setattr(DelayedTree, "expected", counted)
    decoder = load_decoder(
        selector_bundle(tmp_path / "b", pair(two_layers, "compact")), pair(two_layers, "graphed", Marked)
    )
    decoder.generate(PROMPT, max_new_tokens=24, temperature=1.0, randomness=Randomness(7), eos_token_id=[])
    assert set(reads) == {1}


MADE = {"hrad": random_bundle, "early_stop": stop_bundle, "delayed_tree": selector_bundle}


@pytest.mark.parametrize("kind", MADE)
def test_another_devices_recorder_is_not_asked(two_layers, tmp_path, kind):
    """A graph of one device would miss what is done on another."""
    elsewhere = Traced()
    elsewhere.device = torch.device("meta")
    decoder = load_decoder(MADE[kind](tmp_path / "b", pair(two_layers, "compact")), pair(two_layers, "compact"))
    decoder.controller.graph_with(elsewhere)
    decoder.generate(PROMPT, max_new_tokens=24, temperature=1.0, randomness=Randomness(7), eos_token_id=[])
    assert decoder.controller._asked and not elsewhere._results
