"""Parts of the benchmark: of those that decode, whose rows `pipelines.gpu.figures` reads, what no row holds.

plain         the target alone: memory, and a pass by itself
agreement     whether greedy texts are Hugging Face's on this device (`pipelines.measuring.exactness`), in both number formats
methods       every method and preset on one pair: its latency profile, and energy
hugging_face  Hugging Face on the same weights, beside our plain decoding
growth        how costs grow with the context, the tokens of a pass, the draft length, branches and the vocabulary: no decodes

Energy is in joules of a stretch of work: the board's own counter, read through NVIDIA's management library.
"""

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from time import perf_counter

import torch

from pipelines.gpu.bench import ALONE, OTHERS, PRESETS, Bench, Result, static_rows
from pipelines.gpu.ceilings import median_seconds
from pipelines.gpu.pairs import LEAST, Sized
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import Decode, TimedArm
from pipelines.measuring.exactness import GREEDY, exactness_rows
from pipelines.measuring.harness import tokens_per_second
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import CHAIN, PLAIN
from predictors.latency.profile import LatencyProfile
from runtime import ModelPair
from runtime.latency import Cell, LatencyConfig, all_cells, sweep, tables_of
from runtime.latency.passes import CommittedState, pass_cells
from runtime.latency.rounds import branch_cells, round_cells
from runtime.latency.weightless import weightless_pair
from runtime.memory import planned_memory

LIBRARY = "libnvidia-ml.so.1"
WARM_SECONDS, ENERGY_SECONDS = 1.0, 4.0
PASSES = 30
UNCOMPARED = LatencyConfig(reference_rows=(), reference_tokens=(), tree_rules=(), visits=1, calls=5)
GRID = replace(
    UNCOMPARED,
    draft_rows=(1, 2, 6),
    target_tokens=(1, 3, 5, 7, 9),
    contexts=(128, 256),
    prefill_tokens=(64, 128),
    drafted=(0, 2, 4, 8),
    tree_nodes=(3, 9),
    guessed=(2, 32),
    features=(512, 8192),
    visits=2,
)
GROWTH = replace(
    UNCOMPARED,
    draft_rows=(1, 2, 4, 8),
    target_tokens=(1, 2, 4, 8, 16, 32, 64),
    contexts=(128, 512, 1024, 2048, 4096),
    drafted=(0, 2, 4, 8, 16),
    tree_nodes=(3, 9, 30, 60),
    branch_rows=(1, 2, 4, 8),
)
VOCABULARIES = (32000, 128256)
PREPARED = 128


def plain(bench: Bench, name: str, target: Sized) -> Result:
    """Seconds of a pass alone after half the new tokens, and the memory of a request."""
    pair = bench.pair(target, None)
    on_gpu = bench.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    prompt_tokens = len(bench.trained.prompts[0].tokens)
    plan = planned_memory(pair, prompt_tokens, bench.new_tokens)["target"]
    bench.bar.write(f"planned: {plan.total / 2**30:.3f} GiB")
    bench.race("plain", name, bench.arms(pair, (ALONE,)), [GREEDY])
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    context = prompt_tokens + bench.new_tokens // 2
    memory = {"planned": vars(plan) | {"total": plan.total}, "peak": peak}
    state = CommittedState(pair.target, context, 1, torch.Generator().manual_seed(0))
    seconds = median_seconds(partial(state.chain, 1), state.device, PASSES)
    return {"target": target.to_record(), "context": context, "pass_seconds": seconds, "memory": memory}


def agreement(bench: Bench, model: Sized) -> Result:
    """By number format and method, the first wrong position of every prompt's greedy text that is wrong."""
    log = MeasurementLog(bench.folder / "agreement.jsonl", bench.fingerprint)
    prompts = [prompt.tokens for prompt in bench.trained.prompts]

    def measure(dtype: torch.dtype) -> Rows:
        pair = bench.pair(model, model, dtype)
        arms = bench.arms(pair, (*static_rows(bench.overlap), *OTHERS))
        return exactness_rows(pair, prompts, arms, bench.new_tokens)

    found: Result = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        rows = log.once(name, partial(measure, dtype))  # one pair at a time is in memory
        places = {row["arm"]: [place for place in row["differs"] if place is not None] for row in rows}
        found[name] = {arm: wrong for arm, wrong in places.items() if wrong}
    return found


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


def measured_profile(pair: ModelPair) -> LatencyProfile:
    """The pair's latency profile on this device."""
    cells, _ = all_cells(pair, GRID)
    return _profile(cells, GRID)


def growth(bench: Bench, target: Sized, draft: Sized) -> Result:
    """Tables of seconds: passes of both models, and what rounds do outside them for each vocabulary."""
    generator = torch.Generator().manual_seed(0)
    passes = _profile(pass_cells(bench.pair(target, draft), GROWTH, generator), GROWTH).to_record()
    outside = {}
    for vocabulary in VOCABULARIES if bench.device.type == "cuda" else (target.vocabulary,):
        small = Sized(LEAST, vocabulary)
        light = weightless_pair(bench.pair(small, small), PREPARED, generator)
        cells = [*round_cells(light, GROWTH, lambda: None), *branch_cells(light, GROWTH, lambda: None)]
        outside[str(vocabulary)] = _profile(cells, GROWTH).to_record()
    return {"target": target.to_record(), "passes": passes, "outside": outside}


def _profile(cells: Sequence[Cell], config: LatencyConfig) -> LatencyProfile:
    orders = map(Random, range(config.visits))
    rows = [row for order in orders for row in sweep(cells, order, config.warmup, config.calls, lambda: None)]
    return LatencyProfile(tables_of(rows), "gpu", {}, {})


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
