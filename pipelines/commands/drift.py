"""Compare what a bundle serves with what its card says of recorded texts: acceptance, calibration error and features.

Reads the records that `load_decoder(bundle, pair, monitor=FILE)` and `draftwright generate --monitor FILE` write, rotated files
too, and compares the last requests of this bundle at every sampling setting with the card's reference. Stages fit and
tune make it by replaying the same controller on texts of test documents, on which nothing was trained and no threshold chosen:

    accepted   accepted tokens per round
    residual   share of forecast tokens that were accepted, less the forecast one: calibration error
    distance   squared distance of the features from the training rows, per query
    feature i  the first of their standardised coordinates, per query

Each is a ratio of sums over requests, so that budgets do not move it. All comparisons of a call together flag a stationary stream
at the rate of --false-alarm (α):

    se² = error² + error'²        t = (r' - r) / se        drift where |t| > c = t_{1 - α / 2k}
    detectable = (c + t_{1 - β}) se

r, error: the reference's, clustered by document; r', error': the window's, of requests that count as independent; k comparisons
(Bonferroni); β = 0.1, the rate at which a shift of the detectable size is missed; degrees of freedom by Satterthwaite. What else
moves it, and what cannot be replayed: docs/drift.md.

Exit codes: 0 no drift, 3 drift, 4 too few requests or no reference. Where the pair's prompts come from a file that holds recent
ones, this retrains on them in a script:

    draftwright drift --bundle DIR --records LOG; case $? in 0) ;; 3) dvc repro -sf prompts@PAIR && dvc repro ;; *) exit 1 ;; esac

    draftwright drift --bundle data/smollm2/bundles/hrad --records requests.jsonl
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.terminal import LINES, add_json_argument, brief, recording
from predictors.bundle import bundle_hash, read_bundle
from predictors.monitoring import AlarmLevel, Reference, fractions_of, read_reference

DRIFT, UNKNOWN = 3, 4  # exit codes
KEPT = {"bundle": str, "setting": str, "emitted": int}  # of a record, with their types
LEAST = 16  # requests that a comparison takes
MISS_RATE = 0.1


@dataclass(frozen=True)
class DriftComparison:
    """A ``statistic`` at a ``setting``: the reference's ratio, the one ``observed`` in ``requests``, ``t``, the shift that would
    be missed at `MISS_RATE` (``detectable``), and the verdict."""

    setting: str
    statistic: str
    reference: float
    observed: float
    requests: int
    t: float
    detectable: float
    drifted: bool


Samples = Mapping[tuple[str, str], tuple[AlarmLevel, AlarmLevel]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the bundle that served")
    parser.add_argument("--records", type=Path, required=True, help="file that the monitor wrote")
    parser.add_argument("--window", type=int, default=64, help="latest requests at a setting (default: %(default)s)")
    parser.add_argument(
        "--false-alarm", type=float, default=0.01, help="rate of alarms in a stationary stream (default: %(default)s)"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    if args.window < LEAST or not 0 < args.false_alarm < 1:
        raise ValueError(
            f"--window must be >= {LEAST} and --false-alarm lie between 0 and 1, got {args.window} and {args.false_alarm}."
        )
    references, missing = read_reference(read_bundle(args.bundle).card)
    records, damaged = read_records(args.records)
    sha256 = bundle_hash(args.bundle)
    ours = [record for record in records if record["bundle"] == sha256]
    ignored = {"of other bundles": len(records) - len(ours), "damaged": damaged}
    windows = {
        setting: [record for record in ours if record["setting"] == setting][-args.window :]
        for setting in sorted({record["setting"] for record in ours})
    }
    samples, notes, lengths = _taken(windows, references, missing)
    comparisons = compared(samples, args.false_alarm)
    drifted = sorted((one for one in comparisons if one.drifted), key=lambda one: -abs(one.t))
    lines = [*notes, *(f"{count} lines {what} were left out" for what, count in ignored.items() if count)]
    lines += [
        f"{one.setting}: {one.statistic} {one.observed:.3f}, not {one.reference:.3f}: t = {one.t:.2f}"
        for one in drifted
    ]
    named = ", ".join(f"{one.statistic} at {one.setting}" for one in drifted)
    verdict = (f"drift: {named}" if drifted else "no drift") if comparisons else "nothing was compared"
    found = [asdict(one) | {"t": one.t if math.isfinite(one.t) else None} for one in comparisons]
    record = {"bundle": sha256, "verdict": verdict, "settings": lengths, "comparisons": found}
    with recording(args.json) as show:
        show(record | {"notes": notes, "left_out": ignored})
        print(*filter(None, [brief(lines, LINES - 1), brief([verdict])]), sep="\n")
    if drifted or not comparisons:
        sys.exit(DRIFT if drifted else UNKNOWN)


def read_records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Records in the order of their writing, and how many lines are damaged."""
    rotated = [file for file in path.parent.glob(f"{escape(path.name)}.*") if file.suffix[1:].isdigit()]
    files = sorted(rotated, key=lambda file: -int(file.suffix[1:])) + [path] * path.is_file()
    if not files:
        raise ValueError(f"{path}: no monitor wrote there. Serve with draftwright generate --monitor {path}.")
    records: list[dict[str, Any]] = []
    damaged = 0
    for line in (line for file in files for line in file.read_text(errors="replace").splitlines()):
        if not line.strip():  # two processes began a line of their own behind one that was cut off
            continue
        try:
            records.append(_record(json.loads(line)))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            damaged += 1  # no JSON, or none that a monitor writes
    return records, damaged


