"""The gate on simulated challengers of known gain: how often it errs, and how often it sees what it promises to see."""

import numpy as np
import pytest

from pipelines.gate.plan import Bounds
from tests.pipelines import simulate
from tests.pipelines.simulated import Measurement, World

RUNS = range(80)


def passes(true_gain, bounds=None, world=None):
    """Share of challengers that pass at any look."""
    found = [simulate.verdicts(world or World(), true_gain, seed, bounds or Bounds()) for seed in RUNS]
    return np.mean([one[-1] == "passed" for one in found])


def test_no_gain_seldom_passes_and_the_promised_one_mostly_does():
    """Of 80 at 2.5 %, more than 6 pass once in a hundred; at 80 %, fewer than 55 once in a hundred."""
    assert passes(0.0) <= 6 / 80 and passes(0.05) >= 55 / 80


def test_a_looser_gate_errs_more_often():
    """The wrong twin: a total error of 30 % shows in as many runs."""
    loose = Bounds(alpha=0.3, looks=(0.5, 0.75, 1.0))
    assert passes(0.0, loose) > 6 / 80


def test_the_world_is_as_noisy_as_it_says():
    """Log ratio of challenger and rival by prompt: its deviation is the stated one, its mean ratio the true gain."""
    world = World(prompts=240)
    made = [Measurement(world, 0.08, seed) for seed in range(10)]
    rows = [row for one in made for row in one.decodes() if row["arm"] in ("challenger", "chain-4")]
    for temperature, noise in world.noise.items():
        seconds = {
            arm: np.array([r["seconds"] for r in rows if r["arm"] == arm and r["temperature"] == temperature])
            for arm in ("challenger", "chain-4")
        }
        ratio = np.log(seconds["chain-4"]) - np.log(seconds["challenger"])
        assert ratio.std() == pytest.approx(noise, rel=0.05)
        assert seconds["chain-4"].mean() / seconds["challenger"].mean() - 1 == pytest.approx(0.08, abs=0.02)
    looks = {look: len(Measurement(World(), 0.0, 0, looks=3).decodes(look)) for look in (1, 2, 3)}
    assert looks == {1: 60 * 14, 2: 90 * 14, 3: 120 * 14}


def test_where_a_stage_took_the_first_look_later_ones_have_its_prompts_and_other_times():
    made = Measurement(World(staged=True), 0.0, 0, looks=2)
    kept, staged = (World(staged=False), 0.0, 0), made.decodes(1)
    again = made.decodes(2)[: len(staged)]
    assert [row["block"] for row in staged] == [row["block"] for row in again]
    assert all(one["seconds"] != other["seconds"] for one, other in zip(staged, again, strict=True))
    assert Measurement(*kept, looks=2).decodes(1) == Measurement(*kept, looks=2).decodes(2)[: len(staged)]


def test_tables_are_printed(capsys):
    simulate.main(["--runs", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in lines] == [5] * 6 + [0] + [6] * 7
    simulate.main(["--runs", "1", "--replayed", "--world", "one rival, staged"])
    assert capsys.readouterr().out.splitlines()[-5].startswith("| +0% |")
    with pytest.raises(ValueError, match="--runs must be >= 1"):
        simulate.main(["--runs", "0"])
