"""A latency profile of affine costs in seconds: interpolation is exact, and tests compute the costs without a table."""

import itertools

import numpy as np

from predictors.latency.profile import LatencyProfile, LatencyTable

COSTS = {
    "draft": lambda rows, context: 1 + 0.25 * rows + context / 64,
    "target": lambda tokens, context: 9 + 0.5 * tokens + context / 16,
    "draft_prefill": lambda tokens: 2 + tokens / 8,
    "target_prefill": lambda tokens: 10 + tokens / 2,
    "chain_drawing": lambda drafted, sampled: 0.125 * drafted * (1 + sampled),
    "chain_verification": lambda drafted, sampled: 0.5 + 0.25 * drafted + sampled,
    "tree_drawing": lambda drafted, sampled: 3 + drafted + sampled,
    "tree_verification": lambda drafted, sampled: 5 + 2 * drafted + 2 * sampled,
    "verification_nss": lambda drafted: 4 + 1.5 * drafted,
    "branch_candidates": lambda rows, sampled: 0.25 + 0.125 * rows * (1 + sampled),
    "branch_drawing": lambda rows, sampled: 0.125 + 0.0625 * rows + 0.5 * sampled,
    "branch_verdict": lambda candidates, sampled: 0.375 + 0.25 * candidates * sampled,
    "noise": lambda rows: 0.25 + 0.125 * rows,
    "reading": lambda entropy: 0.125 + 0.0625 * entropy,
    "predictor": lambda features: 0.25 + features / 128,
    "selection": lambda features: 0.5 + features / 64,
    "guessing": lambda guessed: 0.0625 + guessed / 32,
    "stopping": lambda features: 0.125 + features / 256,
    "survival": lambda positions: 0.0625 * positions,
    "grow": lambda levels: 0.125 * levels,
}
AXES = {
    "rows": (1, 9),
    "tokens": (1, 33),
    "context": (1, 512),
    "drafted": (0, 16),
    "sampled": (0, 1),
    "candidates": (1, 9),
    "guessed": (1, 64),
    "features": (0, 64),
    "positions": (1, 8),
    "levels": (1, 8),
    "entropy": (0, 1),
}


def toy_profile(**others):
    """Low is half the median, high three times; ``others`` are costs of another machine."""
    tables = {}
    for name, cost in {**COSTS, **others}.items():
        names = cost.__code__.co_varnames[: cost.__code__.co_argcount]
        axes = {axis: AXES[axis] for axis in names}
        cells = [cost(*point) for point in itertools.product(*axes.values())]
        median = np.array(cells).reshape([len(grid) for grid in axes.values()]) + 1e-9  # drawing 0 tokens takes no time
        tables[name] = LatencyTable(axes, median, median / 2, 3 * median, 10)
    return LatencyProfile(tables, "toy", {}, {})


PROFILE = toy_profile()
AS_RUN = toy_profile(plain=lambda context: 8 + context / 16)  # plain decoding ran in less than the sum of its cells
