"""A draft process: what may travel, and how it starts. How it ends: `test_draft_process_ends`."""

import errno
import os
import subprocess
import sys
from threading import Lock, Timer
from types import ModuleType

import pytest
import torch

from runtime.overlap import messages, process
from runtime.overlap.messages import SLOTS, reserved
from tests.runtime.overlap_services import SLOT_BYTES, Joined, Toy, ToyError, draft_process, failing_factory, value


@pytest.fixture(scope="module")
def model():
    return Joined()


@pytest.fixture(scope="module")
def shared(model):
    """One process for all tests."""
    draft = draft_process(model, threads=3)
    yield draft
    draft.close()


@pytest.fixture
def draft(shared):
    yield shared
    shared.forget()


@pytest.fixture
def no_process(monkeypatch):
    """Starting a process fails the test."""
    monkeypatch.setattr(process.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))


# What travels


def test_the_service_has_its_own_threads_and_the_callers_storages_stay_where_they_are(draft, model):
    together, second = value(draft, "joined")
    assert together  # parameters in one storage travel once
    assert second.tolist() == [3, 4, 5]
    assert not model.second.is_shared()
    assert value(draft, "threads") == 3
    assert os.getsid(value(draft, "pid")) != os.getsid(0)  # a terminal's Ctrl-C goes to the caller alone


def test_messages_are_copies(draft, monkeypatch):
    def kept_while_the_slots_are_used_again():
        sent = torch.arange(8)
        draft.submit("echo", sent)
        sent.zero_()
        (kept,) = draft.result().value
        for _ in range(SLOTS):
            value(draft, "echo", torch.full((8,), -1))
        return kept.tolist()

    assert kept_while_the_slots_are_used_again() == list(range(8))
    monkeypatch.setattr(messages._Reader, "persistent_load", lambda self, place: messages._tensor(self._slot, *place))
    assert kept_while_the_slots_are_used_again() == [-1] * 8


def test_more_calls_than_slots_are_refused(draft):
    for number in range(SLOTS):
        draft.submit("echo", number)
    with pytest.raises(AssertionError, match="outstanding"):
        draft.submit("echo", SLOTS)
    assert [draft.result().value for _ in range(SLOTS)] == [(number,) for number in range(SLOTS)]


def test_no_slot_is_used_again_before_the_forgotten_call_in_it_has_been_read(draft, tmp_path):
    calls = value(draft, "count")
    draft.submit("meet", tmp_path)
    for _ in range(SLOTS - 1):
        draft.submit("count", 0)
    draft.forget()
    Timer(0.2, (tmp_path / "go").touch).start()
    for _ in range(SLOTS):
        draft.submit("count", 1)  # written over a forgotten call, this would run for it as well
    assert [draft.result().value for _ in range(SLOTS)] == [calls + 1 + i for i in range(SLOTS)]


def test_large_pickles_in_both_directions_do_not_wait_for_each_other(draft):
    numbers = list(range(200_000))  # more than a connection holds
    for _ in range(SLOTS):
        draft.submit("echo", numbers)
    assert [draft.result().value for _ in range(SLOTS)] == [(numbers,)] * SLOTS


def test_a_message_larger_than_its_slot_is_refused_with_both_sizes(draft):
    with pytest.raises(ValueError, match=rf"of 4000\d\d\d bytes is larger than its slot of {SLOT_BYTES} bytes"):
        draft.submit("echo", torch.zeros(1_000_000))
    draft.submit("zeros", 1_000_000)
    with pytest.raises(ValueError, match=rf"of 4000\d\d\d bytes is larger than its slot of {SLOT_BYTES} bytes"):
        draft.result()
    with pytest.raises(ValueError, match="slot"):
        draft.submit("echo", "x" * SLOT_BYTES)
    assert value(draft, "zeros", 2).tolist() == [0, 0]


def test_a_call_that_cannot_travel_is_refused_with_the_remedy(draft, monkeypatch):
    with pytest.raises(ValueError, match=r"(?s)lambda.*overlap: none or streams"):
        draft.submit("echo", lambda: None)
    with pytest.raises(ValueError, match=r"(?s)lambda.*overlap: none or streams"):
        value(draft, "nothing_picklable")
    monkeypatch.setitem(sys.modules, "only_here", ModuleType("only_here"))
    sys.modules["only_here"].Local = type("Local", (), {"__module__": "only_here"})
    with pytest.raises(ValueError, match=r"(?s)only_here.*overlap: none or streams"):
        value(draft, "echo", sys.modules["only_here"].Local())
    with pytest.raises(ValueError, match="on meta cannot go to the draft process"):
        draft.submit("echo", torch.zeros(1, device="meta"))
    assert value(draft, "echo", 1) == (1,)


def test_errors_say_where_they_came_from(draft):
    with pytest.raises(ToyError) as raised:
        value(draft, "fail", "here")
    assert "overlap_services.py" in raised.value.__notes__[0]
    with pytest.raises(RuntimeError, match="AwkwardError: leftright"):
        value(draft, "fail_awkwardly")
    with pytest.raises(RuntimeError, match="^ToyError: xxx"):
        value(draft, "fail_at_length", 2 * SLOT_BYTES)


# How it starts


@pytest.mark.parametrize(("factory", "argument"), [(lambda: Toy(), ()), (Toy, (Lock(),))])
def test_a_set_up_that_cannot_travel_is_refused_before_anything_starts(factory, argument, no_process):
    with pytest.raises(ValueError, match=r"cannot set up .*overlap: none or streams"):
        draft_process(*argument, factory=factory).submit("pid")


def test_a_factory_that_fails_leaves_no_process(monkeypatch):
    started = []

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(process.subprocess, "Popen", start)
    with pytest.raises(ToyError, match="no weights"):
        draft_process("no weights", factory=failing_factory).submit("pid")
    assert [process.returncode is None for process in started] == [False]


def test_no_draft_process_on_windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ValueError, match="overlap: none"):
        draft_process()


def test_full_shared_memory_is_an_error_before_anything_starts(monkeypatch, no_process):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=rf"needs {2 * SLOTS * SLOT_BYTES} bytes of shared memory in .*overlap: none"):
        draft_process().submit("pid")


def test_memory_is_reserved_where_the_system_cannot_be_asked_to(monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    with reserved(4096) as file:
        assert os.fstat(file).st_size == 2 * SLOTS * 4096
        assert os.fstat(file).st_blocks * 512 >= 2 * SLOTS * 4096
