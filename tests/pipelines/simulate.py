"""Show what the gate would do with challengers of known gain: coverage of its interval, and how often each verdict falls.

    python -m tests.pipelines.simulate --runs 400

Documents, prompts and noise are those of a trial of a small pair. Two tables are printed: coverage of the 95 % interval, on the
clock alone and with tokens from replay; and by true gain the share of challengers that pass, are refused, and stay inconclusive.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tqdm import tqdm

from pipelines.gate.evidence import compared
from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import INCONCLUSIVE, PASSED, REFUSED, judge
from tests.pipelines.hand_made_evidence import GOOD
from tests.pipelines.simulated import CHALLENGER, PLAIN, World, trial

RIVAL = "chain-4"  # the closest
WORLDS = {
    "usual": World(),
    "quiet": World(noise={0.0: 0.05, 1.0: 0.09}),
    "noisy": World(noise={0.0: 0.14, 1.0: 0.22}),
    "one rival": World(rates={PLAIN: 0.6, RIVAL: 1.0}),
}
GAINS = (0.0, 0.02, 0.04, 0.05, 0.08)


def covered(world: World, true_gain: float, seed: int, replayed: bool) -> tuple[bool, float]:
    """Whether one trial's 95 % interval holds the true gain, and its half-width."""
    interval = trial(world, true_gain, seed, replayed).gain(CHALLENGER, RIVAL).interval()
    low, high = interval["low"], interval["high"]
    assert low is not None and high is not None
    return low <= true_gain <= high, (high - low) / 2


def verdict(world: World, true_gain: float, seed: int, bounds: Bounds, replayed: bool = True) -> str:
    """The gate's verdict on one challenger."""
    found = compared(trial(world, true_gain, seed, replayed), bounds)
    return judge(replace(GOOD, **vars(found)), bounds).outcome


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="challengers of every row (default: %(default)s)")
    parser.add_argument("--world", choices=WORLDS, default="usual", help="how noisy (default: %(default)s)")
    parser.add_argument("--clock", action="store_true", help="let verdicts rest on the clock alone")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.runs < 1:
        raise ValueError(f"--runs must be >= 1, got {args.runs}.")
    world, seeds = WORLDS[args.world], range(args.seed, args.seed + args.runs)
    print("| true gain | estimate rests on | 95 % interval covers | half-width |\n|---|---|---|---|")
    for true_gain in (0.0, 0.05):
        for replayed, name in ((False, "clock"), (True, "tokens from replay")):
            found = [covered(world, true_gain, seed, replayed) for seed in _shown(seeds, f"coverage, {name}")]
            share, width = (sum(column) / len(found) for column in zip(*found, strict=True))
            print(f"| {true_gain:+.0%} | {name} | {share:.1%} | {width:.1%} |")
    print("\n| true gain | passed | refused | inconclusive |\n|---|---|---|---|")
    for true_gain in GAINS:
        outcomes = Counter(
            verdict(world, true_gain, seed, Bounds(), not args.clock) for seed in _shown(seeds, f"{true_gain:+.0%}")
        )
        shares = (f"{outcomes[one] / args.runs:.1%}" for one in (PASSED, REFUSED, INCONCLUSIVE))
        print(f"| {true_gain:+.0%} | " + " | ".join(shares) + " |")


def _shown(items: Sequence[int], what: str) -> Iterable[int]:
    return tqdm(items, desc=what, unit="run", leave=False)


if __name__ == "__main__":
    main()
