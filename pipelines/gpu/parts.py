"""Parts that time decodes, whose rows `pipelines.gpu.decodes` reads: what each adds that no row holds.

plain         the target alone: memory, and a pass by itself
methods       every method and preset on one pair: its latency profile, and energy
hugging_face  Hugging Face on the same weights, beside our plain decoding
"""

from collections.abc import Iterable
from statistics import median

import torch

from pipelines.gpu.arms import ALONE, OTHERS, static_rows
from pipelines.gpu.bench import Bench, Result
from pipelines.gpu.costs import GRID, measured_profile
from pipelines.gpu.energy import joules_per_token
from pipelines.gpu.shapes import Sized
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.exactness import GREEDY
from runtime import ModelPair
from runtime.latency.cells import seconds_of
from runtime.latency.passes import CommittedState
from runtime.memory import planned_memory, table

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
    seconds = _pass_seconds(pair, context)
    return {"target": target.to_record(), "context": context, "pass_seconds": seconds, "memory": memory}


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


def _pass_seconds(pair: ModelPair, context: int) -> float:
    state = CommittedState(pair.target, context, 1, torch.Generator().manual_seed(0))
    state.chain(1)
    return median(seconds_of(lambda: state.chain(1), state.device) for _ in range(PASSES))
