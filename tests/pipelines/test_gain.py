"""The gain of an arm over a rival, and what the gate reads of it: by hand, against deleting documents by hand, where replay or
the clock alone is wrong; and on simulated trials, how often the gate errs and sees what it promises."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pipelines.gate.evidence import compared
from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import FEW, INCONCLUSIVE, REFUSED, judge
from pipelines.measuring.gain import CLOCK, REPLAYED, Estimate, TimedDecodes
from tests.pipelines import simulate
from tests.pipelines.hand_made_decodes import decode, decodes
from tests.pipelines.hand_made_evidence import change
from tests.pipelines.simulate import World, coverage, trial

SAME = {"T=1": frozenset({frozenset({"challenger", "chain-4"})})}


def gain_of(rows, arm="challenger", rival="chain-4", texts=(), same=None, **only):
    return TimedDecodes.of(rows, texts, same).gain(arm, rival, **only)


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
    for some in ([], texts):
        values = []
        for one in sorted({row["document"] for row in (*rows, *some)}):
            left, timed = ([row for row in part if row["document"] != one] for part in (some, rows))
            values.append(gain_of(timed, texts=left).value)
        found, variance = gain_of(rows, texts=some), (len(values) - 1) * np.var(values)
        assert found.error == pytest.approx(math.sqrt(variance)) and found.freedom == 17
    prompts = [{**row, "document": row["prompt"]} for row in rows]
    assert gain_of(prompts).error != pytest.approx(gain_of(rows).error), "deleting prompts is another thing"


def test_intervals_cover_the_truth_and_replay_makes_them_narrower():
    """Four deviations of a share of 150 around 95 %."""
    clock, wide = coverage(World(), 0.05, range(150), replayed=False)
    both, narrow = coverage(World(known=0.8), 0.05, range(150), replayed=True)
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
        (decodes(lambda *where: 10.0, slices=(("code", ("a",)),)), "fewer than 2 documents"),
    ],
)
def test_tables_without_a_gain_are_refused(rows, problem):
    with pytest.raises(ValueError, match=problem):
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
    assert [line.count("|") for line in capsys.readouterr().out.splitlines()] == [5] * 6 + [0] + [5] * 7


BOUNDS = Bounds(slice_documents=2)
RATES = {"autoregressive": 5.0, "chain-2": 9.0, "chain-4": 10.0, "champion": 11.0, "challenger": 12.0}


def rate(arm, *where):
    return RATES[arm]


def test_rivals_are_plain_decoding_and_every_static_chain():
    found = compared(TimedDecodes.of(decodes(rate)), BOUNDS)
    gains = {name: round(one.gain, 3) for name, one in found.gains.items()}
    assert gains == {"autoregressive": 1.4, "chain-2": 0.333, "chain-4": 0.2}
    assert found.reference == "chain-4" and set(found.settings) == {"T=0", "T=1"}
    assert found.slices["prose"].gain == pytest.approx(0.2, abs=1e-6) and found.documents == tuple("abcde")


def verdict_on(found, **origin):
    """By check, of evidence that is good but for what was compared."""
    verdict = judge(change(**vars(found), origin=origin), Bounds(slice_documents=2, min_documents=2))
    return verdict, {check.name: check for check in verdict.checks}


def test_without_a_static_chain_the_gate_refuses_unless_the_pair_has_no_draft():
    rows = [row for row in decodes(rate) if row["family"] != "chain"]
    found = compared(TimedDecodes.of(rows), BOUNDS)
    assert found.reference == "autoregressive" and set(found.gains) == {"autoregressive"}
    verdict, checks = verdict_on(found)
    assert (verdict.outcome, checks["gain"].outcome) == (REFUSED, REFUSED)
    (unknown,) = change(**vars(found)).unknown_rivals
    assert unknown in checks["gain"].found and "chain" in unknown
    assert "gain" in verdict_on(found, models={"target": {}, "draft": {}})[1]
    verdict, checks = verdict_on(found, models={"target": {}})
    assert "gain" not in checks and verdict.outcome != REFUSED


def test_a_gain_of_one_document_is_not_known():
    """At T=1 only document a was timed: neither there nor over all settings has any gain an error."""
    rows = [row for row in decodes(rate) if row["temperature"] == 0 or row["document"] == "a"]
    found = compared(TimedDecodes.of(rows), BOUNDS)
    assert found.gains == dict.fromkeys(("autoregressive", "chain-2", "chain-4")) and found.settings["T=1"] is None
    assert found.reference == "chain-2" and found.settings["T=0"].gain == pytest.approx(12 / 9 - 1)
    verdict, checks = verdict_on(found)
    assert verdict.outcome == INCONCLUSIVE and verdict.smallest_gain is None and checks["guardrail T=0"].passed
    for name in ("gain over autoregressive", "gain over chain-4", "guardrail T=1"):
        assert (checks[name].outcome, checks[name].found) == (INCONCLUSIVE, FEW[0])


def test_a_slice_of_few_documents_is_not_judged():
    found = compared(TimedDecodes.of(decodes(rate)), Bounds(slice_documents=3))
    assert found.slices["prose"] is None and found.slices["code"].gain == pytest.approx(0.2)
    assert verdict_on(found)[0].static_slices == ("prose",)
    assert verdict_on(compared(TimedDecodes.of(decodes(rate)), BOUNDS))[0].static_slices == ()
