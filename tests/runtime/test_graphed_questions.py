"""Controllers' models asked by graphed programs: the text of plain calls, and one read of the device a question."""

import pickle

import pytest
import torch

from predictors.controllers.delayed_tree import DelayedTree
from runtime import Randomness, load_decoder
from tests.bundles import random_bundle, selector_bundle, stop_bundle
from tests.runtime.graphing import Marked, OnDevice, Traced
from tests.runtime.test_graphed_decoding import PROMPT, pair, reads_of
from tests.toys import tiny_llama

TREE = {"method": "speculative", "drafter": {"kind": "fork", "width": 2, "depth": 3}, "verifier": "nss"}


@pytest.fixture(scope="module")
def models():
    return [tiny_llama(seed=seed).double() for seed in (0, 1)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_a_head_is_asked_by_a_program_that_holds_its_calibration(models, tmp_path, feature_set, temperature):
    calibration = {"temperature": 2.0, "bias": [-1.0, 0.5, 1.0]}
    folder = random_bundle(tmp_path / "b", pair(models, "compact"), feature_set, gamma=3, calibration=calibration)

    def decoded(path):
        decoder = load_decoder(folder, pair(models, path))
        out = decoder.generate(PROMPT, max_new_tokens=24, temperature=temperature, randomness=Randomness(7))
        return out.tokens, [record.drafted for record in out.rounds], [record.forecasts for record in out.rounds]

    plain = decoded("compact")
    assert len(set(plain[1])) > 1, "the head decides something"
    assert any(plain[2]) and decoded("graphed") == plain


def decoded(folder, pair, temperature):
    """Decoder, tokens and rounds."""
    decoder = load_decoder(folder, pair)
    out = decoder.generate(
        PROMPT, max_new_tokens=24, temperature=temperature, randomness=Randomness(7), eos_token_id=[]
    )
    return decoder, out.tokens, [(record.drafted, record.accepted) for record in out.rounds]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["early_stop", "specdecpp"])
@pytest.mark.parametrize("tree", [False, True])
def test_a_stop_model_is_asked_by_a_program(models, tmp_path, kind, tree, temperature):
    def forked(card):
        card["decoder"] = TREE

    change = forked if tree else None
    folder = stop_bundle(tmp_path / "b", pair(models, "compact"), kind, change=change, product=kind == "specdecpp")
    _, *plain = decoded(folder, pair(models, "compact"), temperature)
    assert len(set(plain[1])) > 1, "the model decides something"
    decoder, *graphed = decoded(folder, pair(models, "graphed"), temperature)
    assert graphed == plain
    sizes = {shape[0] for shape in decoder.controller._asked[1]._graphed}
    assert sizes and (max(sizes) > 1) == tree, "a program for every number of nodes"


@pytest.mark.parametrize("states", [False, True])
def test_a_selector_is_asked_by_a_program(models, tmp_path, states):
    folder = selector_bundle(tmp_path / "b", pair(models, "compact"), states=states)
    _, *plain = decoded(folder, pair(models, "compact"), 1.0)
    assert len({drafted for drafted, _ in plain[1]}) > 1, "it chooses several trees"
    decoder, *graphed = decoded(folder, pair(models, "graphed"), 1.0)
    assert graphed == plain
    assert decoder.controller._asked[1]._graphed


def test_a_question_to_a_stop_model_is_one_read(models, tmp_path):
    folder = stop_bundle(tmp_path / "b", pair(models, "compact"), "early_stop", threshold=1e-30)
    decoder = load_decoder(folder, pair(models, "graphed", Marked))
    assert max(reads_of(decoder, temperature=1.0)) == 1 + 3  # the verdict, and three tokens' chances


@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_a_question_to_a_head_is_one_read(models, tmp_path, feature_set):
    graphed = pair(models, "graphed", Marked)
    always_some = {"epsilon": 0.0, "none_probability": 1.0, "all_probability": 1.0}
    folder = random_bundle(tmp_path / "b", graphed, feature_set, gamma=3, rule=always_some)
    assert max(reads_of(load_decoder(folder, graphed), temperature=1.0)) == 1 + 1 + 2  # the verdict, the head, ε twice


def test_a_choice_among_trees_is_one_read(models, tmp_path, monkeypatch):
    reads, expected = [], DelayedTree.expected

    def counted(controller, root):
        before = OnDevice.reads
        said = expected(controller, root)
        reads.append(OnDevice.reads - before)
        return said

    monkeypatch.setattr(DelayedTree, "expected", counted)
    decoded(selector_bundle(tmp_path / "b", pair(models, "compact")), pair(models, "graphed", Marked), 1.0)
    assert set(reads) == {1}


MADE = {"hrad": random_bundle, "early_stop": stop_bundle, "delayed_tree": selector_bundle}


@pytest.mark.parametrize("kind", MADE)
def test_a_controller_that_was_asked_goes_to_another_process(models, tmp_path, kind):
    decoder, *_ = decoded(MADE[kind](tmp_path / "b", pair(models, "compact")), pair(models, "graphed"), 1.0)
    assert decoder.controller._asked and decoder.controller._maker
    there = pickle.loads(pickle.dumps(decoder.controller))
    assert there._asked is None and there._maker is None


@pytest.mark.parametrize("kind", MADE)
def test_another_devices_recorder_is_not_asked(models, tmp_path, kind):
    """A graph of one device would miss what is done on another."""
    elsewhere = Traced()
    elsewhere.device = torch.device("meta")
    decoder = load_decoder(MADE[kind](tmp_path / "b", pair(models, "compact")), pair(models, "compact"))
    decoder.controller.graph_with(elsewhere)
    decoder.generate(PROMPT, max_new_tokens=24, temperature=1.0, randomness=Randomness(7), eos_token_id=[])
    assert decoder.controller._asked and not elsewhere._results
