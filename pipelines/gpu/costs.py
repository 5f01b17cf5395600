"""Costs without decoding: the latency profile of a pair on this device, and part ``growth``, how costs grow with the context, the
tokens of a pass, the draft length, branches and the vocabulary."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import torch

from pipelines.gpu.bench import Bench, Result
from pipelines.gpu.pairs import LEAST, Sized
from predictors.latency.profile import LatencyProfile
from runtime import ModelPair
from runtime.latency import Cell, LatencyConfig, open_cells, sweep, tables_of
from runtime.latency.passes import pass_cells
from runtime.latency.rounds import branch_cells, round_cells
from runtime.latency.weightless import weightless_pair

ALONE = LatencyConfig(
    reference_rows=(), reference_tokens=(), beside_rows=(), beside_tokens=(), tree_rules=(), visits=1, calls=5
)
GRID = replace(
    ALONE,
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
    ALONE,
    draft_rows=(1, 2, 4, 8),
    target_tokens=(1, 2, 4, 8, 16, 32, 64),
    contexts=(128, 512, 1024, 2048, 4096),
    drafted=(0, 2, 4, 8, 16),
    tree_nodes=(3, 9, 30, 60),
    branch_rows=(1, 2, 4, 8),
)
VOCABULARIES = (32000, 128256)
PREPARED = 128


def measured_profile(pair: ModelPair) -> LatencyProfile:
    """The pair's latency profile on this device."""
    with open_cells(pair, GRID) as (cells, _):
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
