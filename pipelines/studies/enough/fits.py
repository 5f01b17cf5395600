"""Models that a study trains and measures one by one on the same held-out documents.

A metric comes with its value in every bootstrap replicate of the test documents. The replicates of all models are of the same
draws, so that two models can be compared replicate by replicate.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.measuring.measurement_log import MeasurementLog
from predictors.training.bootstrap import DocumentBootstrap

MACRO_AUC, ECE, GAIN, AUROC, BRIER, ASKED = ("macro AUC", "ECE", "gain", "AUROC", "Brier", "gain when asked")
LOWER_IS_BETTER = (ECE, BRIER)
DIGITS = 7


@dataclass(frozen=True)
class Replicates:
    """How test documents are drawn again: ``count`` times, from ``seed``."""

    count: int
    seed: int

    def of(self, documents: np.ndarray) -> DocumentBootstrap:
        """The draws of rows with these ``documents``; the same for the same documents."""
        return DocumentBootstrap(documents, self.count, self.seed)


@dataclass(frozen=True)
class Sampled:
    """A metric on the test rows, and in every replicate of them."""

    value: float
    replicates: np.ndarray

    @staticmethod
    def by_weights(statistic: Callable[[np.ndarray | None], float | None], bootstrap: DocumentBootstrap) -> "Sampled":
        """A statistic of the row weights, which every replicate defines; ``None``: every row once."""
        value = statistic(None)
        replicates = bootstrap.each(statistic)
        if value is None or len(replicates) != len(bootstrap.counts):
            raise ValueError(
                "a metric is undefined on the test documents or a draw of them. Collect more test prompts."
            )
        return Sampled(value, replicates)


@dataclass(frozen=True)
class Fit:
    """One model to train: of which ``controller``, in which ``variant``, with which ``seed``; ``size``: what it learns from."""

    controller: str
    variant: str
    seed: int
    size: Mapping[str, float]
    measure: Callable[[], dict[str, Sampled]]

    @property
    def key(self) -> str:
        return f"{self.controller}/{self.variant}/{self.seed}"

    def rows(self) -> list[dict[str, Any]]:
        """Train and measure: one row per metric."""
        known = {"controller": self.controller, "variant": self.variant, "seed": self.seed, **self.size}
        return [
            known | {"metric": name, "value": made.value, "replicates": made.replicates.round(DIGITS).tolist()}
            for name, made in self.measure().items()
        ]


def measured(fits: Iterable[Fit], log: MeasurementLog) -> list[dict[str, Any]]:
    """The rows of all ``fits``; those in the ``log`` are not trained again."""
    return [row for fit in fits for row in log.once(fit.key, fit.rows)]
