"""What a branch-parallel round reports: its counts recomputed from the tokens alone (specification 3.6), its passes, its time."""

import pytest

from predictors.latency.prices import require_possible
from predictors.rounds import CHOICES, ReplayedRound, RoundRecord
from runtime import ModelPair, Randomness
from runtime.audit.tables import TableModel
from runtime.branching.draft import BranchConfig, BranchDraft
from tests.branches import branch_decoder, watched

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


# ---- passes: a `ReplayedRound` read off a record asks for exactly those that the real decoder makes


class NotedDraft(TableModel):
    """Notes how many tokens each pass is over."""

    def open(self, max_length, layers=()):
        state, self.passes = super().open(max_length, layers), []
        real = state.forward

        def forward(tokens, parents=None, last=None):
            self.passes.append(len(tokens))
            return real(tokens, parents, last)

        state.forward = forward
        return state


def replayed(controller, temperature, stage):
    """Every round of some requests: what it was made of, and the sizes of its draft passes."""
    pair = ModelPair(TableModel(6, seed=0, sharpness=1.3), NotedDraft(6, seed=0, sharpness=1.2))
    decoder, made = branch_decoder(pair, gamma=4, k_max=3, controller=controller, draft_stage=stage), []
    for seed in range(6):
        before, context = None, 2
        for step in decoder.stream([1, 2], max_new_tokens=40, temperature=temperature, randomness=Randomness(seed)):
            record, passes = step.record, [*pair.draft.passes]
            pair.draft.passes.clear()
            if before is not None:
                round_ = ReplayedRound(**vars(record), context=context, survived=not before.ends_segment)
                require_possible(round_)
                assert record.passes == len(passes)
                made.append((round_, passes))
                context += record.emitted
            before = record
    return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("controller", [FIXED, {"kind": "confidence", "epsilon": 0.5}], ids=str)
@pytest.mark.parametrize("stage", CHOICES["draft_stage"])
def test_the_passes_of_a_round_are_those_of_its_composition(stage, controller, temperature):
    """Idle ones, the branch point's where its law is unknown, then one for every level, over as many tokens as it has rows."""
    made = replayed(controller, temperature, stage)
    assert len(made) > 40
    for round_, passes in made:
        point = bool(round_.candidates) and not round_.law_known
        assert len(passes) == round_.idle_passes + point + round_.grown_levels
        assert round_.idle_passes == 0 or stage == "idle"
        grown = passes[len(passes) - round_.grown_levels :]
        assert sum(grown) == pytest.approx(round_.rows * round_.grown_levels)
    if (controller["kind"], stage) == ("confidence", "idle"):
        known = [(round_, passes) for round_, passes in made if round_.law_known]
        assert {round_.survived for round_, _ in known} == {False, True}
        # the wrong variants: no pass for the law that idle drafting stopped at, or one for retention's, too
        assert any(len(passes) != round_.idle_levels + round_.grown_levels for round_, passes in known)
        assert any(len(passes) != round_.idle_levels + 1 + round_.grown_levels for round_, passes in known)


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
    monkeypatch.setattr("runtime.device.perf_counter", lambda: clock[0])
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
