"""A draft process that dies takes no token along, and an interruption leaves the decoder usable and no process behind."""

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from runtime.branching import jobs
from tests.greedy import greedy_text
from tests.runtime.branch_services import a_pair, alive, in_a_process, kept_in_a_process, order, pid_of
from tests.runtime.overlap_services import wait_for_end

ROOT = Path(__file__).parents[2]
PROMPT, OTHER = [3, 1, 4], [7, 7, 2, 9]


@pytest.fixture(scope="module")
def pair():
    return a_pair()


@pytest.fixture(scope="module")
def text(pair):
    return greedy_text(pair.target.model, PROMPT, 40)


@pytest.fixture(scope="module")
def shared(pair, tmp_path_factory):
    for decoder, folder in kept_in_a_process(pair, tmp_path_factory.mktemp("process")):
        decoder.generate(PROMPT, max_new_tokens=1)
        yield decoder, folder


@pytest.fixture
def served(shared):
    """A decoder whose process serves many tests; one that left it dead does so to no other."""
    decoder, folder = shared
    yield decoder, folder
    for file in folder.glob("*-*"):
        file.unlink()
    if not alive(folder):
        decoder.close()


def deaths(caught):
    return [warning for warning in caught if "the draft process died" in str(warning.message)]


def kill(folder):
    os.kill(pid_of(folder), signal.SIGKILL)
    wait_for_end(folder / "lock")


# ---- deaths


def test_closing_ends_the_process_and_a_later_request_starts_another(served, text):
    decoder, folder = served
    decoder.generate(PROMPT, max_new_tokens=4)
    first = pid_of(folder)
    decoder.close()
    decoder.close()
    assert not alive(folder)
    assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]
    assert pid_of(folder) != first


def test_a_process_killed_between_rounds_loses_nothing(served, text):
    decoder, folder = served
    tokens: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index, step in enumerate(decoder.stream(PROMPT, max_new_tokens=40)):
            tokens += step.tokens
            if index == 3:
                kill(folder)
    assert tokens == text and len(deaths(caught)) == 1


@pytest.mark.filterwarnings("ignore:the draft process died")
def test_a_branch_that_died_with_its_process_has_not_survived(served):
    """Its controller decides about drafting again, not about what to retain."""
    decoder, folder = served
    told, killed = [], False
    for step in decoder.stream(PROMPT, max_new_tokens=40):
        if told:
            assert (folder / "survived").read_text() == str(told[-1])
        told.append(not step.record.ends_segment)
        if told[-1] and not killed:
            kill(folder)
            killed, told[-1] = True, False
    assert killed and True in told


@pytest.mark.parametrize("place", ["plan", "branch"])
def test_a_process_that_dies_within_a_round_loses_nothing(served, text, place):
    decoder, folder = served
    killed = pid_of(folder)
    order(folder, place, "die")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert decoder.generate(PROMPT, max_new_tokens=40).tokens == text
    assert len(deaths(caught)) == 1 and pid_of(folder) != killed


@pytest.mark.parametrize(("place", "restarts"), [("plan", 1), ("branch", 0)])
def test_a_process_that_dies_again_and_again_is_given_up(served, text, place, restarts, monkeypatch):
    decoder, folder = served
    monkeypatch.setattr(jobs, "RESTARTS", restarts)
    order(folder, place, "die", times=100)
    tokens: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=f"died {restarts + 1} times"):
            for step in decoder.stream(PROMPT, max_new_tokens=40):
                tokens += step.tokens
    assert len(deaths(caught)) == restarts
    assert tokens == text[: len(tokens)]


def test_a_process_killed_between_requests_is_replaced(served, text):
    decoder, folder = served
    decoder.generate(PROMPT, max_new_tokens=4)
    kill(folder)
    assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]


def test_a_process_that_dies_in_a_requests_last_round_is_replaced(served, text):
    decoder, folder = served
    steps = decoder.stream(PROMPT, max_new_tokens=20)
    next(steps)
    order(folder, "branch", "die")
    next(steps)
    steps.close()
    assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]


# ---- interruptions


def test_a_stream_that_is_closed_leaves_the_decoder_usable(served, text):
    decoder, folder = served
    decoder.generate(PROMPT, max_new_tokens=1)
    before = pid_of(folder)
    for length in range(1, 5):
        steps = decoder.stream(OTHER, max_new_tokens=40)
        for _ in range(length):
            next(steps)
        steps.close()
        assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]
    assert pid_of(folder) == before


@pytest.mark.parametrize("place", ["plan", "branch"])
def test_an_interruption_leaves_the_decoder_usable(served, text, place):
    decoder, folder = served
    threads = torch.get_num_threads()
    order(folder, place, "interrupt")
    with pytest.raises(KeyboardInterrupt):
        decoder.generate(OTHER, max_new_tokens=40)
    assert torch.get_num_threads() == threads
    assert decoder.generate(PROMPT, max_new_tokens=40).tokens == text


SCRIPT = """
import signal
import sys
from pathlib import Path
from tests.runtime.branch_services import a_pair, in_a_process

signal.signal(signal.SIGINT, signal.default_int_handler)  # though a shell started this in the background
decoder = in_a_process(a_pair(), Path(sys.argv[1]))
try:
    while True:
        for step in decoder.stream([3, 1, 4], max_new_tokens=100):
            print("step", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(decoder.generate([3, 1, 4], max_new_tokens=40).tokens, flush=True)
"""


def test_a_script_stopped_by_ctrl_c_goes_on_if_it_wants_and_leaves_no_process(tmp_path, text):
    pipes = {"stdout": subprocess.PIPE, "text": True, "cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], **pipes) as script:
        for _ in range(20):
            assert script.stdout.readline() == "step\n"
        script.send_signal(signal.SIGINT)
        *steps, interrupted, tokens = script.stdout.read().splitlines()
    assert set(steps) <= {"step"} and interrupted == "interrupted"
    assert tokens == str(text) and script.returncode == 0
    wait_for_end(tmp_path / "lock")


def test_a_decoder_can_be_started_before_its_first_request(tmp_path, text):
    decoder = in_a_process(a_pair(), tmp_path)
    decoder.start()
    started = decoder.host._process._child
    assert started is not None
    assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]
    assert decoder.host._process._child is started
    decoder.close()
