"""The harness on arms that decode nothing: order, seeds, resumption, what is written of rounds."""

import math
from itertools import count

import pandas as pd
import pytest
from tqdm import tqdm

from pipelines.measuring import harness as clock
from pipelines.measuring.arms import Run, TimedArm
from pipelines.measuring.harness import Harness, apart, timed, tokens_per_second
from pipelines.measuring.measurement_log import Blocks, MeasurementLog
from pipelines.measuring.tables import read_decodes, read_rounds, write_decodes, write_rounds
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from runtime.graphs import CudaGraphs
from tests.pipelines.toy_bench import toy_prompts

NAMES = ("autoregressive", "chain-1", "chain-2", "entropy")
SETTINGS = (SamplingSettings(0.0), SamplingSettings(1.0))


def fake_arm(name, calls=None, temperatures=None, run=None):
    def decode(prompt, settings, seed):
        if calls is not None:
            calls.append((name, tuple(prompt), settings.temperature, seed))
        records = [RoundRecord(emitted=1), RoundRecord(drafted=2, accepted=1, emitted=2, rolled_back=1, asked=3)]
        return Run([1, 2, 3], records)

    return TimedArm(name, "family", run or decode, None, temperatures)


def harness(path, fingerprint="f", repeats=1):
    log = MeasurementLog(path / "log.jsonl", fingerprint)
    return Harness(Blocks(log, tqdm(disable=True)), SETTINGS, 0, repeats)


def planned(count, arms):
    return [(prompt, arms) for prompt in toy_prompts(count)]


def identity(row):
    return tuple(row[key] for key in ("split", "prompt", "temperature", "repeat", "arm"))


def test_every_arm_decodes_every_prompt_in_a_random_order_that_follows_from_the_seed(tmp_path):
    arms = [fake_arm(name) for name in NAMES]
    rows = harness(tmp_path / "a", repeats=2).time(planned(4, arms))
    assert len(rows) == len({identity(row) for row in rows}) == 4 * 2 * 2 * 4
    frame = pd.DataFrame(rows)
    orders = frame.sort_values("order").groupby("block")["arm"].agg(tuple)
    assert all(sorted(order) == sorted(NAMES) for order in orders)
    assert orders.nunique() > 5 and len({order[0] for order in orders}) == 4  # 16 blocks, 24 orders
    again = harness(tmp_path / "b", repeats=2).time(planned(4, arms))
    assert [identity(row) for row in again] == [identity(row) for row in rows]


def test_one_seed_for_all_arms_and_repeats_and_another_for_every_prompt_and_setting(tmp_path):
    calls: list = []
    arms = [fake_arm(name, calls) for name in NAMES[1:3]]
    harness(tmp_path, repeats=2).time(planned(3, arms))
    seeds: dict = {}
    for _, prompt, temperature, seed in calls:
        seeds.setdefault((prompt, temperature), set()).add(seed)
    assert all(len(values) == 1 for values in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds) == 6


def test_an_arm_is_timed_at_its_own_temperatures_only(tmp_path):
    arms = [fake_arm("everywhere"), fake_arm("sampled", temperatures=(1.0,))]
    rows = harness(tmp_path).time(planned(2, arms))
    assert sorted((row["arm"], row["temperature"]) for row in rows) == 2 * [("everywhere", 0.0)] + 2 * [
        ("everywhere", 1.0)
    ] + 2 * [("sampled", 1.0)]


def test_an_interrupted_measurement_goes_on_and_gives_the_same_rows(tmp_path):
    calls: list = []

    def interrupted(prompt, settings, seed):
        calls.append(seed)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return Run([1, 2, 3], [RoundRecord()])

    sound = [fake_arm(name) for name in NAMES[:2]]
    whole = harness(tmp_path / "whole").time(planned(4, sound))
    with pytest.raises(KeyboardInterrupt):
        harness(tmp_path / "broken").time(planned(4, [sound[0], fake_arm("chain-1", run=interrupted)]))
    with (tmp_path / "broken" / "log.jsonl").open("a") as log:
        log.write('{"key": "cut off wh')
    after: list = []
    resumed = harness(tmp_path / "broken")
    assert resumed.blocks.log.resumed == 5
    rows = resumed.time(planned(4, [fake_arm(name, after) for name in NAMES[:2]]))
    assert [identity(row) for row in rows] == [identity(row) for row in whole]
    assert len(after) == 2 * (8 - 5)


def test_a_log_of_another_fingerprint_is_discarded(tmp_path):
    harness(tmp_path, fingerprint="old").time(planned(1, [fake_arm("a")]))
    assert harness(tmp_path, fingerprint="new").blocks.log.resumed == 0
    assert "old" not in (tmp_path / "log.jsonl").read_text()


