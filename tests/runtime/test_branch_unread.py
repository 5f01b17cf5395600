"""Branches that grow unread, as on a device: the output law is the target's, by enumeration of every random choice."""

import pytest

from predictors.sampling import SamplingSettings
from runtime.drafting.sampler import PlainSampler
from tests.runtime.test_branch_exactness import BY_STAGE, IN_TURN, KINDS, decoder_of, error, toys


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
