"""Stages ``labels`` and ``fit`` on synthetic texts, in the current folder."""

import json
from pathlib import Path

import yaml

from pipelines.cli import main
from tests.predictors.affine_profile import PROFILE

GAMMA = 4
FAST = {
    "learning_rate": 0.01,
    "epochs": 6,
    "hidden_sizes": [16, 8],
    "dropout": 0.1,
    "batch_size": 64,
    "reduced_size": 4,
}
HEAD = {
    "family": "head",
    "decoding": {"gamma": 5},
    "training": FAST,
    "candidates": {"epsilons": [0.0, 0.3, 0.5], "probabilities": [0.5, 0.7]},
    "bootstrap_replicates": 20,
}
PARAMETERS = {"labels": {"chains": {"gamma": GAMMA}}, "fit": {"hrad": HEAD, "length": HEAD | {"target": "length"}}}


def write_parameters(changes: dict) -> None:
    """params.yaml of the current folder: `PARAMETERS` of pair ``p`` with sections replaced."""
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS | changes}}))


def prepare(traces: Path) -> None:
    """Labels, a device and its latency profile."""
    for path, record in (("device.json", {"slug": "toy"}), ("latency/toy.json", PROFILE.to_record())):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(json.dumps(record))
    labels = Path("data/p/labels/chains.parquet")
    labels.parent.mkdir(parents=True)
    main(["labels", "--pair", "p", "--kind", "chains", str(traces / "texts"), str(labels)])


def fit(name: str, traces: Path) -> None:
    """Stage ``fit`` of one predictor."""
    folders = ["--traces", str(traces), "--labels", "data/p/labels", "--device", "device.json", "--latency", "latency"]
    main(["fit", "--pair", "p", "--predictor", name, *folders])
