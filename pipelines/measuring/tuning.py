"""The fastest decoder for a pair on this machine: candidates ranked by replay, the best of them compared on the clock.

candidates   every policy that was replayed as it samples, in tokens per second on validation texts; and what replay does not
             know: decoders of the parameters (trees, lookups of a pair without a draft), exported tree selectors, the tree that
             was best for every draft by the tree traces, and how the target drafts for itself
shortlist    the best few by replay, one of each family, the fastest static chains, plain decoding, and all that replay does not
             know; branch-parallel decoding where the device can draft and verify at once
clock        all of these decode validation prompts, interleaved
choice       the fastest by tokens from replay and seconds from the clock (`pipelines.measuring.gain`), unless the interval of
             its gain over the fastest static chain holds 0: then that chain, or plain decoding where it is faster

Policies that decide alike on every text, such as a rule whose model is left unasked and the chain it falls back to, are one
candidate, the plainest of them. Only validation prompts are read: the choice is scored by its trial.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from tqdm import tqdm

from pipelines.measuring import names
from pipelines.measuring.arm_rows import ArmRow, expanded
from pipelines.measuring.arms import ArmBuilder, TimedArm
from pipelines.measuring.bench import Blocks, MeasurementLog
from pipelines.measuring.gain import SIDE, Estimate, TimedDecodes, TooFewDocumentsError
from pipelines.measuring.harness import Harness, apart
from pipelines.measuring.names import PLAIN, PLAIN_FAMILY, VALIDATION
from pipelines.measuring.recorded import Accounts, RecordedTexts, same_decoders
from pipelines.measuring.tables import POLICIES, REPLAYED, Rows
from pipelines.outputs import absent
from pipelines.prompt_table import Prompt
from predictors.config import Checked, Count, not_empty
from predictors.latency.profile import LatencyProfile
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from runtime.decoding.branch_parallel import BranchParallelDecoder

DECISIONS = ("rounds", "submitted", "passes", "seconds")  # of a text: alike where decisions are
TREE = re.compile(r"delayed-(\d+)\.(\d+)\.(\d+)")  # `predictors.actions.Action.name`
STATICS = 2  # static chains that are always timed: replay may have them in the wrong order


@dataclass(frozen=True)
class TuneConfig(Checked):
    """Section ``tune``: the ``candidates`` fastest families by replay, and ``rivals`` that replay does not know (rows as in
    section ``measure``), decode so many ``validation_prompts``, ``repeats`` times."""

    temperatures: Annotated[tuple[float, ...], not_empty] = (0.0, 1.0)
    candidates: Count = 4
    rivals: tuple[ArmRow, ...] = ()
    validation_prompts: Count = 12
    repeats: Count = 1
    max_new_tokens: int = 48
    threads: Count = 2
    seed: int = 0

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature) for temperature in self.temperatures]


@dataclass(frozen=True)
class Contender:
    """A decoder by name: ``served`` is its configuration (``decoder``) or the name of its ``bundle``; ``predicted`` in tokens per
    second by replay, which does not know all of them."""

    name: str
    family: str
    served: dict[str, Any]
    predicted: float | None = None

    @property
    def kind(self) -> str:
        """Group of which the shortlist has at most one: a bundle, or the decoders of a family."""
        return self.name if "bundle" in self.served else self.family

    @property
    def complexity(self) -> int:
        """Rank of complexity: plain decoding, a static chain, any other configuration, a bundle."""
        return 0 if self.name == PLAIN else 3 if "bundle" in self.served else 2 - (self.family == names.CHAIN)


BASE = Contender(PLAIN, PLAIN_FAMILY, {"decoder": {"method": PLAIN}})


def candidates(
    replay: Path,
    fit: Path,
    settings: SamplingSettings,
    rivals: Iterable[ArmRow],
    fitted: Callable[[str], bool] = lambda name: True,
) -> list[Contender]:
    """All candidates at sampling ``settings``, the fastest by replay first, from folders of what was replayed and of fitted
    records; of predictors that are not ``fitted`` any more there are none. `ValueError` if nothing was replayed there."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(fit.glob("*.json")) if fitted(path.stem)}
    own = [name for name, record in records.items() if record.get("invariant") and not settings.greedy]
    known = [BASE] if absent(replay.parent) else _replayed(replay, settings, own, fitted)
    further = [*_unreplayed(records, settings.name), *(_given(row) for row in expanded(rivals, ""))]
    taken = {one.name for one in known}
    return known + [one for one in further if one.name not in taken]


