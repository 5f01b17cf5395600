"""Show what the gate would do with challengers of known gain: coverage of its interval, and how often each verdict falls.

    python -m tests.pipelines.simulate --runs 400

Documents, prompts, looks and noise are those of a trial of a small pair. Two tables are printed: coverage of the 95 % interval,
on the clock alone and with replay corrected by the clock; and by true gain the share of challengers that pass at the first look,
pass at any, are refused, and stay inconclusive. Verdicts rest on the clock alone, with ``--replayed`` on replay, too.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from tqdm import tqdm

from pipelines.gate.conditions import judge
from pipelines.gate.evidence.gain import gain
from pipelines.gate.evidence.ledger import TimedBlocks
from pipelines.gate.plan import Bounds
from pipelines.gate.trial_evidence import Evidence, compared
from pipelines.gate.verdict import INCONCLUSIVE, PASSED, REFUSED
from pipelines.parameters import PARAMETERS, load_parameters
from tests.pipelines.simulated import CHALLENGER, PLAIN, Measurement, World

RIVAL = "chain-4"  # the closest
ONE_RIVAL = World(rates={PLAIN: 0.6, RIVAL: 1.0})  # where the error of all looks is largest
WORLDS = {
    "usual": World(),
    "quiet": World(noise={0.0: 0.05, 1.0: 0.09}),
    "noisy": World(noise={0.0: 0.14, 1.0: 0.22}),
    "one rival": ONE_RIVAL,
    "one rival, staged": replace(ONE_RIVAL, staged=True),
}
GAINS = (0.0, 0.02, 0.04, 0.05, 0.08)
Item = TypeVar("Item")


def covered(world: World, true_gain: float, seed: int, replayed: bool) -> tuple[bool, float]:
    """Whether one measurement's 95 % interval holds the true gain, and its half-width."""
    made = Measurement(world, true_gain, seed)
    blocks = TimedBlocks.of(made.decodes())
    interval = gain(blocks, CHALLENGER, RIVAL, world.mix, made.replayed() if replayed else None).interval()
    low, high = interval["low"], interval["high"]
    assert low is not None and high is not None
    return low <= true_gain <= high, (high - low) / 2


def verdicts(world: World, true_gain: float, seed: int, bounds: Bounds, replayed: bool = False) -> list[str]:
    """The gate's verdicts on one challenger: the next look is taken while the last was inconclusive."""
    made = Measurement(world, true_gain, seed, len(bounds.looks))
    found: list[str] = []
    for look in range(1, len(bounds.looks) + 1):
        left = (len(bounds.looks) - look) * sum(world.spared.values())
        outcome = judge(_evidence(made, look, left, bounds, replayed), bounds).outcome
        found.append(outcome)
        if outcome != INCONCLUSIVE:
            break
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=int, default=200, help="simulated challengers of every row (default: %(default)s)"
    )
    parser.add_argument(
        "--world", choices=WORLDS, default="usual", help="how noisy the clock is (default: %(default)s)"
    )
    parser.add_argument("--replayed", action="store_true", help="let verdicts rest on replay corrected by the clock")
    parser.add_argument("--pair", help="whose section promotion; left out: the defaults")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> None:
    if args.runs < 1:
        raise ValueError(f"--runs must be >= 1, got {args.runs}.")
    bounds = Bounds() if args.pair is None else load_parameters(Bounds, args.pair, "promotion", PARAMETERS)
    world, seeds = WORLDS[args.world], range(args.seed, args.seed + args.runs)
    print(*coverage_table(world, seeds), sep="\n")
    print()
    print(*verdict_table(world, seeds, bounds, args.replayed), sep="\n")


def coverage_table(world: World, seeds: Sequence[int]) -> list[str]:
    """Of intervals, as lines of Markdown."""
    lines = ["| true gain | estimate rests on | 95 % interval covers | half-width |", "|---|---|---|---|"]
    for true_gain in (0.0, 0.05):
        for replayed, name in ((False, "clock"), (True, "replay corrected by the clock")):
            found = [covered(world, true_gain, seed, replayed) for seed in _shown(seeds, f"coverage, {name}")]
            share, width = (sum(column) / len(found) for column in zip(*found, strict=True))
            lines.append(f"| {true_gain:+.0%} | {name} | {share:.1%} | {width:.1%} |")
    return lines


def verdict_table(world: World, seeds: Sequence[int], bounds: Bounds, replayed: bool) -> list[str]:
    """Of verdicts, as lines of Markdown."""
    lines = ["| true gain | passed at look 1 | passed at any look | refused | inconclusive |", "|---|---|---|---|---|"]
    for true_gain in GAINS:
        found = [
            verdicts(world, true_gain, seed, bounds, replayed) for seed in _shown(seeds, f"verdicts, {true_gain:+.0%}")
        ]
        last = Counter(one[-1] for one in found)
        counts = sum(one[0] == PASSED for one in found), last[PASSED], last[REFUSED], last[INCONCLUSIVE]
        lines.append(f"| {true_gain:+.0%} | " + " | ".join(f"{count / len(found):.1%}" for count in counts) + " |")
    return lines


def _evidence(made: Measurement, look: int, left: int, bounds: Bounds, replayed: bool) -> Evidence:
    known = made.replayed(look) if replayed else None
    found = compared(made.decodes(look), bounds, mix=made.world.mix, replayed=known)
    return replace(GREEN, problem=None, **vars(found), look=look, documents_left=left)


GREEN = Evidence(  # all but the gains
    pair="simulated",
    predictor="challenger",
    bundle_sha256="0" * 64,
    champion=None,
    problem="not measured",
    exactness={"simulated": True},
    calibration_error=0.0,
    gains={},
    reference=None,
    settings={},
    slices={},
    documents=(),
    trained_documents=("another",),
)


def _shown(items: Sequence[Item], what: str) -> Iterable[Item]:
    return tqdm(items, desc=what, unit="run", leave=False)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    run(parser.parse_args(argv))


if __name__ == "__main__":
    main()