def test_rows_and_their_rounds_come_back_from_their_tables(tmp_path):
    rows = harness(tmp_path).time(planned(2, [fake_arm("autoregressive"), fake_arm("chain-1")]))
    decodes, rounds = apart(rows)
    write_decodes(tmp_path / "d.parquet", decodes)
    write_rounds(tmp_path / "r.parquet", rounds)
    read = read_decodes(tmp_path / "d.parquet")
    assert [identity(row) for row in read] == [identity(row) for row in rows]
    assert all(row["equals_plain"] == (True if row["temperature"] == 0 else None) for row in read)
    of_rounds = pd.DataFrame(read_rounds(tmp_path / "r.parquet"))
    assert len(of_rounds) == 2 * len(rows)
    assert list(of_rounds["prefill"]) == [True, False] * len(rows)
    later = of_rounds[~of_rounds["prefill"]]
    lengths = {prompt.id: len(prompt.tokens) for prompt in toy_prompts(2)}
    assert (later["context"] == later["prompt"].map(lengths)).all() and (later["asked"] == 3).all()
    assert set(of_rounds["block"]) == {row["block"] for row in rows}


def test_speed_is_all_tokens_over_all_seconds():
    row = {"temperature": 0.0, "prompt": "a", "tokens": 10, "arm": "x"}
    rows = [{**row, "seconds": 2.0}, {**row, "seconds": 1.0}, {**row, "prompt": "b", "seconds": 3.0}]
    assert tokens_per_second(rows, "x", 0.0) == 30 / 6
    assert math.isnan(tokens_per_second(rows, "y", 0.0))


def recording(monkeypatch, recordings):
    """A decode that records so many programs each time it runs, on a clock that ticks at each look."""
    monkeypatch.setattr(CudaGraphs, "made", 0)
    monkeypatch.setattr(clock, "perf_counter", count().__next__)
    made, runs = iter(recordings), count(1)

    def decode():
        CudaGraphs.made += next(made)
        return Run([next(runs)], None)

    return decode


@pytest.mark.parametrize(("recordings", "runs"), [([0], 1), ([2, 0], 2), ([2, 1, 3, 0], 4)])
def test_a_decode_that_recorded_programs_is_decoded_again_and_timed_alone(monkeypatch, recordings, runs):
    run, seconds = timed(recording(monkeypatch, recordings))
    assert (run.tokens, seconds) == ([runs], 1)


def test_a_decode_that_always_records_is_given_up_on_and_named(monkeypatch):
    with pytest.warns(UserWarning, match="recorded programs 4 times"):
        run, seconds = timed(recording(monkeypatch, [1] * 9))
    assert (run.tokens, seconds) == ([4], 1)


def on_clocks(monkeypatch, took, worked, phases=("draft", "target")):
    """A decode that takes so many seconds each time it runs, of which its thread works so many; ``phases`` of its one round."""
    monkeypatch.setattr(clock, "DISTURBED", 0.1)
    for name, parts in (("perf_counter", took), ("thread_time", worked)):
        ticks = [tick for part in parts for tick in (0.0, part)]
        monkeypatch.setattr(clock, name, iter(ticks).__next__)
    runs = count(1)
    return lambda: Run([next(runs)], [RoundRecord(seconds=dict.fromkeys(phases, 0.2))])


def test_a_disturbed_decode_is_timed_again_however_fast_it_was(monkeypatch):
    """The first was the fastest, and waited for others."""
    with pytest.warns(UserWarning, match="timed again"):
        run, seconds = timed(on_clocks(monkeypatch, [1.0, 2.0, 9.0], [0.6, 1.8, 0.0]))
    assert (run.tokens, seconds) == ([2], 2.0)


def test_a_decode_that_waits_for_its_own_draft_is_not_disturbed_by_it(monkeypatch):
    """A draft in another process takes the processor, too."""
    run, seconds = timed(on_clocks(monkeypatch, [1.0, 2.0], [0.6, 1.8], phases=("target", "wait")))
    assert (run.tokens, seconds) == ([1], 1.0)


def test_of_decodes_that_are_always_disturbed_the_least_counts(monkeypatch):
    with pytest.warns(UserWarning, match="timed again"):
        run, seconds = timed(on_clocks(monkeypatch, [1.0, 2.0, 3.0, 4.0], [0.2, 1.0, 2.2, 0.4]))
    assert (run.tokens, seconds) == ([3], 3.0)


def test_a_clock_that_jumps_changes_no_time(monkeypatch):
    """Seconds are of a clock that nobody sets."""
    monkeypatch.setattr("time.time", count(1e9, -1e6).__next__)
    jumped = count(10**18, 10**15)
    monkeypatch.setattr("time.time_ns", jumped.__next__)
    run, seconds = timed(lambda: Run([sum(range(20000))], []))
    assert run.tokens and 0 < seconds < 5
