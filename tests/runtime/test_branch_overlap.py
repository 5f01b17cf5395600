"""Where the draft runs never shows in the text: in turn, in a thread or in a process of its own, one request at a time."""

import errno
import gc
import os

import pytest
import torch

from runtime import Randomness, build_decoder
from runtime.decoding.branch_parallel import BranchRun
from runtime.overlap import process
from tests.branches import branch_decoder
from tests.bundles import random_bundle
from tests.greedy import greedy_text
from tests.runtime.branch_services import OPTIONS, a_pair, in_a_process, kept_in_a_process, order, pid_of
from tests.runtime.overlap_services import wait_for_end
from tests.runtime.sabotage import EPSILON

PROMPT, OTHER = [3, 1, 4], [7, 7, 2, 9]
THREADS = {"target_threads": 2, "draft_threads": 3}


@pytest.fixture(scope="module")
def pair():
    return a_pair()


@pytest.fixture(scope="module")
def text(pair):
    return greedy_text(pair.target.model, PROMPT, 40)


@pytest.fixture(scope="module")
def served(pair, tmp_path_factory):
    yield from kept_in_a_process(pair, tmp_path_factory.mktemp("process"), **THREADS)


# ---- the same text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_text_wherever_the_draft_runs(served, pair, text, temperature):
    inside = {"controller": {"kind": "confidence", "epsilon": EPSILON}, **OPTIONS}
    decoders = [served[0], *(branch_decoder(pair, **(inside | {"overlap": name})) for name in ("none", "streams"))]
    texts, rounds = [], []
    for decoder in decoders:
        for seed in range(3):
            randomness = Randomness(seed)  # one source for requests one after the other
            outs = [
                decoder.generate(prompt, max_new_tokens=30, temperature=temperature, randomness=randomness)
                for prompt in (PROMPT, OTHER, PROMPT)
            ]
            texts.append([out.tokens for out in outs])
            rounds.append([[(item.drafted, item.accepted) for item in out.rounds] for out in outs])
    assert texts[:3] == texts[3:6] == texts[6:] and rounds[:3] == rounds[3:6] == rounds[6:]
    if temperature == 0:
        assert texts[0][0] == text[:30]
    else:
        assert texts[0][0] != texts[0][2] and texts[0] != texts[1]


def test_a_heads_features_reach_the_draft_process(pair, tmp_path):
    controller = {"kind": "hrad", "bundle": str(random_bundle(tmp_path / "b", pair, "extended", gamma=3))}
    outs = []
    for overlap in ("none", "processes"):
        decoder = build_decoder(
            pair, {"preset": "specbranch", "gamma": 3, "controller": controller, "overlap": overlap}
        )
        outs.append(decoder.generate(PROMPT, max_new_tokens=30, temperature=1.0, randomness=Randomness(1)))
        decoder.close()
    assert outs[0].tokens == outs[1].tokens
    assert [record.submitted for record in outs[0].rounds] == [record.submitted for record in outs[1].rounds]
    assert len({record.submitted for record in outs[0].rounds}) > 1


def test_timelines_of_two_processes_are_one(served):
    out = served[0].generate(PROMPT, max_new_tokens=30)
    for record in out.rounds:
        assert record.overlapped == 0
        start, end = min(span.start for span in record.timeline), max(span.end for span in record.timeline)
        assert end - start <= sum(record.seconds.values()) + 1e-9
        for lane in ("draft", "target"):
            times = [time for span in record.timeline if span.lane == lane for time in (span.start, span.end)]
            assert times == sorted(times) and times


def test_generate_takes_the_decoder(served, pair, text):
    for decoder in (served[0], branch_decoder(pair, **OPTIONS)):
        ids = pair.target.model.generate(
            torch.tensor([PROMPT]), custom_generate=decoder, do_sample=False, max_new_tokens=20
        )
        assert ids[0].tolist() == [*PROMPT, *text[:20]]


def test_threads_are_shared_out_and_given_back(served, monkeypatch):
    decoder, folder = served
    given, before = torch.get_num_threads(), 1 + THREADS["target_threads"]
    seen, honest = set(), BranchRun.round
    torch.set_num_threads(before)

    def noting(self):
        seen.add(torch.get_num_threads())
        return honest(self)

    monkeypatch.setattr(BranchRun, "round", noting)
    try:
        for _ in decoder.stream(PROMPT, max_new_tokens=12):
            assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(given)
    assert seen == {THREADS["target_threads"]} != {before}
    assert (folder / "threads").read_text() == str(THREADS["draft_threads"])


def test_what_a_draft_process_cannot_show_is_refused(served):
    with pytest.raises(ValueError, match=r"show no evidence. Observe with overlap 'none'"):
        next(served[0].stream(PROMPT, observe=True))


def test_warnings_of_the_controller_reach_the_caller(served, text):
    decoder, folder = served
    order(folder, "plan", "warn")
    with pytest.warns(UserWarning, match="the draft is far from home"):
        assert decoder.generate(PROMPT, max_new_tokens=20).tokens == text[:20]


# ---- one request at a time


@pytest.mark.parametrize("overlap", ["none", "streams"])
def test_streams_on_one_decoder_take_turns(pair, overlap):
    decoder = branch_decoder(pair, **OPTIONS, overlap=overlap)
    alone = [decoder.generate(prompt, max_new_tokens=20).tokens for prompt in (PROMPT, OTHER)]
    assert in_turns(decoder, decoder) == alone


def in_turns(first, second):
    """The texts of two requests whose rounds take turns."""
    streams = [
        decoder.stream(prompt, max_new_tokens=20)
        for decoder, prompt in zip((first, second), (PROMPT, OTHER), strict=True)
    ]
    texts: list[list[int]] = [[], []]
    going = {0, 1}
    while going:
        for index in sorted(going):
            step = next(streams[index], None)
            texts[index] += [] if step is None else step.tokens
            going -= {index} if step is None else set()
    return texts


def test_a_newer_request_takes_the_process_over_and_the_older_one_says_so(served, text):
    decoder, _ = served
    older = decoder.stream(PROMPT, max_new_tokens=40)
    next(older), next(older)
    newer = decoder.stream(PROMPT, max_new_tokens=40)
    tokens = [*next(newer).tokens, *next(newer).tokens]
    with pytest.raises(
        RuntimeError, match=r"a newer request took this decoder's draft process.*build a decoder for each"
    ):
        next(older)
    assert tokens + [token for step in newer for token in step.tokens] == text


def test_a_second_decoder_from_full_memory_to_collection(served, pair, text, tmp_path, monkeypatch):
    """One more process, started once: its whole life in one test."""
    other = in_a_process(pair, tmp_path)
    with monkeypatch.context() as patched:

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, "posix_fallocate", full)
        patched.setattr(process.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
        with pytest.raises(OSError, match=r"No space left.*bytes of shared memory in .*overlap: none"):
            other.generate(PROMPT)
    expected = [text[:20], greedy_text(pair.target.model, OTHER, 20)]
    assert in_turns(served[0], other) == expected
    assert pid_of(tmp_path) != pid_of(served[1])
    given_up = other.stream(PROMPT)
    next(given_up)
    del other, given_up
    gc.collect()
    wait_for_end(tmp_path / "lock")
