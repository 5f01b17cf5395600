"""The gain of an arm over a rival: hand-counted, against deleting documents by hand, and against replay with wrong prices."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.gate.evidence.gain import CLOCK, CORRECTED, Estimate, gain
from pipelines.gate.evidence.ledger import Replayed, TimedBlocks
from pipelines.gate.evidence.prices import COMPONENTS, PriceFit
from tests.pipelines.hand_made_decodes import CODE, decode, decodes
from tests.pipelines.simulated import CHALLENGER, Measurement, World

MIX = {"code": 87, "prose": 21, "tables": 11}
NARROW = World(documents=MIX, texts=30, prompts=18, spared={"code": 2, "prose": 2, "tables": 2})


def gain_of(rows, arm="challenger", rival="chain-4", **options):
    return gain(TimedBlocks.of(rows), arm, rival, **options)


def test_slices_weigh_as_documents_do_and_settings_alike():
    """Twice as fast on code, no faster on prose: by hand, with 3 of 4 documents code. Prompts by number would say another."""
    rows = decodes(lambda arm, name, *where: 20.0 if (arm, name) == ("challenger", "code") else 10.0)
    weighed = gain_of(rows, mix={"code": 3, "prose": 1})
    assert weighed.gain == pytest.approx(1 / (0.75 * 0.5 + 0.25) - 1)
    assert gain_of(rows, mix={"code": 1, "prose": 1}).gain == pytest.approx(1 / 0.75 - 1) != weighed.gain
    assert gain_of(rows).gain == pytest.approx(1 / (0.6 * 0.5 + 0.4) - 1), "by default as the table's documents"
    assert gain_of(rows, mix={"prose": 1.0}).gain == pytest.approx(0)
    one = decodes(lambda arm, name, document, t: 20.0 if arm == "challenger" and t == 1 else 10.0)
    assert gain_of(one).gain == pytest.approx(1 / 0.75 - 1)
    assert gain_of(one, only_setting="T=1").gain == pytest.approx(1) and gain_of(one, only_setting="T=0").gain == 0


def test_tokens_count_as_well_as_seconds():
    rows = [decode("challenger", p, 1.0, tokens=t) for p, t in (("a", 30), ("b", 10))]
    rows += [decode("chain-4", p, 1.0, tokens=10) for p in "ab"]
    assert gain_of(rows).gain == pytest.approx(1.0)
    rows += [decode("challenger", "c", 4.0), decode("chain-4", "c", 1.0)]
    assert gain_of(rows).gain == pytest.approx((50 / 6) / (30 / 3) - 1), "the mean of ratios would say +0.42"


def test_only_blocks_that_timed_both_count():
    """An arm that was also timed where the rival was not, on a slow prompt, is not held against it."""
    rows = decodes(lambda arm, *where: 12.0 if arm == "challenger" else 10.0)
    slow = [decode("challenger", "slow", 100.0)]
    assert gain_of(rows + slow).gain == pytest.approx(0.2)
    assert gain_of(rows + slow, "challenger", "champion").gain == pytest.approx(0.2)


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


def by_hand(value_without, documents_by_slice):
    """The stratified jackknife's formula over values without every document."""
    variance = 0.0
    for documents in documents_by_slice:
        values = np.array([value_without(document) for document in documents])
        variance += (len(values) - 1) / len(values) * np.square(values - values.mean()).sum()
    return np.sqrt(variance)


def test_the_error_is_that_of_deleting_every_document():
    rows = noisy()
    names = [[f"{s}{d}" for d in range(6)] for s in ("code", "prose", "tables")]

    def without(document):
        return gain_of([row for row in rows if row["document"] != document], mix=MIX).value

    found = gain_of(rows, mix=MIX)
    assert found.error == pytest.approx(by_hand(without, names))
    prompts = [{**row, "document": row["prompt"]} for row in rows]
    assert gain_of(prompts, mix=MIX).error != pytest.approx(found.error), "deleting prompts is another thing"
    assert 5 <= found.freedom <= 15


