"""Guess traces: what every pass of every way fed and committed, and what the contract says of a model without a draft."""

import dataclasses

import pytest

from predictors.sampling import SamplingSettings
from predictors.training.guesses import GuessTable
from runtime import ModelPair, Randomness, build_decoder
from tests.pipelines.toy_bench import toy_prompts
from tests.toys import tiny_llama
from tests.trace_collection.collecting import gather
from trace_collection.collection import seed_of
from trace_collection.guesses import GuessCollector, GuessTraceConfig

WAYS = (
    {"method": "progressive_tree", "max_children": 2},
    {"method": "lookahead", "ngram": 3, "window": 3, "guesses": 2},
)
CONFIG = GuessTraceConfig(ways=WAYS, max_new_tokens=20, prompts_per_shard=2, threads=1)


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(8, seed=0), tiny_llama(8, seed=1))


@pytest.fixture(scope="module")
def collected(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guesses")
    gather(GuessCollector(pair, CONFIG, toy_prompts(3, "validation", vocabulary=8)), folder)
    return folder


def test_rows_are_the_decoders_passes(collected, pair):
    table = GuessTable.read(collected)
    assert table.settings == [SamplingSettings(0.0), SamplingSettings(1.0)] and table.manifest.ways == WAYS
    alone = ModelPair(pair.target)
    expected = []
    for prompt in toy_prompts(3, "validation", vocabulary=8):
        for settings in CONFIG.settings:
            for way, config in enumerate(WAYS):
                out = build_decoder(alone, config).generate(
                    prompt.tokens,
                    max_new_tokens=20,
                    randomness=Randomness(seed_of(0, "guesses", prompt.id, settings)),
                    **dataclasses.asdict(settings),
                )
                position = len(prompt.tokens) + 1
                for number, record in enumerate(out.rounds[1:], start=1):
                    counts = (record.guessed, record.drafted, record.accepted + 1)
                    expected.append((prompt.id, settings.temperature, way, number, position, *counts))
                    position += record.emitted
    names = ("prompt_id", "temperature", "way", "round", "position", "guessed", "drafted", "committed")
    rows = list(zip(*(table.column(name).tolist() for name in names), strict=True))
    assert rows == expected and table.column("drafted").any()


def test_the_contract_speaks_of_one_model(collected):
    contract = GuessTable.read(collected).manifest.capture_contract("traces")
    assert contract.identity.draft is None and contract.identity.layer_ids == ()


def test_bad_parameters(pair):
    wrong = dataclasses.replace(CONFIG, ways=({"method": "speculative"},))
    with pytest.raises(ValueError, match="needs a draft model"):
        GuessCollector(pair, wrong, toy_prompts(2, "validation", vocabulary=8))