def _record(line: dict[str, Any]) -> dict[str, Any]:
    kept = {name: line[name] for name in KEPT}
    for name, kind in KEPT.items():
        if type(kept[name]) is not kind:
            raise TypeError(f"{name} is {kept[name]!r}")
    kept["setting"].encode()  # a lone surrogate cannot be printed
    return kept | {"fractions": fractions_of(line)}


def _taken(
    windows: dict[str, list[dict]], references: dict[str, Reference], missing: str
) -> tuple[Samples, list[str], dict[str, dict[str, Any]]]:
    """What can be compared; why other settings are not; by setting, how many requests there were, with mean tokens of both."""
    samples: dict[tuple[str, str], tuple[AlarmLevel, AlarmLevel]] = {}
    notes = [] if windows else ["no records of this bundle: was another content of it served?"]
    lengths = {}
    for setting, records in windows.items():
        reference, before = references.get(setting), len(samples)
        for name, level in reference.levels.items() if reference else ():
            fractions = [record["fractions"][name] for record in records if name in record["fractions"]]
            served = AlarmLevel.of(fractions, range(len(fractions)))
            if served is not None and served.requests >= LEAST:
                samples[setting, name] = level, served
        tokens = sum(record["emitted"] for record in records) / len(records)
        known = reference.tokens if reference else None
        lengths[setting] = {"requests": len(records), "tokens": tokens, "reference_tokens": known}
        said = f"{setting}: {len(records)} requests"
        if reference is None:
            notes.append(f"{said} and no reference: {missing.rstrip('.')}.")
        elif len(samples) == before:
            notes.append(f"{said} are too few; a comparison takes {LEAST} with a whole round, not all rounds in one.")
    return samples, notes, lengths


def compared(samples: Samples, false_alarm: float) -> list[DriftComparison]:
    """Compare all ``samples``, by setting and statistic the reference's level and the window's, so that in a stationary stream
    any drift is found at the rate ``false_alarm``."""
    return [_compared(*name, *levels, false_alarm / len(samples)) for name, levels in samples.items()]


def _compared(setting: str, statistic: str, reference: AlarmLevel, served: AlarmLevel, rate: float) -> DriftComparison:
    own, theirs = served.error**2, reference.error**2
    squared, shift = own + theirs, served.mean - reference.mean
    if squared == 0:  # nothing varies, here or there
        t = 0.0 if math.isclose(served.mean, reference.mean) else math.copysign(math.inf, shift)
        detectable, drifted = 0.0, t != 0
    else:
        freedom = squared**2 / (own**2 / served.freedom + theirs**2 / reference.freedom)
        error, critical = math.sqrt(squared), exceeded(rate, freedom)
        t, detectable = shift / error, (critical + exceeded(2 * MISS_RATE, freedom)) * error
        drifted = abs(t) > critical
    return DriftComparison(setting, statistic, reference.mean, served.mean, served.requests, t, detectable, drifted)


def exceeded(rate: float, freedom: float) -> float:
    """The t that |t| of Student's distribution exceeds at that ``rate`` (>= 1e-7), to 1e-4 of it. Without scipy, which hosts that
    only serve have not: by the trapezoidal rule over s, t = sinh s."""
    s_P = np.linspace(0, 30, 10_001)  # t up to 5e12
    density = np.exp(-(freedom + 1) / 2 * np.log1p(np.sinh(s_P) ** 2 / freedom)) * np.cosh(s_P)  # dt / ds is the latter
    above = np.append(0.0, np.cumsum(((density[1:] + density[:-1]) / 2)[::-1]))  # ascending: from the largest t down
    return float(np.sinh(np.interp(rate, above / above[-1], s_P[::-1])))
