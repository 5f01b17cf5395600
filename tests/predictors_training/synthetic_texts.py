"""Synthetic text traces with a planted signal: a mood that drifts along a text says how likely its tokens are accepted.

The target's state shows the mood, and the draft's confidence the next token's chance.
"""

import dataclasses
from pathlib import Path

import numpy as np

from predictors.contract import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.schema import TEXT_COLUMNS, TEXT_TRACES_VERSION
from predictors.stopping import StopSpec
from trace_collection.shards import columns_of, shard_name, trace_schema, write_manifest, write_shard

GAMMA_MAX, LAYERS, HIDDEN, EMBEDDING = 5, (2, 3), 6, 4
STATE = len(LAYERS) * HIDDEN + EMBEDDING
SPEC = StopSpec((1,), 8, 3)
BUDGET, CANDIDATES, EOS = 24, 3, 7
SETTINGS = (0.0, 1.0)
DOCUMENTS = {"train": 40, "validation": 14, "test": 14}
FACTS = {
    "schema_version": TEXT_TRACES_VERSION,
    "fingerprint": "f",
    "parameters": {},
    "gamma_max": GAMMA_MAX,
    "candidates": CANDIDATES,
    "max_new_tokens": BUDGET,
    "eos_tokens": [EOS],
    "feature_layers": LAYERS,
    "hidden_size": HIDDEN,
    "embedding_size": EMBEDDING,
    "stop_spec": dataclasses.asdict(SPEC),
}


def contract() -> CaptureContract:
    identity = Identity(ModelIdentity("t", (1.0, 2.0)), ModelIdentity("d", (3.0, 4.0)), "tokenizer", None, LAYERS)
    return CaptureContract(identity, ServingRange("float32", tuple((heat, 0.0, 1.0) for heat in SETTINGS), 8, 90), {})


def synthetic_rows(informative: bool = True, seed: int = 0, documents: dict[str, int] | None = None) -> list[dict]:
    """Rows of a text per document and setting; without information features are drawn apart from what is accepted."""
    random = np.random.default_rng(seed)
    return [
        row
        for split, count in (documents or DOCUMENTS).items()
        for number in range(count)
        for heat in SETTINGS
        for row in _text(random, f"{split}/{number}", split, heat, informative)
    ]


def _text(random, document, split, heat, informative):
    length = BUDGET - 1
    mood, other = (_drift(random, length) for _ in range(2))
    chance = 1 / (1 + np.exp(-(0.8 + 2 * mood + random.normal(size=length))))
    ratio = (random.random(length) < chance).astype(float) if heat == 0 else 1.6 * chance
    shown, said = (mood, chance) if informative else (other, random.random(length))
    confidence = np.clip(random.random((length, GAMMA_MAX)), 0.05, 1)
    confidence[:, 0] = np.clip(said + 0.1 * random.normal(size=length), 0.01, 1)
    state = random.normal(size=(length, STATE))
    state[:, :4] += 2 * shown[:, None]  # several columns, so that the leading principal component carries it
    state[:, 4] = 7.0  # a constant column: its standard deviation is 0
    return [
        {
            "prompt_id": document,
            "document": document,
            "slice": "code" if len(document) % 2 else "prose",
            "split": split,
            "temperature": heat,
            "top_k": 0,
            "top_p": 1.0,
            "batch_size": 1,
            "place": row + 1,
            "position": 10 + row + 1,
            "newest": 1,
            "token": 1,
            "probability": min(1.0, ratio[row] / 2) if heat else ratio[row],
            "unit_probability": 0.5,
            "ratio": ratio[row],
            "overlap": min(1.0, ratio[row]),
            "rank": 0 if ratio[row] >= 0.5 else CANDIDATES,
            "mass": np.linspace(0.3, 0.8, CANDIDATES, dtype=np.float32),
            "hits": np.linspace(0.2, 0.7, CANDIDATES, dtype=np.float32),
            "root": state[row].astype(np.float16),
            "beside_ratio": 0.5,
            "target_probability": 0.5 if heat else 1.0,
            "match": 0,
            "seen": 0,
            "agreed": 0,
            "lookup": np.full(GAMMA_MAX, -1, dtype=np.int32),
            "tokens": np.full(GAMMA_MAX, 2, dtype=np.int32),
            "probabilities": confidence[row].astype(np.float32),
            "unit_probabilities": confidence[row].astype(np.float32),
            "confidence": confidence[row].astype(np.float32),
            "entropy": (2 - 2 * confidence[row]).astype(np.float32),
            "law_entropy": (2 - 2 * confidence[row]).astype(np.float32),
            "tops": np.zeros(GAMMA_MAX * SPEC.top, dtype=np.float32),
            "states": np.zeros(GAMMA_MAX * SPEC.state_size, dtype=np.float16),
        }
        for row in range(length)
    ]


def _drift(random, length):
    values = [random.normal()]
    for _ in range(length - 1):
        values.append(0.9 * values[-1] + np.sqrt(1 - 0.81) * random.normal())
    return np.array(values)


def write_texts(folder: Path, rows: list[dict] | None = None, shards: int = 2) -> Path:
    """Write shards and manifest as the collector does."""
    folder.mkdir(parents=True)
    rows = synthetic_rows() if rows is None else rows
    sizes = {
        "root": STATE,
        **dict.fromkeys(("tokens", "lookup", "slots"), GAMMA_MAX),
        "tops": GAMMA_MAX * SPEC.top,
        "states": GAMMA_MAX * SPEC.state_size,
        **dict.fromkeys(("hits", "candidates"), CANDIDATES),
    }
    schema = trace_schema(TEXT_COLUMNS, sizes, TEXT_TRACES_VERSION, "f", contract().to_json())
    texts = np.flatnonzero([row["place"] == 1 for row in rows])
    ends = [*texts[:: -(-len(texts) // shards)].tolist(), len(rows)]
    names = [shard_name(number) for number in range(len(ends) - 1)]
    for name, first, last in zip(names, ends, ends[1:], strict=False):
        write_shard(folder / name, [columns_of(rows[first:last])], schema)
    write_manifest(folder, names, FACTS | {"contract": contract().to_json()})
    return folder