def shortlist(found: Sequence[Contender], count: int) -> list[Contender]:
    """Choose what the clock compares, of all candidates with the fastest first."""
    best: dict[str, Contender] = {}
    for one in found:
        if one.predicted is not None and one.name != PLAIN:
            best.setdefault(one.kind, one)
    statics = [one.name for one in found if one.family == names.CHAIN][:STATICS]
    chosen = {PLAIN, *statics, *(one.name for one in list(best.values())[:count])}
    return [one for one in found if one.name in chosen or one.predicted is None]


def _replayed(
    replay: Path, settings: SamplingSettings, own: Collection[str], fitted: Callable[[str], bool]
) -> list[Contender]:
    """Rank what was replayed, bundles ``own`` on the texts of their invariant sampling."""
    try:
        table = pd.read_parquet(replay / REPLAYED)
        served = json.loads((replay / POLICIES).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{replay} holds no replay ({error}). Run the replay stage (dvc repro replay) first."
        ) from error
    served = {name: how for name, how in served.items() if "bundle" not in how or fitted(how["bundle"])}
    table = table[table["split"] == VALIDATION]
    rows = table[(table["setting"] == settings.name) & ~table["drafter"].isin(own)]
    if rows.empty:
        known = ", ".join(sorted(table["setting"].unique()))
        raise ValueError(
            f"nothing was replayed at {settings.name}, only at {known}. Name it in traces.texts.temperatures."
        )
    if own:
        invariant = replace(settings, invariant=True).name
        rows = pd.concat([rows, table[(table["setting"] == invariant) & table["drafter"].isin(own)]])
    made: dict[tuple[tuple[float, ...], ...], Contender] = {}
    for (name, family), part in rows.groupby(["drafter", "family"]):
        if name in served or name == PLAIN:
            rate = float(part["tokens"].sum() / part["seconds"].sum())
            one = (
                Contender(str(name), str(family), served[name], rate)
                if name in served
                else replace(BASE, predicted=rate)
            )
            decisions = tuple(part.sort_values("prompt")[list(DECISIONS)].itertuples(index=False, name=None))
            made[decisions] = min(made.get(decisions, one), one, key=lambda alike: alike.complexity)
    return sorted(made.values(), key=lambda one: -(one.predicted or 0.0))


def _unreplayed(records: Mapping[str, dict[str, Any]], setting: str) -> Iterator[Contender]:
    """Exported bundles that draft trees or without a draft model, and the best static tree of every rule at this setting."""
    for name, record in records.items():
        if name in names.METHODS and any(row["setting"] == setting for row in record["rows"]):
            yield Contender(name, names.CALIBRATED, {"bundle": name})
        if record.get("family") == "tree" and setting in record["static_actions"]:
            yield Contender(name, names.SELECTOR, {"bundle": name})
            if tree := TREE.fullmatch(record["static_actions"][setting]):
                drafter = {"kind": "delayed_tree", **dict(zip(("k", "l1", "l2"), map(int, tree.groups()), strict=True))}
                decoder = {"method": "speculative", "drafter": drafter, "verifier": record["rule"]}
                yield Contender(f"{tree[0]} {record['rule']}", names.CONFIG, {"decoder": decoder})


def _given(row: ArmRow) -> Contender:
    if row.decoder is None:
        raise ValueError(f"tune.rivals: {row.name!r} must be a decoder's configuration.")
    return Contender(row.name, row.family, {"decoder": row.decoder})


