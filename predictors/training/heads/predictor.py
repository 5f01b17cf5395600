"""Family ``head``: the configuration of H-RAD's classes or the explicit length (`predictors.training.heads.fitting`)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from predictors.config import Checked, Count, Positive, Probability, one_of
from predictors.decision_rule import LENGTH_CHOICES, DecisionRule
from predictors.features import FEATURE_SETS
from predictors.training.heads.decodes import Decoding
from predictors.training.heads.fitting import HeadFit
from predictors.training.heads.rules import Candidates
from predictors.training.heads.target import CLASS, TARGETS
from predictors.training.heads.training import HeadTrainConfig
from predictors.training.predictor import Fitted, Materials

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


@dataclass(frozen=True)
class HeadPredictor(Checked):
    """A head of a ``target``, for a ``decoding``.

    ``rule``: given instead of chosen (the paper's: ``{epsilon: 0.2}``), or, of lengths, its ``choice``. Of validation rows the
    ``distance_quantile``, times ``distance_margin``, is the largest squared distance trusted. ``prior_correction``: give back
    what balancing took. ``repeats``: of chance on held-out texts that are sampled.
    """

    target: Annotated[str, one_of(*TARGETS)] = CLASS
    feature_set: Annotated[str, one_of(*FEATURE_SETS)] = "extended"
    decoding: Decoding = field(default_factory=Decoding)
    training: HeadTrainConfig = field(default_factory=HeadTrainConfig)
    candidates: Candidates = field(default_factory=Candidates)
    rule: DecisionRule | None = None
    choice: Annotated[str, one_of(*LENGTH_CHOICES)] | None = None
    iterations: Count = 2
    prior_correction: bool = True
    distance_quantile: Probability = 0.999
    distance_margin: Positive = 2.0
    repeats: Count = 2
    bootstrap_replicates: Count = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule is not None and self.target != CLASS:
            raise ValueError(f"rule is of target {CLASS!r}, and target is {self.target!r}. Give its choice instead.")
        if self.choice is not None and self.target == CLASS:
            raise ValueError(f"choice is of lengths, and target is {self.target!r}. Give its rule instead.")

    def fit(self, name: str, materials: Materials, logger: "Logger | None" = None) -> Fitted:
        """Fit the head; curves of its last training go to ``logger``."""
        return HeadFit(self, materials).fitted(logger)
