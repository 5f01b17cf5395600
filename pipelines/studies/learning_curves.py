"""Stage of the studies: what controllers learn from shares of the training documents, several seeds each.

    python -m pipelines studies.learning_curves --pair pystdlib --params pipelines/studies/params.yaml data/device.json
        data/pystdlib/latency data/pystdlib/studies/labels/hrad.parquet data/pystdlib/studies/traces/tokens
        data/pystdlib/studies/traces/roots data/pystdlib/studies/learning_curves

Validation and test documents are always all of them. The seed draws the documents and trains the network.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from pipelines.studies.enough.fits import Fit
from pipelines.studies.enough.learners import StudyConfig, open_learners, run_fits
from pipelines.studies.enough.learners import add_arguments as add_arguments
from pipelines.studies.enough.subsets import kept_rows, training_documents

if TYPE_CHECKING:
    from pipelines.studies.enough.learners import Learner


@dataclass(frozen=True)
class LearningCurveConfig(StudyConfig):
    """Section ``learning_curves``: ``shares`` of the training documents, ascending to all."""

    shares: tuple[float, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares[-1:] != (1.0,) or list(self.shares) != sorted(set(self.shares)) or self.shares[0] <= 0:
            raise ValueError(f"shares must ascend from above 0 to 1, got {list(self.shares)}.")


def run(args: argparse.Namespace) -> None:
    from pipelines.parameters import load_parameters

    config = load_parameters(LearningCurveConfig, args.pair, "learning_curves", args.params)
    learners = open_learners(args, config)
    fits = [
        fit for seed in range(config.seeds) for learner in learners.all for fit in curve(learner, config.shares, seed)
    ]
    run_fits(args, fits, learners, asdict(config))


def curve(learner: "Learner", shares: Sequence[float], seed: int) -> list[Fit]:
    """One controller at every share of its training documents."""
    fits = []
    for share in shares:
        documents = training_documents(learner.documents, learner.splits, share, seed)
        kept = kept_rows(learner.documents, learner.splits, documents) & (learner.splits == "train")
        size = {"documents": len(documents), "rows": int(kept.sum())}
        fits.append(Fit(learner.name, f"{share:g}", seed, size, partial(learner.measure, documents, seed)))
    return fits
