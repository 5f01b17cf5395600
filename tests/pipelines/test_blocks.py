"""Blocks of a long measurement: once each, with progress shown."""

from io import StringIO

from tqdm import tqdm

from pipelines.measuring.measurement_log import Blocks, MeasurementLog


def test_a_known_block_moves_the_bar_and_is_not_measured_again(tmp_path):
    for run in range(2):
        blocks = Blocks(MeasurementLog(tmp_path / "log.jsonl", "f"), tqdm(total=6, file=StringIO()))

        def measure(blocks=blocks, run=run):
            assert run == 0
            blocks.bar.update(3)
            return [{"seconds": 1.0}]

        assert [blocks.once(key, 3, measure) for key in "ab"] == [[{"seconds": 1.0}]] * 2
        assert blocks.bar.n == 6