def test_the_error_covers_the_price_fit():
    """Deleting a document by hand refits the prices without it; fixed prices would give another error."""
    made = Measurement(NARROW, 0.05, seed=3)
    rows, replayed = made.decodes(), made.replayed()
    documents = {row["document"]: row["slice"] for row in replayed.texts}
    cells = made._prices(1)

    def without(document, refit=True):
        left_B = cells.document_B != document
        fields = {one.name: getattr(cells, one.name)[left_B] for one in dataclasses.fields(cells)}
        prices = PriceFit(**fields) if refit else replayed.prices
        texts = [row for row in replayed.texts if row["document"] != document]
        kept = [row for row in rows if row["document"] != document]
        return gain_of(kept, mix=MIX, replayed=Replayed(texts, replayed.timed, prices)).value

    names = [[name for name in sorted(documents) if documents[name] == s] for s in sorted(MIX)]
    found = gain_of(rows, mix=MIX, replayed=replayed)
    assert found.basis == CORRECTED and found.error == pytest.approx(by_hand(without, names))
    assert by_hand(lambda name: without(name, refit=False), names) != pytest.approx(found.error, rel=1e-6)


class FixedPrices(PriceFit):
    """Factors that nobody fitted."""

    def __init__(self, **factors):
        self.factors_K = np.array([factors.get(name, 1.0) for name in COMPONENTS])

    def without_each(self, documents):
        return np.tile(self.factors_K, (len(documents), 1))


def parts(**seconds):
    return [seconds.get(name, 0.0) for name in COMPONENTS]


def test_replay_is_corrected_by_the_clock():
    """Of 12 texts half are slow for the challenger, and only fast ones were timed; prices are wrong by a tenth for drafting.

    By hand: replay knows all texts, the clock mends the prices. The clock alone sees fast texts only; replay alone keeps its
    prices.
    """
    texts, timed, rows = [], [], []
    for number in range(12):
        true = {"chain-4": 1.0, "challenger": 0.5 if number < 6 else 0.7}
        for arm, seconds in true.items():
            said = parts(draft=seconds + (0.1 if arm == "challenger" else 0.0))
            where = {"arm": arm, "prompt": str(number), "document": str(number), "slice": "code", "temperature": 0.0}
            texts.append(where | {"tokens": 10, "parts": said})
            if number < 4:
                rows.append(decode(arm, str(number), seconds))
                timed.append({"arm": arm, "block": rows[-1]["block"], "tokens": 10, "parts": said})
    replayed = Replayed(texts, timed, FixedPrices())
    assert gain_of(rows, replayed=replayed).gain == pytest.approx(1 / 0.6 - 1)
    assert gain_of(rows).gain == pytest.approx(1 / 0.5 - 1), "the clock alone"
    uncorrected = [{**row, "parts": parts(draft=true)} for row, true in zip(timed, [1.0, 0.5] * 4, strict=True)]
    assert gain_of(rows, replayed=Replayed(texts, uncorrected, FixedPrices())).gain == pytest.approx(1 / 0.7 - 1)


def test_draws_of_chance_are_averaged_and_arms_without_replay_rest_on_the_clock():
    rows = decodes(lambda arm, *where: 12.5 if arm == "challenger" else 10.0, slices=(CODE,), temperatures=(1.0,))
    said = {"chain-4": 1.0, "challenger": 0.8}
    texts = [
        {**row, "tokens": 10, "parts": parts(draft=said[row["arm"]] + shift)}
        for row in rows
        if row["arm"] in said
        for shift in (-0.1, 0.1)
    ]
    timed = [{**row, "parts": parts(draft=said[row["arm"]])} for row in rows if row["arm"] in said]
    replayed = Replayed(texts, timed, FixedPrices())
    found = gain_of(rows, replayed=replayed)
    assert found.gain == pytest.approx(0.25) and found.basis == CORRECTED
    assert gain_of(rows, rival="champion", replayed=replayed).basis == CLOCK
    with pytest.raises(ValueError, match="replay says nothing of 'chain-4' in block"):
        gain_of(rows, replayed=dataclasses.replace(replayed, timed=timed[2:] + timed[1:2]))
    with pytest.raises(ValueError, match="for challenger or chain-4 only"):
        gain_of(
            rows,
            replayed=dataclasses.replace(replayed, texts=[row for row in texts if row["prompt"] != "a"] + texts[:1]),
        )


