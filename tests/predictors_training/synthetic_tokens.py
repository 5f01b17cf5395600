"""Synthetic token traces: the draft's state tells how likely a token is accepted, and its law half of it."""

import dataclasses
from pathlib import Path

import numpy as np

from predictors.contract import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.schema import TOKEN_COLUMNS, TOKEN_TRACES_VERSION
from predictors.stopping.features import StopSpec
from trace_collection.shards import shard_name, trace_schema, write_manifest, write_shard

GAMMA, ROUNDS = 6, 10
SPEC = StopSpec((1,), 8, 3)
SETTINGS = (0.0, 1.0)
SPLITS = {"train": 60, "validation": 60, "test": 40}  # documents


def write_tokens(folder: Path, informative: bool = True, seed: int = 0) -> Path:
    """Without information a token's fate is a coin's, whatever the state."""
    random = np.random.default_rng(seed)
    identity = Identity(ModelIdentity("t", (1.0, 2.0)), ModelIdentity("d", (3.0, 4.0)), "tokenizer", None, ())
    ranges = ServingRange("float32", tuple((heat, 0.0, 1.0) for heat in SETTINGS), 8, 90)
    contract = CaptureContract(identity, ranges, {"commit": "c"}).to_json()
    rows = [
        row
        for split, documents in SPLITS.items()
        for document in range(documents)
        for heat in SETTINGS
        for number in range(1, ROUNDS + 1)
        for row in _round(random, f"{split}{document}", split, heat, number, informative)
    ]
    folder.mkdir(parents=True)
    sizes = {"state": SPEC.state_size, "top": SPEC.top}
    schema = trace_schema(TOKEN_COLUMNS, sizes, TOKEN_TRACES_VERSION, "f", contract)
    write_shard(folder / shard_name(0), rows, schema)
    facts = {
        "schema_version": TOKEN_TRACES_VERSION,
        "fingerprint": "f",
        "contract": contract,
        "parameters": {},
        "gamma_max": GAMMA,
        "stop_spec": dataclasses.asdict(SPEC),
    }
    write_manifest(folder, [shard_name(0)], facts)
    return folder


def _round(random, document, split, heat, number, informative):
    states = random.normal(size=(GAMMA + 1, SPEC.state_size)).astype(np.float16)
    signal = states[:GAMMA, 0].astype(float)
    chances = 1 / (1 + np.exp(-2.5 * signal - 0.8)) if informative else np.full(GAMMA, 0.6)
    drawn = random.random(GAMMA) < chances
    accepted = np.cumprod(drawn).astype(bool)
    known = 1 / (1 + np.exp(-signal - random.normal(size=GAMMA)))
    return [
        {
            "prompt_id": document,
            "document": document,
            "slice": "code",
            "split": split,
            "temperature": heat,
            "top_k": 0,
            "top_p": 1.0,
            "batch_size": 1,
            "round": number,
            "position": 20 + 3 * number,
            "place": place,
            "token": 0,
            "tested": bool(place == 0 or accepted[place - 1]),
            "accepted": bool(accepted[place]),
            "censored": False,
            "probability": float(known[place]),
            "overlap": float(chances[place]),
            "acceptance": float(drawn[place]),
            "entropy": float(1 - known[place]),
            "top": np.array([known[place], (1 - known[place]) / 2, 0.01], dtype=np.float32),
            "before": states[place],
            "behind": np.roll(states[place], 1),  # has seen the token, and says the same in another coordinate
        }
        for place in range(GAMMA)
    ]
