"""Texts are the same whatever settings of torch stand around a call, and whichever threads share the decoder."""

from concurrent.futures import ThreadPoolExecutor
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


# ---- threads that share one decoder, as those of a web server do

BRANCHES = {"method": "branch_parallel", "gamma": 3, "k_max": 2}
METHODS = {
    "plain": {"method": "autoregressive"},
    "entropy": {"method": "speculative", "controller": {"kind": "entropy"}},
    "tree": {"method": "speculative", "drafter": {"kind": "delayed_tree"}, "verifier": "traversal"},
    "lookup": {"method": "speculative", "drafter": {"kind": "lookup", "length": 4, "least": 1}},
    "branches": BRANCHES | {"overlap": "none"},
    "branches in a thread": BRANCHES | {"overlap": "threads"},
    "progressive": {"method": "progressive_tree"},
    "lookahead": {"method": "lookahead", "ngram": 3, "window": 4, "guesses": 3},
    "self_draft": {"method": "self_draft"},
}


def texts_alone_and_together(decoder):
    def text(seed):
        options = {"temperature": seed % 2, "randomness": Randomness(seed), "eos_token_id": []}
        return decoder.generate([1 + seed, 2, 3], max_new_tokens=20, **options).tokens

    alone = [text(seed) for seed in range(12)]
    with ThreadPoolExecutor(3) as threads:
        return alone, list(threads.map(text, range(12), timeout=120))


@pytest.mark.parametrize("path", ["auto", "hugging_face"])
@pytest.mark.parametrize("name", METHODS)
def test_every_request_ends_with_its_own_text(name, path):
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1), forward=path)
    alone, together = texts_alone_and_together(build_decoder(pair, METHODS[name]))
    assert alone == together


def test_a_controllers_sessions_are_apart(tmp_path):
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))
    alone, together = texts_alone_and_together(load_decoder(random_bundle(tmp_path / "hrad", pair), pair))
    assert alone == together
