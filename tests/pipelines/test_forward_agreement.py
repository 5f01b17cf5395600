"""The agreement of forwards notices a forward that is not the model's."""

import math

import pytest

from pipelines.measuring.exactness import PATH, TREE, forward_agreement
from runtime.causal_model import CausalLanguageModel
from runtime.compact import forward as compact
from tests.toys import tiny_llama

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7]]


def test_the_kept_path_is_one_of_the_tree_and_no_prefix():
    assert [TREE[node] for node in PATH] == [-1, *PATH[:-1]]
    assert tuple(range(len(PATH))) != PATH


def test_forwards_agree_to_rounding():
    found = forward_agreement(CausalLanguageModel(tiny_llama(layers=3)), PROMPTS)
    assert 0 < found["compact"] < 1e-5 and found["rounding"] < 1e-5


@pytest.mark.parametrize("fault", ["kept rows", "angles", "epsilon"])
def test_a_wrong_forward_is_noticed(fault, monkeypatch):
    if fault == "kept rows":
        monkeypatch.setattr("runtime.compact.state.CompactState.keep", lambda self, path: self.scratch.keep(path))
    elif fault == "angles":
        monkeypatch.setattr("runtime.compact.state.signed", lambda sin: sin)
    else:
        norm = compact.norm
        monkeypatch.setattr(compact, "norm", lambda x, weight, epsilon: norm(x, weight, epsilon + 1e-3))
    assert forward_agreement(CausalLanguageModel(tiny_llama(layers=3)), PROMPTS)["compact"] > 1e-4


def test_a_forward_that_gives_no_numbers_is_noticed(monkeypatch):
    """Built-in `max` would say 0: no number is less than NaN, or more."""
    norm = compact.norm
    monkeypatch.setattr(compact, "norm", lambda x, weight, epsilon: norm(x, weight, epsilon) * math.nan)
    assert math.isnan(forward_agreement(CausalLanguageModel(tiny_llama(layers=3)), PROMPTS)["compact"])
