"""Options of branch-parallel decoding: what controllers change in a round, and what is refused."""

import pytest

from predictors.controllers import Controller, Session
from predictors.rounds import CHOICES
from runtime import ModelPair, build_decoder
from runtime.branching.draft import BranchConfig
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.verification import VERIFIERS
from tests.branches import Scripted, shaken_llama, watched
from tests.bundles import random_bundle
from tests.greedy import greedy_text
from tests.toys import tiny_llama

PROMPT = [3, 1, 4]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=2), shaken_llama(seed=2))


# ---- controllers


class Scheduled(Controller):
    """Plans ``lengths`` by the root's position and tries ``branches`` tokens at every branch point."""

    kind = "scheduled"

    def __init__(self, lengths=(None,), branches=None):
        self.lengths, self.branches = lengths, branches

    def start(self, settings):
        return ScheduledSession(self)


class ScheduledSession(Session):
    def __init__(self, controller):
        self.controller = controller

    def plan(self, root):
        return self.controller.lengths[root.position % len(self.controller.lengths)]

    def branch_count(self, law):
        return self.controller.branches


def scheduled(pair, lengths=(None,), branches=None, **options):
    config = BranchConfig(**{"gamma": 4, "overlap": "none", **options})
    return BranchParallelDecoder(pair, config, VERIFIERS["block"], Scheduled(lengths, branches))


@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
@pytest.mark.parametrize("retention", CHOICES["retention"])
def test_a_plan_is_what_is_drafted_and_retained(retention, stage):
    text, lengths, retained = [2 + place % 9 for place in range(60)], (2, 0, 9, 1, 3, 0, 2), set()
    pair = ModelPair(Scripted(text, 2), Scripted(text, 2))
    before = None
    for item in watched(scheduled(pair, lengths, retention=retention, draft_stage=stage), [0, 1], max_new_tokens=60):
        planned = min(4, lengths[len(item.text) % len(lengths)])
        room = 60 - (len(item.text) - 2)
        behind = max(map(len, item.branches), default=1) - 1
        if before is not None and before.kind == "hit":
            available = len(before.branches[0]) - 1
            wanted = available if retention == "prior" else min(planned, available)
            retained.add(len(item.pending))
        else:
            wanted = planned if stage == "idle" else 0
        assert len(item.pending) == min(wanted, room - 1)
        if item.branches:
            assert behind == min(4, room - len(item.pending) - 2, planned if retention == "prior" else 4)
        before = item
    assert len(retained) > 2


def test_a_session_decides_how_many_branches_grow(pair):
    text = greedy_text(pair.target.model, PROMPT, 20)
    for branches in (1, 3):
        rounds = list(watched(scheduled(pair, branches=branches, k_rule="const", k_max=2), PROMPT, max_new_tokens=20))
        assert {len(item.branches) for item in rounds if item.branches} == {branches}
        assert [*rounds[-1].text, *rounds[-1].step.tokens] == [*PROMPT, *text]


def test_the_soft_threshold_changes_what_is_drafted(pair):
    lengths = []
    for epsilon in (0.0, 0.6):
        decoder = build_decoder(pair, {"method": "branch_parallel", "overlap": "none", "epsilon": epsilon})
        assert decoder.controller.kind == "confidence"
        rounds = list(watched(decoder, PROMPT, max_new_tokens=40))
        confident = [float(law.confidence) >= epsilon for item in rounds for law in item.step.evidence.draft_laws[1:]]
        assert all(confident)
        lengths.append([len(item.pending) for item in rounds])
    assert lengths[0] != lengths[1]


# ---- what is refused


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"preset": "medusa"}, "unknown preset 'medusa'. Known presets: specbranch, .*pearl"),
        ({"gama": 3}, "unknown key 'gama'. Did you mean 'gamma'"),
        ({"gamma": 0}, "gamma must be >= 1, got 0"),
        ({"draft_stage": "preverify", "draft_stage_gamma": 4}, "with draft_stage 'preverify' there are none"),
        ({"gamma": 3, "draft_stage_gamma": 4}, "draft_stage_gamma=4 exceeds gamma=3.*Raise gamma"),
        ({"k_rule": "round"}, "k_rule must be one of floor, ceil, const, got 'round'"),
        (
            {"verifier": "spectr"},
            "pending block is a chain; its verifier must be one of tokenwise, block, hsd, got 'spectr'",
        ),
        ({"epsilon": 0.3, "controller": {"kind": "fixed"}}, "epsilon=0.3: a 'fixed' controller has no soft threshold"),
        ({"preset": "specbranch", "controller": {"kind": "hrad"}}, "controller hrad: no bundle is named"),
    ],
    ids=str,
)
def test_bad_configurations_name_the_key(pair, config, message):
    method = {} if "preset" in config else {"method": "branch_parallel"}
    with pytest.raises(ValueError, match=message):
        build_decoder(pair, {**method, **config})


def test_branches_shorter_than_a_heads_decision_are_refused(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair, gamma=3)
    with pytest.raises(ValueError, match=r"gamma=2 is shorter than the 3 tokens the hrad.*Use gamma >= 3"):
        build_decoder(pair, {"preset": "specbranch", "gamma": 2, "controller": {"kind": "hrad", "bundle": str(folder)}})
