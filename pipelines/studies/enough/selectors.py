"""Delayed-tree selectors of one verification rule, trained and calibrated as the stage does, on fewer documents.

    gain              exact tokens per second over the static trees that all training roots choose
    gain when asked   the same of the network asked at every root, without a margin and without calibration's leave to be silent

Choices are scored with the labels and the prices of the whole collection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from predictors.training.selector_evaluation import Outcome, at_places, calibrated_rule, chosen, served
from predictors.training.selector_fit import Candidate, SelectorConfig, fit_selector
from predictors.training.selector_objective import SCORED
from predictors.training.selector_rows import Labelling, SelectorRows

from pipelines.studies.enough.fits import ASKED, GAIN, Replicates, Sampled
from pipelines.studies.enough.heads import SCALAR_BYTES, STATE_BYTES
from pipelines.studies.enough.subsets import kept_rows
from predictors.latency.profile import LatencyProfile
from predictors.selection.features import SCALARS
from predictors.selection.network import ServedSelector
from predictors.training.root_table import RootTable
from predictors.training.rule_calibration import RuleCalibration


@dataclass(frozen=True)
class SelectorLearner:
    """Trains the ``config``'s candidates for verification rule ``rule`` from ``table``, at the prices of ``profile``."""

    rule: str
    table: RootTable
    profile: LatencyProfile
    config: SelectorConfig
    calibration: RuleCalibration
    replicates: Replicates

    @property
    def name(self) -> str:
        return f"delayed_tree-{self.rule}"

    @property
    def documents(self) -> np.ndarray:
        return self.table.column("document")

    @property
    def splits(self) -> np.ndarray:
        return self.table.column("split")

    @cached_property
    def scored(self) -> SelectorRows:
        """Test roots as every choice is scored."""
        return Labelling.of(self.table, self.rule, self.profile, states=False).rows(self.table.rows("test"))

    def measure(
        self, documents: np.ndarray, seed: int, candidates: Sequence[Candidate] | None = None
    ) -> dict[str, Sampled]:
        """Train ``candidates``, all by default, on these ``documents``: the best of them on validation roots."""
        mask_N = kept_rows(self.documents, self.splits, documents)
        table = RootTable(self.table.manifest, self.table.table.filter(pa.array(mask_N)))
        config = replace(self.config, seed=self.config.seed + seed)
        made = [self._trained(table, candidate, config) for candidate in candidates or config.candidates]
        outcomes = max(made, key=lambda one: one[0])[1]
        static = at_places(self.scored, self.scored.static_N, 0.0)
        return {name: self._gain(outcome, static) for name, outcome in outcomes.items()}

    def _trained(
        self, table: RootTable, candidate: Candidate, config: SelectorConfig
    ) -> tuple[float, dict[str, Outcome]]:
        """Gain on validation roots, and outcomes on test roots."""
        labelling = Labelling.of(table, self.rule, self.profile, candidate.states)
        train, validation, test = (labelling.rows(table.rows(split)) for split in ("train", "validation", "test"))
        trained = fit_selector(labelling, train, validation, candidate.objective, config)
        selector = ServedSelector(trained.network, train.features.device)
        scores = SCORED[candidate.objective]
        rule, gain = calibrated_rule(selector, labelling, validation, scores, self.calibration)
        tokens_NA, distance_N = served(selector, test)
        rules = {GAIN: rule, ASKED: replace(rule, score=scores[0], rate_factor=1.0, margin=0.0)}
        outcomes = {}
        for name, used in rules.items():
            places_N = chosen(test, tokens_NA, distance_N, used).places
            assert places_N is not None
            outcomes[name] = at_places(self.scored, places_N, test.decision if used.asks else 0.0)
        return gain, outcomes

    def _gain(self, outcome: Outcome, static: Outcome) -> Sampled:
        bootstrap = self.replicates.of(self.scored.table.column("document"))
        speed, before = (bootstrap.ratio(one.tokens, one.seconds) for one in (outcome, static))
        return Sampled(outcome.throughput / static.throughput - 1, speed / before - 1)

    def variants(self) -> dict[str, Sequence[Candidate]]:
        """Candidates by what they read, all of one objective."""
        return {"scalars alone": [Candidate(states=False)], "states": [Candidate(states=True)]}

    def stored_bytes(self, candidates: Sequence[Candidate]) -> int:
        """Bytes that one root's features take before compression."""
        size = self.table.manifest.selection_spec.state_size if any(one.states for one in candidates) else 0
        return STATE_BYTES * size + SCALAR_BYTES * len(SCALARS)
