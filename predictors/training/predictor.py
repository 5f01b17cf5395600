"""Interface of predictors, as stage ``fit`` sees them: from traces, labels and prices to a bundle and its quality.

A predictor has rows, a network and loss, candidate rules and a card. It is trained on training documents, calibrated
and given rules on validation documents by replayed tokens per second, for the verifier, settings and prices that it will serve,
and scored once on test documents.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from predictors.config import Checked, Positive, Probability
from predictors.training.labelling import Labels, read_labels
from predictors.training.tables import TextTable
from predictors.training.trace_table import Manifest

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from torch import Tensor

    from predictors.latency.profile import LatencyProfile


@dataclass(frozen=True)
class Materials:
    """Sources that predictors are fitted from: folders of ``texts``, ``trees`` and ``guesses`` traces, the folder of ``labels``
    (``<kind>.parquet``), and this device's latency ``profile``."""

    texts: Path
    trees: Path
    guesses: Path
    labels: Path
    profile: "LatencyProfile"

    @cached_property
    def text_table(self) -> TextTable:
        """Table of all texts, read once for the fit and for what its card records of them."""
        return TextTable.read(self.texts)

    def labels_of(self, kind: str, traces: Manifest) -> Labels:
        """Read the labels of ``kind`` of these ``traces``; `ValueError` as of `read_labels`."""
        return read_labels(self.labels / f"{kind}.parquet", kind, traces.content_hash)

    @staticmethod
    def of(traces: Path, labels: Path, profile: "LatencyProfile") -> "Materials":
        """Find the materials in the folder that holds all ``traces``."""
        return Materials(traces / "texts", traces / "trees", traces / "guesses", labels, profile)


@dataclass(frozen=True)
class Trust(Checked):
    """Limit on how far features may lie from the training rows: the ``distance_quantile`` of squared distances on validation
    documents, times ``distance_margin``."""

    distance_quantile: Probability = 0.999
    distance_margin: Positive = 2.0

    def largest(self, distances: np.ndarray) -> float:
        """Set the limit by the ``distances`` on validation documents; of none, by 1, the mean on training rows."""
        return self.distance_margin * (float(np.quantile(distances, self.distance_quantile)) if len(distances) else 1.0)


def tracked_name(setting: str) -> str:
    """Write a sampling setting's name as trackers allow it in a metric's.

    Examples
    --------
    >>> tracked_name("T=1, top-p 0.9")
    'T_1_top_p_0.9'
    """
    return re.sub("[^A-Za-z0-9.]+", "_", setting)


def told(gain: Mapping[str, float | None]) -> str:
    """Put a gain and its interval in words."""
    value, low, high = ("unknown" if gain[name] is None else f"{gain[name]:+.1%}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Fitted:
    """Result of a fit: the bundle's ``card`` (a function of file contents only) and ``tensors``, its ``quality`` on test
    documents (JSON), flat ``metrics`` for tracking, and its result in one ``sentence``."""

    card: dict[str, Any]
    tensors: "dict[str, Tensor]"
    quality: dict[str, Any]
    metrics: dict[str, float | None]
    sentence: str


def card_of(kind: str, manifest: Manifest, decoder: Mapping[str, Any]) -> dict[str, Any]:
    """Begin the card of a controller that learns from traces: all but what was chosen and measured."""
    lineage = {"traces_sha256": manifest.content_hash}
    return {"kind": kind, "contract": manifest.contract, "decoder": decoder, "lineage": lineage}


class Predictor(Protocol):
    """Configuration of a predictor, under ``fit`` in params.yaml, by its ``family``."""

    def fit(self, name: str, materials: Materials, logger: "Logger | None" = None) -> Fitted:
        """Fit the predictor called ``name``; curves go to ``logger``. `ValueError` if a trace, a label table or a price that it
        needs is missing."""
        ...
