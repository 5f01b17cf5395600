"""Timed decodes by arm and block, and what two arms spent by document and setting: all that a gain and its jackknife need.

A block is one prompt, setting and repeat whose arms were timed interleaved in one go. A vector holds tokens, seconds, and
profiled seconds by component, which the price factors turn into seconds. Clock vectors are measured less predicted ones.

Shape suffixes: A arms, B blocks, D documents, S settings, H strata (slices), V vector (2 + components), K components; 2 sides.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.gate.evidence.prices import K, PriceFit
from predictors.sampling import SamplingSettings

Row = Mapping[str, Any]
V = 2 + K
TOKENS, SECONDS, PARTS = 0, 1, 2


def setting_of(row: Row) -> str:
    """Name of the sampling setting of a row, or of a choice."""
    if row.get("setting"):
        return str(row["setting"])
    return SamplingSettings(row["temperature"], int(row.get("top_k") or 0), row.get("top_p") or 1.0).name


@dataclass(frozen=True)
class TimedBlocks:
    """``tokens_AB`` and ``seconds_AB`` are NaN where an arm was not timed in a block. Arms by name give their row."""

    arms: dict[str, int]
    families: dict[str, str]
    blocks: tuple[str, ...]
    prompt_B: np.ndarray
    document_B: np.ndarray
    slice_B: np.ndarray
    setting_B: np.ndarray
    tokens_AB: np.ndarray
    seconds_AB: np.ndarray

    @staticmethod
    def of(rows: Iterable[Row]) -> "TimedBlocks":
        """From rows of decodes. `ValueError` without rows, for an arm twice in a block, or without tokens or time."""
        rows = list(rows)
        if not rows:
            raise ValueError("there are no decodes to compare. Measure first.")
        first = {row["block"]: row for row in reversed(rows)}
        blocks, arms = tuple(sorted(first)), sorted({row["arm"] for row in rows})
        row_of, column = ({name: place for place, name in enumerate(names)} for names in (arms, blocks))
        tokens, seconds = np.full((2, len(arms), len(blocks)), np.nan)
        for row in rows:
            place = row_of[row["arm"]], column[row["block"]]
            if not np.isnan(tokens[place]):
                raise ValueError(f"arm {row['arm']!r} is twice in block {row['block']!r}. Give repeats other blocks.")
            if not (row["tokens"] > 0 and row["seconds"] > 0):
                raise ValueError(
                    f"arm {row['arm']!r} has {row['tokens']} tokens in {row['seconds']} s in block {row['block']!r}. "
                    "Time it again."
                )
            tokens[place], seconds[place] = row["tokens"], row["seconds"]
        where = [first[block] for block in blocks]
        prompts, documents, slices = (
            np.array([str(row[name]) for row in where]) for name in ("prompt", "document", "slice")
        )
        settings = np.array([setting_of(row) for row in where])
        families = {row["arm"]: str(row.get("family", row["arm"])) for row in rows}
        return TimedBlocks(row_of, families, blocks, prompts, documents, slices, settings, tokens, seconds)

    def shared(self, *arms: str) -> np.ndarray:
        """By block [B]: whether all ``arms`` were timed in it; `ValueError` for an unknown one."""
        for name in arms:
            if name not in self.arms:
                raise ValueError(f"arm {name!r} was not timed. Timed: {', '.join(self.arms)}.")
        return ~np.isnan(self.tokens_AB[[self.arms[name] for name in arms]]).any(axis=0)


class TooFewDocumentsError(ValueError):
    """Two arms were timed on fewer than two documents at a setting: nothing says how far their gain is off."""


@dataclass(frozen=True)
class Replayed:
    """What replay says of arms.

    ``texts``: a row per arm and text, ``arm prompt document slice temperature tokens``, and ``parts`` [K] as `RoundParts` adds
    them up; of several draws of chance one row each. ``timed``: a row per timed decode, replayed with the same text and chance,
    ``arm block tokens parts``. ``prices``: factors on the parts."""

    texts: Sequence[Row]
    timed: Sequence[Row]
    prices: PriceFit

    def named(self, arms: Mapping[str, str], before: str = "") -> "Replayed":
        """What it says of ``arms``, by the name that each goes by from now on; ``before`` goes before a block's name."""
        texts, timed = (
            [{**row, "arm": name} for name, arm in arms.items() for row in rows if row["arm"] == arm]
            for rows in (self.texts, self.timed)
        )
        return Replayed(texts, [{**row, "block": f"{before}{row['block']}"} for row in timed], self.prices)

    def covers(self, *arms: str) -> bool:
        """Whether there are both kinds of rows of every arm."""
        return all(any(row["arm"] == arm for row in rows) for arm in arms for rows in (self.texts, self.timed))


@dataclass(frozen=True)
class Ledger:
    """``documents`` with their ``stratum_D``; ``weight_H`` of the strata; ``terms``: counts [D, S] and sums of vectors
    [2, D, S, V] of timed pairs, and of texts if they are replayed, at ``prices``."""

    documents: tuple[str, ...]
    stratum_D: np.ndarray
    weight_H: np.ndarray
    prompts: int
    terms: Sequence[tuple[np.ndarray, np.ndarray]]
    prices: PriceFit | None = None

    @property
    def timed_D(self) -> np.ndarray:
        """Whether a document has a timed pair."""
        return np.asarray(self.terms[0][0].any(axis=1))


