"""The same work in this process, on Ray and on object storage: equal bytes with any number of workers, with one killed, and
after a break; DVC's remote."""

import re
import shutil
import sys
from argparse import ArgumentTypeError
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from moto.server import ThreadedMotoServer

from pipelines import scale
from pipelines.measuring.provenance import source_hash
from pipelines.places import place_of
from pipelines.scale import devices, workers
from pipelines.stages import traces
from pipelines.stages.traces import COLLECTING, TRAINING, loaded
from predictors.training.tables import TextTable
from tests.pipelines.scale_tasks import KilledCollector, deadly, refused, slow, wrong
from tests.pipelines.toy_bench import toy_bench
from tests.trace_collection.collecting import contents, interrupted
from trace_collection.collection import collect
from trace_collection.texts import TextTraceConfig

ray = pytest.importorskip("ray")
TEXTS = {"gamma_max": 3, "candidates": 2, "prompts": [0, 4, 3], "max_new_tokens": 10, "layers": 2, "top": 4}
TEXTS |= {"prompts_per_shard": 2, "threads": 1}
SHARDS = 7


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init("local", num_cpus=4, include_dashboard=False, logging_level="warning")
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def args(tmp_path_factory):
    args = toy_bench(tmp_path_factory.mktemp("pair"), "traces", {"max_gigabytes": 0.1, "texts": TEXTS})
    args.of = "texts"
    return args


@pytest.fixture(scope="module")
def collected(args):
    args.out = args.output / "here"
    traces.run(args)
    return contents(args.out)


def test_three_workers_of_whom_one_is_killed_finish_a_folder_in_the_same_bytes(
    cluster, args, collected, tmp_path, monkeypatch, capsys
):
    out, file, seen = tmp_path / "out", tmp_path / "killed", []
    alone, three = (SimpleNamespace(**{**vars(args), "out": out, "workers": workers}) for workers in (1, 3))
    monkeypatch.setattr(traces, "progress", interrupted(5))
    with pytest.raises(KeyboardInterrupt):
        traces.run(alone)
    monkeypatch.setattr(traces, "progress", lambda work, total: (seen.append(total) or one for one in work))
    monkeypatch.setattr(traces, "loaded", partial(KilledCollector, file))
    traces.run(three)
    assert file.exists() and len(collected) == SHARDS + 1 and contents(out) == collected
    assert re.search(r"(\d+) shards, (\d+)", capsys.readouterr().out).groups() == (str(SHARDS), "2")
    assert seen == [10] * 10  # progress over the prompts of all workers


@pytest.fixture(scope="module")
def over(cluster, args):
    with workers(partial(int, 100), 2, 1, args.pair_folder) as over:
        yield over


def test_tasks_are_handed_out_as_others_are_done_and_no_earlier(over):
    taken, ahead = [], []
    tasks = (taken.append(task) or task for task in range(12))
    for task, result in over(slow, tasks):
        assert result == 100 + task
        ahead.append(len(taken) - len(ahead))
    assert len(ahead) == 12 and max(ahead) <= 3
    assert list(over(slow, [])) == []


def test_errors_of_tasks_and_of_what_cannot_be_made_are_the_driver_s_own(over, args, monkeypatch):
    with workers(int, 1, 1, args.pair_folder) as here:
        for some in (here, over):
            with pytest.raises(ValueError, match=r"^7 is wrong$"):
                list(some(wrong, [7]))
    for count in (1, 2):
        with pytest.raises(ValueError, match=r"^no such pair$"), workers(refused, count, 1, args.pair_folder) as some:
            list(some(slow, [7]))
    with pytest.raises(ValueError, match=r"take 6 cores together, and there are 4.*RAY_ADDRESS"):
        workers(int, 3, 2, args.pair_folder).__enter__()
    monkeypatch.setattr(scale, "RETRIES", 1)
    ended = pytest.raises(ValueError, match=r"ended 2 times.*the same command goes on")
    with ended, workers(int, 2, 1, args.pair_folder) as over:
        list(over(deadly, range(4)))


