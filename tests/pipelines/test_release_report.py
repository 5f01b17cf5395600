"""What would be released, in the report: tuning beside the benchmark."""

import pandas as pd
import pytest

from pipelines.reporting.release_folder import ReleaseResults
from pipelines.reporting.release_report import ReleaseReport


def test_the_fastest_of_many_is_chosen_on_other_documents():
    """Two arms, each lucky on a document of its own: by hindsight either is as fast as the winner, elsewhere neither is."""
    seconds = {("lucky", "a"): 1.0, ("lucky", "b"): 4.0, ("other", "a"): 4.0, ("other", "b"): 1.0}
    seconds |= {(arm, document): 10.0 for arm in ("autoregressive",) for document in "ab"}
    where = {"setting": "T=0", "split": "test", "slice": "code", "tokens": 20, "repeat": 0}
    table = pd.DataFrame(
        [
            {**where, "drafter": arm, "document": document, "prompt": document, "seconds": spent}
            for (arm, document), spent in seconds.items()
        ]
    )
    plain = table[table["drafter"] == "autoregressive"]
    winner = plain.assign(drafter="winner", seconds=2.5)
    report = ReleaseReport(ReleaseResults([], None, {}, table), replicates=50, seed=0)
    beside = report._beside("T=0", winner, plain)
    assert beside["fastest"] == ["lucky", "other"] and beside["gain"]["value"] == pytest.approx(4 / 2.5 - 1)
