"""What a branch-parallel round reports: its counts recomputed from the tokens alone (specification 3.6), and its time."""

import pytest

from predictors.rounds import CHOICES, RoundRecord, mean_accepted_length
from runtime import ModelPair, Randomness
from runtime.branching.draft import BranchConfig, BranchDraft
from tests.branches import Scripted, branch_decoder, watched
from tests.toys import TableModel

PROMPT = [0, 1]
FIXED = {"kind": "fixed"}
HALVES = {"kind": "confidence", "epsilon": 0.5, "min_tokens": 0}
COUNTS = ("drafted", "levels", "idle_levels", "submitted", "accepted", "emitted", "rolled_back", "trimmed")


def by_hand(before, item, stage):
    """The record of a round without an end of sequence, from its block, its branches and the tokens it emitted."""
    tokens, block = item.step.tokens, item.pending
    agreed = [a == b for a, b in zip(block, tokens, strict=False)]
    accepted = agreed.index(False) if False in agreed else len(agreed)
    whole = accepted == len(block)
    hit = whole and tokens[-1] in [branch[0] for branch in item.branches]
    depth = max(map(len, item.branches), default=0)  # G: the branch token and what is drafted behind it
    survivor = [] if before is None else [branch for branch in before.branches if branch[0] == before.step.tokens[-1]]
    retained = before is not None and before.kind == "hit"
    idle = len(block) if stage == "idle" and not retained else 0
    return RoundRecord(
        drafted=idle + sum(map(len, item.branches)),
        levels=idle + depth,
        idle_levels=idle,
        submitted=len(block),
        accepted=accepted + hit,
        emitted=accepted + 1,
        rolled_back=0 if hit else len(block) - accepted + depth,
        trimmed=len(survivor[0]) - 1 - len(block) if retained else 0,
        ends_segment=not hit,
    )


def counted(decoder, stage, length=40, **options):
    """All rounds of a request, their records compared with those by hand."""
    rounds = list(watched(decoder, PROMPT, max_new_tokens=length, **options))
    for before, item in zip([None, *rounds], rounds, strict=False):
        expected = by_hand(before, item, stage)
        for name in (*COUNTS, "ends_segment"):
            assert getattr(item.record, name) == getattr(expected, name), name
    assert sum(item.record.emitted for item in rounds) == length - 1  # the prefill emits one
    return rounds


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
@pytest.mark.parametrize("retention", CHOICES["retention"])
def test_counts_of_random_models(retention, stage, temperature):
    pair, seen = ModelPair(TableModel(5, seed=1, sharpness=2.0), TableModel(5, seed=2, sharpness=2.0)), set()
    for seed in range(6):
        for gamma, controller in ((1, FIXED), (3, HALVES), (4, {"kind": "fixed", "gamma": 2})):
            modes = {"retention": retention, "draft_stage": stage, "branch_verifier": ("rrs", "match")[seed % 2]}
            decoder = branch_decoder(pair, gamma=gamma, k_max=3, controller=controller, verifier="tokenwise", **modes)
            rounds = counted(decoder, stage, temperature=temperature, randomness=Randomness(seed))
            seen |= {item.kind for item in rounds} | {"trimmed" for item in rounds if item.record.trimmed}
    assert seen == {"hit", "miss", "rejection", "no branches"} | ({"trimmed"} if retention == "posterior" else set())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
def test_a_perfect_draft_is_never_rolled_back(stage, temperature):
    model = TableModel(5, seed=1)
    decoder = branch_decoder(ModelPair(model, model), gamma=3, draft_stage=stage, controller=FIXED)
    rounds = counted(decoder, stage, temperature=temperature, randomness=Randomness(0))
    records = [item.record for item in rounds]
    assert [item.kind for item in rounds[:-1]] == ["hit"] * (len(rounds) - 1)
    assert not any(record.rolled_back or record.trimmed for record in records)
    assert [record.idle_levels for record in records[1:]] == [0] * (len(records) - 1)
    assert [record.emitted for record in records[1:-2]] == [4] * (len(records) - 3)
    assert mean_accepted_length(records, include_correction=False) == 39 - (rounds[-1].kind == "no branches")


def test_a_scripted_request():
    """Four true tokens, a lie that is found out at the branch point, two more after the rollback: every count by hand."""
    text = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    pair = ModelPair(Scripted(text, 2), Scripted(text, 2, [5], hopeless=True))
    decoder = branch_decoder(pair, gamma=2, k_rule="const", k_max=1, controller=FIXED)
    rounds = counted(decoder, "idle", length=10)
    records = [item.record for item in rounds]
    assert [item.step.tokens for item in rounds] == [[3, 4, 5], [6, 7], [8, 9, 10], [11]]
    assert [item.kind for item in rounds] == ["hit", "rejection", "no branches", "no branches"]
    assert [(record.levels, record.idle_levels, record.submitted) for record in records] == [
        (5, 2, 2),
        (3, 0, 2),
        (2, 2, 2),
        (0, 0, 0),
    ]
    assert [(record.accepted, record.rolled_back) for record in records] == [(3, 0), (1, 4), (2, 0), (0, 0)]


