"""Part ``picture``: what the device did in a few rounds of branch-parallel decoding by stream, and how far jobs overlap."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pipelines.gpu.bench import Bench, Result, branches
from pipelines.gpu.pairs import Sized
from pipelines.measuring.names import WITHOUT_HRAD
from predictors.rounds import RoundRecord
from runtime import Randomness, build_decoder
from runtime.decoding.base import Step

GAMMA = 8
SKIPPED, SHOWN = 3, 4  # rounds
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
GAP = 2.0  # microseconds


def picture(bench: Bench, target: Sized, draft: Sized) -> Result:
    """Branch stages against their jobs alone, and on a GPU the device's work [stream, start, end] in seconds of some rounds."""
    prompts = [prompt.tokens for prompt in bench.trained.prompts]
    jobs: list[tuple[float, float]] = []
    together: list[float] = []
    options: dict[str, Any] = {"max_new_tokens": bench.new_tokens, "temperature": 0.0}
    pair = bench.pair(target, draft)
    on_gpu, ways = bench.device.type == "cuda", ("none", bench.overlap)
    alone, beside = (build_decoder(pair, branches(WITHOUT_HRAD, GAMMA, overlap)) for overlap in ways)
    for decoder in (alone, beside):  # records its programs
        decoder.generate(prompts[0], randomness=Randomness(0), **options)
    for prompt in prompts:
        one, other = (way.generate(prompt, randomness=Randomness(0), **options) for way in (alone, beside))
        jobs += [_jobs(record) for record in one.rounds[1:]]
        together += [_stage(record) if on_gpu else sum(_jobs(record)) for record in other.rounds[1:]]
    target_seconds, branch_seconds = (median(seconds) for seconds in zip(*jobs, strict=True))
    stages = {"target_alone": target_seconds, "branches_alone": branch_seconds, "together": median(together)}
    found: Result = {"stages": stages, "over_longer_job": stages["together"] / max(target_seconds, branch_seconds)}
    if on_gpu:
        found |= _profiled(beside.stream(prompts[0], randomness=Randomness(0), **options))
    return found


def _profiled(steps: Iterator[Step]) -> Result:
    """What each stream did in `SHOWN` rounds."""
    for _ in range(SKIPPED):
        next(steps, None)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        start = perf_counter()
        for _ in range(SHOWN):
            next(steps, None)
        torch.cuda.synchronize()
        seconds = perf_counter() - start
    work = _work(seen)
    return {"rounds_seconds": seconds, "work": work, **shares(work)}


def shares(work: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of the time from the first to the last ``work`` [stream, start, end]: when no stream worked, and when several did."""
    if not work:
        return {}
    changes = sorted([(start, 1) for _, start, _ in work] + [(end, -1) for _, _, end in work])
    active, idle, overlap = 0, 0.0, 0.0
    for (before, change), (after, _) in pairwise(changes):
        active += change
        idle += (after - before) * (active == 0)
        overlap += (after - before) * (active > 1)
    whole = changes[-1][0] - changes[0][0]
    return {"idle_share": idle / whole, "overlap_share": overlap / whole}


def _jobs(record: RoundRecord) -> tuple[float, float]:
    """Seconds of the target's pass with its verdict, and of the draft's job beside it."""
    target = [span for span in record.timeline if span.lane == "target" and span.phase in ("target", "verify")]
    begun = min((span.start for span in target), default=0.0)
    draft = [span for span in record.timeline if span.lane == "draft" and span.start >= begun]
    return sum(span.end - span.start for span in target), sum(span.end - span.start for span in draft)


def _stage(record: RoundRecord) -> float:
    """Seconds from where both jobs begin to where the later one ends."""
    passes = [span.start for span in record.timeline if (span.lane, span.phase) == ("target", "target")]
    begun = min(passes, default=0.0)
    return max((span.end for span in record.timeline if span.start >= begun), default=begun) - begun


def _work(seen: profile) -> list[list[float]]:
    """Kernels and copies [stream, start, end] in seconds; those of a stream that follow each other without a gap are one."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    done = [event for event in events if event.get("cat") in ON_DEVICE]
    origin = min((event["ts"] for event in done), default=0.0)
    rows: list[list[float]] = []
    newest: dict[int, list[float]] = {}
    for event in sorted(done, key=lambda event: event["ts"]):
        stream, start = event["args"]["stream"], event["ts"] - origin
        end = start + event["dur"]
        if stream in newest and start - newest[stream][2] < GAP:
            newest[stream][2] = max(newest[stream][2], end)
        else:
            newest[stream] = [stream, start, end]
            rows.append(newest[stream])
    return [[stream, start / 1e6, end / 1e6] for stream, start, end in rows]
