"""Stage of the studies: what stored hidden states earn, controllers trained on all traces with some of their features.

    python -m pipelines studies.layers --pair pystdlib --params pipelines/studies/params.yaml data/device.json
        data/pystdlib/latency data/pystdlib/studies/labels/hrad.parquet data/pystdlib/studies/traces/tokens
        data/pystdlib/studies/traces/roots data/pystdlib/studies/layers

Heads read no state, the newest token's embedding, single layers or the last so many; the listed stop models are variants of one
(a model on the draft's state beside one on its law); selectors read states or the scalars alone.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from pipelines.studies.enough.fits import Fit
from pipelines.studies.enough.heads import HeadLearner
from pipelines.studies.enough.learners import StudyConfig, open_learners, run_fits
from pipelines.studies.enough.learners import add_arguments as add_arguments
from pipelines.studies.enough.selectors import SelectorLearner
from pipelines.studies.enough.stop_models import StopLearner
from pipelines.studies.enough.subsets import training_documents

STOP_MODELS = "stop model"


def run(args: argparse.Namespace) -> None:
    from pipelines.parameters import load_parameters

    config = load_parameters(StudyConfig, args.pair, "layers", args.params)
    learners = open_learners(args, config)
    fits = [
        fit
        for seed in range(config.seeds)
        for made in (
            *(of_head(learner, seed) for learner in learners.heads),
            of_stop_models(learners.stop_models, seed),
            *(of_selector(learner, seed) for learner in learners.selectors),
        )
        for fit in made
    ]
    run_fits(args, fits, learners, asdict(config))


def of_head(learner: HeadLearner, seed: int) -> list[Fit]:
    """A head on every set of layers."""
    documents = training_documents(learner.documents, learner.splits, 1.0, seed)
    return [
        Fit(
            *(learner.name, name, seed, {"bytes": learner.stored_bytes(table)}),
            partial(learner.measure, documents, seed, table),
        )
        for name, table in learner.variants().items()
    ]


def of_stop_models(learners: Sequence[StopLearner], seed: int) -> list[Fit]:
    """Stop models as variants of one."""
    return [
        Fit(
            *(STOP_MODELS, learner.name, seed, {"bytes": learner.stored_bytes}),
            partial(learner.measure, training_documents(learner.documents, learner.splits, 1.0, seed), seed),
        )
        for learner in learners
    ]


def of_selector(learner: SelectorLearner, seed: int) -> list[Fit]:
    """A selector that reads states and one that does not."""
    documents = training_documents(learner.documents, learner.splits, 1.0, seed)
    return [
        Fit(
            *(learner.name, name, seed, {"bytes": learner.stored_bytes(candidates)}),
            partial(learner.measure, documents, seed, candidates),
        )
        for name, candidates in learner.variants().items()
    ]