def ledger(
    blocks: TimedBlocks,
    arms: tuple[str, str],
    mix: Mapping[str, float] | None,
    replayed: Replayed | None,
    only_setting: str | None,
) -> Ledger:
    """Of ``arms``, an arm and its rival, on the blocks in which both were timed; at ``only_setting``, if one is named.

    ``mix``: documents by slice of what the gain is meant for. A slice weighs as many, and others are left out; ``None``: those
    that the tables have; of one slice alone ``{slice: 1}``. ``replayed`` is left aside unless it covers both arms.
    `TooFewDocumentsError` if both were timed on fewer than two documents at a setting."""
    covered = replayed if replayed is not None and replayed.covers(*arms) else None
    kept_B = blocks.shared(*arms)
    if mix is not None:
        kept_B &= np.isin(blocks.slice_B, list(mix))
    if only_setting is not None:
        kept_B &= blocks.setting_B == only_setting
    if not kept_B.any():
        raise TooFewDocumentsError(f"{arms[0]} and {arms[1]} were timed in no block together. Time both together.")
    settings = sorted(set(blocks.setting_B[kept_B].tolist()))
    texts = [
        row
        for row in (() if covered is None else covered.texts)
        if row["arm"] in arms and setting_of(row) in settings and (mix is None or row["slice"] in mix)
    ]
    slice_of = {str(row["document"]): str(row["slice"]) for row in texts}
    slice_of |= dict(zip(blocks.document_B[kept_B].tolist(), blocks.slice_B[kept_B].tolist(), strict=True))
    documents = tuple(sorted(slice_of))
    place, setting = ({name: index for index, name in enumerate(names)} for names in (documents, settings))
    at_B = np.searchsorted(documents, blocks.document_B[kept_B]), np.searchsorted(settings, blocks.setting_B[kept_B])
    pairs_DS, clock_2DSV = np.zeros((len(documents), len(settings))), np.zeros((2, len(documents), len(settings), V))
    np.add.at(pairs_DS, at_B, 1.0)
    for side, name in enumerate(arms):
        np.add.at(clock_2DSV[side], at_B, _clock(blocks, name, kept_B, covered))
    terms = [(pairs_DS, clock_2DSV)]
    if covered is not None:
        terms.append(_replay(arms, texts, place, setting))
    slices = [slice_of[name] for name in documents]
    stratum_D, weight_H = _strata(slices, [count_DS for count_DS, _ in terms], mix)
    prompts = len(set(blocks.prompt_B[kept_B].tolist()))
    return Ledger(documents, stratum_D, weight_H, prompts, terms, None if covered is None else covered.prices)


def _clock(blocks: TimedBlocks, arm: str, kept_B: np.ndarray, replayed: Replayed | None) -> np.ndarray:
    """Vectors of ``arm`` in the blocks that are kept, less what replay foresaw; `ValueError` for a decode that it left out."""
    vector_BV = np.zeros((int(kept_B.sum()), V))
    vector_BV[:, TOKENS] = blocks.tokens_AB[blocks.arms[arm], kept_B]
    vector_BV[:, SECONDS] = blocks.seconds_AB[blocks.arms[arm], kept_B]
    if replayed is None:
        return vector_BV
    names = [blocks.blocks[place] for place in np.flatnonzero(kept_B)]
    found = {row["block"]: row for row in replayed.timed if row["arm"] == arm}
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"replay says nothing of {arm!r} in block {missing[0]!r}. Replay all its decodes, or none.")
    return vector_BV - [_vector(found[name]) for name in names]


def _vector(row: Row) -> np.ndarray:
    return np.array([row["tokens"], 0.0, *row["parts"]])


def _replay(
    arms: tuple[str, str], texts: Iterable[Row], place: Mapping[str, int], setting: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Number of texts [D, S], and every side's sums over them, draws of chance averaged."""
    drawn: dict[tuple[str, str, str], list[np.ndarray]] = {}
    where: dict[tuple[str, str], tuple[int, int]] = {}
    for row in texts:
        key = str(row["prompt"]), setting_of(row)
        where[key] = place[str(row["document"])], setting[key[1]]
        drawn.setdefault((row["arm"], *key), []).append(_vector(row))
    texts_DS, replay_2DSV = np.zeros((len(place), len(setting))), np.zeros((2, len(place), len(setting), V))
    for key, at in where.items():
        vectors = [drawn.get((name, *key)) for name in arms]
        if None in vectors:
            raise ValueError(f"replay has text {key[0]!r} at {key[1]} for {arms[0]} or {arms[1]} only. Replay both.")
        texts_DS[at] += 1
        for side, made in enumerate(vectors):
            replay_2DSV[side][at] += np.mean(made, axis=0)  # type: ignore[arg-type]
    return texts_DS, replay_2DSV


def _strata(
    slices: Sequence[str], counts: Sequence[np.ndarray], mix: Mapping[str, float] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Stratum of every document, and the strata's weights. A slice with fewer than two documents at a setting joins the largest:
    nothing is known of its own spread."""
    names = sorted(set(slices))
    weights = {name: float(slices.count(name) if mix is None else mix.get(name, 0.0)) for name in names}

    def thin(members: np.ndarray) -> bool:
        return any((count_DS[members] > 0).sum(axis=0).min() < 2 for count_DS in counts)

    slice_D = np.array(slices)
    full = [name for name in names if not thin(slice_D == name) and weights[name] > 0]
    largest = max(full or names, key=lambda name: weights[name])
    home = {name: name if name in full else largest for name in names}
    kept = sorted(set(home.values()))
    weight_H = np.array([sum(weights[name] for name in names if home[name] == one) for one in kept])
    stratum_D = np.array([kept.index(home[name]) for name in slices])
    if not full and thin(np.ones(len(slices), bool)):
        raise TooFewDocumentsError("both arms were timed on fewer than 2 documents at a setting. Time them on more.")
    return stratum_D, weight_H / weight_H.sum()
