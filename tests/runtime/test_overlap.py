"""Where the draft's jobs run: both executors keep one contract, one after the other and in a thread, with streams or without."""

from dataclasses import dataclass
from threading import Event, Timer
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.overlap import Overlap, Sequential, Threaded, draft_stream

PATIENCE = 60.0  # seconds until a wait counts as failed
CPU = torch.device("cpu")


class ToyError(Exception):
    """An error of the call's own."""


def echo(*values):
    return values


def fail(text):
    raise ToyError(text)


def meet(begun, go):
    """Say that the call has begun, and wait for the caller's word."""
    begun.set()
    assert go.wait(PATIENCE)
    return "met"


def value(executor, call, *arguments):
    executor.submit(call, *arguments)
    return executor.result()


@pytest.fixture(params=["one after the other", "thread"])
def executor(request):
    executor = Threaded() if request.param == "thread" else Sequential()
    yield executor
    executor.close()


# The contract of both executors


def test_results_come_in_order(executor):
    for number in range(4):
        executor.submit(echo, number)
    assert [executor.result() for _ in range(4)] == [(number,) for number in range(4)]


def test_errors_come_back_and_the_executor_stays_usable(executor):
    executor.submit(fail, "no such token")
    executor.submit(echo, 1)
    with pytest.raises(ToyError, match="^no such token$"):
        executor.result()
    assert executor.result() == (1,)


def test_a_closed_executor_drops_what_is_outstanding(executor):
    executor.submit(echo)
    executor.close()
    executor.close()
    with pytest.raises(AssertionError, match="no call is outstanding"):
        executor.result()


def test_a_closed_thread_begins_nothing_that_waited():
    begun, go, called = Event(), Event(), []
    executor = Threaded()
    executor.submit(meet, begun, go)
    executor.submit(called.append, 1)
    assert begun.wait(PATIENCE)
    Timer(0.2, go.set).start()
    executor.close()
    assert not called


def test_in_a_thread_a_call_runs_while_the_caller_does_something_else():
    begun, go = Event(), Event()
    executor = Threaded()
    executor.submit(meet, begun, go)
    assert begun.wait(PATIENCE)
    go.set()
    assert executor.result() == "met"
    executor.close()


def test_one_after_the_other_no_call_runs_while_the_caller_does_something_else():
    begun = Event()
    Sequential().submit(meet, begun, Event())
    assert not begun.wait(0.1)  # so the test above fails where nothing is concurrent


# Choosing


@pytest.mark.parametrize(
    ("overlap", "draft", "kind"),
    [
        ("auto", "cpu", "threads"),
        ("auto", "cuda", "streams"),
        ("threads", "cpu", "threads"),
        ("streams", "cuda", "streams"),
        ("none", "cpu", "none"),
        ("none", "cuda", "none"),
    ],
)
def test_threads_on_cpus_and_streams_on_cuda_devices(overlap, draft, kind, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("runtime.overlap.draft_stream", lambda device: None)
    assert Overlap(overlap, torch.device(draft), torch.device(draft)).kind == kind


def test_a_single_core_runs_one_job_after_the_other(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert Overlap("auto", CPU, CPU).virtual


@pytest.mark.parametrize(("overlap", "draft", "other"), [("streams", "cpu", "threads"), ("threads", "cuda", "streams")])
def test_an_overlap_that_the_draft_cannot_have_is_refused(overlap, draft, other):
    with pytest.raises(ValueError, match=f"overlap '{overlap}' is for drafts .* on {draft}. Use '{other}' or 'auto'"):
        Overlap(overlap, torch.device(draft), CPU)


def test_torchs_threads_are_shared_out_and_given_back():
    usual = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        overlap = Overlap("threads", CPU, CPU)
        with overlap.target_threads():
            executor = overlap.executor()
            assert (torch.get_num_threads(), value(executor, torch.get_num_threads)) == (3, 1)
            executor.close()
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(usual)


# Streams


@dataclass
class FakeStream:
    """A stream that logs, in order, what happened; as a context it is the current one."""

    name: str
    log: list[str]

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return f"{self.name}'s event"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}")

    def __exit__(self, *raised: Any) -> None:
        self.log.append(f"off {self.name}")


class FakeCudaTensor(Tensor):
    """A tensor that says it is on a CUDA device and logs which stream keeps it."""

    is_cuda = True
    device = torch.device("cuda")

    @staticmethod
    def of(stream_log: list[str], device: str = "cuda") -> "FakeCudaTensor":
        tensor = Tensor._make_subclass(FakeCudaTensor, torch.zeros(1))
        tensor.stream_log, tensor.device = stream_log, torch.device(device)
        return tensor

    def record_stream(self, stream: FakeStream) -> None:
        self.stream_log.append(f"kept for {stream.name}")


def test_streams_wait_for_each_others_events(monkeypatch):
    log = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream(f"draft {priority}", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream("caller", log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    executor = Threaded(draft_stream(torch.device("cuda")))
    assert len(value(executor, echo, [{"ids": FakeCudaTensor.of(log)}, torch.ones(1)])) == 1
    call = ["on draft -1", "draft -1 waits for caller's event", "draft -1 records", "off draft -1"]
    asked = ["caller records", *call, "caller waits for draft -1's event"]
    assert log == ["kept for draft -1", *asked, "kept for caller"]
    log.clear()
    with pytest.raises(ToyError):
        value(executor, fail, "on a stream")
    assert log == asked
    executor.close()


def test_streams_wait_for_what_another_device_hands_over(monkeypatch):
    log = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream(f"draft on {device}", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(f"caller on {device}", log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    executor = Threaded(draft_stream(torch.device("cuda:1")))
    value(executor, echo)
    assert "caller on cuda:0 records" not in log
    log.clear()
    value(executor, echo, FakeCudaTensor.of(log, "cuda:0"))
    written = {"caller on cuda:0 records", "caller on cuda:1 records"}
    assert set(log[:2]) == written and "kept for draft on cuda:1" not in log
    waits = {f"draft on cuda:1 waits for caller on cuda:{number}'s event" for number in (0, 1)}
    assert waits <= set(log[log.index("on draft on cuda:1") :])
    executor.close()


@pytest.mark.gpu
def test_streams_order_the_work_of_a_real_device():
    executor = Threaded(draft_stream(torch.device("cuda")))
    for number in range(1, 9):
        source = torch.zeros(1 << 20, device="cuda")
        torch.cuda._sleep(10**8)  # cycles: what reads before its turn reads zeros
        source += number
        assert value(executor, torch.mul, source, 2).sum().item() == 2 * number * len(source)
    executor.close()
