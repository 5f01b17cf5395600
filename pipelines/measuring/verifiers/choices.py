"""The shape of best block efficiency for each family and rule at each sampling setting, chosen on validation prompts only."""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import VALIDATION


def choose(roots: Rows) -> list[dict[str, Any]]:
    """The best shape of each family and rule by setting, on validation prompts, with the sweep it was chosen from."""
    expected = pd.DataFrame(roots)
    expected = expected[expected["split"] == VALIDATION]
    by_arm: list[Hashable] = ["setting", "family", "verifier", "drafter"]
    sweeps = expected.groupby(by_arm)["expected"].mean()
    return [
        {"setting": setting, "family": family, "verifier": verifier}
        | {"drafter": str(values.droplevel(by_arm[:3]).idxmax()), "sweep": values.droplevel(by_arm[:3]).to_dict()}
        for (setting, family, verifier), values in sweeps.groupby(by_arm[:3])
    ]
