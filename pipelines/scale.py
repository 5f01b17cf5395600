"""Collect a trace in this process, or over many on Ray: an actor per device or group of cores.

A worker makes its collector once, and then does shards with it, one at a time. A killed worker is started again and does its
shard anew, so what a shard holds must follow from its jobs alone. Results come as they are finished. (``ray.util.ActorPool``
takes all tasks at once.)
"""

import itertools
import logging
import os
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pipelines import PACKAGES
from pipelines.places import read_facts
from pipelines.terminal import count

RETRIES = 3  # of a task whose worker ended
Over = Callable[[Callable[[Any, Any], Any], Iterable[Any]], Iterator[tuple[Any, Any]]]


def add_workers_argument(parser: ArgumentParser, default: int | None = 1, unless: str = "all in this process") -> None:
    help_text = f"spread the work over so many actors on Ray (default: {unless})"
    parser.add_argument("--workers", type=count, default=default, help=help_text)


@contextmanager
def workers(make: Callable[[], Any], count: int, threads: int, pair_folder: Path | None = None) -> Iterator[Over]:
    """A function of a function ``do`` and of tasks, which yields every task with ``do(made, task)``; ``made`` is what a worker
    works with, by ``make``, which Ray pickles.

    A ``count`` up to 1: this process, in the tasks' order. More: as many actors on the cluster of ``RAY_ADDRESS``, or on this
    machine. Each takes so many ``threads`` of cores, and the devices that the placement of a pair in ``pair_folder`` needs.
    `ValueError` if Ray is not installed, the cluster has too few cores, or a worker is killed again and again.
    """
    if count < 2:
        made = make()
        yield lambda do, tasks: ((task, do(made, task)) for task in tasks)
        return
    ray = _cluster(count * threads)
    most = max((int(node["Resources"].get("GPU", 0)) for node in ray.nodes()), default=0)
    gpus = devices(read_facts(pair_folder).get("placement", {}), most) if pair_folder else 0
    kind = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES)(Worker)
    actors = [kind.remote(make) for _ in range(count)]
    try:
        yield partial(_spread, ray, actors)
    finally:
        for actor in actors:
            ray.kill(actor)


class Worker:
    """An actor's content. It is made at the first call, as an error there reaches the driver whole."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.made: list[Any] = []

    def do(self, function: Callable[[Any, Any], Any], task: Any) -> Any:
        self.made = self.made or [self.make()]
        found = function(self.made[0], task)
        return list(found) if isinstance(found, Iterator) else found


def _spread(ray: Any, actors: Sequence[Any], do: Callable[[Any, Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
    """One task at a time for every worker; the next is handed out before a result is dealt with, and no earlier."""
    waiting = iter(tasks)
    pending = {actor.do.remote(do, task): (actor, task) for actor, task in zip(actors, waiting, strict=False)}
    while pending:
        (done,), _ = ray.wait(list(pending))
        actor, finished = pending.pop(done)
        found = _got(ray, done)
        for task in itertools.islice(waiting, 1):
            pending[actor.do.remote(do, task)] = actor, task
        yield finished, found


def _got(ray: Any, done: Any) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error  # as in this process
    except ray.exceptions.RayActorError as error:
        raise ValueError(
            f"a worker ended {RETRIES + 1} times ({str(error).splitlines()[0]}). Run fewer workers where memory is short; "
            "finished work is kept, the same command goes on."
        ) from error


def _cluster(cores: int) -> Any:
    """Ray, connected to the cluster of ``RAY_ADDRESS``, or else to one of this machine; it has at least so many cores."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError("more than one worker needs Ray: pip install 'draftwright[scale]', or no --workers.") from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "local")
        code = [str(Path(__file__).parents[1] / name) for name in PACKAGES]
        ray.init(address, runtime_env={"py_modules": code}, include_dashboard=False, logging_level=logging.WARNING)
    have = int(ray.cluster_resources().get("CPU", 0))
    if have < cores:  # a killed worker would wait for ever where another took its cores
        raise ValueError(
            f"the workers take {cores} cores together, and there are {have}: lower --workers or the section's threads, or name a "
            "larger cluster in RAY_ADDRESS."
        )
    return ray


def devices(placement: Mapping[str, Any], most: int) -> int:
    """Return how many of a machine's devices, of which it has at ``most`` so many, a pair needs: all where its ``device_map``
    is a word (``auto``), else up to the last that is named, or one."""
    spread = placement.get("device_map") or {}
    if isinstance(spread, str):
        return most
    named = " ".join(map(str, [*spread.values(), placement.get("draft_device")]))
    return min(most, 1 + max(map(int, re.findall(r"\d+", named)), default=0))
