"""What a pair could be decoded with, and how fast each is predicted to be on this machine.

    chains   every policy that was replayed (`pipelines.measuring.replay_study`): tokens per second on validation texts
    trees    every exported delayed-tree selector: tokens per second on validation roots, over those of rule ``block``'s best
             static chain there, times what that chain was replayed at
    alone    how the target drafts for itself: the exported way of each method, by the latency profile on validation prompts, as a
             multiple of plain decoding
    lookups  of a pair without a draft, which is not replayed: those that stage ``measure`` timed; only the clock tells of these

Policies that decide alike on every text, such as a rule whose model is left unasked and the chain it falls back to, are one
candidate, the plainest of them. Only validation is read; test prompts are for scoring what was chosen.

What stage ``measure`` knows of them already is `Measured`. An arm stands for a candidate if it is the same decoder: the same
configuration, or a bundle of the same content. Names alone say nothing: of two rules of one name one may draft up to 8 tokens,
the other up to 12.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.applicability import absent
from pipelines.gate.evidence.ledger import Replayed
from pipelines.measuring import names
from pipelines.measuring.arm_rows import ArmRow, expanded
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN, PLAIN_FAMILY, VALIDATION
from pipelines.measuring.tables import POLICIES, REPLAYED, read_decodes, read_foreseen
from predictors.config import parse_config
from predictors.sampling import SamplingSettings
from runtime.build import expanded as whole

BLOCK = "block"  # the rule of chains
DECISIONS = ("rounds", "submitted", "passes", "seconds")  # of a text: alike where decisions are
Records = Mapping[str, dict[str, Any]]
Served = Mapping[str, Mapping[str, Any]]  # by name, how it is built: as `Candidate.served`
TEXTS, ROOTS, PROFILE = "texts", "roots", "profile"  # what predictions rest on
BASES = {names.SELECTOR: ROOTS, names.CALIBRATED: PROFILE}  # by family; that of others is texts
BUNDLE, WEIGHED = 3, 4  # how complex a bundle is, and one that weighs sources
STATICS = 2  # static chains that are always timed: replay may have them in the wrong order
PAIR = "pair_sha256"
SAME_PARAMETERS = ("max_new_tokens", "threads")  # as here, or its times say nothing of these decoders
HERE = "measured/"  # before the names of blocks


@dataclass(frozen=True)
class Candidate:
    """A decoder by name: ``served`` is its configuration (``decoder``) or the name of its ``bundle``; ``predicted`` in tokens per
    second, or where nothing is replayed as a multiple of plain decoding."""

    name: str
    family: str
    served: dict[str, Any]
    predicted: float

    @property
    def static(self) -> bool:
        """Whether it drafts a fixed number of tokens."""
        return self.family == names.CHAIN

    @property
    def basis(self) -> str:
        """What its prediction rests on: those of one basis are wrong alike."""
        return BASES.get(self.family, TEXTS)

    @property
    def complexity(self) -> int:
        """How much there is to it: plain decoding, a static chain, any other configuration, a bundle, one that weighs sources."""
        if self.name == PLAIN:
            return 0
        if "bundle" in self.served:
            return WEIGHED if self.served["bundle"] == names.SOURCE else BUNDLE
        return 2 - self.static


def candidates(
    replay: Path, fit: Path, setting: str, fitted: Callable[[str], bool] = lambda name: True
) -> list[Candidate]:
    """All candidates at a sampling setting, the fastest first, from folders of what was replayed and of fitted records; of
    predictors that are not ``fitted`` any more there are none. `ValueError` if nothing was replayed at that setting."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(fit.glob("*.json")) if fitted(path.stem)}
    if absent(replay.parent):
        base = Candidate(PLAIN, PLAIN_FAMILY, {"decoder": {"method": PLAIN}}, 1.0)
        return sorted([base, *_alone(records, setting, 1.0)], key=lambda one: one.predicted, reverse=True)
    try:
        table = pd.read_parquet(replay / REPLAYED)
        served = json.loads((replay / POLICIES).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{replay} holds no replay ({error}). Run the replay stage (dvc repro replay) first."
        ) from error
    served = {name: how for name, how in served.items() if "bundle" not in how or fitted(how["bundle"])}
    rows = table[(table["setting"] == setting) & (table["split"] == VALIDATION)]
    if rows.empty:
        known = ", ".join(sorted(table["setting"].unique()))
        raise ValueError(f"nothing was replayed at {setting}, only at {known}. Name it in traces.texts.temperatures.")
    made: dict[tuple[tuple[float, ...], ...], Candidate] = {}
    for (name, family), part in rows.groupby(["drafter", "family"]):
        if name in served or name == PLAIN:
            how = served.get(name, {"decoder": {"method": PLAIN}})
            rate = float(part["tokens"].sum() / part["seconds"].sum())
            one = Candidate(str(name), PLAIN_FAMILY if name == PLAIN else str(family), how, rate)
            decisions = tuple(part.sort_values("prompt")[list(DECISIONS)].itertuples(index=False, name=None))
            made[decisions] = min(made.get(decisions, one), one, key=lambda alike: alike.complexity)
    found = list(made.values())
    alone = _alone(records, setting, plain(found).predicted)
    trees = _trees(records, setting, {one.name: one.predicted for one in found})
    return sorted([*found, *alone, *trees], key=lambda one: one.predicted, reverse=True)


