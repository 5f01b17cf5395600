"""The gain of an arm over a rival: by hand, against deleting documents by hand, and where replay or the clock alone is wrong."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pipelines.measuring.gain import CLOCK, REPLAYED, Estimate, Timed, TooFewDocumentsError
from tests.pipelines.hand_made_decodes import CODE, decode, decodes
from tests.pipelines.simulated import CHALLENGER, World, trial

SAME = {"T=1": frozenset({frozenset({"challenger", "chain-4"})})}


def gain_of(rows, arm="challenger", rival="chain-4", texts=(), same=None, **only):
    return Timed.of(rows, texts, same).gain(arm, rival, **only)


def test_settings_weigh_alike_and_slices_as_they_were_timed():
    """Twice as fast on code alone, 3 of 5 documents; or at one of two settings."""
    rows = decodes(lambda arm, name, *where: 20.0 if (arm, name) == ("challenger", "code") else 10.0)
    assert gain_of(rows).gain == pytest.approx(1 / (0.6 * 0.5 + 0.4) - 1)
    assert gain_of(rows, only_slice="prose").gain == pytest.approx(0)
    one = decodes(lambda arm, name, document, t: 20.0 if arm == "challenger" and t == 1 else 10.0)
    assert gain_of(one).gain == pytest.approx(1 / 0.75 - 1)
    assert gain_of(one, settings=["T=1"]).gain == pytest.approx(1) and gain_of(one, settings=["T=0"]).gain == 0


def test_tokens_count_as_well_as_seconds_and_only_blocks_that_timed_both():
    rows = [decode("challenger", p, 1.0, tokens=t) for p, t in (("a", 30), ("b", 10))]
    rows += [decode("chain-4", p, 1.0, tokens=10) for p in "ab"]
    assert gain_of(rows).gain == pytest.approx(1.0)
    rows += [decode("challenger", "c", 4.0), decode("chain-4", "c", 1.0)]
    assert gain_of(rows).gain == pytest.approx((50 / 6) / (30 / 3) - 1), "the mean of ratios would say +0.42"
    assert gain_of([*rows, decode("challenger", "slow", 100.0)]).gain == pytest.approx((50 / 6) / (30 / 3) - 1)


def text(arm, prompt, seconds, tokens=10, **more):
    where = {"arm": arm, "prompt": prompt, "document": prompt, "slice": "code", "setting": "T=0"}
    return {**where, "tokens": tokens, "seconds": seconds, **more}


def test_tokens_are_replay_s_and_seconds_the_clock_s():
    """Of 12 texts half are slow for the challenger, and only fast ones were timed; the profile is wrong by a factor for each arm.

    By hand: replay knows all texts, the clock each arm's factor. The clock alone sees fast texts only, replay alone believes the
    profile.
    """
    texts, rows = [], []
    for number in range(12):
        for arm, true, factor in (("chain-4", 1.0, 2.0), ("challenger", 0.5 if number < 6 else 0.7, 0.8)):
            texts.append(text(arm, str(number), true / factor))
            if number < 4:
                rows.append(decode(arm, str(number), true, profiled=true / factor))
    found = gain_of(rows, texts=texts)
    assert found.gain == pytest.approx(1 / 0.6 - 1) and found.basis == REPLAYED and found.documents == 4
    assert gain_of(rows).gain == pytest.approx(1 / 0.5 - 1) and gain_of(rows).basis == CLOCK
    believed = [row | {"profiled": row["seconds"]} for row in rows]
    assert gain_of(believed, texts=texts).gain == pytest.approx((12 / 2) / (7.2 / 0.8) - 1), "the wrong twin"
    unknown = [row | {"profiled": None} if row["arm"] == "challenger" else row for row in rows]
    assert gain_of(unknown, texts=texts).basis == CLOCK, "replay has to know both"
    assert gain_of(rows, texts=texts[::2]).basis == CLOCK


def test_a_decoder_that_is_its_rival_at_a_setting_gains_nothing_there():
    """It was timed 10 % slower at T=1 by chance, and 20 % faster at T=0."""

    def rate(arm, name, document, temperature):
        return 10.0 if arm != "challenger" else 12.0 if temperature == 0 else 9.0

    rows = decodes(rate)
    assert gain_of(rows, same=SAME, settings=["T=1"]).value == gain_of(rows, same=SAME, settings=["T=1"]).error == 0
    assert gain_of(rows, same=SAME).gain == pytest.approx(2 / (1 / 1.2 + 1) - 1)
    assert gain_of(rows).gain == pytest.approx(2 / (1 / 1.2 + 1 / 0.9) - 1), "without knowing it"


def noisy(seed=0, documents=6):
    """Three slices, two prompts a document, uneven times."""
    draw = np.random.default_rng(seed)
    return [
        decode(arm, f"{s}{d}{p}", 10 / rate * np.exp(0.2 * draw.standard_normal()), 8 + p, f"{s}{d}", s, t)
        for s in ("code", "prose", "tables")
        for d in range(documents)
        for p in range(2)
        for t in (0.0, 1.0)
        for arm, rate in (("challenger", 11.0), ("chain-4", 10.0))
    ]


def test_the_error_is_that_of_deleting_every_document():
    """By the jackknife's formula, over tables without each; of replayed ones without its texts, too."""
    draw = np.random.default_rng(1)
    rows = [row | {"profiled": row["seconds"] * np.exp(0.1 * draw.standard_normal())} for row in noisy()]
    texts = [
        text(arm, f"{s}{d}", draw.uniform(0.5, 1), slice=s, setting=t)
        for s in ("code", "prose", "tables")
        for d in range(9)
        for t in ("T=0", "T=1")
        for arm in ("challenger", "chain-4")
    ]
    for some in ((), texts):
        found = gain_of(rows, texts=some)
        documents = {row["document"] for row in (*rows, *some)}
        values = np.array(
            [
                gain_of(*([row for row in part if row["document"] != one] for part in (rows,)), texts=left).value
                for one in sorted(documents)
                for left in [[row for row in some if row["document"] != one]]
            ]
        )
        variance = (len(values) - 1) / len(values) * np.square(values - values.mean()).sum()
        assert found.error == pytest.approx(math.sqrt(variance)) and found.freedom == 17
    prompts = [{**row, "document": row["prompt"]} for row in rows]
    assert gain_of(prompts).error != pytest.approx(gain_of(rows).error), "deleting prompts is another thing"


