"""Both models at once: only calls within the other side's work count, and the draft's process does what the cells say."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from runtime import ModelPair
from runtime.latency import LatencyConfig, beside
from runtime.latency.beside import Beside, DraftSide, draft_beside, exchange, open_beside, target_beside
from runtime.overlap.executor import InTurn, Reply
from tests.toys import TableModel, tiny_llama

THREADS = 1
GRID = LatencyConfig(contexts=(4, 9), drafted=(0, 3), beside_rows=(1, 3))


class Clock:
    """The machine's clock, which only work and sleep move."""

    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(beside, "perf_counter", lambda: self.now)
        monkeypatch.setattr(beside, "sleep", self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Passes:
    """A target whose passes take ``seconds``."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.calls = clock, seconds, []

    def chain(self, count: int) -> None:
        self.calls.append((count, torch.get_num_threads()))
        self.clock.wait(self.seconds)


class Scripted:
    """An executor: ``reply`` makes the answers, from the time of the submission and the arguments."""

    def __init__(self, clock: Clock, reply) -> None:
        self.clock, self.reply, self.calls, self.answers = clock, reply, [], []

    def submit(self, method: str, *arguments) -> None:
        self.calls.append((method, *arguments))
        self.answers.append(self.reply(self.clock.now, *arguments))

    def result(self) -> Reply:
        return self.answers.pop(0)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def at_work(latency: float, overtime: float = 0.001):
    """Work that begins ``latency`` after it was asked for and goes on to its deadline."""
    return lambda now, *arguments: Reply(None, now + latency, arguments[-1] + overtime)


def beside_of(work, target, draft, count, threads=THREADS):
    return Beside(partial(work, target, draft, count, 32), threads)


def test_a_targets_pass_within_the_drafts_work_counts(clock):
    target, draft = Passes(clock, 0.005), Scripted(clock, at_work(0.0005))
    cell = beside_of(target_beside, target, draft, 5)
    assert cell.measure() == pytest.approx((0.005,))
    assert draft.calls == [("steps", 32, 1, pytest.approx(100.008))]
    assert target.calls == [(5, THREADS)]


@pytest.mark.parametrize(
    ("seconds", "latency", "calls"),
    [
        (0.005, 0.0005, 1),
        (0.01, 0.0005, 2),  # the first deadline comes before the pass ends, the second, after .012, does not
        (0.005, 0.001, 2),  # the draft begins too late, at first
        (0.1, 0.0005, 8),
    ],
)
def test_a_pass_that_the_drafts_work_does_not_cover_is_repeated(clock, seconds, latency, calls):
    target, draft = Passes(clock, seconds), Scripted(clock, at_work(latency))
    cell = beside_of(target_beside, target, draft, 5)
    assert cell.measure() == pytest.approx((seconds,))
    assert len(draft.calls) == len(target.calls) == calls
    assert cell.window == pytest.approx(0.008 * 1.5 ** (calls - 1))
    cell.measure()  # later calls keep the window: no slow pass is left out
    assert len(draft.calls) == calls + 1


def test_a_window_that_a_stall_left_far_too_wide_shrinks_again(clock):
    target, draft = Passes(clock, 0.01), Scripted(clock, at_work(0.0005))
    cells = [
        beside_of(target_beside, target, draft, 5),
        beside_of(draft_beside, target, Scripted(clock, stepping(0.001)), 1),
    ]
    for cell in cells:
        cell.window = 2.0
        for _ in range(8):
            cell.measure()
    assert cells[0].window == pytest.approx(3 * 0.01 / (1 - 3 * 0.1), rel=0.01)  # thrice the pass and its lead
    assert cells[1].window == pytest.approx(3 * 6 * 0.001)


def stepping(seconds: float, latency: float = 0.0):
    """Steps of ``seconds`` from ``latency`` after the call to its deadline."""

    def reply(now, context, rows, deadline):
        stamps, time = [], now + latency
        while time < deadline:
            stamps.append((time, time + seconds))
            time += seconds
        return Reply(stamps, now + latency, time)

    return reply


def test_a_drafts_steps_within_the_targets_work_count(clock):
    target, draft = Passes(clock, 0.005), Scripted(clock, stepping(0.001))
    cell = beside_of(draft_beside, target, draft, 3)
    assert cell.measure() == pytest.approx((0.001,))
    assert draft.calls == [("steps", 32, 3, pytest.approx(100.008))]
    assert target.calls == [(1, THREADS)] * 2  # without pause until the deadline


def test_only_steps_between_the_targets_first_and_last_pass_count_and_the_first_of_them_does_not(clock):
    slow, own = 1.0, [0.004, 0.002, 0.003, 0.001]

    def reply(now, context, rows, deadline):
        stamps, time = [(now - 0.5, now + 0.1)], now + 0.1  # began before the target
        for seconds in (0.05, *own):
            stamps.append((time, time + seconds))
            time += seconds
        return Reply([*stamps, (time, now + slow)], now, now + slow)  # ended after it

    draft = Scripted(clock, reply)
    cell = beside_of(draft_beside, Passes(clock, 0.5), draft, 1)
    assert cell.measure() == pytest.approx((sum(own) / 4,))
    assert len(draft.calls) == 1


def test_too_few_steps_within_the_targets_work_are_repeated_for_longer(clock):
    target, draft = Passes(clock, 0.005), Scripted(clock, stepping(0.01))
    cell = beside_of(draft_beside, target, draft, 1)
    assert cell.measure() == pytest.approx((0.01,))
    assert cell.window == pytest.approx(
        0.008 * 1.5**5
    )  # room for the first, four more, and one that the target does not cover
    assert len(draft.calls) == 6


def test_an_exchange_is_a_rounds_messages_without_the_calls_own_time(clock):
    """One call takes 3, the other 2, and .5 goes by at every message."""

    def reply(now, *arguments):
        clock.wait(0.5)
        own = 3.0 if arguments else 2.0
        return Reply(None, now, now + own)

    class Slow(Scripted):
        def result(self) -> Reply:
            answer = super().result()
            clock.wait(answer.ended - answer.started + 0.5)
            return answer

    draft = Slow(clock, reply)
    assert exchange(draft, THREADS, 4) == pytest.approx((4 * 0.5,))
    (advance, *_, submitted), branch = draft.calls
    assert (advance, submitted, branch) == ("advance", 4, ("branch",))


def test_the_target_has_its_share_of_the_threads_while_it_is_timed(clock):
    before = torch.get_num_threads()
    target = Passes(clock, 0.005)
    beside_of(target_beside, target, Scripted(clock, at_work(0.0)), 5, threads=before + 1).measure()
    assert target.calls == [(5, before + 1)]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("submitted", [0, 3])
def test_the_answer_holds_the_blocks_tokens_and_their_laws_over_the_targets_vocabulary(submitted):
    side = InTurn(DraftSide(TableModel(8, seed=0), GRID, vocabulary_size=10))
    side.submit("advance", None, None, submitted)
    side.submit("branch")
    block = side.result().value.tree
    assert block.num_nodes == submitted
    if submitted:
        assert block.draft_probs.shape == (submitted + 1, 10)
        assert block.draft_probs.dtype == torch.float64
    assert side.result().value.candidates is None


def test_the_draft_works_until_the_deadline_and_leaves_its_states_as_they_were(clock):
    calls: list[tuple[int, int]] = []
    side = DraftSide(TableModel(8, seed=0), GRID, vocabulary_size=8)
    side._states = {context: noting(context, calls, clock) for context in (4, 9)}
    assert len(side.steps(9, 1, clock.now + 2.5)) == 3
    assert calls == [(9, 1)] * 3
    calls.clear()
    assert side.steps(4, 3, clock.now + 1.5) == [(103.0, 104.0), (104.0, 105.0)]
    assert calls == [(4, 3)] * 2


def noting(context: int, calls: list, clock: Clock) -> SimpleNamespace:
    def level(rows: int) -> None:
        calls.append((context, rows))
        clock.wait(1.0)

    return SimpleNamespace(level=level)


def opened(pair: ModelPair, tokens: Sequence[int] = (1, 5), rows: Sequence[int] = (1, 3), before=lambda: None):
    return open_beside(pair, replace(GRID, beside_tokens=tokens, beside_rows=rows), before)


def test_a_real_draft_process_works_beside_the_target():
    """Every cell measures, with both sides' work over each other; then the process ends."""
    pair, before = ModelPair(tiny_llama(64, seed=0), tiny_llama(64, seed=1, layers=1)), []
    with opened(pair, before=lambda: before.append(1)) as cells:
        places = {(*cell.tables, *cell.at.values()) for cell in cells}
        assert places == {
            *(("beside_target", n, context) for n in (1, 5) for context in (4, 9)),
            *(("beside_draft", n, context) for n in (1, 3) for context in (4, 9)),
            *(("exchange", n) for n in (0, 3)),
        }
        for cell in cells:
            cell.before()
            (seconds,) = cell.measure()
            assert seconds > 0
        assert len(before) == 2  # before the exchanges alone: the others are preceded by what they are beside
        draft = cells[0].measure.__self__.timed.args[1]
        child = draft._child._process
        assert child.poll() is None
    assert child.poll() is not None


@pytest.mark.parametrize("device", ["target", "draft"])
def test_an_accelerator_has_no_draft_process(device, monkeypatch):
    monkeypatch.setattr(beside, "DraftProcess", lambda *_: pytest.fail("a process was made"))
    models = {"target": TableModel(8, seed=0), "draft": TableModel(8, seed=1)}
    models[device].device = torch.device("cuda")
    with opened(ModelPair(**models)) as cells:
        assert cells == []


def test_windows_has_no_draft_process(monkeypatch):
    monkeypatch.setattr(beside.sys, "platform", "win32")
    with opened(ModelPair(TableModel(8, seed=0), TableModel(8, seed=1))) as cells:
        assert cells == []


@pytest.mark.parametrize(
    ("tokens", "rows", "tables"),
    [((), (1,), {"beside_draft", "exchange"}), ((1,), (), {"beside_target", "exchange"}), ((), (), set())],
)
def test_an_empty_grid_is_no_table(tokens, rows, tables):
    """The process starts with the first call: none does here."""
    with opened(ModelPair(TableModel(8, seed=0), TableModel(8, seed=1)), tokens, rows) as cells:
        assert {table for cell in cells for table in cell.tables} == tables
