"""The best shape of each family and rule at each sampling setting, chosen on validation prompts only."""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN, VALIDATION
from pipelines.measuring.verifiers.names import BLOCK_EFFICIENCY, TOKENS_PER_SECOND


def choose(roots: Rows, decoding: Rows) -> list[dict[str, Any]]:
    """The best shape of each family and rule by setting, on validation prompts, with the sweep it was chosen from."""
    expected = pd.DataFrame(roots)
    expected = expected[expected["split"] == VALIDATION]
    timed = pd.DataFrame(decoding)
    timed = timed[timed["family"] != PLAIN]
    by_arm: list[Hashable] = ["setting", "family", "verifier", "drafter"]
    sums = timed.groupby(by_arm)[["tokens", "seconds"]].sum()
    sweeps = {
        BLOCK_EFFICIENCY: expected.groupby(by_arm)["expected"].mean(),
        TOKENS_PER_SECOND: sums["tokens"] / sums["seconds"],
    }
    return [
        {"measure": measure, "setting": setting, "family": family, "verifier": verifier}
        | {"drafter": str(values.droplevel(by_arm[:3]).idxmax()), "sweep": values.droplevel(by_arm[:3]).to_dict()}
        for measure, sweep in sweeps.items()
        for (setting, family, verifier), values in sweep.groupby(by_arm[:3])
    ]
