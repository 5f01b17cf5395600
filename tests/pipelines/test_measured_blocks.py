"""What blocks a measurement has: its sampling settings, with filters or without."""

import pytest
from tqdm import tqdm

from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import Run, TimedArm
from pipelines.measuring.harness import Harness, apart, tokens_per_second
from pipelines.measuring.measurement import MeasureConfig, Measurement
from pipelines.measuring.measurement_log import Blocks, MeasurementLog
from pipelines.measuring.tables import read_decodes, read_rounds, write_decodes, write_rounds
from predictors.config import parse_config
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from tests.pipelines.toy_bench import toy_prompts
from tests.toys import tiny_llama

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


def test_temperatures_and_settings_must_not_contradict_each_other():
    with pytest.raises(ValueError, match=r"temperatures \(0.0, 1.0\) are not those of settings"):
        config(temperatures=[0.0, 1.0], settings=[FILTERED])
    with pytest.raises(ValueError, match="temperatures must not be empty"):
        config(temperatures=[])


def test_rows_and_rounds_tell_filtered_sampling_from_unfiltered(tmp_path):
    """At one temperature, without its filter an arm takes twice the time: their speeds must not be mixed."""

    def decode(prompt, settings, seed):
        return Run([1, 2, 3], [RoundRecord(emitted=1), RoundRecord(emitted=2)])

    settings = (SamplingSettings(1.0), SamplingSettings(1.0, top_p=0.9))
    harness = Harness(Blocks(MeasurementLog(tmp_path / "log.jsonl", "f"), tqdm(disable=True)), settings)
    rows = harness.time([(prompt, [TimedArm("x", "f", decode)]) for prompt in toy_prompts(2)])
    assert len({row["block"] for row in rows}) == len(rows) == 4
    for row in rows:
        row["seconds"] = 1.0 if row["top_p"] < 1 else 2.0
    assert tokens_per_second(rows, "x", 1.0, top_k=0, top_p=0.9) == 3.0
    assert tokens_per_second(rows, "x", 1.0, top_k=0, top_p=1.0) == 1.5
    assert tokens_per_second(rows, "x", 1.0) == 12 / 6, "without the filters all decodes count"
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
