"""The three executors keep one contract: in turn, in a thread and in a process of its own."""

from threading import Timer
from time import perf_counter

import pytest
import torch

from runtime.overlap.executor import Beside, InTurn, default_threads, draft_stream
from runtime.overlap.messages import SLOTS
from tests.runtime.overlap_services import (
    FakeCudaTensor,
    FakeStreams,
    Nest,
    Toy,
    ToyError,
    ToyWarning,
    draft_process,
    value,
    wait_for,
)

DTYPES = [
    *(torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex64),
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4)]


@pytest.fixture(scope="module")
def draft():
    draft = draft_process()
    yield draft
    draft.close()


@pytest.fixture(params=["in turn", "thread", "process"])
def executor(request):
    if request.param == "process":
        draft = request.getfixturevalue("draft")
        yield draft
        draft.forget()
        return
    executor = InTurn(Toy()) if request.param == "in turn" else Beside(Toy(), None)
    yield executor
    executor.close()


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist()


# The contract of all executors


def test_replies_come_in_order_with_their_times(executor):
    before = perf_counter()
    for number in range(SLOTS):
        executor.submit("echo", number)
    replies = [executor.result() for _ in range(SLOTS)]
    assert [reply.value for reply in replies] == [(number,) for number in range(SLOTS)]
    times = [before, *(time for reply in replies for time in (reply.started, reply.ended)), perf_counter()]
    assert times == sorted(times)


def test_tensors_arrive_bit_for_bit(executor):
    random = torch.Generator().manual_seed(0)
    sent = []
    for dtype in DTYPES:
        for shape in SHAPES:
            raw = torch.randint(2 if dtype is torch.bool else 256, (*shape, dtype.itemsize), generator=random)
            sent.append(raw.to(torch.uint8).view(dtype).view(shape))
    base = torch.arange(24).view(4, 6)
    sent += [torch.tensor([2**62 + 1]), base.T, base[1::2, ::3], base[0].expand(3, 6)]
    sent += [torch.complex(base * 1.0, base + 0.5).conj(), torch.tensor([float("nan"), -0.0])]
    assert [bits(tensor) for tensor in value(executor, "echo", *sent)] == [bits(tensor) for tensor in sent]


def test_tensors_arrive_inside_of_other_things_and_from_any_gradient_mode(executor):
    nest = Nest("law", {"ids": torch.arange(5), "weight": torch.nn.Parameter(torch.ones(2))})
    for mode in (False, True, False):
        with torch.inference_mode(mode):
            (back, again), text = value(executor, "echo", [nest, nest], "text")
            assert (back.name, again is back, text) == ("law", True, "text")
            assert bits(back.parts["ids"]) == bits(nest.parts["ids"])
            assert back.parts["weight"].tolist() == [1, 1]


def test_errors_of_the_service_come_back_and_it_stays_usable(executor):
    first = value(executor, "count")
    executor.submit("fail", "no such token")
    executor.submit("count")
    with pytest.raises(ToyError) as raised:
        executor.result()
    assert str(raised.value) == "no such token"
    assert executor.result().value == first + 1
    with pytest.raises(AttributeError, match="no_such_method"):
        value(executor, "no_such_method")
    assert value(executor, "count") == first + 2


def test_warnings_of_the_service_come_back(executor):
    for text in ("far outside", "far outside"):
        with pytest.warns(ToyWarning, match="^far outside$"):
            assert value(executor, "warn", text) == text


@pytest.mark.parametrize("executor", ["process"], indirect=True)
def test_forgotten_replies_never_come(executor):
    for number in range(3 * SLOTS):
        executor.submit("echo", number, torch.full((100,), number))
        executor.submit("fail", "forgotten")
        executor.forget()
        returned, tensor = value(executor, "echo", -number, torch.full((100,), -number))
        assert (returned, set(tensor.tolist())) == (-number, {-number})


def test_a_result_without_a_call_is_refused(executor):
    with pytest.raises(AssertionError, match="no call is outstanding"):
        executor.result()
    assert value(executor, "echo", 1) == (1,)


@pytest.mark.parametrize("executor", ["in turn", "thread"], indirect=True)
def test_a_closed_executor_drops_what_is_outstanding(executor):
    executor.submit("count")
    executor.close()
    executor.close()
    with pytest.raises(AssertionError, match="no call is outstanding"):
        executor.result()


def test_a_closed_thread_begins_nothing_that_waited(tmp_path):
    toy = Toy()
    executor = Beside(toy, None)
    executor.submit("meet", tmp_path)
    executor.submit("count")
    wait_for(tmp_path / "begun")
    Timer(0.5, (tmp_path / "go").touch).start()
    executor.close()
    assert toy.calls == 0


@pytest.mark.parametrize("executor", ["thread", "process"], indirect=True)
def test_a_call_runs_while_the_caller_does_something_else(executor, tmp_path):
    executor.submit("meet", tmp_path)
    wait_for(tmp_path / "begun")
    (tmp_path / "go").touch()
    assert executor.result().value == "met"


def test_in_turn_no_call_runs_while_the_caller_does_something_else(tmp_path):
    executor = InTurn(Toy())
    executor.submit("meet", tmp_path)
    with pytest.raises(TimeoutError):  # so the test above fails where nothing runs beside the caller
        wait_for(tmp_path / "begun", patience=0.2)


# Streams


def test_streams_wait_for_each_others_events(monkeypatch):
    streams = FakeStreams()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: streams.stream(f"draft {priority}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams.stream("caller"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    executor = Beside(Toy(), draft_stream(torch.device("cuda")))
    assert len(value(executor, "echo", [{"ids": FakeCudaTensor.of(streams.log)}, torch.ones(1)])) == 1
    call = ["on draft -1", "draft -1 waits for caller's event", "draft -1 records", "off draft -1"]
    asked = ["caller records", *call, "caller waits for draft -1's event"]
    assert streams.log == ["kept for draft -1", *asked, "kept for caller"]
    streams.log.clear()
    with pytest.raises(ToyError):
        value(executor, "fail", "on a stream")
    assert streams.log == asked
    executor.close()


def test_streams_wait_for_what_another_device_hands_over(monkeypatch):
    streams = FakeStreams()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: streams.stream(f"draft on {device}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams.stream(f"caller on {device}"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    executor = Beside(Toy(), draft_stream(torch.device("cuda:1")))
    executor.submit("count")
    executor.result()
    assert "caller on cuda:0 records" not in streams.log
    streams.log.clear()
    value(executor, "echo", FakeCudaTensor.of(streams.log, "cuda:0"))
    written = {"caller on cuda:0 records", "caller on cuda:1 records"}
    assert set(streams.log[:2]) == written and "kept for draft on cuda:1" not in streams.log
    waits = {f"draft on cuda:1 waits for caller on cuda:{number}'s event" for number in (0, 1)}
    assert waits <= set(streams.log[streams.log.index("on draft on cuda:1") :])
    executor.close()


@pytest.mark.gpu
def test_streams_order_the_work_of_a_real_device():
    executor = Beside(Toy(), draft_stream(torch.device("cuda")))
    for number in range(1, 9):
        source = torch.zeros(1 << 20, device="cuda")
        torch.cuda._sleep(10**8)  # cycles: what reads before its turn reads zeros
        source += number
        assert value(executor, "double", source).sum().item() == 2 * number * len(source)
    executor.close()


@pytest.mark.parametrize(("cores", "shares"), [(1, (1, 1)), (2, (1, 1)), (4, (3, 1)), (8, (6, 2)), (16, (12, 4))])
def test_a_quarter_of_the_cores_drafts(cores, shares):
    assert default_threads(cores) == shares
