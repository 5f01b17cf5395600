"""Measuring by many workers: one times a whole prompt, and interleaves its arms as a single process does.

Arms compare by prompt, so that a worker's own speed is in no comparison. Its rows name it.
"""

import os
import platform
import warnings
from pathlib import Path

import torch
from tqdm import tqdm

from pipelines.measuring.harness import Task
from pipelines.measuring.led import TextLeader
from pipelines.measuring.measurement import MeasureConfig, Measurement
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import WORKER
from pipelines.measuring.recorded import RecordedTexts
from pipelines.pair_folder import read_pair
from pipelines.prompt_table import Prompt
from predictors.latency.serving import Serving
from runtime import ModelPair


def worker(
    config: MeasureConfig, pair_folder: Path, serving: Serving, bundles: Path, texts: Path | None, first: Prompt
) -> Measurement:
    """What a worker times prompts with: the models in memory, all arms warmed up on prompt ``first``, a log that is not kept."""
    torch.set_num_threads(config.threads)
    pair = ModelPair.load(**read_pair(pair_folder).models, record=serving)
    recorded = RecordedTexts(texts, config.max_new_tokens)
    leading = TextLeader(pair, config.max_new_tokens, recorded) if config.led else None
    made = Measurement(pair, config, bundles, MeasurementLog(Path(os.devnull), ""), leading)
    made.harness(tqdm(disable=True)).warm_up(made.arms, first)
    return made


def whole_prompt(made: Measurement, task: Task) -> tuple[Rows, list[str]]:
    """A worker's task: its rows, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        rows = made.prompt(*task)
    by = {WORKER: f"{platform.node()}/{os.getpid()}"}
    return [row | by for row in rows], [str(one.message) for one in caught if one.category is UserWarning]
