"""Threads that share one decoder, as those of a web server do: every request ends, with the text that it has alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime import ModelPair, Randomness, build_decoder, load_decoder
from tests.bundles import random_bundle
from tests.toys import tiny_llama

BRANCHES = {"method": "branch_parallel", "gamma": 3, "k_max": 2}
METHODS = {
    "plain": {"method": "autoregressive"},
    "entropy": {"method": "speculative", "controller": {"kind": "entropy"}},
    "tree": {"method": "speculative", "drafter": {"kind": "delayed_tree"}, "verifier": "traversal"},
    "lookup": {"method": "speculative", "drafter": {"kind": "lookup", "length": 4, "least": 1}},
    "branches": BRANCHES | {"overlap": "none"},
    "branches in a thread": BRANCHES | {"overlap": "threads"},
    "progressive": {"method": "progressive_tree"},
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
