"""Synthetic text traces: the draft's state tells how likely a drafted token is accepted, and its distribution half of it."""

import dataclasses
from pathlib import Path

import numpy as np

from predictors.contract import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.schema import TEXT_COLUMNS, TEXT_TRACES_VERSION
from predictors.stopping.features import StopSpec
from trace_collection.shards import shard_name, trace_schema, write_manifest, write_shard

GAMMA, TOKENS, CANDIDATES, PROMPT = 6, 24, 2, 9
SPEC = StopSpec((1,), 8, 3)
SETTINGS = (0.0, 1.0)
SPLITS = {"train": 40, "validation": 30, "test": 20}  # documents
SIZES = {
    "root": 0,
    "slots": GAMMA,
    "tops": GAMMA * SPEC.top,
    "states": GAMMA * SPEC.state_size,
    "candidates": CANDIDATES,
}


def write_texts(folder: Path, informative: bool = True, seed: int = 0, slots: int = GAMMA) -> Path:
    """Without information a token's fate is a coin's, whatever the state; states of so many ``slots``."""
    random = np.random.default_rng(seed)
    identity = Identity(ModelIdentity("t", (1.0, 2.0)), ModelIdentity("d", (3.0, 4.0)), "tokenizer", None, ())
    ranges = ServingRange("float32", tuple((heat, 0.0, 1.0) for heat in SETTINGS), 8, 90)
    contract = CaptureContract(identity, ranges, {"commit": "c"}).to_json()
    rows = [
        row
        for split, documents in SPLITS.items()
        for document in range(documents)
        for heat in SETTINGS
        for row in _text(random, f"{split}{document}", split, heat, informative)
    ]
    for row in rows:
        row["states"] = row["states"][: slots * SPEC.state_size]
    folder.mkdir(parents=True)
    sizes = {**SIZES, "states": slots * SPEC.state_size}
    write_shard(folder / shard_name(0), rows, trace_schema(TEXT_COLUMNS, sizes, TEXT_TRACES_VERSION, "f", contract))
    facts = {
        "schema_version": TEXT_TRACES_VERSION,
        "fingerprint": "f",
        "contract": contract,
        "parameters": {},
        "gamma_max": GAMMA,
        "candidates": CANDIDATES,
        "max_new_tokens": TOKENS,
        "eos_tokens": [],
        "feature_layers": [],
        "hidden_size": 0,
        "embedding_size": 0,
        "stop_spec": dataclasses.asdict(SPEC),
    }
    write_manifest(folder, [shard_name(0)], facts)
    return folder


def _text(random, document, split, heat, informative):
    """A text's rows. A model of the state in front of a token reads its chance in the first coordinate, one of the state after it
    reads in the second one whether it is the text's."""
    count = TOKENS - 1
    signal_NG = random.normal(size=(count, GAMMA))
    chance_N = 1 / (1 + np.exp(-2.5 * signal_NG[:, 0] - 0.8)) if informative else np.full(count, 0.6)
    ratio_N = chance_N if heat else (random.random(count) < chance_N).astype(float)
    seen_NG = random.normal(scale=0.8, size=(count, GAMMA)) + np.where(np.arange(GAMMA) == 0, 1.0, -1.0) * informative
    states_NGS = random.normal(size=(count, GAMMA, SPEC.state_size))
    states_NGS[..., 0], states_NGS[..., 1] = signal_NG, seen_NG
    known_NG = 1 / (1 + np.exp(-signal_NG - random.normal(size=signal_NG.shape)))
    tops_NGT = np.stack([known_NG, (1 - known_NG) / 2, np.full_like(known_NG, 0.01)], axis=-1)
    rows = []
    for place in range(1, TOKENS):
        at, reach = place - 1, min(GAMMA, TOKENS - 1 - place) or 1  # slots within the budget
        recorded = np.arange(GAMMA) < reach
        rejects = ratio_N[at] < 1
        lists = {"confidence": known_NG[at], "entropy": 1 - known_NG[at], "law_confidence": known_NG[at]}
        lists |= {name: np.full(GAMMA, 0.5) for name in ("law_entropy", "probabilities", "unit_probabilities")}
        rows.append(
            {
                "prompt_id": document,
                "document": document,
                "slice": "code",
                "split": split,
                "temperature": heat,
                "top_k": 0,
                "top_p": 1.0,
                "batch_size": 1,
                "place": place,
                "position": PROMPT + place,
                "newest": 1,
                "token": 1,
                "probability": 0.5,
                "unit_probability": 0.5,
                "ratio": ratio_N[at],
                "overlap": chance_N[at] if heat else ratio_N[at],
                "rank": 0,
                "mass": np.zeros(CANDIDATES, np.float32),
                "hits": np.zeros(CANDIDATES, np.float32),
                "root": np.zeros(0, np.float16),
                "beside_ratio": 2.0 if rejects else np.nan,
                "match": 0,
                "lookup": np.full(GAMMA, -1, np.int32),
                "tokens": np.where(recorded & rejects, 2, -1).astype(np.int32),
                **{name: np.where(recorded, numbers, np.nan).astype(np.float32) for name, numbers in lists.items()},
                "tops": np.where(recorded[:, None], tops_NGT[at], 0).ravel().astype(np.float32),
                "states": np.where(recorded[:, None], states_NGS[at], 0).ravel().astype(np.float16),
            }
        )
    return rows