def test_a_slice_of_one_document_joins_the_largest():
    rows = decodes(lambda arm, *where: 12.0 if arm == "challenger" else 10.0, slices=(CODE, ("prose", ("d",))))
    assert gain_of(rows).gain == pytest.approx(0.2)
    for slices in ((("code", ("a",)),), (("code", ("a",)), ("prose", ()))):
        with pytest.raises(ValueError, match="fewer than 2 documents"):
            gain_of(decodes(lambda *where: 10.0, slices=slices))
    both = decodes(
        lambda arm, *where: 12.0 if arm == "challenger" else 10.0, slices=(("code", ("a",)), ("prose", ("b",)))
    )
    assert gain_of(both).gain == pytest.approx(0.2), "two slices of one document each are one"


def covered(world, seeds, rows_of=lambda row: row, replayed=False, true_gain=0.05):
    """Share of 95 % intervals that hold the true gain."""
    hits = []
    for seed in seeds:
        made = Measurement(world, true_gain, seed)
        blocks = TimedBlocks.of([rows_of(row) for row in made.decodes()])
        interval = gain(blocks, CHALLENGER, "chain-4", world.mix, made.replayed() if replayed else None).interval()
        hits.append(interval["low"] <= true_gain <= interval["high"])
    return np.mean(hits)


def test_intervals_cover_the_truth():
    """Four deviations of a share of 300 around 95 %; prompts taken for documents cover far less where documents differ."""
    assert 0.90 <= covered(World(), range(300)) <= 0.99
    few = {"code": 8, "prose": 8, "tables": 8}
    differing = World(few, prompts=180, noise={0.0: 0.12, 1.0: 0.12}, document_noise=0.1)
    assert covered(differing, range(60)) >= 0.88
    assert covered(differing, range(60), lambda row: {**row, "document": row["prompt"]}) < 0.8


def test_corrected_intervals_cover_the_truth_and_are_narrower():
    world = World(foreseen=0.8)
    assert covered(world, range(40), replayed=True) >= 0.85
    made = [Measurement(world, 0.05, seed) for seed in range(10)]
    clock = [gain(TimedBlocks.of(one.decodes()), CHALLENGER, "chain-4", world.mix).error for one in made]
    corrected = [
        gain(TimedBlocks.of(one.decodes()), CHALLENGER, "chain-4", world.mix, one.replayed()).error for one in made
    ]
    assert np.mean(corrected) < 0.85 * np.mean(clock)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.floats(0.2, 5), st.floats(0.2, 5))
def test_a_gain_turns_with_its_sides_and_follows_the_arm_not_the_machine(seed, faster, machine):
    """Exact for every table: a machine's speed cancels, an arm's own factor is its gain, and the error knows neither."""
    rows, one = noisy(seed, documents=3), gain_of(noisy(seed, documents=3), mix=MIX)
    there = [
        row | {"seconds": row["seconds"] / machine / (faster if row["arm"] == "challenger" else 1)} for row in rows
    ]
    turned, moved = gain_of(rows, "chain-4", "challenger", mix=MIX), gain_of(there, mix=MIX)
    assert turned.value == pytest.approx(-one.value, abs=1e-9) and turned.error == pytest.approx(one.error)
    assert moved.value == pytest.approx(one.value + np.log(faster), abs=1e-9)
    assert moved.error == pytest.approx(one.error)
    mixed = [gain_of(rows, mix={name: 1.0}).value for name in MIX]
    assert min(mixed) <= one.value <= max(mixed)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "no decodes"),
        ([decode("chain-4", "a", 1.0)], "arm 'challenger' was not timed"),
        ([decode("challenger", "a", 1.0)] * 2, "is twice in block 'a/0/0'"),
        ([decode("challenger", "a", 1.0, tokens=0)], "has 0 tokens"),
        ([decode("challenger", "a", 1.0), decode("chain-4", "b", 1.0)], "in no block together"),
    ],
)
def test_tables_without_a_gain_are_refused(rows, problem):
    with pytest.raises(ValueError, match=problem):
        gain_of(rows)


@pytest.mark.parametrize("values", [(float("nan"), 0.1, 3.0, 4, 4), (0.0, -0.1, 3.0, 4, 4), (0.0, 0.1, 3.0, 4, 4, "x")])
def test_an_estimate_is_finite_and_says_what_it_rests_on(values):
    with pytest.raises(ValueError, match=r"finite value|basis must be one of"):
        Estimate(*values)
