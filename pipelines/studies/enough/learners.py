"""The controllers under study as learners: each trains on some documents and measures itself on the test documents.

They learn with the parameters of the main pipeline from the larger traces of the studies.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from predictors.training.fit import TrainConfig
from predictors.training.selector_fit import SelectorConfig
from tqdm import tqdm

from pipelines.calibrate import with_measured_costs
from pipelines.code import Code
from pipelines.device_file import read_device
from pipelines.device_profile import read_device_profile
from pipelines.measuring.measurement_log import MeasurementLog
from pipelines.measuring.provenance import provenance
from pipelines.outputs import file_sha256
from pipelines.parameters import PARAMETERS, add_pair_arguments, load_parameters
from pipelines.studies.enough.fits import Fit, Replicates, Sampled, measured
from pipelines.studies.enough.heads import HeadLearner
from pipelines.studies.enough.selectors import SelectorLearner
from pipelines.studies.enough.stop_models import StopLearner
from pipelines.studies.enough.study_folder import write_fits
from predictors.training.calibrate import CalibrateConfig
from predictors.training.label_table import read_labels
from predictors.training.root_table import RootTable
from predictors.training.rule_calibration import RuleCalibration
from predictors.training.stop_fit import StopTrainConfig
from predictors.training.token_table import TokenTable

LOG = "fits.jsonl"


@dataclass(frozen=True)
class StudyConfig:
    """Which ``heads``, ``stop_models`` and selectors of which ``rules``, each trained with so many ``seeds``;
    ``bootstrap_replicates`` of the test documents."""

    heads: tuple[str, ...]
    stop_models: tuple[str, ...]
    rules: tuple[str, ...]
    seeds: int = 4
    bootstrap_replicates: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seeds", "bootstrap_replicates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")


class Learner(Protocol):
    """A controller under study: ``documents`` and ``splits`` of its rows, and a model trained on some documents."""

    @property
    def name(self) -> str: ...

    @property
    def documents(self) -> np.ndarray: ...

    @property
    def splits(self) -> np.ndarray: ...

    def measure(self, documents: np.ndarray, seed: int) -> dict[str, Sampled]: ...


@dataclass(frozen=True)
class Learners:
    """All of a study, and the ``fingerprint`` of what they learn from and how."""

    heads: Sequence[HeadLearner]
    stop_models: Sequence[StopLearner]
    selectors: Sequence[SelectorLearner]
    fingerprint: str

    @property
    def all(self) -> list[Learner]:
        return [*self.heads, *self.stop_models, *self.selectors]


def add_arguments(made: argparse.ArgumentParser) -> None:
    """What a stage of this study takes."""
    add_pair_arguments(made)
    made.add_argument("--main", type=Path, default=PARAMETERS, help="the main pipeline's parameters: how to train")
    made.add_argument("device", type=Path, help="JSON file of the device stage")
    made.add_argument("latency", type=Path, help="folder of the latency stage")
    made.add_argument("labels", type=Path, help="label table of the study's round traces")
    made.add_argument("tokens", type=Path, help="folder of the study's token traces")
    made.add_argument("roots", type=Path, help="folder of the study's root traces")
    made.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def open_learners(args: argparse.Namespace, config: StudyConfig) -> Learners:
    """Read the traces and the main pipeline's parameters."""
    replicates = Replicates(config.bootstrap_replicates, config.seed)
    labels, tokens, roots = read_labels(args.labels), TokenTable.read(args.tokens), RootTable.read(args.roots)
    chain = load_parameters(CalibrateConfig, args.pair, "calibrate.chain", args.main)
    calibration, costs = with_measured_costs(chain, args, labels)
    rule_calibration = load_parameters(RuleCalibration, args.pair, "selector.calibrate", args.main)
    profile = read_device_profile(args.latency, read_device(args.device)["slug"])
    selecting = load_parameters(SelectorConfig, args.pair, "selector.train", args.main)
    taught = {name: load_parameters(TrainConfig, args.pair, f"train.{name}", args.main) for name in config.heads}
    stopping = {
        name: load_parameters(StopTrainConfig, args.pair, f"stopper.train.{name}", args.main)
        for name in config.stop_models
    }
    configs: list[Any] = [calibration, costs, rule_calibration, selecting, *taught.values(), *stopping.values()]
    traces = [file_sha256(args.labels), tokens.manifest.content_hash, roots.manifest.content_hash, profile.profile_hash]
    code = Code().digest(f"pipelines.{args.command}")
    known = json.dumps([asdict(config), [asdict(made) for made in configs], traces, code], sort_keys=True)
    return Learners(
        [HeadLearner(name, labels, made, calibration, costs, replicates) for name, made in taught.items()],
        [StopLearner(name, tokens, made, replicates) for name, made in stopping.items()],
        [SelectorLearner(rule, roots, profile, selecting, rule_calibration, replicates) for rule in config.rules],
        hashlib.sha256(known.encode()).hexdigest(),
    )


def run_fits(args: argparse.Namespace, fits: Sequence[Fit], learners: Learners, parameters: dict[str, Any]) -> None:
    """Measure all ``fits`` with a progress bar and write their rows; an interrupted run goes on where it stopped."""
    device = read_device(args.device)
    folder = args.output / device["slug"]
    log = MeasurementLog(folder / LOG, learners.fingerprint)
    rows = measured(tqdm(fits, desc="train", unit="model"), log)
    write_fits(folder, rows, provenance(device) | {"parameters": parameters, "fingerprint": learners.fingerprint})
    log.remove()
    print(f"{folder}: {len(fits)} models")
