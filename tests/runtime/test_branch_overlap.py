"""Where the draft runs never shows in the text: one job after the other, in a thread, or on a stream."""

from dataclasses import dataclass
from threading import Event, Timer
from typing import Any

import pytest
import torch
from torch import Tensor

from predictors.controllers.unlearned import Confidence
from runtime import ModelPair, Randomness, build_decoder
from runtime.overlap import Overlap, Sequential, Threaded, draft_stream
from tests.branches import branch_decoder, shaken_llama, sharp_llama
from tests.bundles import random_bundle
from tests.greedy import greedy_text

PROMPT, OTHER = [3, 1, 4], [7, 7, 2, 9]
OPTIONS = {"gamma": 3, "k_max": 2}
OVERLAPS = ("none", "threads")


@pytest.fixture(scope="module")
def pair():
    """A draft that is right in part, at temperatures 0 and 1."""
    return ModelPair(sharp_llama(2, sharpness=6), shaken_llama(2, sharpness=6))


@pytest.fixture(scope="module")
def text(pair):
    return greedy_text(pair.target.model, PROMPT, 40)


# ---- the same text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_text_wherever_the_draft_runs(pair, text, temperature):
    inside = {"controller": {"kind": "confidence", "epsilon": 0.2}, **OPTIONS}
    texts, rounds = [], []
    for overlap in OVERLAPS:
        decoder = branch_decoder(pair, **inside, overlap=overlap)
        for seed in range(2):
            randomness = Randomness(seed)  # one source for requests one after the other
            outs = [
                decoder.generate(prompt, max_new_tokens=30, temperature=temperature, randomness=randomness)
                for prompt in (PROMPT, OTHER, PROMPT)
            ]
            texts.append([out.tokens for out in outs])
            rounds.append([[(item.drafted, item.accepted) for item in out.rounds] for out in outs])
    assert texts[:2] == texts[2:] and rounds[:2] == rounds[2:]
    if temperature == 0:
        assert texts[0][0] == text[:30]
    else:
        assert texts[0][0] != texts[0][2] and texts[0] != texts[1]


def test_a_heads_features_reach_the_thread(pair, tmp_path):
    controller = {"kind": "hrad", "bundle": str(random_bundle(tmp_path / "b", pair, "extended", gamma=3))}
    outs = []
    for overlap in OVERLAPS:
        decoder = build_decoder(
            pair, {"preset": "specbranch", "gamma": 3, "controller": controller, "overlap": overlap}
        )
        outs.append(decoder.generate(PROMPT, max_new_tokens=30, temperature=1.0, randomness=Randomness(1)))
    assert outs[0].tokens == outs[1].tokens
    assert [record.submitted for record in outs[0].rounds] == [record.submitted for record in outs[1].rounds]
    assert len({record.submitted for record in outs[0].rounds}) > 1


def test_two_threads_save_nothing_that_the_wall_does_not_show(pair):
    out = branch_decoder(pair, **OPTIONS, overlap="threads").generate(PROMPT, max_new_tokens=30)
    assert all(record.overlapped == 0 and record.concurrent and record.seconds["wait"] >= 0 for record in out.rounds)


# ---- several requests


class Failing(Confidence):
    """Decides as `Confidence`, and fails at a branch point where it is ``told`` to."""

    told = False

    def start(self, settings):
        session = super().start(settings)
        session.branch_count = self.branch_count
        return session

    def branch_count(self, law):
        if self.told:
            raise ArithmeticError("the draft is far from home")


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_an_error_of_the_draft_reaches_the_caller_and_leaves_the_decoder_usable(pair, text, overlap):
    decoder = branch_decoder(pair, **OPTIONS, overlap=overlap)
    controller = Failing(0.2)
    decoder.draft = (*decoder.draft[:2], controller)
    controller.told = True
    threads = torch.get_num_threads()
    with pytest.raises(ArithmeticError, match="far from home"):
        decoder.generate(PROMPT, max_new_tokens=20)
    assert torch.get_num_threads() == threads
    controller.told = False
    assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]


# ---- the executors

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


def test_results_and_errors_come_in_order(executor):
    executor.submit(fail, "no such token")
    for number in range(4):
        executor.submit(echo, number)
    with pytest.raises(ToyError, match="^no such token$"):
        executor.result()
    assert [executor.result() for _ in range(4)] == [(number,) for number in range(4)]


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


def test_streams_wait_for_each_others_events_and_for_what_another_device_hands_over(monkeypatch):
    log = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: FakeStream(f"draft {priority}", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(f"caller on {device}", log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    executor = Threaded(draft_stream(torch.device("cuda:1")))
    assert len(value(executor, echo, [{"ids": FakeCudaTensor.of(log, "cuda:1")}, torch.ones(1)])) == 1
    call = ["on draft -1", "draft -1 waits for caller on cuda:1's event", "draft -1 records", "off draft -1"]
    asked = ["caller on cuda:1 records", *call, "caller on cuda:1 waits for draft -1's event"]
    assert log == ["kept for draft -1", *asked, "kept for caller on cuda:1"]
    log.clear()
    with pytest.raises(ToyError):
        value(executor, fail, "on a stream")
    assert log == asked
    log.clear()
    value(executor, echo, FakeCudaTensor.of(log, "cuda:0"))
    assert set(log[:2]) == {f"caller on cuda:{number} records" for number in (0, 1)} and "kept for draft -1" not in log
    waits = {f"draft -1 waits for caller on cuda:{number}'s event" for number in (0, 1)}
    assert waits <= set(log[log.index("on draft -1") :])
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
