"""Collections survive interruption, damage and changed parameters, of whatever trace."""

import dataclasses
import json
import os
import re
import shutil
import signal
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair
from tests.toys import tiny_llama
from tests.trace_collection.collecting import Prompt, contents, gather, interrupted, random_prompts, read
from tests.trace_collection.test_trees import ACTIONS
from trace_collection import collection, shards
from trace_collection.collection import first_of_splits
from trace_collection.guesses import GuessCollector, GuessTraceConfig
from trace_collection.texts import TextCollector, TextTraceConfig
from trace_collection.trees import TreeCollector, TreeTraceConfig

SMALL = {"prompts_per_shard": 2, "threads": 1}
TEXTS = TextTraceConfig(gamma_max=3, candidates=2, prompts=(3, 1, 1), max_new_tokens=10, layers=2, top=4, **SMALL)
TREES = TreeTraceConfig(
    actions=ACTIONS,
    rules=("specinfer", "block"),
    spacing=4,
    roots_per_prompt=2,
    prompts=(3, 1, 1),
    draws=(1, 1, 2),
    **SMALL,
)
GUESSES = GuessTraceConfig(
    ways=({"method": "lookahead", "ngram": 3, "window": 3, "guesses": 2},), prompts=5, max_new_tokens=10, **SMALL
)
KINDS = {"texts": (TextCollector, TEXTS), "trees": (TreeCollector, TREES), "guesses": (GuessCollector, GUESSES)}


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0, layers=3), tiny_llama(seed=0, layers=1))


@pytest.fixture(scope="module")
def prompts():
    return random_prompts([4, 6, 5, 7, 4], ["train", "train", "train", "validation", "test"])


def made(name, pair, prompts, **change):
    kind, config = KINDS[name]
    given = [prompt._replace(split="validation") for prompt in prompts] if name == "guesses" else prompts
    return kind(pair, dataclasses.replace(config, **change), given)


