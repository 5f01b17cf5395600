"""The timed part of the benchmark on arms that decode nothing: order, seeds, resumption, the cap, the choice."""

import pandas as pd
import pytest
from tqdm import tqdm

from pipelines.measuring import arms
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.measurement import Measurement, MeasurementConfig
from pipelines.measuring.measurement_log import MeasurementLog
from predictors.rounds import RoundRecord
from tests.pipelines.toy_bench import toy_prompts

CONFIG = MeasurementConfig(threads=1, temperatures=(0.0, 1.0))
NAMES = ("autoregressive", "chain-1", "chain-2", "entropy")


def fake_arm(calls=None, name=""):
    def decode(prompt, settings, seed):
        if calls is not None:
            calls.append((name, tuple(prompt), settings.temperature, seed))
        return arms.Run([1, 2, 3], [RoundRecord(), RoundRecord(drafted=2, accepted=1, emitted=2, rolled_back=1)])

    return decode


def timing(path, config=CONFIG, calls=None, fingerprint="f", names=NAMES):
    runners = {name: fake_arm(calls, name) for name in names}
    log = MeasurementLog(path / "log.jsonl", fingerprint)
    return Measurement(config, runners, Blocks(log, tqdm(disable=True), config.max_minutes))


def identity(row):
    return tuple(row[key] for key in ("split", "prompt", "temperature", "repeat", "arm"))


def test_every_arm_decodes_every_prompt_in_a_random_order_that_follows_from_the_seed(tmp_path):
    rows = timing(tmp_path / "a").time_split("test", toy_prompts(4), NAMES, 1)
    assert len(rows) == len({identity(row) for row in rows}) == 4 * 2 * 2 * 4
    frame = pd.DataFrame(rows)
    orders = frame.groupby(["prompt", "temperature", "repeat"])["arm"].agg(tuple)
    assert all(sorted(order) == list(NAMES) for order in orders)
    assert orders.nunique() > 5  # 16 blocks, 24 orders
    first = {order[0] for order in orders}
    assert len(first) == 4
    again = timing(tmp_path / "b").time_split("test", toy_prompts(4), NAMES, 1)
    assert [identity(row) for row in again] == [identity(row) for row in rows]


def test_repeats_share_a_seed_and_arms_do_not(tmp_path):
    calls: list = []
    timing(tmp_path, calls=calls).time_split("test", toy_prompts(2), ["chain-1", "chain-2"], 1)
    seeds: dict = {}
    for name, prompt, temperature, seed in calls:
        seeds.setdefault((name, prompt, temperature), set()).add(seed)
    assert all(len(values) == 1 for values in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)


def test_interrupted_measurement_resumes_to_the_same_rows(tmp_path):
    names = ["autoregressive", "chain-1"]
    whole = timing(tmp_path / "whole").time_split("test", toy_prompts(4), names, 1)
    broken = timing(tmp_path / "broken")
    calls = []

    def interrupted(prompt, settings, seed):
        calls.append(seed)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return fake_arm()(prompt, settings, seed)

    broken.arms = {**broken.arms, "chain-1": interrupted}
    with pytest.raises(KeyboardInterrupt):
        broken.time_split("test", toy_prompts(4), names, 1)
    with (tmp_path / "broken" / "log.jsonl").open("a") as log:
        log.write('{"key": "cut off wh')
    calls = []
    resumed = timing(tmp_path / "broken", calls=calls)
    assert resumed.blocks.log.resumed == 10
    rows = resumed.time_split("test", toy_prompts(4), names, 1)
    assert [identity(row) for row in rows] == [identity(row) for row in whole]
    assert len(calls) == 2 * (16 - 10)


def test_log_of_another_fingerprint_is_discarded(tmp_path):
    timing(tmp_path, fingerprint="old").time_split("test", toy_prompts(1), ["chain-1"], 1)
    other = timing(tmp_path, fingerprint="new")
    assert other.blocks.log.resumed == 0
    assert "old" not in (tmp_path / "log.jsonl").read_text()


def test_time_cap_ends_after_a_whole_prompt(tmp_path):
    capped = MeasurementConfig(**{**vars(CONFIG), "max_minutes": 0.0})
    measurement = timing(tmp_path, config=capped)
    rows = measurement.time_split("test", toy_prompts(4), ["chain-1"], 1)
    assert {row["prompt"] for row in rows} == {"test-0"}
    assert len(rows) == 4
    assert measurement.blocks.capped


def test_choice_is_the_fastest_on_validation_at_its_best_repeat(tmp_path):
    row = {"temperature": 0.0, "prompt": "a", "tokens": 10}
    rows = [{**row, "arm": "chain-1", "seconds": 1.0}, {**row, "arm": "chain-2", "seconds": 9.0}]
    rows += [{**row, "arm": "chain-2", "seconds": 0.5}]
    config = MeasurementConfig(**{**vars(CONFIG), "temperatures": (0.0,)})
    rows += [{**row, "arm": "confidence-0.3", "seconds": 1.0}]
    measurement = timing(tmp_path, config=config, names=("chain-1", "chain-2", "confidence-0.3"))
    static, confidence = measurement.choose(rows)
    assert (static["arm"], static["tokens_per_second"]) == ("chain-2", {"chain-1": 10.0, "chain-2": 20.0})
    assert confidence["arm"] == "confidence-0.3"
