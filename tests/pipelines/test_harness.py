"""The harness on arms that decode nothing: order, seeds, resumption, what is written of rounds."""

import math
from collections import Counter
from itertools import count

import pandas as pd
import pytest
from tqdm import tqdm

from pipelines.measuring import harness as clock
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import ArmRun, TimedArm
from pipelines.measuring.bench import Blocks, MeasurementLog
from pipelines.measuring.harness import Harness, apart, timed, tokens_per_second
from pipelines.measuring.tables import read_decodes, read_rounds, write_decodes, write_rounds
from pipelines.stages.measure import MeasureConfig, Measurement
from predictors.config import parse_config
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from runtime.graphs import CudaGraphs
from tests.pipelines.toy_bench import toy_prompts
from tests.toys import tiny_llama

NAMES = ("autoregressive", "chain-1", "chain-2", "entropy")
SETTINGS = (SamplingSettings(0.0), SamplingSettings(1.0))


def fake_arm(name, calls=None, temperatures=None, run=None):
    def decode(prompt, settings, seed):
        if calls is not None:
            calls.append((name, tuple(prompt), settings.temperature, seed))
        records = [RoundRecord(emitted=1), RoundRecord(drafted=2, accepted=1, emitted=2, rolled_back=1, asked=3)]
        return ArmRun([1, 2, 3], records)

    return TimedArm(name, "family", run or decode, None, temperatures)


def harness(path, fingerprint="f", repeats=1, settings=SETTINGS):
    log = MeasurementLog(path / "log.jsonl", fingerprint)
    return Harness(Blocks(log, tqdm(disable=True)), settings, 0, repeats)


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
    timed = {("everywhere", 0.0): 2, ("everywhere", 1.0): 2, ("sampled", 1.0): 2}
    assert Counter((row["arm"], row["temperature"]) for row in rows) == timed


def test_an_interrupted_measurement_goes_on_and_gives_the_same_rows(tmp_path):
    calls: list = []

    def interrupted(prompt, settings, seed):
        calls.append(seed)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return ArmRun([1, 2, 3], [RoundRecord()])

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


def recording(monkeypatch, recordings):
    """A decode that records so many programs each time it runs, on a clock that ticks at each look."""
    monkeypatch.setattr(CudaGraphs, "made", 0)
    monkeypatch.setattr(clock, "perf_counter", count().__next__)
    made, runs = iter(recordings), count(1)

    def decode():
        CudaGraphs.made += next(made)
        return ArmRun([next(runs)], None)

    return decode


@pytest.mark.parametrize(("recordings", "runs"), [([0], 1), ([2, 0], 2), ([2, 1, 3, 0], 4)])
def test_a_decode_that_recorded_programs_is_decoded_again_and_timed_alone(monkeypatch, recordings, runs):
    run, seconds = timed(recording(monkeypatch, recordings))
    assert (run.tokens, seconds) == ([runs], 1)
    with pytest.warns(UserWarning, match="recorded programs 4 times"):
        run, seconds = timed(recording(monkeypatch, [1] * 9))
    assert (run.tokens, seconds) == ([4], 1), "it is given up on and named"


def on_clocks(monkeypatch, took, worked, phases=("draft", "target")):
    """A decode that takes so many seconds each time it runs, of which its thread works so many; ``phases`` of its one round."""
    monkeypatch.setattr(clock, "DISTURBED", 0.1)
    for name, parts in (("perf_counter", took), ("thread_time", worked)):
        ticks = [tick for part in parts for tick in (0.0, part)]
        monkeypatch.setattr(clock, name, iter(ticks).__next__)
    runs = count(1)
    return lambda: ArmRun([next(runs)], [RoundRecord(seconds=dict.fromkeys(phases, 0.2))])


@pytest.mark.parametrize(
    ("took", "worked", "taken"),
    [
        ([1.0, 2.0, 9.0], [0.6, 1.8, 0.0], 1),  # the first was the fastest, and waited for others
        ([1.0, 2.0, 3.0, 4.0], [0.2, 1.0, 2.2, 0.4], 2),  # of those that are always disturbed the least counts
    ],
)
def test_a_disturbed_decode_is_timed_again_however_fast_it_was(monkeypatch, took, worked, taken):
    with pytest.warns(UserWarning, match="timed again"):
        run, seconds = timed(on_clocks(monkeypatch, took, worked))
    assert (run.tokens, seconds) == ([taken + 1], took[taken])


def test_a_decode_that_waits_for_its_own_draft_is_not_disturbed_by_it(monkeypatch):
    """A draft in another process takes the processor, too."""
    run, seconds = timed(on_clocks(monkeypatch, [1.0, 2.0], [0.6, 1.8], phases=("target", "wait")))
    assert (run.tokens, seconds) == ([1], 1.0)


