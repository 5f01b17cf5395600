"""What only a CUDA device can show: graphs, streams, waits and memory."""

import warnings
from random import Random

import pytest
import torch

from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.memory import planned_memory
from tests.bundles import random_bundle
from tests.runtime.test_compact import CONFIGS, random_model
from tests.runtime.test_graphed_decoding import BRANCHES, METHODS, PROMPT
from tests.runtime.walks import walk
from tests.toys import tiny_llama

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def models():
    return [tiny_llama(seed=seed).cuda() for seed in (0, 1)]


@pytest.mark.parametrize("path", ["graphed", "fused"])
@pytest.mark.parametrize("name", CONFIGS)
def test_graphs_equal_plain_calls(name, path):
    model = random_model(CONFIGS[name]).cuda()
    states = [CausalLanguageModel(model, one).open(64, (0, 1, 3)) for one in (path, "compact")]
    for prompt in (0, 60):
        walk(states, Random(prompt), 64, prompt=prompt, tolerance=1e-4)  # of float32 sums in another order


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", METHODS)
def test_texts_equal_those_of_plain_calls(models, name, temperature):
    def text(path):
        decoder = build_decoder(ModelPair(*models, forward=path), METHODS[name])
        options = {"temperature": temperature, "randomness": Randomness(7), "eos_token_id": []}
        return decoder.generate(PROMPT, max_new_tokens=24, **options).tokens

    assert text("graphed") == text("compact")


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_on_a_stream_of_their_own_leave_the_text_alone(models, name):
    pair = ModelPair(*models)
    plain = build_decoder(pair, METHODS["plain"]).generate(PROMPT, max_new_tokens=48, eos_token_id=[]).tokens
    for overlap in ("none", "streams"):
        decoder = build_decoder(pair, BRANCHES[name] | {"overlap": overlap})
        assert decoder.generate(PROMPT, max_new_tokens=48, eos_token_id=[]).tokens == plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["plain", "block", "tokenwise", "ema", "lookup"])
def test_the_host_waits_once_a_round(models, name, temperature):
    decoder = build_decoder(ModelPair(*models), METHODS[name])

    def waits():
        steps = decoder.stream(
            PROMPT, max_new_tokens=40, temperature=temperature, randomness=Randomness(1), eos_token_id=[]
        )
        next(steps)
        counts = []
        for _ in range(5):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                next(steps)
            counts.append(sum("synchroniz" in str(warning.message) for warning in caught))
        return counts

    waits()  # records all programs
    torch.cuda.set_sync_debug_mode("warn")
    try:
        assert waits() == [1] * 5
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_heads_decide_as_by_plain_calls(models, tmp_path, feature_set):
    folder = random_bundle(tmp_path / "b", ModelPair(*models), feature_set, gamma=3)

    def decoded(path):
        decoder = load_decoder(folder, ModelPair(*models, forward=path))
        out = decoder.generate(PROMPT, max_new_tokens=24, temperature=0.0, eos_token_id=[])
        return out.tokens, [record.drafted for record in out.rounds]

    assert decoded("graphed") == decoded("compact")


def test_memory_is_what_was_planned():
    with torch.device("cuda"):
        model = tiny_llama(vocabulary_size=32000, hidden=2048, layers=8, max_position_embeddings=4096).bfloat16()
    pair = ModelPair(model)
    decoder = build_decoder(pair, METHODS["plain"])
    prompt = list(range(100, 612))
    planned = planned_memory(pair, len(prompt), 64)["target"]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    decoder.generate(prompt, max_new_tokens=64, eos_token_id=[])
    assert abs(torch.cuda.max_memory_allocated() / planned.total - 1) < 0.05
