"""The gate on simulated challengers of known gain: how often it errs, and how often it sees what it promises to see."""

import numpy as np
import pytest

from pipelines.gate.plan import Bounds
from tests.pipelines import simulate
from tests.pipelines.simulated import World, trial

RUNS = range(80)


def passes(true_gain, bounds=None, replayed=True):
    """Share of challengers that pass."""
    found = [simulate.verdict(World(), true_gain, seed, bounds or Bounds(), replayed) for seed in RUNS]
    return np.mean([one == "passed" for one in found])


def test_no_gain_seldom_passes_and_the_promised_one_mostly_does():
    """Of 80 at 2.5 %, more than 6 pass once in a hundred; at 80 %, fewer than 55 once in a hundred."""
    assert passes(0.0) <= 6 / 80 and passes(0.05) >= 55 / 80 and passes(0.0, replayed=False) <= 6 / 80


def test_a_looser_gate_errs_more_often():
    """The wrong twin: an error of 45 % against one close rival shows in as many runs."""
    world = simulate.WORLDS["one rival"]
    found = [simulate.verdict(world, 0.0, seed, Bounds(alpha=0.45)) for seed in RUNS]
    assert np.mean([one == "passed" for one in found]) > 6 / 80


def test_the_world_is_as_noisy_as_it_says():
    """Log ratio of challenger and rival by prompt: its deviation is the stated one, its mean ratio the true gain."""
    world = World(prompts=119)
    made = [trial(world, 0.08, seed) for seed in range(10)]
    for temperature, noise in world.noise.items():
        sides = {}
        for arm in ("challenger", "chain-4"):
            parts = [
                one.blocks.amounts_FAN[0, one.arms[arm], one.blocks.setting_N == f"T={temperature:g}"] for one in made
            ]
            sides[arm] = np.concatenate(parts)
        assert np.std(np.log(sides["chain-4"] / sides["challenger"])) == pytest.approx(noise, rel=0.07)
        assert sides["chain-4"].mean() / sides["challenger"].mean() - 1 == pytest.approx(0.08, abs=0.02)


def test_tables_are_printed(capsys):
    simulate.main(["--runs", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in lines] == [5] * 6 + [0] + [5] * 7
    with pytest.raises(ValueError, match="--runs must be >= 1"):
        simulate.main(["--runs", "0"])