def covered(world, seeds, replayed=False, true_gain=0.05):
    """Share of 95 % intervals that hold the true gain, and the mean error."""
    made = [trial(world, true_gain, seed, replayed).gain(CHALLENGER, "chain-4") for seed in seeds]
    ends = [one.interval() for one in made]
    return np.mean([one["low"] <= true_gain <= one["high"] for one in ends]), np.mean([one.error for one in made])


def test_intervals_cover_the_truth_and_replay_makes_them_narrower():
    """Four deviations of a share of 150 around 95 %."""
    clock, wide = covered(World(), range(150))
    both, narrow = covered(World(known=0.8), range(150), replayed=True)
    assert 0.88 <= clock <= 1.0 and 0.88 <= both <= 1.0 and narrow < 0.7 * wide


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.floats(0.2, 5), st.floats(0.2, 5))
def test_a_gain_turns_with_its_sides_and_follows_the_arm_not_the_machine(seed, faster, machine):
    """Exact for every table: a machine's speed cancels, an arm's own factor is its gain, and the error knows neither."""
    rows, one = noisy(seed, documents=3), gain_of(noisy(seed, documents=3))
    there = [
        row | {"seconds": row["seconds"] / machine / (faster if row["arm"] == "challenger" else 1)} for row in rows
    ]
    turned, moved = gain_of(rows, "chain-4", "challenger"), gain_of(there)
    assert turned.value == pytest.approx(-one.value, abs=1e-9) and turned.error == pytest.approx(one.error)
    assert moved.value == pytest.approx(one.value + np.log(faster), abs=1e-9)
    assert moved.error == pytest.approx(one.error)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "no decodes"),
        ([decode("chain-4", "a", 1.0)], "arm 'challenger' was not timed"),
        ([decode("challenger", "a", 1.0)] * 2, "'challenger' in block 'a/0/0' was timed twice"),
        ([decode("challenger", "a", 1.0, tokens=0)], "has 0 tokens"),
        ([decode("challenger", "a", 1.0), decode("chain-4", "b", 1.0)], "in no block together"),
    ],
)
def test_tables_without_a_gain_are_refused(rows, problem):
    with pytest.raises(ValueError, match=problem):
        gain_of(rows)


def test_a_gain_of_one_document_is_not_known():
    for slices in ((("code", ("a",)),), (CODE,)):
        rows = decodes(lambda *where: 10.0, slices=slices)
        rows = [row for row in rows if row["temperature"] == 0 or row["document"] == "a"]
        with pytest.raises(TooFewDocumentsError, match="fewer than 2 documents"):
            gain_of(rows)


@pytest.mark.parametrize("values", [(float("nan"), 0.1, 3.0, 4, 4), (0.0, -0.1, 3.0, 4, 4), (0.0, 0.1, 3.0, 4, 4, "x")])
def test_an_estimate_is_finite_and_says_what_it_rests_on(values):
    with pytest.raises(ValueError, match=r"finite value|basis must be one of"):
        Estimate(*values)


def test_the_smallest_gain_passes_as_often_as_stated_and_documents_make_it_so():
    one = Estimate(0.0, 0.02, 1e6, 40, 60)
    gain = one.detectable(0.025, 0.0, 0.8)
    assert norm.sf(norm.isf(0.025) - math.log1p(gain) / one.error) == pytest.approx(0.8, abs=1e-4)
    assert one.detectable(0.025, 0.03, 0.8) > gain + 0.03
    assert Estimate(0.0, 0.02, 5.0, 6, 60).detectable(0.025, 0.0, 0.8) > gain, "fewer degrees of freedom show less"
    wanted = (norm.isf(0.025) + norm.isf(0.2)) * 0.02 / 0.04
    assert Estimate(0.04, 0.02, 1e6, 40, 60).documents_needed(0.025, 0.0, 0.8) == math.ceil(40 * wanted**2)
    for value in (-0.01, 1e-300):
        assert Estimate(value, 0.02, 9.0, 40, 60).documents_needed(0.025, 0.0, 0.8) is None
