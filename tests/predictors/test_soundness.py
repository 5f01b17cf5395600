"""What speaks against a latency profile: nothing of a sound one, and of each kind of nonsense the cell at fault."""

from dataclasses import replace

import numpy as np
import pytest

from predictors.latency.profile import LatencyProfile, LatencyTable
from predictors.latency.soundness import CLEARLY, MOST_SPREAD, Place, findings, noise_warning

MILLISECOND = 1e-3
TARGET = [[8.0, 9.0], [9.0, 10.0], [12.0, 14.0], [20.0, 24.0]]  # tokens 1, 2, 5, 9; context 32, 512
DRAFT = [[1.0, 1.2], [1.5, 1.8]]  # rows 1, 4


def table(axes, milliseconds, spread=0.05):
    median = MILLISECOND * np.array(milliseconds)
    return LatencyTable(axes, median, median * (1 - spread / 2), median * (1 + spread / 2), 40)


def sound(**changes):
    tables = {
        "target": table({"tokens": (1, 2, 5, 9), "context": (32, 512)}, TARGET),
        "draft": table({"rows": (1, 4), "context": (32, 512)}, DRAFT),
        "chain_verification": table({"drafted": (0, 2), "sampled": (0, 1)}, [[0.5, 0.6], [0.8, 0.9]]),
        "plain": table({"context": (32,)}, [8.4]),
        "reading": table({"entropy": (0, 1)}, [0.5, 0.1]),  # no pass: may fall
    }
    return LatencyProfile(tables | changes, "toys", {}, {"device": {"slug": "toy-1c"}})


def target(index, milliseconds, spread=0.05):
    """The target's table with another cell at ``index``."""
    made = np.array(TARGET)
    made[index] = milliseconds
    return table({"tokens": (1, 2, 5, 9), "context": (32, 512)}, made, spread)


def place(name, **at):
    return Place.of(name, at)


def test_nothing_speaks_against_a_sound_profile():
    assert findings(sound()) == []
    assert noise_warning(sound()) is None


def test_nothing_is_found_in_tables_that_are_not_there():
    assert findings(LatencyProfile({}, "toys", {}, {})) == []


@pytest.mark.parametrize(
    ("index", "milliseconds", "cell", "other"),
    [
        ((1, 0), 40.0, {"tokens": 2, "context": 32}, {"tokens": 2, "context": 512}),  # one dear cell against many
        ((3, 1), 4.0, {"tokens": 9, "context": 512}, {"tokens": 9, "context": 32}),  # one cheap cell against many
        ((2, 0), 18.0, {"tokens": 5, "context": 32}, {"tokens": 5, "context": 512}),  # two alone: the dearer
    ],
)
def test_a_pass_that_does_not_grow_is_found_once_at_the_cell_that_most_others_contradict(
    index, milliseconds, cell, other
):
    (found,) = findings(sound(target=target(index, milliseconds)))
    assert found.place == place("target", **cell)
    assert found.beside == (place("target", **other),)
    assert f"{milliseconds:g} ms" in str(found) and str(found).startswith(f"target context={cell['context']} ")


def test_a_wider_pass_may_be_faster_by_a_quarter_and_not_by_more():
    axes = {"rows": (1, 4), "context": (32,)}
    within, beyond = (table(axes, [[dear], [1.0]]) for dear in (CLEARLY, CLEARLY + 0.01))
    assert findings(LatencyProfile({"draft": within}, "toys", {}, {})) == []
    (found,) = findings(LatencyProfile({"draft": beyond}, "toys", {}, {}))
    assert found.place == place("draft", rows=1, context=32)


def test_passes_whose_quartiles_overlap_do_not_contradict():
    assert findings(sound(target=target((2, 0), 18.0, spread=0.5))) == []


@pytest.mark.parametrize(("factor", "count"), [(0.99, 0), (1.01, 1)])
def test_the_spread_is_bounded_in_every_table(factor, count):
    wide = table({"entropy": (0, 1)}, [0.5, 0.1])
    high = wide.median * (1 + np.array([MOST_SPREAD * factor, 0.0]))
    found = findings(sound(reading=replace(wide, low=wide.median, high=high)))
    assert [one.place for one in found] == [place("reading", entropy=0)] * count
    assert all(one.value.endswith(f" {MOST_SPREAD * factor:.0%}") for one in found)
