"""The shape of best block efficiency for each family and rule at each sampling setting, chosen on validation prompts only."""

from typing import Any

import pandas as pd

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import VALIDATION

BY = ("setting", "family", "verifier")


def choose(roots: Rows) -> list[dict[str, Any]]:
    """The best shape of each family and rule by setting, on validation prompts, with the sweep it was chosen from."""
    expected = pd.DataFrame(roots)
    expected = expected[expected["split"] == VALIDATION]
    sweeps = expected.groupby([*BY, "drafter"])["expected"].mean()
    choices = []
    for key in dict.fromkeys(place[:3] for place in sweeps.index):
        sweep = sweeps.loc[key]
        choices.append(dict(zip(BY, key, strict=True)) | {"drafter": str(sweep.idxmax()), "sweep": sweep.to_dict()})
    return choices
