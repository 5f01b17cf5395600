"""Texts are the same whatever settings of torch stand around a call."""

from contextlib import contextmanager

import pytest
import torch

from runtime import ModelPair, Randomness, build_decoder, load_decoder
from tests.bundles import random_bundle
from tests.toys import tiny_llama


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


CALLS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
    "default device": lambda: torch.device("meta"),  # as one that the models are not on
    "default dtype": lambda: default_dtype(torch.float64),
    "half default dtype": lambda: default_dtype(torch.float16),
    "inference mode": torch.inference_mode,
}
DECODERS = (
    {"method": "speculative", "drafter": {"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 2}, "verifier": "traversal"},
    {"preset": "specbranch", "gamma": 3},
    {"method": "lookahead"},
    "bundle",
)


def made(forward, config, folder):
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=1), forward=forward)
    return load_decoder(folder, pair) if config == "bundle" else build_decoder(pair, config)


def texts(decoder):
    """Greedy and sampled; prompts as lists and tensors."""
    return [
        decoder.generate(
            prompt, max_new_tokens=14, temperature=temperature, eos_token_id=[40], randomness=Randomness(0)
        )
        for prompt, temperature in (([4, 1, 5], 0.0), (torch.tensor([4, 1, 5], device="cpu"), 1.0))
    ]


def tokens(decoder):
    return [[one.tokens, [(round.drafted, round.accepted) for round in one.rounds]] for one in texts(decoder)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_bundle(tmp_path_factory.mktemp("bundle") / "b", ModelPair(tiny_llama(seed=0), tiny_llama(seed=1)))


@pytest.mark.parametrize("forward", ["compact", "packed", "graphed", "hugging_face"])
@pytest.mark.parametrize("config", DECODERS, ids=str)
def test_settings_around_a_call_decide_nothing(forward, config, folder):
    right = tokens(made(forward, config, folder))
    for name, around in CALLS.items():
        decoder = made(forward, config, folder)
        with around():
            assert tokens(decoder) == right, name
    with CALLS["autocast"]():
        decoder = made(forward, config, folder)
    assert tokens(decoder) == right, "made within"


def test_a_caller_between_steps_keeps_its_settings():
    decoder = build_decoder(ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1)), {"method": "speculative"})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in decoder.stream([1, 2, 3], max_new_tokens=6):
            assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