@pytest.fixture(scope="module", params=KINDS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def collected(name, pair, prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp(name)
    gather(made(name, pair, prompts), folder)
    return folder


def test_the_manifest_says_what_there_is(name, collected, pair, prompts):
    manifest, rows = json.loads((collected / "manifest.json").read_text()), read(collected)
    assert manifest["num_rows"] == len(rows) > 0
    assert [shard["name"] for shard in manifest["shards"]] == [f"part-0000{index}.parquet" for index in range(5)]
    assert set(rows[0]) == set(KINDS[name][0].columns)
    assert {row["prompt_id"] for row in rows} == {prompt.id for prompt in prompts}
    assert manifest["parameters"]["prompts_per_shard"] == 2
    assert manifest["dtypes"] == {"target": "float32"} | ({"draft": "float32"} if name != "guesses" else {})
    held = sum(path.stat().st_size for path in collected.glob("part-*"))
    assert manifest["bytes_per_row"] == pytest.approx(held / len(rows), abs=0.1)


def test_settings_of_torch_around_it_decide_nothing(name, collected, pair, prompts, tmp_path):
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        gather(made(name, pair, prompts), tmp_path)
    assert contents(tmp_path) == contents(collected)


@pytest.mark.parametrize("after", [0, 3, 8])
def test_an_interrupted_collection_ends_in_the_same_bytes(name, collected, pair, prompts, tmp_path, after):
    with pytest.raises(KeyboardInterrupt):
        gather(made(name, pair, prompts), tmp_path, interrupted(after))
    assert not (tmp_path / "manifest.json").exists()
    assert gather(made(name, pair, prompts), tmp_path)["kept"] == after // 2
    assert contents(tmp_path) == contents(collected)


@pytest.mark.parametrize("after", [3, 4])
def test_a_killed_collection_ends_in_the_same_bytes(collected, pair, prompts, tmp_path, name, after):
    """By a signal that nothing can catch, in the middle of a shard and after one."""

    def killed(work, total):
        for number, one in enumerate(work):
            if number == after:
                os.kill(os.getpid(), signal.SIGKILL)
            yield one

    child = os.fork()
    if not child:
        try:
            gather(made(name, pair, prompts), tmp_path, killed)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL and not (tmp_path / "manifest.json").exists()
    assert gather(made(name, pair, prompts), tmp_path)["kept"] == after // 2
    assert contents(tmp_path) == contents(collected)


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_shard_is_collected_again(name, collected, pair, prompts, tmp_path, damage):
    gather(made(name, pair, prompts), tmp_path)
    shard = tmp_path / "part-00001.parquet"
    data = bytearray(shard.read_bytes())
    column = pq.read_metadata(shard).row_group(0).column(0)
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 0xFF
    shard.write_bytes(bytes(data) if damage == "flipped" else shard.read_bytes()[:1000])
    assert gather(made(name, pair, prompts), tmp_path)["kept"] == 4
    assert contents(tmp_path) == contents(collected)


def test_shards_of_other_code_are_collected_again(pair, prompts, tmp_path):
    for code, kept in (("one", 0), ("one", 5), ("two", 0)):
        assert gather(made("texts", pair, prompts), tmp_path, code=code)["kept"] == kept


@pytest.mark.parametrize(
    ("changes", "placed"),
    [({"seed": 1}, {}), ({"prompts_per_shard": 4}, {}), ({}, {"document": "other"}), ({}, {"slice": "other"})],
)
def test_changed_parameters_and_places_never_mix_with_old_shards(pair, prompts, tmp_path, changes, placed):
    gather(made("texts", pair, prompts), tmp_path)
    others = [prompt._replace(**placed) for prompt in prompts]
    assert gather(made("texts", pair, others, **changes), tmp_path)["kept"] == 0
    fingerprints = {pq.read_schema(path).metadata[b"fingerprint"] for path in tmp_path.glob("*.parquet")}
    assert fingerprints == {json.loads((tmp_path / "manifest.json").read_text())["fingerprint"].encode()}
    assert all({row[field] for row in read(tmp_path)} == {value} for field, value in placed.items())


def test_traces_of_another_kind_are_not_replaced(name, collected, pair, prompts, tmp_path):
    shutil.copytree(collected, tmp_path / "traces")
    other = next(kind for kind in KINDS if kind != name)
    with pytest.raises(ValueError, match=f"holds traces of {name}, not of {other}"):
        gather(made(other, pair, prompts), tmp_path / "traces")
    assert contents(tmp_path / "traces") == contents(collected)


def test_a_text_that_ends_with_other_tokens_is_collected_again(pair, prompts, tmp_path, monkeypatch):
    gather(made("texts", pair, prompts), tmp_path)
    monkeypatch.setattr(type(pair.target), "eos_tokens", frozenset({30, 31}))
    assert gather(made("texts", pair, prompts), tmp_path)["kept"] == 0


def test_another_pair_or_number_format_never_mixes_with_old_shards(pair, prompts, tmp_path):
    """Not even a draft whose weights are bfloat16's in both formats, which is the same pair: what is learned serves both."""
    rounded = tiny_llama(seed=0, layers=1).to(torch.bfloat16)
    draft = rounded.to(torch.float32)
    pairs = [
        ModelPair(tiny_llama(seed=5, layers=3), pair.draft.model),
        ModelPair(tiny_llama(seed=0, layers=3).to(torch.bfloat16), pair.draft.model),
        ModelPair(pair.target.model, draft),
        ModelPair(pair.target.model, tiny_llama(seed=0, layers=1).to(torch.bfloat16)),
    ]
    manifests = []
    for other in (pair, *pairs):
        assert gather(made("texts", other, prompts), tmp_path)["kept"] == 0
        manifests.append(json.loads((tmp_path / "manifest.json").read_text()))
    assert manifests[3]["contract"] == manifests[4]["contract"]
    assert [one["dtypes"]["draft"] for one in manifests[3:]] == ["float32", "bfloat16"]


def test_other_versions_of_the_libraries_keep_what_is_finished(pair, prompts, tmp_path, monkeypatch):
    """They are provenance: an upgrade half-way does not begin anew."""
    gather(made("texts", pair, prompts), tmp_path)
    monkeypatch.setattr(collection.transformers, "__version__", "9.9")
    assert gather(made("texts", pair, prompts), tmp_path)["kept"] == 5


def test_the_disk_is_checked_before_anything_changes(name, collected, pair, prompts, tmp_path, capsys):
    folder = tmp_path / name
    gather(made(name, pair, prompts), folder)
    before = contents(folder)
    with pytest.raises(ValueError, match=rf"traces\.{name} need up to .* traces\.max_gigabytes = 1e-06"):
        gather(made(name, pair, prompts, seed=3), folder, max_gigabytes=1e-6)
    assert contents(folder) == before
    (printed,) = re.findall(rf"^{name}: \D+(\d+)", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    assert int(printed) >= json.loads((folder / "manifest.json").read_text())["num_rows"] > 0


def test_the_traces_of_a_pair_share_one_cap(pair, prompts, tmp_path):
    """What other traces take is not there for this one; its own old shards are replaced."""
    need = 10 * 9 * shards.bytes_of(_schema(made("texts", pair, prompts)))
    gather(made("texts", pair, prompts), tmp_path / "texts", max_gigabytes=need / 1e9)
    gather(made("texts", pair, prompts, seed=1), tmp_path / "texts", max_gigabytes=need / 1e9)
    with pytest.raises(ValueError, match=r"traces\.max_gigabytes"):
        gather(made("texts", pair, prompts), tmp_path / "others", max_gigabytes=need / 1e9)


def test_the_disk_holds_a_second_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    shards.require_disk(tmp_path / "texts", "texts", 5, 100, 1.0)
    with pytest.raises(ValueError, match=r"DVC keeps a copy\) is 5e-07 GB.*make room") as raised:
        shards.require_disk(tmp_path / "texts", "texts", 6, 100, 1.0)
    assert "max_gigabytes" not in str(raised.value)  # a higher cap makes no room


def _schema(collector):
    return shards.trace_schema(collector.columns, collector.sizes, collector.version, "", {})


def test_prompts_that_do_not_fit_are_refused_first(name, pair, prompts, tmp_path):
    long = [Prompt("long", "d9", "code", split, [1] * 250) for split in ("train", "validation")]
    with pytest.raises(ValueError, match=rf"prompt long has 250 tokens.*traces\.{name}.*context of 256"):
        gather(made(name, pair, long), tmp_path / "out")
    with pytest.raises(ValueError, match="no prompts to collect from"):
        gather(made(name, pair, []), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pair_without_a_draft_makes_neither_texts_nor_trees(pair, prompts):
    for name in ("texts", "trees"):
        with pytest.raises(ValueError, match="need a draft model"):
            made(name, ModelPair(pair.target.model), prompts)


@pytest.mark.parametrize(("key", "states"), [("layers", 4), ("draft_layers", 2)])
@pytest.mark.parametrize("name", ["texts", "trees"])
def test_more_hidden_states_than_a_model_has_are_refused_by_their_key(name, key, states, pair, prompts):
    assert made(name, pair, prompts, **{key: states})
    with pytest.raises(ValueError, match=rf"traces\.{name}\.{key} is {states + 1}, and .* has {states} hidden states"):
        made(name, pair, prompts, **{key: states + 1})


def test_texts_and_trees_of_one_prompt_differ(pair, prompts):
    drawn = []
    for name in ("texts", "trees"):
        jobs = [(SamplingSettings(1.0), prompt) for prompt in prompts[:2]]
        drawn.append([text.tokens[:5] for _, text in made(name, pair, prompts).texts(jobs)])
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("count", [6, 12, 18])
def test_the_first_prompts_of_a_split_have_all_slices_and_most_documents(count):
    """As the prompts stage orders them. A stride, the wrong twin, meets one slice only where it is a multiple of their number."""
    slices = {"code": 9, "prose": 6, "tables": 3}
    prompts = [
        SimpleNamespace(id=f"{split}-{n}", split=split, slice=name, document=f"{split}/{name}/{n % documents}")
        for split in ("train", "validation", "test")
        for n in range(18)
        for name, documents in slices.items()
    ]
    chosen = first_of_splits(prompts, (count, 0, 3 * count))
    assert len(chosen) == count + min(3 * count, 54)
    for name, documents in slices.items():
        mine = [one for one in chosen if (one.split, one.slice) == ("train", name)]
        assert len(mine) == count // 3 and len({one.document for one in mine}) == min(documents, count // 3)
    assert len({one.slice for one in prompts[::3]}) == 1