def test_a_clock_that_jumps_changes_no_time(monkeypatch):
    """Seconds are of a clock that nobody sets."""
    monkeypatch.setattr("time.time", count(1e9, -1e6).__next__)
    jumped = count(10**18, 10**15)
    monkeypatch.setattr("time.time_ns", jumped.__next__)
    run, seconds = timed(lambda: ArmRun([sum(range(20000))], []))
    assert run.tokens and 0 < seconds < 5


FILTERED = {"temperature": 1.0, "top_p": 0.9}
PLAIN = {"name": "autoregressive", "family": "plain", "decoder": {"method": "autoregressive"}}
CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": "{gamma}"}, "verifier": "block"}


def config(**changes):
    return parse_config(MeasureConfig, {"arms": [PLAIN], **changes}, "here")


def test_temperatures_are_settings_without_filters():
    assert config().settings == (SamplingSettings(0.0), SamplingSettings(1.0))
    assert config(temperatures=[0.5]).settings == (SamplingSettings(0.5),)
    given = config(settings=[{"temperature": 0.6}, {"temperature": 1.0}, FILTERED])
    assert given.settings == (SamplingSettings(0.6), SamplingSettings(1.0), SamplingSettings(1.0, top_p=0.9))
    assert given.temperatures == (0.6, 1.0)
    with pytest.raises(ValueError, match=r"temperatures \(0.0, 1.0\) are not those of settings"):
        config(temperatures=[0.0, 1.0], settings=[FILTERED])
    with pytest.raises(ValueError, match="temperatures must not be empty"):
        config(temperatures=[])
    with pytest.raises(ValueError, match="max_new_tokens must be >= 2, got 1"):
        config(max_new_tokens=1)
    with pytest.raises(ValueError, match="arms must .*got"):
        config(arms=[])


def test_rows_and_rounds_tell_filtered_sampling_from_unfiltered(tmp_path):
    """At one temperature, without its filter an arm takes twice the time: their speeds must not be mixed."""

    def decode(prompt, settings, seed):
        return ArmRun([1, 2, 3], [RoundRecord(emitted=1), RoundRecord(emitted=2)])

    settings = (SamplingSettings(1.0), SamplingSettings(1.0, top_p=0.9))
    rows = harness(tmp_path, settings=settings).time(
        [(prompt, [TimedArm("x", "f", decode)]) for prompt in toy_prompts(2)]
    )
    assert len({row["block"] for row in rows}) == len(rows) == 4
    for row in rows:
        row["seconds"] = 1.0 if row["top_p"] < 1 else 2.0
    assert tokens_per_second(rows, "x", 1.0, top_k=0, top_p=0.9) == 3.0
    assert tokens_per_second(rows, "x", 1.0, top_k=0, top_p=1.0) == 1.5
    assert tokens_per_second(rows, "x", 1.0) == 12 / 6, "without the filters all decodes count, and all their seconds"
    assert math.isnan(tokens_per_second(rows, "y", 1.0))
    decodes, rounds = apart(rows)
    write_decodes(tmp_path / "d.parquet", decodes)
    write_rounds(tmp_path / "r.parquet", rounds)
    for table in (read_decodes(tmp_path / "d.parquet"), read_rounds(tmp_path / "r.parquet")):
        assert {(row["temperature"], row["top_k"], row["top_p"]) for row in table} == {(1.0, 0, 1.0), (1.0, 0, 0.9)}


def test_every_setting_has_a_choice_of_its_own(tmp_path):
    chains = ArmRow("chain-{gamma}", "chain", decoder=CHAIN, each={"gamma": [1, 2]}, choose=True)
    arms = (ArmRow(**PLAIN), chains)
    settings = (SamplingSettings(1.0), SamplingSettings(1.0, top_p=0.5))
    made = MeasureConfig(arms, settings=settings, validation_prompts=1, test_prompts=1, max_new_tokens=4, threads=1)
    pair = ModelPair(tiny_llama(8, seed=0), tiny_llama(8, seed=1, layers=1))
    measurement = Measurement(pair, made, tmp_path, MeasurementLog(tmp_path / "log.jsonl", "f"))
    rows = measurement.run(toy_prompts(1, "validation", 8), toy_prompts(1, "test", 8))
    assert [(one["temperature"], one["top_p"]) for one in measurement.choices] == [(1.0, 1.0), (1.0, 0.5)]
    for choice in measurement.choices:
        own = [row for row in rows if row["split"] == "validation" and row["top_p"] == choice["top_p"]]
        speeds = {row["arm"]: row["tokens"] / row["seconds"] for row in own if row["family"] == "chain"}
        assert choice["tokens_per_second"] == pytest.approx(speeds)
        assert choice["arm"] == max(speeds, key=speeds.__getitem__)
