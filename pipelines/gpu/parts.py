"""Parts that decode, whose rows `pipelines.gpu.figures` reads: what each adds that no row holds.

plain         the target alone: memory, and a pass by itself
agreement     whether greedy texts are Hugging Face's on this device (`pipelines.measuring.exactness`), in both number formats
methods       every method and preset on one pair: its latency profile, and energy
hugging_face  Hugging Face on the same weights, beside our plain decoding

Energy is in joules of a stretch of work: the board's own counter, read through NVIDIA's management library.
"""

import ctypes
from collections.abc import Iterable, Mapping
from functools import partial
from statistics import median
from time import perf_counter

import torch

from pipelines.gpu.bench import ALONE, OTHERS, PRESETS, Bench, Result, static_rows
from pipelines.gpu.costs import GRID, measured_profile
from pipelines.gpu.pairs import Sized
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import Decode, TimedArm
from pipelines.measuring.exactness import GREEDY, greedy_differences
from pipelines.measuring.harness import tokens_per_second
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import CHAIN, PLAIN
from runtime.latency.cells import seconds_of
from runtime.latency.passes import CommittedState
from runtime.memory import planned_memory, table

LIBRARY = "libnvidia-ml.so.1"
WARM_SECONDS, ENERGY_SECONDS = 1.0, 4.0
PASSES = 30


def plain(bench: Bench, name: str, target: Sized) -> Result:
    """Seconds of a pass alone after half the new tokens, and the memory of a request."""
    pair = bench.pair(target, None)
    on_gpu = bench.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    prompt_tokens = len(bench.trained.prompts[0].tokens)
    plan = planned_memory(pair, prompt_tokens, bench.new_tokens)
    bench.bar.write(table(plan))
    bench.race("plain", name, bench.arms(pair, (ALONE,)), [GREEDY])
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    context = prompt_tokens + bench.new_tokens // 2
    memory = {"planned": vars(plan["target"]) | {"total": plan["target"].total}, "peak": peak}
    state = CommittedState(pair.target, context, 1, torch.Generator().manual_seed(0))
    state.chain(1)
    seconds = median(seconds_of(lambda: state.chain(1), state.device) for _ in range(PASSES))
    return {"target": target.to_record(), "context": context, "pass_seconds": seconds, "memory": memory}


def agreement(bench: Bench, model: Sized) -> Result:
    """By number format and method, the first wrong position of every prompt's greedy text that is wrong."""
    log = MeasurementLog(bench.folder / "agreement.jsonl", bench.fingerprint)
    found: Result = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        rows = log.once(name, partial(_wrong, bench, model, dtype))  # one pair at a time is in memory
        found[name] = {row["arm"]: row["places"] for row in rows}
    return found


def _wrong(bench: Bench, model: Sized, dtype: torch.dtype) -> Rows:
    pair = bench.pair(model, model, dtype)
    arms = bench.arms(pair, (*static_rows(bench.overlap), *OTHERS))
    decoders = {name: arm.decoder for name, arm in arms.items() if arm.decoder is not None}
    prompts = [prompt.tokens for prompt in bench.trained.prompts]
    places = greedy_differences(pair, decoders, prompts, bench.new_tokens)
    wrong = {name: [place for place in some if place is not None] for name, some in places.items()}
    return [{"arm": name, "places": some} for name, some in wrong.items() if some]


def methods(bench: Bench, name: str, target: Sized, draft: Sized, whole: bool) -> Result:
    """The pair's latency profile; of the ``whole`` table of arms, not only of those the latency model covers, also energy."""
    pair = bench.pair(target, draft)
    arms = bench.arms(pair, (*static_rows(bench.overlap), *(OTHERS if whole else ())))
    rows = bench.race("methods", name, arms)
    energy = joules_per_token(bench, arms, rows) if whole else {}
    profile = measured_profile(pair)
    costs = {"cost_ratio": profile.cost_ratio(GRID.contexts[0]), "profile": profile.to_record()}
    return {"target": target.to_record(), "draft": draft.to_record(), "energy": energy, **costs}


def hugging_face(bench: Bench, part: str, name: str, target: Sized, draft: Sized, theirs: Iterable[ArmRow]) -> Result:
    """Nothing but its rows."""
    pair = bench.pair(target, draft)
    bench.race(part, name, bench.arms(pair, (ALONE, *theirs)), [GREEDY])
    return {}


def joules_per_token(bench: Bench, arms: Mapping[str, TimedArm], rows: Rows) -> dict[str, float]:
    """At temperature 0, of plain decoding, and of the fastest chain and the fastest of either preset by ``rows``; nothing where
    the board does not count."""
    if _millijoules(bench.device) is None:
        return {}
    speed = {name: tokens_per_second(rows, name, 0.0) for name in arms}
    families = [[name for name in arms if arms[name].family == family] for family in (CHAIN, *PRESETS)]
    prompt = bench.trained.prompts[0].tokens
    found = {}
    for name in (PLAIN, *(max(names, key=speed.__getitem__) for names in families)):
        decode = partial(arms[name].run, prompt, GREEDY, 0)
        _repeated(decode, WARM_SECONDS)
        before = _millijoules(bench.device)
        tokens = _repeated(decode, ENERGY_SECONDS)
        after = _millijoules(bench.device)
        assert before is not None and after is not None
        found[name] = (after - before) / 1000 / tokens
    return found


def _repeated(decode: Decode, seconds: float) -> int:
    """Decode again and again for so many ``seconds``, once at least; how many tokens that gave."""
    start, tokens = perf_counter(), len(decode().tokens)
    while perf_counter() - start < seconds:
        tokens += len(decode().tokens)
    return tokens


def _millijoules(device: torch.device) -> int | None:
    """The counter since the driver was loaded; ``None`` where there is none."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    handle, count = ctypes.c_void_p(), ctypes.c_ulonglong()
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    failed = library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
    failed = failed or library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(count))
    return None if failed else count.value
