"""Synthetic texts whose draft's state tells how likely a drafted token is accepted, and its distribution most of it."""

import numpy as np

from tests.predictors_training.synthetic_texts import (
    GAMMA_MAX,
    LENGTH,
    OTHER,
    RIGHT,
    SETTINGS,
    SLOTS,
    SPEC,
    along,
    chains,
    text_of,
)

GOOD, BAD, LONG = 0.95, 0.05, 5
DOCUMENTS = {"train": 40, "validation": 30, "test": 20}


def drafted_texts(informative: bool = True, seed: int = 1, lookups: str = "") -> list[dict]:
    """Without information a token's fate is a coin's, whatever the state; what tells good ``lookups`` (`planted`), if there are
    any."""
    random = np.random.default_rng(seed)
    return [
        _text(random, f"{split}{document}", split, heat, informative) | (planted(random, lookups) if lookups else {})
        for split, documents in DOCUMENTS.items()
        for document in range(documents)
        for heat in SETTINGS
    ]


def planted(random, told_by):
    """Lookups at two of three rows: each token of a good one is the text's with chance `GOOD`, of others with `BAD`. Good are
    those after a `LONG` ``match``, those whose continuations ``agree``, or ``none``."""
    match_N = random.integers(1, 9, LENGTH) * (random.random(LENGTH) < 2 / 3)
    agrees_N = random.random(LENGTH) < 0.5
    good_N = {"match": match_N >= LONG, "agree": agrees_N, "none": np.zeros(LENGTH, dtype=bool)}[told_by]
    right_N = random.geometric(1 - np.where(good_N, GOOD, BAD)) - 1
    return {
        "match": match_N,
        "seen": 4 * (match_N > 0),
        "agreed": np.where(agrees_N, 4, 1) * (match_N > 0),
        "lookup": np.where(match_N[:, None] > 0, np.where(right_N[:, None] > SLOTS, RIGHT, OTHER), -1),
    }


def _text(random, document, split, heat, informative):
    """A model of the state in front of a token reads its chance in the first coordinate, one of the state after it reads in the
    second one whether it is the text's."""
    signal_N, size = random.normal(size=LENGTH), (LENGTH, GAMMA_MAX)
    chance_N = 1 / (1 + np.exp(-4 * signal_N - 1.5)) if informative else np.full(LENGTH, 0.65)
    ratio_N = (random.random(LENGTH) < chance_N).astype(float)
    if heat:  # half of the tokens make up for the others: min(1, ratio) is the chance on average
        ratio_N = np.where(random.random(LENGTH) < 0.5, np.clip(2 * chance_N - 1, 0, 1), np.minimum(2 * chance_N, 1.5))
    made = chains(random, ratio_N, heat)
    states_NGS = random.normal(size=(*size, SPEC.state_size))
    states_NGS[..., 0] = along(made, signal_N, random.normal(size=size))
    states_NGS[..., 1] *= 0.8
    states_NGS[..., 1] += np.where(made["accepted"][:, None] >= SLOTS, 1.0, -1.0) * informative
    known_NG = 1 / (1 + np.exp(-states_NGS[..., 0] - 0.5 * random.normal(size=size)))
    tops_NGT = np.stack(
        [known_NG, (1 - known_NG) / 2, np.full_like(known_NG, 0.01), np.full_like(known_NG, 0.005)], axis=-1
    )
    overlap_N = chance_N if heat else ratio_N
    return text_of(document, split, heat, made, known_NG, overlap_N, states=states_NGS, tops=tops_NGT)
