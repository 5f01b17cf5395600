"""Synthetic root traces in which the state's first coordinate tells which tree is worth most."""

import dataclasses
from pathlib import Path

import numpy as np

from predictors.actions import Action
from predictors.bundle import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.schema import ROOT_COLUMNS, ROOT_TRACES_VERSION
from predictors.tree_choice import SCALARS, SelectionSpec
from trace_collection.shards import columns_of, shard_name, trace_schema, write_manifest, write_shard

ACTIONS = (Action(1, 1, 0), Action(1, 8, 0), Action(4, 0, 2))
RULES = ("specinfer", "block")
SPEC = SelectionSpec((3,), (2,), 5, 3, ACTIONS)
SETTINGS = (0.6, 1.0)
SPLITS = {"train": (60, 8), "validation": (20, 8), "test": (30, 8)}  # documents, roots of each
NODES, FED = (1.0, 8.0, 6.0), (0.0, 0.0, 3.0)


def write_roots(folder: Path, signal: float = 1.0, noise: float = 0.3, draws: int = 2, seed: int = 0) -> Path:
    """Expected tokens by action: 1.5, 4.5 and 2.6; an easy root (first coordinate positive) brings the long chain
    ``1 + signal`` times as much, a hard one so much less."""
    random = np.random.default_rng(seed)
    identity = Identity(ModelIdentity("t", (1.0, 2.0)), ModelIdentity("d", (3.0, 4.0)), "tokenizer", None, SPEC.layers)
    ranges = ServingRange("float32", tuple((heat, 0.0, 1.0) for heat in SETTINGS), 8, 90)
    contract = CaptureContract(identity, ranges, {"commit": "c"}).to_json()
    rows = []
    for split, (documents, roots) in SPLITS.items():
        for document in range(documents):
            rows += [_row(random, split, f"{split}{document}", root, signal, noise, draws) for root in range(roots)]
    folder.mkdir(parents=True)
    sizes = {
        "continuation": 3,
        "state": SPEC.state_size,
        "scalars": len(SCALARS),
        "actions": len(ACTIONS),
        "labels": draws * len(RULES) * len(ACTIONS),
    }
    schema = trace_schema(ROOT_COLUMNS, sizes, ROOT_TRACES_VERSION, "f", contract)
    write_shard(folder / shard_name(0), [columns_of(rows)], schema)
    facts = {
        "parameters": {},
        "schema_version": ROOT_TRACES_VERSION,
        "fingerprint": "f",
        "contract": contract,
        "draws": draws,
    }
    write_manifest(folder, [shard_name(0)], {**facts, "rules": list(RULES), "selection_spec": dataclasses.asdict(SPEC)})
    return folder


def _row(random, split, document, root, signal, noise, draws):
    heat = SETTINGS[root % 2]
    state = random.normal(size=SPEC.state_size)
    change = signal * np.sign(state[0])
    worth = np.array([1.5, 4.5 * (1 + 0.5 * change), 2.6])
    labels = worth * (1 + noise * random.uniform(-1, 1, size=(draws, len(RULES), len(ACTIONS))))
    labels[:, RULES.index("block"), 2] = np.nan
    position = int(random.integers(8, 90))
    return {
        "prompt_id": document,
        "document": document,
        "slice": "code" if root % 3 else "prose",
        "split": split,
        "temperature": heat,
        "top_k": 0,
        "top_p": 1.0,
        "invariant": False,
        "batch_size": 1,
        "root": root,
        "position": position,
        "continuation": [1, -1, -1],
        "state": state.astype(np.float16),
        "scalars": random.normal(size=len(SCALARS)),
        "efficiency": labels.reshape(-1),
        "nodes": np.array(NODES),
        "fed": np.array(FED),
    }
