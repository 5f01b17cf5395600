"""Part ``sweep``: drafts of several costs, each with its latency profile, for the report to compare with the latency model.

    prediction  every pass and all work outside passes as timed alone on this device (`predictors.latency`), in the rounds that
                were really run; both jobs of a branch stage count as if each had the device to itself
    ceiling     the same rounds at no cost but the passes' least seconds (`pipelines.gpu.ceilings`)

On one device whose passes wait for memory, two models at once share the bandwidth: what a branch stage can save there is the
difference between prediction and measurement.
"""

from random import Random

from pipelines.gpu.bench import Bench, Result, speeds
from pipelines.gpu.ceilings import Ceilings
from pipelines.gpu.methods import branches, chain
from pipelines.gpu.shapes import Sized
from pipelines.measuring.names import PEARL, PLAIN, WITHOUT_HRAD, branch_arm
from predictors.latency.profile import LatencyProfile
from runtime import ModelPair, build_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.latency import LatencyConfig, open_cells, sweep, tables_of

GAMMAS = (2, 4, 6, 8)
BRANCH_GAMMAS = (4, 8)
GRID = LatencyConfig(
    draft_rows=(1, 2, 6),
    target_tokens=(1, 3, 5, 7, 9),
    reference_rows=(),
    reference_tokens=(),
    beside_rows=(),
    beside_tokens=(),
    contexts=(128, 256),
    prefill_tokens=(64, 128),
    drafted=(0, 2, 4, 8),
    tree_nodes=(3, 9),
    tree_rules=(),
    branch_rows=(1, 2, 6),
    guessed=(2, 32),
    features=(512, 8192),
    bytes=(64, 65536),
    visits=2,
    calls=5,
)


def cost_sweep(bench: Bench, target: Sized, draft: Sized) -> Result:
    """Speeds, rows and the latency profile of one draft."""
    with bench.pair(target, draft) as pair:
        profile = measured_profile(pair, GRID)
        configs = {PLAIN: {"method": "autoregressive"}} | {f"chain-{gamma}": chain(gamma) for gamma in GAMMAS}
        for preset in (PEARL, WITHOUT_HRAD):
            configs |= {f"{preset}-{gamma}": branches(preset, gamma, bench.overlap) for gamma in BRANCH_GAMMAS}
        rows = bench.race({name: bench.arm(build_decoder(pair, config)) for name, config in configs.items()})
        for row in rows:
            row["floor_seconds"] = floor_seconds(bench.ceilings, pair, row)
        return {
            "draft_parameters": draft.parameters,
            "cost_ratio": profile.cost_ratio(GRID.contexts[0]),
            "profile": profile.to_record(),
            "speeds": speeds(rows, PLAIN),
            "rows": rows,
        }


def measured_profile(pair: ModelPair, grid: LatencyConfig) -> LatencyProfile:
    """The pair's latency profile on this device."""
    rows = []
    with open_cells(pair, grid) as (cells, _):
        for visit in range(grid.visits):
            rows += sweep(cells, Random(visit), grid.warmup, grid.calls, lambda: None)
    return LatencyProfile(tables_of(rows), "gpu", {}, {})


def floor_seconds(ceilings: Ceilings, pair: ModelPair, row: Result) -> float:
    """Least seconds of a row's rounds: passes alone, and of a branch stage the longer job."""
    assert isinstance(pair.target, CausalLanguageModel) and isinstance(pair.draft, CausalLanguageModel)
    beside, total, context = branch_arm(row["arm"]) is not None, 0.0, row["prompt_tokens"]
    columns = [row[f"round_{name}"] for name in ("submitted", "levels", "idle_levels", "emitted")]
    for submitted, levels, idle, emitted in zip(*columns, strict=True):
        target = ceilings.pass_seconds(pair.target.model, 1 + submitted, context)
        step = ceilings.pass_seconds(pair.draft.model, 1, context)
        total += idle * step + max(target, (levels - idle) * step) if beside else levels * step + target
        context += emitted
    return total
