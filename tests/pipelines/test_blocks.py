"""Blocks of a long measurement: once each, within a share of the time, with progress shown."""

from io import StringIO

import pytest
from tqdm import tqdm

from pipelines.measuring.measurement_log import Blocks, MeasurementLog
from tests.pipelines.toy_bench import toy_prompts


def test_a_known_block_moves_the_bar_and_is_not_measured_again(tmp_path):
    for run in range(2):
        blocks = Blocks(MeasurementLog(tmp_path / "log.jsonl", "f"), tqdm(total=6, file=StringIO()))

        def measure(blocks=blocks, run=run):
            assert run == 0
            blocks.bar.update(3)
            return [{"seconds": 1.0}]

        assert [blocks.once(key, 3, measure) for key in "ab"] == [[{"seconds": 1.0}]] * 2
        assert blocks.bar.n == 6


@pytest.mark.parametrize(("max_minutes", "count", "capped"), [(None, 4, False), (100.0, 4, False), (0.0, 1, True)])
def test_prompts_end_with_the_time(tmp_path, max_minutes, count, capped):
    blocks = Blocks(MeasurementLog(tmp_path / "log.jsonl", "f"), tqdm(disable=True), max_minutes)
    assert len(list(blocks.within(0.5, toy_prompts(4)))) == count
    assert blocks.capped is capped
