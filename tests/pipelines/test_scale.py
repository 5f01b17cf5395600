"""The same work in this process and on Ray: equal bytes with any number of workers, with one killed, and after a break."""

import re
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from pipelines import scale
from pipelines.scale import devices, workers
from pipelines.stages import traces
from tests.pipelines.scale_tasks import KilledCollector, deadly, refused, slow, wrong
from tests.pipelines.toy_bench import toy_bench
from tests.trace_collection.collecting import contents, interrupted

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


def test_three_workers_of_whom_one_is_killed_amid_a_shard_finish_a_folder_in_the_same_bytes(
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


def test_an_error_of_a_task_is_the_driver_s_own(over, args):
    with workers(int, 1, 1, args.pair_folder) as here:
        for some in (here, over):
            with pytest.raises(ValueError, match=r"^7 is wrong$"):
                list(some(wrong, [7]))


def test_what_cannot_be_made_is_the_driver_s_own_error(cluster, args):
    for count in (1, 2):
        with pytest.raises(ValueError, match=r"^no such pair$"), workers(refused, count, 1, args.pair_folder) as some:
            list(some(slow, [7]))


def test_a_task_that_always_ends_its_worker_is_an_error(cluster, args, monkeypatch):
    monkeypatch.setattr(scale, "RETRIES", 1)
    with (
        pytest.raises(ValueError, match=r"ended 2 times.*the same command goes on"),
        workers(int, 2, 1, args.pair_folder) as over,
    ):
        list(over(deadly, range(4)))


def test_more_cores_than_there_are_are_refused(cluster, args):
    with pytest.raises(ValueError, match=r"take 6 cores together, and there are 4.*RAY_ADDRESS"):
        workers(int, 3, 2, args.pair_folder).__enter__()


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
