"""The study of several roots drawn from the target: what they cost."""

import pytest
import torch

from pipelines.reporting.page import markdown_table
from pipelines.studies.target_roots import PLAIN, TargetRootsConfig, arms, decoded, log_probability, summarised, table
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from tests.ancestral import LlamaLogits
from tests.pipelines.toy_bench import toy_prompts
from tests.toys import tiny_llama

CONFIG = TargetRootsConfig(roots=(1, 3), below=(2, 1), max_new_tokens=8)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1, layers=1))


def test_log_probability_is_the_targets(pair):
    prompt, text, logits = [1, 2, 3], [4, 5, 4], LlamaLogits(pair.target.model)
    expected = sum(
        float(torch.log_softmax(logits.logits([*prompt, *text[:place]]).double(), -1)[token])
        for place, token in enumerate(text)
    )
    assert log_probability(pair, prompt, text) == pytest.approx(expected, abs=1e-4)


def test_lossy_arms_say_so_and_one_root_is_the_targets_own(pair):
    decoders = arms(pair, CONFIG)
    assert {name: decoder.lossy for name, decoder in decoders.items()} == {PLAIN: False, "W = 1": False, "W = 3": True}
    rows = [
        row
        for prompt in toy_prompts(6)
        for temperature in (0.0, 1.0)
        for row in decoded(pair, decoders, prompt, SamplingSettings(temperature), CONFIG)
    ]
    summary = {(row["arm"], row["temperature"]): row for row in summarised(rows)}
    assert summary["W = 1", 0.0]["same"] == 1 > summary["W = 3", 0.0]["same"]
    assert summary["W = 1", 0.0]["likelihood_over_plain"]["value"] == 0
    assert summary["W = 3", 0.0]["likelihood_over_plain"]["value"] < 0, "not the likeliest text any more"
    assert summary["W = 3", 1.0]["lossy"] and not summary[PLAIN, 1.0]["lossy"]
    assert "| 0 | W = 3 | LOSSY |" in markdown_table(table(list(summary.values())))
