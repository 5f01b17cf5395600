"""A pair, and texts of its target on disk, which replays of all controllers read."""

import pytest

from predictors.training.tables import TextTable
from runtime import ModelPair
from tests.toys import near, tiny_llama
from tests.trace_collection.collecting import TEXTS, gather, random_prompts
from trace_collection.texts import TextCollector


@pytest.fixture(scope="package")
def pair():
    return ModelPair(tiny_llama(seed=0, eos_token_id=7), near(tiny_llama(seed=0)))


@pytest.fixture(scope="package")
def prompts():
    return random_prompts([9, 12, 15, 11, 10], ["train", "validation", "test", "test", "test"])


@pytest.fixture(scope="package")
def folder(pair, prompts, tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    gather(TextCollector(pair, TEXTS, prompts), place)
    return place


@pytest.fixture(scope="package")
def texts(folder):
    return list(TextTable.read(folder).texts())
