"""Part ``growth``: how costs grow with the context, the tokens of a pass, the draft length, branches and the vocabulary."""

from collections.abc import Sequence
from random import Random

import torch

from pipelines.gpu.bench import Bench, Result
from pipelines.gpu.shapes import LEAST, Sized
from pipelines.gpu.sweep import GRID
from predictors.latency.profile import LatencyProfile
from runtime.causal_model import CausalLanguageModel
from runtime.latency import Cell, sweep, tables_of
from runtime.latency.branches import branch_cells
from runtime.latency.passes import pass_cells
from runtime.latency.rounds import round_cells
from runtime.latency.weightless import weightless_pair

CONTEXTS = (128, 512, 1024, 2048, 4096)
TOKENS = (1, 2, 4, 8, 16, 32, 64)
ROWS = (1, 2, 4, 8)
DRAFTED = (0, 2, 4, 8, 16)
NODES = (3, 9, 30, 60)
VOCABULARIES = (32000, 128256)
PREPARED = 128


def growth(bench: Bench, target: Sized, draft: Sized) -> Result:
    """Tables of seconds: passes of both models, and what rounds do outside them for each vocabulary."""
    generator = torch.Generator().manual_seed(0)
    with bench.pair(target, draft) as pair:
        assert isinstance(pair.target, CausalLanguageModel) and isinstance(pair.draft, CausalLanguageModel)
        floors = {
            str((tokens, context)): bench.ceilings.pass_seconds(pair.target.model, tokens, context)
            for tokens in TOKENS
            for context in CONTEXTS
        }
        cells = pass_cells(pair.target, pair.draft, TOKENS, ROWS, CONTEXTS, generator)
        passes = _profile(cells)
    outside = {}
    for vocabulary in VOCABULARIES if bench.device.type == "cuda" else (target.vocabulary,):
        with bench.pair(Sized(LEAST, vocabulary), Sized(LEAST, vocabulary)) as pair:
            light = weightless_pair(pair, PREPARED, generator)
            cells = [
                *round_cells(light, DRAFTED, 3, NODES, (), 0, lambda: None),
                *branch_cells(light, ROWS, 0, lambda: None),
            ]
            outside[str(vocabulary)] = _profile(cells)
    return {"passes": passes, "floors": floors, "outside": outside}


def _profile(cells: Sequence[Cell]) -> Result:
    tables = tables_of(sweep(cells, Random(0), GRID.warmup, GRID.calls, lambda: None))
    return LatencyProfile(tables, "gpu", {}, {}).to_record()
