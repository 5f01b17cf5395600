"""Branches and trees that grow unread, as on a device: the output law is the target's, by enumeration of every random choice."""

from dataclasses import replace

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair
from runtime.adapter import Forward
from runtime.drafting.drafted import Copies
from runtime.drafting.sampler import PlainSampler
from tests.ancestral import target_law
from tests.runtime.test_branch_exactness import BY_STAGE, IN_TURN, KINDS, decoder_of, error, toys
from tests.runtime.test_drafting import speculative
from tests.runtime.test_exactness import PROMPT, decoder_law
from tests.toys import TableModel, TableState, total_variation


@pytest.fixture(autouse=True)
def unread(monkeypatch):
    monkeypatch.setattr(PlainSampler, "reads", False)


@pytest.mark.parametrize("stage", ["idle", "preverify"])
@pytest.mark.parametrize("retention", ["posterior", "prior"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_mode(kind, retention, stage):
    assert error(decoder_of(IN_TURN, branch_verifier=kind, retention=retention, draft_stage=stage)) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_that_do_not_exist(kind):
    decoder = decoder_of(IN_TURN, pair=toys(zeros=True), branch_verifier=kind, k_max=3)
    assert error(decoder, SamplingSettings(1.0, top_k=2)) < 1e-9


def test_branches_kept_in_part():
    assert error(decoder_of(BY_STAGE, gamma=2, draft_stage_gamma=1, k_max=1), length=6) < 1e-9


# ---- trees from a draft that says the same never twice (other trees' laws: `tests.runtime.test_drafting`)


class Uneven(TableModel):
    """Says something else at every place of a pass, far more than rounding would."""

    def open(self, max_length, layers=()):
        return UnevenState(self)


class UnevenState(TableState):
    def forward(self, tokens, parents=None, last=None):
        logits = super().forward(tokens, parents, last).logits
        return Forward(logits + torch.linspace(0, 1, len(logits)).outer(torch.tensor([0.0, 1.0, 2.0])))


def error_of_copies():
    """Total variation between the output's law and the target's."""
    pair, settings = ModelPair(TableModel(3, seed=1), Uneven(3, seed=2)), SamplingSettings(1.0)
    law = decoder_law(pair, speculative({"kind": "delayed_tree", "k": 2, "l1": 0, "l2": 2}, "specinfer"), 4, settings)
    return total_variation(law, target_law(pair.target, PROMPT, 4, settings))


def test_copies_of_a_node_are_drawn_from_under_one_law():
    assert error_of_copies() < 1e-9


def test_copies_that_are_drawn_from_under_their_own_laws_are_noticed(monkeypatch):
    below = Copies.below
    monkeypatch.setattr(
        Copies, "below", lambda copies, rows: replace(below(copies, rows), first=torch.arange(rows[:, 1:].numel()))
    )
    assert error_of_copies() > 1e-3