def test_accounting_has_power():
    """The public code's count of a rejection within a block, verified + γ - accepted, is another one."""
    pair = ModelPair(TableModel(5, seed=1), TableModel(5, seed=2))
    decoder = branch_decoder(pair, gamma=4, controller={"kind": "fixed", "gamma": 2})
    rounds = [item for item in watched(decoder, PROMPT, max_new_tokens=40) if item.kind == "rejection"]
    assert any(item.record.rolled_back != item.record.submitted + 4 - item.record.accepted for item in rounds)


# ---- how many branches


@pytest.mark.parametrize(
    ("rule", "k_max", "counts"),
    [
        ("floor", 6, [5, 4, 3, 1, 1, 1]),
        ("ceil", 6, [6, 5, 3, 2, 1, 1]),
        ("const", 6, [6] * 6),
        ("floor", 2, [1] * 6),
        ("ceil", 2, [2, 2, 1, 1, 1, 1]),
        ("floor", 1, [1] * 6),
        ("ceil", 1, [1] * 6),
    ],
)
def test_the_rule_of_widths(rule, k_max, counts):
    confidences = [0.05, 0.25, 0.5, 0.75, 0.95, 1.0]  # 6 (1 - c) = 5.7, 4.5, 3, 1.5, 0.3, 0
    assert [BranchConfig(k_max=k_max, k_rule=rule).num_branches(confidence) for confidence in confidences] == counts


@pytest.mark.parametrize("rule", CHOICES["k_rule"])
def test_widths_follow_the_law_at_the_branch_point(rule):
    pair, widths = ModelPair(TableModel(8, seed=1), TableModel(8, seed=2)), set()
    decoder = branch_decoder(pair, gamma=2, k_max=4, k_rule=rule, controller=HALVES)
    for item in watched(decoder, PROMPT, max_new_tokens=60, temperature=0.8, randomness=Randomness(0)):
        if item.branches:
            confidence = float(pair.draft.logits([*item.text, *item.pending]).softmax(-1).max())
            assert len(item.branches) == BranchConfig(k_max=4, k_rule=rule).num_branches(confidence)
            assert len({branch[0] for branch in item.branches}) == len(item.branches)
            widths.add(len(item.branches))
    assert widths == {4} if rule == "const" else len(widths) > 1
    assert (4 in widths) == (rule != "floor")


def test_no_more_branches_than_tokens():
    pair = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    decoder = branch_decoder(pair, gamma=1, k_max=9, k_rule="const")
    rounds = list(watched(decoder, PROMPT, max_new_tokens=20, temperature=1.0, randomness=Randomness(0)))
    assert {len(item.branches) for item in rounds if item.branches} == {3}


# ---- the virtual clock


class Slow(TableModel):
    """Every pass takes ``seconds`` of ``clock``, a list of one number, and none else takes any."""

    def __init__(self, seed, seconds, clock):
        super().__init__(5, seed=seed)
        self.seconds, self.clock = seconds, clock

    def open(self, max_length, layers=()):
        state = super().open(max_length, layers)
        forward = state.forward

        def slow(*arguments, **options):
            self.clock[0] += self.seconds
            return forward(*arguments, **options)

        state.forward = slow
        return state


def timed(monkeypatch, target, draft, stage):
    """Records of a decode, and the seconds of the draft's job beside every target pass."""
    clock, jobs = [100.0], []
    monkeypatch.setattr("runtime.clock.perf_counter", lambda: clock[0])
    honest = BranchDraft.branch

    def branch(self):
        began, branches = clock[0], honest(self)
        jobs.append((clock[0] - began) * (branches.candidates is not None))  # nothing is beside where nothing is grown
        return branches

    monkeypatch.setattr(BranchDraft, "branch", branch)
    pair = ModelPair(Slow(1, target, clock), Slow(2, draft, clock))
    decoder = branch_decoder(pair, gamma=3, controller=HALVES, draft_stage=stage)
    return decoder.generate(PROMPT, max_new_tokens=30, temperature=1.0, randomness=Randomness(0)).rounds, jobs


@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
@pytest.mark.parametrize("draft", [0.25, 3.0, 40.0])
def test_the_virtual_clock_is_the_walls_without_what_overlaps(monkeypatch, draft, stage):
    (prefill, *records), jobs = timed(monkeypatch, 10.0, draft, stage)
    assert prefill.overlapped == pytest.approx(min(10.0, draft)) and any(jobs)
    for record, job in zip(records, jobs, strict=True):
        assert record.overlapped == pytest.approx(min(10.0, job))
        assert record.seconds["target"] == pytest.approx(10.0) and record.seconds["verify"] == 0
        assert record.seconds["draft"] == pytest.approx(draft * record.passes)
        assert record.seconds["draft"] >= record.overlapped
    apart = [abs(record.overlapped - max(10.0, job)) for record, job in zip(records, jobs, strict=True)]
    assert max(apart) > 1  # the wrong twin: the longer of both
