"""A trained head on disk: ``head.safetensors`` (weights and reduction), ``head.json`` (what it is), ``history.json`` (curves)."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from predictors.training.fit import TrainConfig, TrainedHead
from predictors.training.target import Target
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pipelines.outputs import file_sha256, replacing, write_json
from predictors.config import parse_config
from predictors.contract import CaptureContract
from predictors.features import FeatureSpec
from predictors.network import HRADNetwork, build_network
from predictors.training.label_table import LabelMetadata

TENSORS, FACTS, HISTORY = "head.safetensors", "head.json", "history.json"


@dataclass(frozen=True)
class SavedHead:
    """A trained head as later stages read it. ``facts`` is ``head.json``."""

    network: HRADNetwork
    spec: FeatureSpec
    facts: dict[str, Any]
    sha256: str
    source: str

    @property
    def contract(self) -> CaptureContract:
        return CaptureContract.from_json(self.facts["contract"], f"{self.source}/{FACTS}: contract")

    @property
    def target(self) -> Target:
        return Target(self.facts["config"]["target"], self.spec.gamma)


def write_head(
    folder: Path, predictor: str, trained: TrainedHead, config: TrainConfig, metadata: LabelMetadata, labels_sha256: str
) -> str:
    """Write the folder whole or not at all; returns the SHA-256 of ``head.safetensors``."""
    facts = {
        "predictor": predictor,
        "feature_spec": asdict(trained.spec),
        "config": asdict(config),
        "balance": trained.balance,
        "best_epoch": trained.best_epoch,
        "class_shares": {"natural": trained.natural_shares, "training": trained.training_shares},
        "temperature": metadata.temperature,
        "contract": metadata.contract,
        "contract_sha256": metadata.contract_sha256,
        "traces_sha256": metadata.traces_sha256,
        "labels_sha256": labels_sha256,
    }
    with replacing(folder) as partial:
        partial.mkdir()
        save_file({name: t.contiguous() for name, t in trained.network.state_dict().items()}, partial / TENSORS)
        write_json(partial / FACTS, facts)
        write_json(partial / HISTORY, trained.history)
    return file_sha256(folder / TENSORS)


def read_head(folder: Path) -> SavedHead:
    """Read what `write_head` wrote; a missing or damaged file is a ValueError that names it."""
    remedy = "Run the train stage again."
    try:
        facts = json.loads((folder / FACTS).read_text())
        tensors = load_file(folder / TENSORS)
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no trained head: {error}. {remedy}") from error
    except (json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(f"{folder}: damaged head ({error}). {remedy}") from error
    spec = parse_config(FeatureSpec, facts["feature_spec"], f"{folder / FACTS}: feature_spec")
    network = build_network(spec, tensors, str(folder))
    return SavedHead(network, spec, facts, file_sha256(folder / TENSORS), str(folder))
