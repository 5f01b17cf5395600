"""A draft process ends when it should, says why where it should not have, and never hangs its caller, whatever interrupts it."""

import fcntl
import gc
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.overlap.process import DraftProcessDied
from tests.runtime.overlap_services import draft_process, value, wait_for, wait_for_end

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from runtime.overlap.process import DraftProcess
from tests.runtime.overlap_services import Toy

def main():  # the draft process's own main module must not stand in for this one
    return Toy()

ours = DraftProcess(main, (), threads=1, slot_bytes=1 << 16)
try:
    ours.submit("pid")
except ValueError as error:
    print(error, flush=True)
draft = DraftProcess(Toy, (None, sys.argv[1]), threads=1, slot_bytes=1 << 16)
draft.submit("print", "what a service prints is not the caller's output")
draft.submit("double", 21)
draft.result()
print(draft.result().value, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def shared():
    """One process for many tests; those that end it leave it to be started again."""
    draft = draft_process()
    yield draft
    draft.close()


@pytest.fixture
def draft(shared):
    yield shared
    shared.forget()


def fails_as_dead(draft, reason):
    for attempt in (draft.result, lambda: draft.submit("pid"), lambda: draft.submit("pid")):
        with pytest.raises(DraftProcessDied, match=reason):
            attempt()


def test_a_process_killed_while_it_waits_or_works_is_noticed_and_replaced(draft, tmp_path):
    first = value(draft, "pid")
    draft.submit("count")
    draft.submit("meet", tmp_path)
    wait_for(tmp_path / "begun")
    os.kill(first, signal.SIGKILL)
    assert draft.result().value >= 1  # what it answered before is not lost
    fails_as_dead(draft, "was killed by SIGKILL")
    draft.restart()
    second = value(draft, "pid")
    assert second != first
    assert value(draft, "count") == 1
    os.kill(second, signal.SIGKILL)
    with pytest.raises(DraftProcessDied, match="was killed by SIGKILL"):
        value(draft, "pid")
    draft.restart()


def test_a_process_that_exits_is_noticed(draft):
    draft.submit("exit", 3)
    fails_as_dead(draft, "ended with exit code 3")
    draft.restart()


def test_processes_are_independent_and_end_with_their_object(draft, tmp_path, monkeypatch):
    (tmp_path / "found_at_run_time.py").write_text(
        "from tests.runtime.overlap_services import Toy\nclass LocalToy(Toy): ..."
    )
    monkeypatch.syspath_prepend(tmp_path)
    other = draft_process(None, tmp_path / "lock", factory=importlib.import_module("found_at_run_time").LocalToy)
    assert value(other, "pid") != value(draft, "pid")
    ours, theirs = value(draft, "count"), value(other, "count")
    assert (value(draft, "count"), value(other, "count")) == (ours + 1, theirs + 1)
    del other
    gc.collect()
    wait_for_end(tmp_path / "lock")
    assert value(draft, "count") == ours + 2


def test_closing_ends_a_process_that_works_and_a_later_call_starts_another(tmp_path):
    draft = draft_process(None, tmp_path / "lock")
    draft.submit("meet", tmp_path)
    wait_for(tmp_path / "begun")
    draft.close()
    draft.close()
    wait_for_end(tmp_path / "lock")
    assert value(draft, "count") == 1
    draft.close()


@pytest.mark.parametrize("killed", [True, False])
def test_the_process_ends_with_a_script_however_that_ends(killed, tmp_path):
    script, lock = tmp_path / "script.py", tmp_path / "lock"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(lock)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes) as parent:
        assert {"main", "module,"} <= set(parent.stdout.readline().split())
        assert parent.stdout.readline() == "42\n"
        with lock.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if killed:
            parent.kill()
    wait_for_end(lock)
    assert parent.returncode == (-signal.SIGKILL if killed else 0)


# Interruptions


def test_the_process_ignores_interruptions(draft, tmp_path):
    pid = value(draft, "pid")
    os.kill(pid, signal.SIGINT)
    draft.submit("meet", tmp_path)
    wait_for(tmp_path / "begun")
    os.kill(pid, signal.SIGINT)
    (tmp_path / "go").touch()
    assert draft.result().value == "met"
    assert value(draft, "pid") == pid


class Announcing:
    """A poll object that says when it waits."""

    def __init__(self, poll, file):
        self._poll, self._file = poll, file

    def poll(self):
        self._file.touch()
        return self._poll.poll()


@pytest.mark.parametrize("forgets", [True, False])
def test_an_interruption_while_waiting_loses_nothing(draft, tmp_path, monkeypatch, forgets):
    pid = value(draft, "pid")
    monkeypatch.setattr(draft._child, "_poll", Announcing(draft._child._poll, tmp_path / "waiting"))
    draft.submit("interrupt", tmp_path)
    draft.submit("echo", "second")
    with pytest.raises(KeyboardInterrupt):
        draft.result()
    (tmp_path / "go").touch()
    if forgets:
        draft.forget()
    else:
        assert [draft.result().value, draft.result().value] == ["met", ("second",)]
    assert value(draft, "pid") == pid


class Interrupted:
    """A connection whose exchanges are interrupted once they are done."""

    def __init__(self, connection):
        self._connection = connection

    def recv_bytes(self):
        self._connection.recv_bytes()
        raise KeyboardInterrupt

    def send_bytes(self, announcement):
        self._connection.send_bytes(announcement)
        raise KeyboardInterrupt


@pytest.mark.parametrize("forgets", [True, False])
def test_an_interruption_within_an_exchange_replaces_the_process(draft, monkeypatch, forgets):
    pid = value(draft, "pid")
    if not forgets:
        draft.submit("pid")
    channel = draft._child.channel
    monkeypatch.setattr(channel, "_connection", Interrupted(channel._connection))
    with pytest.raises(KeyboardInterrupt):
        draft.submit("pid") if forgets else draft.result()
    if forgets:
        draft.forget()
        assert draft._child.channel.torn
        draft.start()  # as before a request
        assert not draft._child.channel.torn
    else:
        with pytest.raises(DraftProcessDied, match="interrupted in the middle of a message"):
            draft.result()
    assert value(draft, "pid") != pid
