"""The fastest candidate of every sampling setting: chosen on validation prompts, scored on test prompts.

shortlist   the fastest by replay, two static chains, plain decoding, and every candidate that stage ``measure`` timed already
clock       the others of them are timed here, in blocks with plain decoding and the static chain that is fastest so far
choice      by replay and clock together (`pipelines.measuring.tuning.speedups`)
score       over plain decoding and the fastest static chain, on the test prompts that stage ``measure`` decoded with all three;
            if there are none, they are decoded here
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm

from pipelines.gate.evidence.gain import gain
from pipelines.gate.evidence.ledger import TimedBlocks
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import ArmBuilder
from pipelines.measuring.harness import Harness
from pipelines.measuring.led import TextLeader
from pipelines.measuring.measurement_log import Blocks, MeasurementLog, Rows
from pipelines.measuring.names import PLAIN, TEST, VALIDATION
from pipelines.measuring.tuning.candidates import HERE, Candidate, Measured, shortlist
from pipelines.measuring.tuning.speedups import Speedup, clocked, fastest, shared_documents, speedups
from pipelines.prompt_table import Prompt
from predictors.config import Checked, Count, NotNegative, Positive, not_empty
from predictors.sampling import SamplingSettings
from runtime import ModelPair

VALIDATION_SHARE = 0.6  # of max_minutes, when choosing has to end
Wanted = Mapping[SamplingSettings, Sequence[Candidate]]


@dataclass(frozen=True)
class TuneConfig(Checked):
    """Section ``tune``: the ``candidates`` fastest by replay are compared on the clock. Those that were not timed yet decode so
    many ``validation_prompts``, and a winner that was not timed yet so many ``test_prompts``, ``repeats`` times.

    ``tie``: the share of speed that is not worth a more complex decoder; what replay errs by is not either, where that is more.
    ``replay_error``: how far replay's speed-ups are off, before any is timed, and how differently by basis; ``led``: above
    temperature 0 all decode one text; ``max_minutes`` bounds the timing.
    """

    temperatures: Annotated[tuple[float, ...], not_empty] = (0.0, 1.0)
    candidates: Count = 6
    tie: NotNegative = 0.01
    replay_error: Positive = 0.05
    validation_prompts: Count = 12
    test_prompts: Count = 24
    repeats: Count = 1
    max_new_tokens: int = 48
    led: bool = True
    threads: Count = 2
    seed: int = 0
    max_minutes: float | None = None

    @property
    def settings(self) -> list[SamplingSettings]:
        return [SamplingSettings(temperature) for temperature in self.temperatures]


@dataclass(frozen=True)
class Tuned:
    """What was chosen at a sampling setting: the ``winner``; ``rivals``: plain decoding and the static chain that is fastest of
    its kind, unless they are the winner; ``record``: what was considered and why."""

    settings: SamplingSettings
    winner: Candidate
    rivals: tuple[Candidate, ...]
    record: dict[str, Any]

    @property
    def shown(self) -> tuple[Candidate, ...]:
        """What the score compares."""
        return (self.winner, *self.rivals)


class TuneStudy:
    """``found``: candidates by sampling setting, the fastest first; ``bundles``: folder of exported bundles. ``rows`` holds what
    was timed here, each decode with its rounds; ``blocks.capped`` says that time ran out."""

    def __init__(
        self,
        pair: ModelPair,
        config: TuneConfig,
        found: Mapping[SamplingSettings, list[Candidate]],
        measured: Measured,
        bundles: Path,
        prompts: Mapping[str, Sequence[Prompt]],
        log: MeasurementLog,
        leading: TextLeader | None = None,
    ) -> None:
        self.config, self.measured, self.prompts, self.leading = config, measured, prompts, leading
        self.builder = ArmBuilder(pair, bundles, config.max_new_tokens)
        self.blocks = Blocks(log, tqdm(total=0, desc="tune", unit="decode"), config.max_minutes)
        self.rows: Rows = []
        self.found = {
            settings: shortlist(some, config.candidates, clocked(self._rows(settings, some, VALIDATION)))
            for settings, some in found.items()
        }

    def run(self) -> list[Tuned]:
        """Choose at every sampling setting, and score what was chosen."""
        with self.blocks.bar:
            untimed = {settings: self._untimed(settings) for settings in self.found}
            self._time(VALIDATION, untimed, VALIDATION_SHARE)
            chosen = [self._chosen(settings) for settings in self.found]
            unscored = {one.settings: one.shown for one in chosen if self._score(one) is None}
            self._time(TEST, unscored, 1.0)
        for one in chosen:
            one.record["score"] = self._score(one)
        return chosen

    def _untimed(self, settings: SamplingSettings) -> list[Candidate]:
        """What the clock does not know, and what it is to be compared with; nothing if it knows all."""
        some = self.found[settings]
        rows = self._rows(settings, some, VALIDATION)
        known = clocked(rows)
        by_name, _ = speedups(some, rows, self.config.replay_error)
        rivals = {PLAIN, *(one.name for one in _static(some, by_name))}
        missing = {one.name for one in some} - {PLAIN, *known}
        return [one for one in some if one.name in missing | rivals] if missing else []

    def _chosen(self, settings: SamplingSettings) -> Tuned:
        """The choice; one that an interrupted run has made stands, as test prompts may have been decoded by it."""
        some = self.found[settings]
        (record,) = self.blocks.log.once(f"choice/{settings.name}", lambda: [self._choice(settings, some)])
        winner = next(one for one in some if one.name == record["winner"])
        rivals = [one for one in some if one.name in (PLAIN, record["static"]) and one != winner]
        return Tuned(settings, winner, tuple(rivals), dict(record))

    def _choice(self, settings: SamplingSettings, some: list[Candidate]) -> dict[str, Any]:
        by_name, replay = speedups(some, self._rows(settings, some, VALIDATION), self.config.replay_error)
        tie = max(math.log1p(self.config.tie), replay.spread)
        return {
            "setting": settings.name,
            "winner": fastest(some, by_name, tie, replay.apart).name,
            "static": next((one.name for one in _static(some, by_name)), None),
            "candidates": [asdict(one) | {"speedup": asdict(by_name[one.name])} for one in some],
            "replay": replay.to_record(),
        }

    def _score(self, tuned: Tuned) -> dict[str, dict[str, Any]] | None:
        """The winner's gain by rival on test prompts; ``None`` as long as fewer than two documents were decoded with all."""
        rows = self._rows(tuned.settings, tuned.shown, TEST)
        blocks = TimedBlocks.of(rows) if rows else None
        if blocks is None or shared_documents(blocks, *(one.name for one in tuned.shown)) < 2:
            return None
        here = any(row["arm"] == tuned.winner.name and not row["block"].startswith(HERE) for row in rows)
        replayed = None if here else self.measured.foreseen({one.name: one.served for one in tuned.shown})
        gains = {one.name: gain(blocks, tuned.winner.name, one.name, replayed=replayed) for one in tuned.rivals}
        return {
            name: {"prompts": one.prompts, "gain": one.interval(), "basis": one.basis} for name, one in gains.items()
        }

    def _rows(self, settings: SamplingSettings, some: Sequence[Candidate], split: str) -> Rows:
        """Decodes of the candidates on the prompts of a split: those of stage ``measure``, and those of here."""
        wanted, served = asdict(settings) | {"split": split}, {one.name: one.served for one in some}
        here = [row for row in self.rows if row["arm"] in served and wanted.items() <= row.items()]
        return self.measured.of(settings, served, split) + here

    def _time(self, split: str, wanted: Wanted, share: float) -> None:
        """Time the ``wanted`` candidates, interleaved, on the prompts of a split."""
        names = {settings: {one.name for one in some} for settings, some in wanted.items() if some}
        if not names:
            return
        served = {one.name: one for some in wanted.values() for one in some}
        at = {name: tuple(one.temperature for one, some in names.items() if name in some) for name in served}
        built = self.builder.build(ArmRow(name, one.family, **one.served) for name, one in served.items())
        arms = {name: replace(arm, temperatures=at[name]) for name, arm in built.items()}
        harness = Harness(self.blocks, list(names), self.config.seed, self.config.repeats, self.leading)
        self.rows += harness.race(arms, self.prompts[split], share)


def _static(some: Iterable[Candidate], by_name: Mapping[str, Speedup]) -> list[Candidate]:
    """The fastest static chain, if there is one."""
    chains = [one for one in some if one.static]
    return [fastest(chains, by_name)] if chains else []