def plain(found: Iterable[Candidate]) -> Candidate:
    """Plain decoding among ``found``."""
    return next(one for one in found if one.name == PLAIN)


def shortlist(found: list[Candidate], count: int, known: Collection[str]) -> list[Candidate]:
    """The ``count`` fastest of ``found``, the `STATICS` fastest static chains, plain decoding, and what was timed already."""
    statics = [one.name for one in found if one.static][:STATICS]
    chosen = {PLAIN, *statics, *known, *(one.name for one in found[:count])}
    return [one for one in found if one.name in chosen]


def _trees(records: Records, setting: str, replayed: Mapping[str, float]) -> Iterator[Candidate]:
    """Delayed-tree selectors; none without a chain to compare them with."""
    chains = records.get(f"{names.TREE_BUNDLE}{BLOCK}", {"static_actions": {}})
    chain = replayed.get(chains["static_actions"].get(setting, ""))
    if chain is not None:
        for name, record in records.items():
            if record.get("family") == "tree":
                share = record["validation"][setting]["selector"] / chains["validation"][setting]["static"]
                yield Candidate(name, names.SELECTOR, {"bundle": name}, chain * share)


def _alone(records: Records, setting: str, plain_rate: float) -> Iterator[Candidate]:
    """Methods without a draft model."""
    for name, record in records.items():
        if name in names.METHODS:
            chosen = (row for row in record["rows"] if (row["way"], row["setting"]) == (record["chosen"], setting))
            for row in chosen:
                yield Candidate(name, names.CALIBRATED, {"bundle": name}, plain_rate * row["speedup"]["value"])


@dataclass(frozen=True)
class Measured:
    """``rows`` of decodes, and the ``arms`` that they are of; ``note``: why there are none. ``replayed``: what replay says of
    those of test prompts."""

    rows: Rows
    arms: tuple[ArmRow, ...] = ()
    note: str | None = None
    replayed: Replayed | None = None

    @staticmethod
    def read(folder: Path, inputs: Mapping[str, Any], bundles: Path, hashes: Mapping[str, str]) -> "Measured":
        """Of a device's ``folder``, if it was measured with the same ``inputs`` (pair and parameters); of arms of ``bundles``
        those whose content is that of ``hashes``."""
        if not (folder / names.DECODES_FILE).is_file():
            return Measured([], note=f"nothing is measured in {folder}")
        origin = json.loads((folder / names.PROVENANCE).read_text())
        there, here = origin["parameters"], inputs["parameters"]
        other = [PAIR] if origin[PAIR] != inputs[PAIR] else []
        other += [name for name in SAME_PARAMETERS if there[name] != here[name]]
        if other:
            return Measured([], note=f"{folder} was measured with another {', '.join(other)}")
        given = [parse_config(ArmRow, row, f"{folder / names.PROVENANCE}: parameters.arms") for row in there["arms"]]
        arms = expanded(given, str(bundles))
        kept = [
            row for row in arms if row.bundle is None or origin[f"{row.bundle}_bundle_sha256"] == hashes.get(row.bundle)
        ]
        replayed = read_foreseen(folder / names.FORESEEN)
        return Measured(read_decodes(folder / names.DECODES_FILE), tuple(kept), replayed=replayed)

    @property
    def lookups(self) -> list[Candidate]:
        """Those that were timed, as candidates: of them nothing is predicted."""
        timed = {row["arm"] for row in self.rows}
        kept = [row for row in self.arms if row.name in timed and row.family == names.LOOKUP and row.decoder]
        return [Candidate(row.name, row.family, {"decoder": row.decoder}, 1.0) for row in kept]

    def of(self, settings: SamplingSettings, served: Served, split: str) -> Rows:
        """Decodes of what is ``served``, by name, on the prompts of a split, as arms of these names; two may be one arm."""
        wanted = asdict(settings) | {"split": split}
        return [
            row | {"arm": name, "block": f"{HERE}{row['block']}"}
            for name, arm in self._arms(served).items()
            for row in self.rows
            if row["arm"] == arm and wanted.items() <= row.items()
        ]

    def foreseen(self, served: Served) -> Replayed | None:
        """What replay says of the same on test prompts."""
        return None if self.replayed is None else self.replayed.named(self._arms(served), HERE)

    def _arms(self, served: Served) -> dict[str, str]:
        """The arm that stands for each, where there is one."""
        found = {name: next((row.name for row in self.arms if _same(row, how)), None) for name, how in served.items()}
        return {name: arm for name, arm in found.items() if arm is not None}


def _same(row: ArmRow, served: Mapping[str, Any]) -> bool:
    """Whether an arm is the decoder that is served so."""
    if row.hugging_face is not None or row.forward is not None or row.options:
        return False
    if row.decoder is None or "bundle" in served:
        return row.bundle is not None and row.bundle == served.get("bundle")
    return _complete(row.decoder) == _complete(served["decoder"])


def _complete(decoder: Mapping[str, Any]) -> dict[str, Any]:
    return {"controller": {"kind": "fixed"}} | whole(decoder)
