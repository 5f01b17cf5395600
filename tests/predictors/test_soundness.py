"""What speaks against a latency profile: nothing of a sound one, and of each kind of nonsense the cell at fault."""

import re
from dataclasses import replace

import numpy as np
import pytest

from predictors.latency.profile import LatencyProfile
from predictors.latency.soundness import (
    CLEARLY,
    LEAST_COST_RATIO,
    MOST_ERROR,
    MOST_SPREAD,
    MOST_SPREAD_BETWEEN,
    MOST_WAITING,
    NAMED,
    SHORT,
    Place,
    findings,
    noise_warning,
    waiting_noise,
)
from predictors.latency.tables import LatencyTable

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


def test_cells_of_two_processes_may_spread_further():
    wide = table({"submitted": (8,)}, [1.0])
    for most, count in ((MOST_SPREAD_BETWEEN - 0.01, 0), (MOST_SPREAD_BETWEEN + 0.01, 1)):
        made = replace(wide, low=wide.median, high=wide.median * (1 + most))
        assert len(findings(sound(exchange=made))) == count
        assert len(findings(sound(predictor=replace(made, axes={"features": (64,)})))) == 1


def test_microseconds_may_spread():
    short = np.array([2e-6, 2e-6])
    quick = LatencyTable({"entropy": (0, 1)}, short, short, short + 0.9 * SHORT, 40)
    assert findings(sound(reading=quick)) == []
    assert len(findings(sound(reading=replace(quick, high=short + 1.1 * SHORT)))) == 2


@pytest.mark.parametrize("sign", [-1, 1])
def test_plain_decoding_is_held_against_the_sum_of_its_cells(sign):
    summed = 8.0 + 0.5
    within, beyond = (summed / (1 + sign * (MOST_ERROR + more)) for more in (-0.01, 0.01))
    assert findings(sound(plain=table({"context": (32,)}, [within]))) == []
    (found,) = findings(sound(plain=table({"context": (32,)}, [beyond])))
    assert found.place == place("plain", context=32) and " 8.5 ms" in found.expected
    cells = {place("target", tokens=1, context=32), place("chain_verification", drafted=0, sampled=0)}
    assert set(found.beside) == cells


def test_a_draft_step_must_not_cost_clearly_more_than_a_target_pass():
    axes = {"rows": (1, 4), "context": (32, 512)}
    within, beyond = (table(axes, np.full((2, 2), 8.0 * factor)) for factor in (1.2, 1.3))
    assert 1 / 1.3 < LEAST_COST_RATIO < 1 / 1.2
    assert findings(sound(draft=within)) == []
    (found,) = findings(sound(draft=beyond))
    assert found.place == place("target", tokens=1, context=32)
    assert found.beside == (place("draft", rows=1, context=32),) and " 0.77 " in found.value


def test_waiting_for_a_processor_is_noise():
    assert waiting_noise(MOST_WAITING) == []
    (sentence,) = waiting_noise(0.5)
    assert re.findall(r"[\d.]+", sentence) == ["0.50", str(MOST_WAITING)]


def test_the_warning_names_device_pair_the_first_findings_and_the_remedy():
    loud = replace(sound(), noise=tuple(f"cell {number}" for number in range(NAMED + 2)))
    warning = noise_warning(loud)
    assert warning.startswith("toy-1c was noisy when the latency profile of toys was measured")
    assert "(cell 0; cell 1; cell 2; 2 more)" in warning and "dvc repro -sf latency@toys" in warning
    assert "(cell 0)" in noise_warning(replace(loud, noise=("cell 0",)))
