"""Synthetic text traces of a draft that reads tokens alone, with a planted signal: a mood that drifts along a text says how
likely its tokens are accepted. The target's state shows the mood, and the draft's confidence each position's chance.

What chains come to follows from each text's own ratios and uniform numbers (`chains`).
"""

import dataclasses
from pathlib import Path

import numpy as np

from predictors.bundle import CaptureContract, Identity, ModelIdentity, ServingRange
from predictors.replay.acceptance import accepted, reached
from predictors.replay.text import onward
from predictors.schema import TEXT_COLUMNS, TEXT_TRACES_VERSION
from predictors.stopping import StopSpec
from trace_collection.shards import Rows, shard_name, trace_schema, write_manifest, write_shard

GAMMA_MAX, LAYERS, HIDDEN, EMBEDDING = 6, (2, 3), 6, 4
STATE = len(LAYERS) * HIDDEN + EMBEDDING
SPEC = StopSpec((1,), 8, 4)
BUDGET, PROMPT, CANDIDATES, EOS, VERIFIER = 24, 10, 3, 7, "block"
LENGTH, SLOTS = BUDGET - 1, np.arange(GAMMA_MAX)
SETTINGS = (0.0, 1.0)
DOCUMENTS = {"train": 40, "validation": 28, "test": 14}
RIGHT, WRONG, OTHER = 1, 2, 3  # tokens: the text's, those that are drafted instead, and another one


def contract() -> CaptureContract:
    identity = Identity(ModelIdentity("t", (1.0, 2.0)), ModelIdentity("d", (3.0, 4.0)), "tokenizer", None, LAYERS)
    return CaptureContract(identity, ServingRange("float32", tuple((heat, 0.0, 1.0) for heat in SETTINGS), 8, 90), {})


def chains(random, ratio_N, heat: float) -> Rows:
    """What drafts from every root of a text come to, whose tokens have these ratios from whatever root they are drafted."""
    target, kept_N, ratio_NG = 0.5 if heat else 1.0, random.random(LENGTH), onward(ratio_N, GAMMA_MAX)
    accepted_N = accepted(reached(ratio_NG, ratio_NG * target, VERIFIER), onward(kept_N, GAMMA_MAX))
    left_N1 = np.arange(LENGTH, 0, -1)[:, None]
    tested_NG = (accepted_N[:, None] >= SLOTS) & (left_N1 > SLOTS)
    tokens_NG = np.where(accepted_N[:, None] > SLOTS, RIGHT, WRONG)
    return {
        "target_probability": target,
        "ratio": ratio_NG,
        "probability": ratio_NG * target,
        "kept": kept_N,
        "tried": random.random(LENGTH),
        "accepted": accepted_N,
        "tokens": np.where(tested_NG | (left_N1 - 1 > SLOTS), tokens_NG, -1),
        "rejected_ratio": np.where(tested_NG.sum(axis=1) > accepted_N, 2.0 if heat else np.inf, np.nan),
        "rank": np.where(tested_NG, (onward(ratio_N, GAMMA_MAX) < 0.5) * CANDIDATES, -1),
    }


def along(made: Rows, of_text_N, after_NG) -> np.ndarray:
    """Numbers of the chains ``made``: those of the text's positions up to the rejected token, others after it."""
    return np.where(made["accepted"][:, None] >= SLOTS, onward(of_text_N, GAMMA_MAX), after_NG)


