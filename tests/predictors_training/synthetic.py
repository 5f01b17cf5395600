"""Synthetic round traces in the schema of `predictors.schema`, with a planted signal, and the stages to run on them."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from pipelines.cli import main
from predictors.contract import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.schema import MANIFEST, ROUND_COLUMNS, ROUND_TRACES_VERSION
from predictors.training.label_table import read_labels
from predictors.training.labels import LabelConfig, write_labels
from predictors.training.trace_table import TraceTable

GAMMA_MAX, LAYERS, HIDDEN, EMBEDDING = 4, (2, 3), 6, 4
STATE = len(LAYERS) * HIDDEN + EMBEDDING
DOCUMENTS = {"train": 40, "validation": 14, "test": 14}
FAST = {"learning_rate": 0.01, "epochs": 6, "hidden_sizes": [16, 8], "dropout": 0.1, "batch_size": 64}
PARAMETERS = {
    "labels": {"gamma": GAMMA_MAX, "temperature": 0.0},
    "train": {
        "paper": {"feature_set": "paper", **FAST},
        "extended": {"feature_set": "extended", "reduced_size": 4, **FAST},
        "length": {"feature_set": "extended", "reduced_size": 4, "target": "length", **FAST},
    },
    "calibrate": {
        "draft_cost": 0.2,
        "epsilons": [0.0, 0.3, 0.5, 0.7],
        "probabilities": [0.5, 0.7],
        "bootstrap_replicates": 50,
    },
    "export": {"hrad": {"predictors": ["paper", "extended"]}, "length": {"predictors": ["length"]}},
}
PREDICTORS = tuple(PARAMETERS["train"])

ARROW = {
    "string": pa.string(),
    "float32": pa.float32(),
    "int32": pa.int32(),
    "bool": pa.bool_(),
    "array<int32>": pa.list_(pa.int32(), GAMMA_MAX),
    "array<float32>": pa.list_(pa.float32(), GAMMA_MAX),
    "array<bool>": pa.list_(pa.bool_(), GAMMA_MAX),
    "state<float16>": pa.list_(pa.float16(), STATE),
}


def contract() -> CaptureContract:
    identity = Identity(ModelIdentity("t", (1.0, 2.0)), ModelIdentity("d", (3.0, 4.0)), "tokenizer", None, LAYERS)
    return CaptureContract(
        identity, ServingRange("float32", ((0.0, 0.0, 1.0), (1.0, 0.0, 1.0)), 8, 90), {"commit": "c"}
    )


def synthetic_columns(rows_per_document: int = 24, seed: int = 0, shuffled: bool = False) -> dict[str, np.ndarray]:
    """Columns in which a direction of the state and the draft's confidence tell how much is accepted.

    ``shuffled`` permutes the states and confidences within each split, which destroys every signal and keeps the shares.
    """
    random = np.random.default_rng(seed)
    documents = [(f"{split}/{i}", split) for split, count in DOCUMENTS.items() for i in range(count)]
    n = len(documents) * rows_per_document
    document = np.repeat([name for name, _ in documents], rows_per_document)
    split = np.repeat([split for _, split in documents], rows_per_document)
    hint, law = random.normal(size=(2, n))
    chance = 1 / (1 + np.exp(-(0.6 + 1.3 * hint + 1.0 * law)))
    hits = random.random((n, GAMMA_MAX)) < chance[:, None]
    accepted = np.where(hits.all(axis=1), GAMMA_MAX, hits.argmin(axis=1))
    state = random.normal(size=(n, STATE))
    state[:, :4] += 2 * hint[:, None]  # several columns, so that the leading principal component carries it
    state[:, 3] += 5
    state[:, 4] = 7.0  # a constant column: its standard deviation is 0
    confidence = np.clip(1 / (1 + np.exp(-(law[:, None] + 0.3 * random.normal(size=(n, GAMMA_MAX))))), 0, 1)
    if shuffled:
        for name in DOCUMENTS:
            rows = np.flatnonzero(split == name)
            order = random.permutation(rows)
            state[rows], confidence[rows] = state[order], confidence[order]
    previous = np.roll(accepted, 1)
    previous[::rows_per_document] = 0
    drafted_before = np.full(n, GAMMA_MAX)
    drafted_before[::rows_per_document] = -1
    return {
        "prompt_id": np.char.add(
            document, np.tile(np.char.mod("#%d", np.arange(rows_per_document) // 6), len(documents))
        ),
        "document": document,
        "slice": np.where(np.arange(n) % 2, "code", "prose"),
        "split": split,
        "temperature": np.zeros(n),
        "top_k": np.zeros(n),
        "top_p": np.ones(n),
        "batch_size": np.ones(n),
        "round": np.tile(np.arange(rows_per_document) + 1, len(documents)),
        "position": random.integers(8, 90, n),
        "newest_token": random.integers(0, 50, n),
        "newest_token_source": np.select(
            [drafted_before < 0, previous == GAMMA_MAX], ["prefill", "bonus"], default="correction"
        ),
        "previous_drafted": drafted_before,
        "previous_accepted": previous,
        "drafted": np.full(n, GAMMA_MAX),
        "accepted": accepted,
        "censored": np.zeros(n, dtype=bool),
        "tokens": random.integers(0, 50, (n, GAMMA_MAX)),
        "confidence": confidence,
        "entropy": 2 * (1 - confidence),
        "overlap": confidence,
        "acceptance": hits.astype(float),
        "on_path": np.ones((n, GAMMA_MAX), dtype=bool),
        "state": state,
    }


def arrow_table(columns: dict[str, np.ndarray]) -> pa.Table:
    arrays = []
    for name, kind in ROUND_COLUMNS.items():
        values, type_ = columns[name], ARROW[kind]
        if values.ndim == 2:
            flat = pa.array(values.astype(type_.value_type.to_pandas_dtype()).reshape(-1), type_.value_type)
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=type_))
        else:
            arrays.append(pa.array(values.tolist() if values.dtype.kind == "U" else values).cast(type_))
    return pa.table(dict(zip(ROUND_COLUMNS, arrays, strict=True)))


def write_traces(folder: Path, columns: dict[str, np.ndarray] | None = None, num_shards: int = 3) -> Path:
    """Write shards and manifest as the collector does."""
    folder.mkdir(parents=True)
    table = arrow_table(synthetic_columns() if columns is None else columns)
    size, shards = -(-table.num_rows // num_shards), []
    for i in range(num_shards):
        path, part = folder / f"part-{i:05d}.parquet", table.slice(i * size, size)
        pq.write_table(part, path, use_dictionary=False)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append({"name": path.name, "rows": part.num_rows, "sha256": digest})
    manifest = {
        "schema_version": ROUND_TRACES_VERSION,
        "fingerprint": "f",
        "parameters": {},
        "gamma_max": GAMMA_MAX,
        "feature_layers": LAYERS,
        "hidden_size": HIDDEN,
        "embedding_size": EMBEDDING,
        "num_rows": table.num_rows,
        "contract": contract().to_json(),
        "shards": shards,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def make_labels(folder: Path, columns: dict[str, np.ndarray] | None = None, gamma: int = GAMMA_MAX):
    """Label table of synthetic traces, read back."""
    traces = write_traces(folder / "rounds", columns)
    write_labels([TraceTable(traces)], LabelConfig(gamma), folder / "hrad.parquet")
    return read_labels(folder / "hrad.parquet")


def write_parameters(changes: dict) -> None:
    """params.yaml of the current folder: `PARAMETERS` of pair ``p`` with sections replaced."""
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS | changes}}))


def stage(command: str, *arguments: str | Path) -> None:
    main([command, "--pair", "p", *map(str, arguments)])


def run_stages(traces: Path, last: str = "export") -> None:
    """Run labels, train, calibrate and export in the current folder, ending with ``last``."""
    stage("labels", traces, "data/p/labels")
    if last == "labels":
        return
    for name in PREDICTORS:
        stage("train", "--predictor", name, "data/p/labels/hrad.parquet", f"data/p/predictors/{name}")
        if last != "train":
            arguments = ("data/p/labels/hrad.parquet", f"data/p/predictors/{name}", f"data/p/calibration/{name}.json")
            stage("calibrate", "--predictor", name, *arguments)
    for name in PARAMETERS["export"] if last == "export" else ():
        stage("export", "--bundle", name, "data/p/predictors", "data/p/calibration", f"data/p/bundles/{name}")
