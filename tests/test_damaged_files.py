"""Readers of what lies in files read a damaged one, or refuse it by `ValueError` or `OSError`, which commands show in one line.

Damage: flipped bytes, ends cut off, and values of cards, manifests, profiles and parameters that became others.
"""

import copy
import json
import random
from pathlib import Path

import pytest
import yaml

from pipelines.documents import Source, load_documents
from pipelines.gate.plan import load_plan
from pipelines.parameters import load_parameters
from pipelines.prompt_table import FILE, Prompt, read_prompts, write_prompts
from pipelines.stages.measure import MeasureConfig
from pipelines.stages.prompts import PromptParameters
from pipelines.stages.traces import CONFIGS
from predictors.bundle import read_bundle, write_bundle
from predictors.latency.profile import read_profile
from predictors.training.tables import TextTable
from runtime import ModelPair, load_decoder
from tests.bundles import grow_bundle, random_bundle, selector_bundle, sourced_bundle, stop_bundle, survival_bundle
from tests.pipelines.hand_made_profile import PROFILE
from tests.toys import tiny_llama
from tests.trace_collection.collecting import gather, random_prompts
from trace_collection.texts import TextCollector, TextTraceConfig

ROOT = Path(__file__).parents[1]
OTHERS = [None, True, -1, 0, 3, 0.5, 1e308, float("nan"), "", "x", "\ud800", [], [0], [[]], {}, {"a": 1}]
TRIES = 100


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))


def flipped(luck: random.Random, content: bytes) -> bytes:
    """Some bytes changed, or the end missing."""
    if luck.random() < 0.3:
        return content[: luck.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(luck.choice([1, 3, 20])):
        changed[luck.randrange(len(changed))] ^= luck.randrange(1, 256)  # another byte in any case
    return bytes(changed)


def changed(luck: random.Random, record):
    """One value of a record, at any depth, became another or is missing."""
    record = copy.deepcopy(record)
    place = record
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = luck.choice(list(keys))
        if not isinstance(place[key], dict | list) or not place[key] or luck.random() < 0.2:
            break
        place = place[key]
    if luck.random() < 0.3:
        del place[key]
    else:
        place[key] = luck.choice(OTHERS)
    return record


def survived(read) -> bool:
    """Whether it was read; what is raised but `ValueError` and `OSError` fails the test."""
    try:
        read()
    except (ValueError, OSError) as error:
        assert str(error)
        return False
    return True


def refused(damage, read) -> int:
    """How many of many damages were refused."""
    count = 0
    for seed in range(TRIES):
        damage(random.Random(seed))
        count += not survived(read)
    return count


@pytest.mark.parametrize("name", ["card.json", "tensors.safetensors"])
def test_bundles_of_other_bytes(name, pair, tmp_path):
    folder = random_bundle(tmp_path / "hrad", pair)
    (path,) = folder.glob(name.replace("tensors", "*"))
    content = path.read_bytes()
    assert survived(lambda: load_decoder(folder, pair))
    assert refused(lambda luck: path.write_bytes(flipped(luck, content)), lambda: load_decoder(folder, pair))


@pytest.mark.parametrize(
    "make", [random_bundle, survival_bundle, grow_bundle, stop_bundle, sourced_bundle, selector_bundle]
)
def test_bundles_whose_card_was_made_otherwise(make, pair, tmp_path):
    bundle = read_bundle(make(tmp_path / "made", pair))

    def damage(luck):
        card = changed(luck, bundle.card)
        try:
            write_bundle(tmp_path / "other", card, bundle.tensors)
        except ValueError:  # not finite: refused before it is written
            write_bundle(tmp_path / "other", bundle.card, bundle.tensors)

    assert refused(damage, lambda: load_decoder(tmp_path / "other", pair).generate([1, 2], max_new_tokens=4))


def test_latency_profiles(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    content = path.read_bytes()
    assert survived(lambda: read_profile(path))
    assert refused(lambda luck: path.write_bytes(flipped(luck, content)), lambda: read_profile(path))
    assert refused(lambda luck: path.write_text(json.dumps(changed(luck, PROFILE))), lambda: read_profile(path))


def test_prompts(tmp_path):
    rows = [Prompt(f"p{i}", f"d{i}", "s", "code", "train", "text", [1, 2, i]) for i in range(20)]
    write_prompts(tmp_path / FILE, rows)
    content = (tmp_path / FILE).read_bytes()
    assert read_prompts(tmp_path, "train") == rows
    damage = lambda luck: (tmp_path / FILE).write_bytes(flipped(luck, content))  # noqa: E731
    assert refused(damage, lambda: read_prompts(tmp_path, "train"))


def test_documents(tmp_path):
    path = tmp_path / "texts.jsonl"
    row = {"text": "a text", "turns": [{"role": "user", "content": "x"}], "slice": "code"}
    rows = [{"id": str(i), **row} for i in range(5)]
    content = "\n".join(map(json.dumps, rows)).encode()
    path.write_bytes(content)
    source = Source(name="mine", kind="file", path=str(path), column="text", slice="code")
    read = lambda: load_documents(source)  # noqa: E731
    assert survived(read)
    assert refused(lambda luck: path.write_bytes(flipped(luck, content)), read)
    assert refused(lambda luck: path.write_text("\n".join(map(json.dumps, changed(luck, rows)))), read) < TRIES


def test_traces(pair, tmp_path):
    sizes = {"gamma_max": 2, "candidates": 2, "prompts": (2, 1, 1), "layers": 2, "top": 4, "prompts_per_shard": 2}
    config = TextTraceConfig(**sizes, max_new_tokens=6, threads=1)
    prompts = random_prompts([4, 5, 4, 6], ["train", "train", "validation", "test"])
    folder = tmp_path / "texts"
    gather(TextCollector(pair, config, prompts), folder)
    assert survived(lambda: TextTable.read(folder))
    manifest = folder / "manifest.json"
    record = json.loads(manifest.read_text())
    assert refused(lambda luck: manifest.write_text(json.dumps(changed(luck, record))), lambda: TextTable.read(folder))
    manifest.write_text(json.dumps(record))
    shard = next(folder.glob("*.parquet"))
    content = shard.read_bytes()
    assert refused(lambda luck: shard.write_bytes(flipped(luck, content)), lambda: TextTable.read(folder)) == TRIES


def test_parameters(tmp_path):
    path = tmp_path / "params.yaml"
    document = {"pairs": yaml.safe_load((ROOT / "params.yaml").read_text())["pairs"]}

    def read():
        load_parameters(PromptParameters, "smollm2", "prompts", path)
        load_parameters(MeasureConfig, "smollm2", "measure", path)
        load_plan("smollm2", path)
        for of, config in CONFIGS.items():
            load_parameters(config, "smollm2", f"traces.{of}", path)

    def damage(luck):
        path.write_text(yaml.safe_dump(changed(luck, document)))

    path.write_text(yaml.safe_dump(document))
    assert survived(read)
    assert refused(damage, read)