def text_of(document: str, split: str, heat: float, made: Rows, confidence_NG, overlap_N, **others) -> Rows:
    """All columns of a text of chains ``made``; the ``others`` instead of what says nothing."""
    known_NG, place_N = made["tokens"] >= 0, np.arange(1, BUDGET)
    half_NG = np.full((LENGTH, GAMMA_MAX), 0.5)
    slots = {"confidence": confidence_NG, "entropy": 2 - 2 * confidence_NG, "law_entropy": 2 - 2 * confidence_NG}
    slots |= {"probabilities": half_NG, "unit_probabilities": half_NG, "overlap": along(made, overlap_N, np.nan)}
    return {
        "prompt_id": document,
        "document": document,
        "slice": "code" if len(document) % 2 else "prose",
        "split": split,
        "temperature": heat,
        "top_k": 0,
        "top_p": 1.0,
        "invariant": False,
        "batch_size": 1,
        "place": place_N,
        "position": PROMPT + place_N,
        **dict.fromkeys(("newest", "token"), RIGHT),
        "root": np.zeros((LENGTH, STATE), np.float16),
        **dict.fromkeys(("match", "seen", "agreed"), 0),
        "lookup": np.full((LENGTH, GAMMA_MAX), -1),
        "hits": np.where(known_NG[..., None], np.linspace(0.2, 0.7, CANDIDATES), 0),
        "tops": np.zeros((LENGTH, GAMMA_MAX, SPEC.top)),
        "states": np.zeros((LENGTH, GAMMA_MAX, SPEC.state_size)),
        **made,
        **{name: np.where(known_NG, values_NG, np.nan) for name, values_NG in slots.items()},
        **others,
    }


def synthetic_texts(informative: bool = True, seed: int = 0, documents: dict[str, int] | None = None) -> list[Rows]:
    """A text per document and setting; without information features are drawn apart from what is accepted."""
    random = np.random.default_rng(seed)
    return [
        _text(random, f"{split}/{number}", split, heat, informative)
        for split, count in (documents or DOCUMENTS).items()
        for number in range(count)
        for heat in SETTINGS
    ]


def _text(random, document, split, heat, informative):
    mood_N, other_N = (_drift(random) for _ in range(2))
    chance_N = 1 / (1 + np.exp(-(0.8 + 2 * mood_N + random.normal(size=LENGTH))))
    ratio_N = 1.4 * chance_N if heat else (random.random(LENGTH) < chance_N).astype(float)
    made, after_NG = chains(random, ratio_N, heat), random.random((LENGTH, GAMMA_MAX))
    shown_N, said_N = (mood_N, chance_N) if informative else (other_N, random.random(LENGTH))
    confidence_NG = np.clip(along(made, said_N + 0.1 * random.normal(size=LENGTH), after_NG), 0.05, 1)
    root_NS = random.normal(size=(LENGTH, STATE))
    root_NS[:, :4] += 2 * shown_N[:, None]  # several columns, so that the leading principal component carries it
    root_NS[:, 4] = 7.0  # a constant column: its standard deviation is 0
    return text_of(document, split, heat, made, confidence_NG, np.minimum(1.0, ratio_N), root=root_NS)


def _drift(random):
    values = [random.normal()]
    for _ in range(LENGTH - 1):
        values.append(0.9 * values[-1] + np.sqrt(1 - 0.81) * random.normal())
    return np.array(values)


def write_texts(folder: Path, texts: list[Rows] | None = None, state_slots: int = GAMMA_MAX) -> Path:
    """Write two shards and the manifest as the collector does, with states of so many slots."""
    folder.mkdir(parents=True)
    texts = synthetic_texts() if texts is None else texts
    texts = [text | {"states": text["states"][:, :state_slots]} for text in texts]
    sizes = {
        "root": STATE,
        "slots": GAMMA_MAX,
        "tops": GAMMA_MAX * SPEC.top,
        "states": state_slots * SPEC.state_size,
        "hits": GAMMA_MAX * CANDIDATES,
    }
    schema = trace_schema(TEXT_COLUMNS, sizes, TEXT_TRACES_VERSION, "f", contract().to_json())
    names = [shard_name(number) for number in range(2)]
    for number, name in enumerate(names):
        write_shard(folder / name, texts[number * len(texts) // 2 : (number + 1) * len(texts) // 2], schema)
    facts = {
        "schema_version": TEXT_TRACES_VERSION,
        "fingerprint": "f",
        "contract": contract().to_json(),
        "parameters": {},
        "gamma_max": GAMMA_MAX,
        "verifier": VERIFIER,
        "candidates": CANDIDATES,
        "max_new_tokens": BUDGET,
        "eos_tokens": [EOS],
        "feature_layers": LAYERS,
        "hidden_size": HIDDEN,
        "embedding_size": EMBEDDING,
        "stop_spec": dataclasses.asdict(SPEC),
        "reads_states": False,
    }
    write_manifest(folder, names, facts)
    return folder
