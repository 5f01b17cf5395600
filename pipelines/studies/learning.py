"""Stage of the studies: how many training documents are enough, and which stored features earn their bytes.

Predictors of the main pipeline are fitted with shares of the study's training documents, and with fewer features, from several
seeds. Writes a folder named after the device: ``enough.json``, ``enough.md`` and ``enough.png``. An interrupted study goes on
where it stopped.

    draftwright studies.learning --pair pystdlib --params pipelines/studies/params.yaml --device data/device.json
        --latency data/pystdlib/latency --traces data/pystdlib/studies/traces --labels data/pystdlib/studies/labels
        data/pystdlib/studies/learning
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pipelines.device import read_device, read_device_profile
from pipelines.parameters import PARAMETERS, add_pair_arguments, load_parameters, read_section
from predictors.config import Checked, Count, above, ascending, at_most, not_empty

if TYPE_CHECKING:
    from pipelines.studies.enough.learners import Fit, Learner

LOG = "fits.jsonl"
STOP_MODELS = "stop model"
Part = Annotated[float, above(0), at_most(1)]


@dataclass(frozen=True)
class LearningConfig(Checked):
    """Section ``learning``: ``predictors`` fitted on ``shares`` of the training documents, ascending to all; ``features``: heads
    and selectors fitted with fewer of them; ``alternatives``: stop models compared as variants of one; ``seeds`` of documents and
    of training."""

    predictors: Annotated[tuple[str, ...], not_empty]
    features: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    shares: Annotated[tuple[Part, ...], not_empty, ascending] = (0.125, 0.25, 0.5, 1.0)
    seeds: Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares[-1] != 1:
            raise ValueError(f"shares must end with 1, got {list(self.shares)}.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--main", type=Path, default=PARAMETERS, help="the main pipeline's parameters: how to fit")
    parser.add_argument("--device", type=Path, required=True, help="JSON file of the device stage")
    parser.add_argument("--latency", type=Path, required=True, help="folder of the latency stage")
    parser.add_argument("--traces", type=Path, required=True, help="folder of the study's traces")
    parser.add_argument("--labels", type=Path, required=True, help="folder of their label tables")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from pipelines.fit import load_predictor
    from pipelines.measuring.measurement_log import MeasurementLog
    from pipelines.measuring.provenance import provenance
    from pipelines.reporting.page import write_page
    from pipelines.studies.enough.learners import Learner
    from pipelines.studies.enough.subsets import SOURCES
    from pipelines.studies.enough.summary import page, summarised
    from predictors.training.predictor import Materials

    config = load_parameters(LearningConfig, args.pair, "learning", args.params)
    device = read_device(args.device)
    materials = Materials.of(args.traces, args.labels, read_device_profile(args.latency, device["slug"]))
    names = dict.fromkeys((*config.predictors, *config.features, *config.alternatives))
    learners = {name: Learner(name, *load_predictor(args.pair, name, args.main), materials) for name in names}
    folder = args.output / device["slug"]
    log = MeasurementLog(folder / LOG, fingerprint(config, learners))
    fits = list(planned(config, learners))
    rows = [row for fit in tqdm(fits, desc="fit", unit="predictor") for row in log.once(fit.key, fit.rows)]
    origin = provenance(device) | {"parameters": asdict(config)}
    main, study = (read_section(args.pair, "traces", path) for path in (args.main, args.params))
    traces = {name: SOURCES[learner.family][1] for name, learner in learners.items()}  # a share is of their prompts
    present = {name: float(main[one]["prompts"][0] / study[one]["prompts"][0]) for name, one in traces.items()}
    summary = summarised(rows) | {"present": present, "provenance": {"learning": origin}}
    write_page(folder, page(args.pair, summary), summary)
    log.remove()


def planned(config: LearningConfig, learners: "Mapping[str, Learner]") -> "Iterator[Fit]":
    """All fits, seed by seed."""
    for seed in range(config.seeds):
        for name in config.predictors:
            yield from (learners[name].of_documents(share, seed) for share in config.shares)
        for name in config.features:
            yield from learners[name].of_features(seed)
        yield from (learners[name].as_variant(STOP_MODELS, seed) for name in config.alternatives)


def fingerprint(config: LearningConfig, learners: "Mapping[str, Learner]") -> str:
    """SHA-256 of everything that the study depends on."""
    from pipelines.code import Code
    from pipelines.outputs import digest

    known = [
        [name, learner.family, asdict(learner.predictor), learner.lessons.labels.traces_sha256]
        for name, learner in learners.items()
    ]
    profiles = sorted({learner.materials.profile.profile_hash for learner in learners.values()})
    return digest([asdict(config), known, profiles, Code().digest("pipelines.studies.learning")])