class TuneStudy:
    """``found``: candidates by sampling setting, the fastest first; ``bundles``: folder of exported bundles; ``texts`` are
    replayed by ``profile``, where there are any. ``rows`` holds what was timed, each decode with its rounds."""

    def __init__(
        self,
        pair: ModelPair,
        config: TuneConfig,
        found: Mapping[SamplingSettings, Sequence[Contender]],
        bundles: Path,
        texts: RecordedTexts,
        profile: LatencyProfile | None = None,
    ) -> None:
        self.config, self.texts, self.profile = config, texts, profile
        builder = ArmBuilder(pair, bundles, config.max_new_tokens)
        every = {one.name: one for some in found.values() for one in some}
        built = builder.build(ArmRow(name, one.family, **one.served) for name, one in every.items())
        able = {name: arm for name, arm in built.items() if not _is_virtual(arm)}
        self.found = {
            settings: shortlist([one for one in some if one.name in able], config.candidates)
            for settings, some in found.items()
        }
        at = {name: tuple(one.temperature for one, some in self.found.items() if name in _names(some)) for name in able}
        self.arms = {name: replace(arm, temperatures=at[name]) for name, arm in able.items() if at[name]}
        self.rows: Rows = []

    def run(self, prompts: Sequence[Prompt], log: MeasurementLog) -> list[dict[str, Any]]:
        """Time the shortlists on ``prompts``, and choose at every sampling setting: what was considered, and why."""
        with tqdm(total=0, desc="tune", unit="decode") as bar:
            harness = Harness(Blocks(log, bar), list(self.found), self.config.seed, self.config.repeats)
            self.rows = harness.race(self.arms, prompts)
        timed = self._timed()
        return [self._choice(settings, some, timed) for settings, some in self.found.items()]

    def _timed(self) -> TimedDecodes:
        (decodes, rounds), replayed = apart(self.rows), Rows()
        decoders = {name: arm.decoder for name, arm in self.arms.items() if arm.decoder is not None}
        recorded = self.texts.of(VALIDATION)
        if recorded and self.profile is not None:
            accounts = Accounts(self.profile, decoders, self.found)
            decodes, replayed = accounts.profiled(decodes, rounds), accounts.replayed(recorded)
        return TimedDecodes.of(decodes, replayed, same_decoders(decoders, self.found))

    def _choice(self, settings: SamplingSettings, some: Sequence[Contender], timed: TimedDecodes) -> dict[str, Any]:
        def gain(one: Contender, rival: Contender) -> Estimate | None:
            try:
                return timed.gain(one.name, rival.name, [settings.name])
            except TooFewDocumentsError:
                return None

        over_plain = {one.name: gain(one, BASE) for one in some}
        known = [one for one in some if over_plain[one.name] is not None]

        def speed(one: Contender) -> float:
            estimate = over_plain[one.name]
            return 0.0 if estimate is None else estimate.value

        statics = [one for one in known if one.family == names.CHAIN]
        static = max(statics, key=speed, default=None)
        plainest = max([one for one in (static, BASE) if one is not None], key=speed)
        winner = max(known, key=speed, default=BASE)
        found = gain(winner, static or BASE)
        if found is None or found.low(SIDE) <= 0:
            winner = plainest
        rivals = [one for one in (static, BASE) if one is not None and one.name != winner.name]
        gains = {rival.name: gain(winner, rival) for rival in rivals}
        return {
            "setting": settings.name,
            "winner": winner.name,
            "static": None if static is None else static.name,
            "gains": {name: _record(one) for name, one in gains.items()},
            "candidates": [asdict(one) | {"speedup": _record(over_plain[one.name])} for one in some],
        }


def _record(one: Estimate | None) -> dict[str, Any] | None:
    return None if one is None else {"gain": one.interval(), "prompts": one.prompts, "basis": one.basis}


def _names(some: Iterable[Contender]) -> set[str]:
    return {one.name for one in some}


def _is_virtual(arm: TimedArm) -> bool:
    """Tell whether it drafts and verifies one after the other where it should at once."""
    return isinstance(arm.decoder, BranchParallelDecoder) and arm.decoder.overlap.virtual
