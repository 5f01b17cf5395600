"""The shape of best block efficiency for each family and rule at each sampling setting, chosen on validation prompts only."""

from typing import Any

import pandas as pd

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import VALIDATION


def choose(roots: Rows) -> list[dict[str, Any]]:
    """The best shape of each family and rule by setting, on validation prompts, with the sweep it was chosen from."""
    expected = pd.DataFrame(roots)
    expected = expected[expected["split"] == VALIDATION]
    sweeps = expected.groupby(["setting", "family", "verifier", "drafter"])["expected"].mean()
    return [
        {"setting": setting, "family": family, "verifier": verifier}
        | {"drafter": str(values.droplevel([0, 1, 2]).idxmax()), "sweep": values.droplevel([0, 1, 2]).to_dict()}
        for (setting, family, verifier), values in sweeps.groupby(level=[0, 1, 2])
    ]
