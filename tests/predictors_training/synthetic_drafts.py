"""Synthetic text traces: the draft's state tells how likely a drafted token is accepted, and its distribution half of it."""

import dataclasses
from pathlib import Path

import numpy as np

from predictors.contract import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.schema import TEXT_COLUMNS, TEXT_TRACES_VERSION
from predictors.stopping import StopSpec
from trace_collection.shards import shard_name, trace_schema, write_manifest, write_shard

GAMMA, TOKENS, CANDIDATES, PROMPT = 6, 24, 2, 9
SPEC = StopSpec((1,), 8, 3)
SETTINGS = (0.0, 1.0)
GOOD, BAD, LONG = 0.95, 0.05, 5
SPLITS = {"train": 40, "validation": 30, "test": 20}  # documents
SIZES = {
    "root": 1,
    "slots": GAMMA,
    "tops": GAMMA * SPEC.top,
    "states": GAMMA * SPEC.state_size,
    "candidates": CANDIDATES,
}


def write_texts(folder: Path, informative: bool = True, seed: int = 0, slots: int = GAMMA, lookups: str = "") -> Path:
    """Without information a token's fate is a coin's, whatever the state; states of so many ``slots``; what
    tells good ``lookups`` (`planted`), if there are any."""
    random = np.random.default_rng(seed)
    identity = Identity(ModelIdentity("t", (1.0, 2.0)), ModelIdentity("d", (3.0, 4.0)), "tokenizer", None, ())
    ranges = ServingRange("float32", tuple((heat, 0.0, 1.0) for heat in SETTINGS), 8, 90)
    contract = CaptureContract(identity, ranges, {"commit": "c"}).to_json()
    texts = [
        _text(random, f"{split}{document}", split, heat, informative)
        for split, documents in SPLITS.items()
        for document in range(documents)
        for heat in SETTINGS
    ]
    for text in texts if lookups else []:
        text.update(planted(random, len(text["place"]), lookups))
    for text in texts:
        text["states"] = text["states"][:, : slots * SPEC.state_size]
    folder.mkdir(parents=True)
    schema = trace_schema(TEXT_COLUMNS, SIZES | {"states": slots * SPEC.state_size}, TEXT_TRACES_VERSION, "f", contract)
    write_shard(folder / shard_name(0), texts, schema)
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
        "embedding_size": 1,
        "stop_spec": dataclasses.asdict(SPEC),
    }
    write_manifest(folder, [shard_name(0)], facts)
    return folder


def planted(random, count, told_by):
    """Lookups at two of three rows: each token of a good one is the text's with chance `GOOD`, of others with `BAD`. Good are
    those after a `LONG` ``match``, those whose continuations ``agree``, or ``none``."""
    match_N = random.integers(1, 9, count) * (random.random(count) < 2 / 3)
    agrees_N = random.random(count) < 0.5
    good_N = {"match": match_N >= LONG, "agree": agrees_N, "none": np.zeros(count, dtype=bool)}[told_by]
    right_N = random.geometric(1 - np.where(good_N, GOOD, BAD)) - 1
    lookup_NG = np.where(np.arange(GAMMA) < right_N[:, None], 1, 3)
    return {
        "match": match_N,
        "seen": 4 * (match_N > 0),
        "agreed": np.where(agrees_N, 4, 1) * (match_N > 0),
        "lookup": np.where(match_N[:, None] > 0, lookup_NG, -1).astype(np.int32),
    }


def _text(random, document, split, heat, informative):
    """A text's rows. A model of the state in front of a token reads its chance in the first coordinate, one of the state after it
    reads in the second one whether it is the text's."""
    count = TOKENS - 1
    signal_NG = random.normal(size=(count, GAMMA))
    chance_N = 1 / (1 + np.exp(-4 * signal_NG[:, 0] - 1.5)) if informative else np.full(count, 0.65)
    ratio_N = (random.random(count) < chance_N).astype(float)
    if heat:  # half of the tokens make up for the others: min(1, ratio) is the chance on average
        ratio_N = np.where(random.random(count) < 0.5, np.clip(2 * chance_N - 1, 0, 1), np.minimum(2 * chance_N, 1.5))
    seen_NG = random.normal(scale=0.8, size=(count, GAMMA)) + np.where(np.arange(GAMMA) == 0, 1.0, -1.0) * informative
    states_NGS = random.normal(size=(count, GAMMA, SPEC.state_size))
    states_NGS[..., 0], states_NGS[..., 1] = signal_NG, seen_NG
    known_NG = 1 / (1 + np.exp(-signal_NG - random.normal(size=signal_NG.shape)))
    tops_NGT = np.stack([known_NG, (1 - known_NG) / 2, np.full_like(known_NG, 0.01)], axis=-1)
    place_N = np.arange(1, TOKENS)
    recorded_NG = np.arange(GAMMA) < np.maximum(TOKENS - 1 - place_N, 1)[:, None]  # slots within the budget
    rejects_N = ratio_N < 1
    lists = {"confidence": known_NG, "entropy": 1 - known_NG}
    lists |= {name: np.full((count, GAMMA), 0.5) for name in ("law_entropy", "probabilities", "unit_probabilities")}
    return {
        "prompt_id": document,
        "document": document,
        "slice": "code",
        "split": split,
        "temperature": heat,
        "top_k": 0,
        "top_p": 1.0,
        "batch_size": 1,
        "place": place_N,
        "position": PROMPT + place_N,
        **dict.fromkeys(("newest", "token"), 1),
        **dict.fromkeys(("probability", "unit_probability", "target_probability"), 0.5),
        "ratio": ratio_N,
        "overlap": chance_N if heat else ratio_N,
        **dict.fromkeys(("rank", "match", "seen", "agreed"), 0),
        **dict.fromkeys(("mass", "hits"), np.zeros((count, CANDIDATES), np.float32)),
        "root": np.zeros((count, 1), np.float16),
        "beside_ratio": np.where(rejects_N, 2.0, np.nan),
        "lookup": np.full((count, GAMMA), -1, np.int32),
        "tokens": np.where(recorded_NG & rejects_N[:, None], 2, -1).astype(np.int32),
        **{name: np.where(recorded_NG, values, np.nan).astype(np.float32) for name, values in lists.items()},
        "tops": np.where(recorded_NG[..., None], tops_NGT, 0).reshape(count, -1).astype(np.float32),
        "states": np.where(recorded_NG[..., None], states_NGS, 0).reshape(count, -1).astype(np.float16),
    }
