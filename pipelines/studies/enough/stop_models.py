"""Models that predict whether a drafted token will be accepted, trained and calibrated as the stage does, on fewer documents.

AUROC, Brier   of the calibrated chances on tested tokens of test documents
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipelines.studies.enough.fits import AUROC, BRIER, Replicates, Sampled
from pipelines.studies.enough.heads import SCALAR_BYTES, STATE_BYTES
from pipelines.studies.enough.subsets import kept_rows
from predictors.stopping.features import LAW
from predictors.training.metrics import auc
from predictors.training.stop_fit import StopTrainConfig, fit_stop_model
from predictors.training.token_table import TokenTable


@dataclass(frozen=True)
class StopLearner:
    """Trains stop model ``name`` from ``table`` with ``config``."""

    name: str
    table: TokenTable
    config: StopTrainConfig
    replicates: Replicates

    @property
    def documents(self) -> np.ndarray:
        return self.table.column("document")

    @property
    def splits(self) -> np.ndarray:
        return self.table.column("split")

    def measure(self, documents: np.ndarray, seed: int) -> dict[str, Sampled]:
        """Train on these ``documents``."""
        mask_N = kept_rows(self.documents, self.splits, documents)
        table = TokenTable(self.table.manifest, self.table.table.filter(pa.array(mask_N)))
        config = replace(self.config, seed=self.config.seed + seed)
        model = fit_stop_model(table.rows("train"), table.rows("validation"), config)
        test = table.rows("test")
        tested_N = test.column("tested")
        accepted, chances = test.column("accepted")[tested_N], model.chances(test.features(config.inputs))[0][tested_N]
        bootstrap = self.replicates.of(test.column("document")[tested_N])
        errors = (chances - accepted) ** 2
        return {
            AUROC: Sampled.by_weights(lambda weights: auc(chances, accepted, weights), bootstrap),
            BRIER: Sampled(float(errors.mean()), bootstrap.ratio(errors, np.ones(len(errors)))),
        }

    @property
    def stored_bytes(self) -> int:
        """Bytes that one token's features take before compression."""
        size = self.table.manifest.stop_spec.size(self.config.inputs)
        return (SCALAR_BYTES if self.config.inputs == LAW else STATE_BYTES) * size
