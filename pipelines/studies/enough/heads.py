"""Heads of H-RAD and of the explicit length predictor, trained and calibrated as the stages do, on fewer documents or layers.

    macro AUC, ECE   of the calibrated classes on test rows
    gain             tokens per target-pass equivalent over the static length that is best on all training and validation rows,
                     by the calibrated rule, which may leave the head unasked
    gain when asked  of H-RAD's heads the same by the best rule that asks the head in every round

A head that reads fewer layers is charged the same decision as one that reads all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from predictors.training.fit import TrainConfig, fit
from predictors.training.target import Target

from pipelines.studies.enough.fits import ASKED, ECE, GAIN, MACRO_AUC, Replicates, Sampled
from pipelines.studies.enough.subsets import kept_rows
from predictors.training.bootstrap import DocumentBootstrap
from predictors.training.calibrate import CalibrateConfig, calibrate
from predictors.training.decision import Costs
from predictors.training.label_table import LabelTable
from predictors.training.metrics import expected_calibration_error, macro_auc
from predictors.training.policies import Policies, Staged, choose_policies

SCALAR_BYTES, STATE_BYTES = 4, 2  # float32 and float16, as traces store them


@dataclass(frozen=True)
class HeadLearner:
    """Trains head ``name`` from ``table`` with ``config`` and ``calibration``, at the prices ``costs``."""

    name: str
    table: LabelTable
    config: TrainConfig
    calibration: CalibrateConfig
    costs: Costs
    replicates: Replicates

    @property
    def documents(self) -> np.ndarray:
        return self.table.document

    @property
    def splits(self) -> np.ndarray:
        return self.table.split

    @cached_property
    def static(self) -> Staged[int]:
        """The static length that everything is compared with."""
        known = self.table.take(np.flatnonzero(self.table.split != "test"))
        validation = self.table.rows("validation")
        return choose_policies({}, known, validation, (), self.calibration.epsilons, self.costs).static_gamma

    def measure(self, documents: np.ndarray, seed: int, table: LabelTable | None = None) -> dict[str, Sampled]:
        """Train on these ``documents``; ``table``: the rows with other features than the learner's own."""
        table = self.table if table is None else table
        table = table.take(np.flatnonzero(kept_rows(table.document, table.split, documents)))
        policies = self._policies(table, seed)
        test, head = table.rows("test"), policies.predictors["head"]
        probabilities = head.predict(test)
        target = Target(self.config.target, table.metadata.gamma)
        labels, bootstrap = target.labels(test).numpy(), self.replicates.of(test.document)
        metrics = {
            MACRO_AUC: Sampled.by_weights(lambda weights: macro_auc(probabilities, labels, weights), bootstrap),
            ECE: Sampled.by_weights(lambda weights: _calibration_error(probabilities, labels, weights), bootstrap),
            GAIN: _gain(policies, test, bootstrap),
        }
        if target.ordered:  # whose rules always ask
            return metrics
        asking = [rule for rule in self.calibration.rules if rule.reads_head]
        validation = table.rows("validation")
        chosen = choose_policies({"head": head}, validation, validation, asking, self.calibration.epsilons, self.costs)
        return metrics | {ASKED: _gain(replace(policies, rules=chosen.rules), test, bootstrap)}

    def _policies(self, table: LabelTable, seed: int) -> Policies:
        """Of a trained and calibrated head, beside the static length of all traces."""
        config = replace(self.config, seed=self.config.seed + seed)
        size = table.metadata.feature_spec(config.feature_set).state_size
        if config.reduced_size is not None and config.reduced_size > size:
            config = replace(config, reduced_size=None)
        head, once = fit(table, config), replace(self.calibration, bootstrap_replicates=1)
        shares = head.training_shares, head.natural_shares
        made = calibrate(head.network, head.spec, *shares, table, once, self.costs, config.target).policies
        return replace(made, predictors={"head": made.predictors["head"]}, static_gamma=self.static)

    def variants(self) -> dict[str, LabelTable]:
        """Tables with fewer features by name, ending in the whole one: no states but the newest token's embedding, every layer
        alone, the last so many; where a head reads scalars too, these alone."""
        layers = self.table.metadata.layers
        reads_scalars = bool(self.table.metadata.feature_spec(self.config.feature_set).scalars)
        alone = {"scalars alone": with_layers(self.table, (), embedding=False)} if reads_scalars else {}
        alone |= {"embedding": with_layers(self.table, ())}
        alone |= {f"layer {layer}": with_layers(self.table, (layer,)) for layer in layers[:-1]}
        counts = [count for count in (1, 2, 4) if count < len(layers)]
        return alone | {last(count): with_layers(self.table, layers[-count:]) for count in [*counts, len(layers)]}

    def stored_bytes(self, table: LabelTable) -> int:
        """Bytes that one row's features take before compression."""
        spec = table.metadata.feature_spec(self.config.feature_set)
        return STATE_BYTES * spec.state_size + SCALAR_BYTES * len(spec.scalars)


def last(count: int) -> str:
    """Name of the variant that reads the last ``count`` layers."""
    return "last layer" if count == 1 else f"last {count} layers"


def with_layers(table: LabelTable, layers: Sequence[int], embedding: bool = True) -> LabelTable:
    """The table as if only these ``layers`` had been stored, with the newest token's embedding or without."""
    known = table.metadata
    first = {layer: place * known.hidden_size for place, layer in enumerate(known.layers)}
    columns = [np.arange(first[layer], first[layer] + known.hidden_size) for layer in layers]
    if embedding:
        columns.append(np.arange(len(known.layers) * known.hidden_size, table.state_NS.shape[1]))
    kept = np.concatenate(columns) if columns else np.arange(0)
    size = known.embedding_size if embedding else 0
    metadata = replace(known, layers=tuple(layers), embedding_size=size)
    return replace(table, metadata=metadata, state_NS=table.state_NS[:, kept])


def _gain(policies: Policies, test: LabelTable, bootstrap: DocumentBootstrap) -> Sampled:
    values, drawn = policies.values(test), policies.resampled(test, bootstrap)
    return Sampled(values["head"] / values["best_static"] - 1, drawn["head"] / drawn["best_static"] - 1)


def _calibration_error(probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> float:
    if weights is None:
        return expected_calibration_error(probabilities, labels)
    rows = np.repeat(np.arange(len(labels)), weights.astype(int))
    return expected_calibration_error(probabilities[rows], labels[rows])
