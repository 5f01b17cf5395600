"""Trees that grow unread (their output laws: `tests.runtime.test_drafting`) from a draft that says the same never twice."""

from dataclasses import replace

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair
from runtime.adapter import Forward
from runtime.drafting.drafted import Copies
from runtime.drafting.sampler import PlainSampler
from tests.ancestral import target_law
from tests.runtime.test_drafting import speculative
from tests.runtime.test_exactness import PROMPT, decoder_law
from tests.toys import TableModel, TableState, total_variation


@pytest.fixture(autouse=True)
def unread(monkeypatch):
    monkeypatch.setattr(PlainSampler, "reads", False)


class Uneven(TableModel):
    """Says something else at every place of a pass, far more than rounding would."""

    def open(self, max_length, layers=()):
        return UnevenState(self)


class UnevenState(TableState):
    def forward(self, tokens, parents=None, last=None):
        logits = super().forward(tokens, parents, last).logits
        return Forward(logits + torch.linspace(0, 1, len(logits)).outer(torch.tensor([0.0, 1.0, 2.0])))


def error():
    """Total variation between the output's law and the target's."""
    pair, settings = ModelPair(TableModel(3, seed=1), Uneven(3, seed=2)), SamplingSettings(1.0)
    law = decoder_law(pair, speculative({"kind": "delayed_tree", "k": 2, "l1": 0, "l2": 2}, "specinfer"), 4, settings)
    return total_variation(law, target_law(pair.target, PROMPT, 4, settings))


def test_copies_of_a_node_are_drawn_from_under_one_law():
    assert error() < 1e-9


def test_copies_that_are_drawn_from_under_their_own_laws_are_noticed(monkeypatch):
    below = Copies.below
    monkeypatch.setattr(
        Copies, "below", lambda copies, rows: replace(below(copies, rows), first=torch.arange(rows[:, 1:].numel()))
    )
    assert error() > 1e-3