def test_without_ray_more_workers_are_refused_and_one_is_not(args, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with workers(partial(int, 1), 1, 1, args.pair_folder) as over:
        assert list(over(slow, [2, 3])) == [(2, 3), (3, 4)]
    with pytest.raises(ValueError, match=r"pip install 'draftwright\[scale\]'"):
        workers(int, 2, 1, args.pair_folder).__enter__()


@pytest.mark.parametrize(
    ("placement", "most", "needed"),
    [
        ({}, 0, 0),
        ({}, 8, 1),
        ({"draft_device": "cpu"}, 8, 1),
        ({"draft_device": "cuda:1"}, 8, 2),
        ({"device_map": "auto"}, 4, 4),
        ({"device_map": {"model": "cuda:2", "lm_head": 0}, "draft_device": "cuda:3"}, 8, 4),
        ({"device_map": {"": "cuda:1"}}, 0, 0),
    ],
)
def test_a_worker_takes_the_devices_that_its_pair_is_placed_on(placement, most, needed):
    assert devices(placement, most) == needed


@pytest.mark.parametrize(
    ("most", "cores", "threads", "expected"),
    [(1e9, 8, 1, 2), (1e9, 8, 2, 1), (1e9, 1, 1, 1), (1e9, 8, 4, 1), (99, 8, 1, 1)],
)
def test_a_small_pair_is_traced_by_as_many_workers_as_the_machine_has_threads(
    most, cores, threads, expected, args, monkeypatch
):
    """Section machine has its default of two threads."""
    monkeypatch.setattr(traces.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(traces, "SMALL", most)
    assert traces.most_workers(args, threads) == expected
    monkeypatch.setattr(traces, "find_spec", lambda name: None)
    assert traces.most_workers(args, threads) == 1


BUCKET = "s3://bucket"


@pytest.fixture(scope="module")
def storage():
    """A local S3 server with one bucket."""
    running = ThreadedMotoServer(port=0, verbose=False)
    running.start()
    url = "http://{}:{}".format(*running.get_host_and_port())
    named = {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in named.items():
            patch.setenv(f"AWS_{name}", value)
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield url
    running.stop()


def test_a_trace_that_was_interrupted_ends_in_the_bytes_of_a_local_one(storage, args, collected, capsys):
    local, stored = args.output / "here", place_of(f"{BUCKET}/traces/texts")
    make = partial(loaded, "texts", args.pair_folder, TextTraceConfig(**TEXTS), args.prompts)
    digest = source_hash(COLLECTING, but=TRAINING)
    with pytest.raises(KeyboardInterrupt), workers(make, 1, 1, args.pair_folder) as over:
        collect(over, stored, interrupted(5), 0.1, digest)
    assert 0 < len(list(stored.glob("part-*"))) < len(list(local.glob("part-*")))
    with pytest.raises(ValueError, match="collection did not finish"):
        TextTable.read(stored)
    (stored / "part-99999.parquet").write_bytes(b"of another collection")
    args.out = stored
    traces.run(args)
    kept = int(re.search(r"shards, (\d+)", capsys.readouterr().out)[1])
    assert contents(stored) == collected and 0 < kept < len(list(local.glob("part-*")))
    there, here = TextTable.read(place_of(f"{BUCKET}/traces/texts")), TextTable.read(local)
    assert len(there) == len(here) > 0 and there.manifest == here.manifest


def test_a_damaged_shard_is_refused_and_collected_again(storage, args, collected):
    args.out = place_of(f"{BUCKET}/damaged")
    traces.run(args)
    (args.out / "part-00001.parquet").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="s3://bucket/damaged/part-00001.parquet: damaged shard"):
        TextTable.read(args.out)
    traces.run(args)
    assert contents(args.out) == collected


def test_a_bucket_or_a_storage_that_is_not_there_is_named(storage):
    with pytest.raises(ArgumentTypeError, match="s3://other/traces cannot be reached"):
        place_of("s3://other/traces")
    with pytest.raises(ArgumentTypeError, match="nowhere://bucket"):
        place_of("nowhere://bucket")
    assert isinstance(place_of("data/traces"), Path)


def test_dvc_pushes_outputs_and_pulls_them(storage, tmp_path, monkeypatch):
    from dvc.repo import Repo

    monkeypatch.chdir(tmp_path)
    with Repo.init(".", no_scm=True) as repo, repo.config.edit() as config:
        config["remote"]["storage"] = {"url": f"{BUCKET}/dvc", "endpointurl": storage}
        config["core"]["remote"] = "storage"
    Path("bundle.json").write_text("{}\n")
    with Repo(".") as repo:
        repo.add("bundle.json")
        assert repo.push() == 1
    shutil.rmtree(".dvc/cache")
    Path("bundle.json").unlink()
    with Repo(".") as repo:
        repo.pull()
    assert Path("bundle.json").read_text() == "{}\n"
