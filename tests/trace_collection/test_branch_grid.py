"""Branch-parallel decodes in arrays are those of the real controllers' sessions, text by text."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from predictors.bundle import read_bundle
from predictors.controllers import build_controller, learned_controller
from predictors.latency.prices import RoundPrices
from predictors.replay.branches import BranchStarts, branch_decoded
from predictors.replay.decode import Clock
from predictors.replay.grid import Starts
from runtime.branching.draft import BranchConfig
from tests.bundles import random_bundle
from tests.predictors.affine_profile import PROFILE
from tests.trace_collection.collecting import differing
from tests.trace_collection.test_grid import drafts_of, far

CONFIGS = [
    BranchConfig(gamma=4, k_max=2),
    BranchConfig(gamma=4, k_max=2, k_rule="const", draft_stage_gamma=2),
    BranchConfig(gamma=4, k_max=1, draft_stage="preverify"),
    BranchConfig(gamma=3, k_max=9, k_rule="floor", branch_verifier="match"),
]


def starts_of(texts, greedy, config):
    chosen = [text for text in texts if text.settings.greedy == greedy]
    return BranchStarts.of(Starts.of(chosen, config.gamma, "block", RoundPrices(PROFILE, not greedy)), config)


def controllers(pair, place):
    yield build_controller({"kind": "fixed"})
    yield build_controller({"kind": "confidence", "epsilon": 0.5})
    retention = {"epsilon": 0.2, "none_probability": 0.9, "all_probability": 0.2}
    rule = {"epsilon": 0.3, "none_probability": 0.4, "all_probability": 0.3}
    for features in ("paper", "extended"):
        for change in (None, far):
            name = place / f"{features}-{change is None}"
            values = {"rule": rule, "retention": retention, "static_gamma": 1, "retained_gamma": 3}
            yield learned_controller(read_bundle(random_bundle(name, pair, features, gamma=4, change=change, **values)))
    values = {
        "rule": None,
        "retention": retention,
        "static_gamma": 2,
    }  # listens where a branch survived, and only there
    yield learned_controller(read_bundle(random_bundle(place / "retains", pair, gamma=4, **values)))
    yield learned_controller(read_bundle(random_bundle(place / "length", pair, "paper", gamma=3, kind="length")))


def totals_of(starts, controller):
    (idle, memory), (retained, _) = (
        drafts_of(starts.idle, controller),
        drafts_of(starts.retained, controller, retains=True),
    )
    return branch_decoded(starts, idle, retained, controller.question_seconds(starts.retained.prices.profile), memory)


def differences(starts, controller, totals):
    """Texts whose totals are not those of the controller's own session."""
    served = controller, starts.config, starts.retained.verifier
    return list(differing(totals, (Clock(PROFILE).branches(one, *served) for one in starts.retained.texts)))


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("config", CONFIGS)
def test_totals_are_those_of_real_sessions(pair, texts, tmp_path, greedy, config):
    starts, seen = starts_of(texts, greedy, config), 0
    for controller in controllers(pair, tmp_path):
        with warnings.catch_warnings(action="ignore"):  # of rounds that are bypassed
            totals = totals_of(starts, controller)
            assert not differences(starts, controller, totals), controller.kind
        seen += totals.path.places[2].sum()
    assert seen > 10, "no branch survives"


def shifted(starts):
    return replace(starts, retained=replace(starts.retained, would_XS=np.maximum(starts.retained.would_XS - 1, 0)))


def one_stage(starts):
    return replace(starts, retained=starts.idle)


@pytest.mark.parametrize("twin", [shifted, one_stage])
def test_wrong_twins_are_found_out(pair, texts, tmp_path, twin):
    starts = starts_of(texts, True, CONFIGS[1])
    with warnings.catch_warnings(action="ignore"):
        assert any(differences(starts, one, totals_of(twin(starts), one)) for one in controllers(pair, tmp_path))
