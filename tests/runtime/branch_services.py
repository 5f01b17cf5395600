"""A decoder whose draft process sabotages itself where a test orders it to."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

from runtime import ModelPair
from runtime.branching.draft import BranchConfig
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.verification import VERIFIERS
from tests.branches import shaken_llama, sharp_llama
from tests.runtime.overlap_services import wait_for_end
from tests.runtime.sabotage import Sabotaged

OPTIONS = {"gamma": 3, "k_max": 2}


def a_pair() -> ModelPair:
    """A draft that is right in part, at temperatures 0 and 1."""
    return ModelPair(sharp_llama(2, sharpness=6), shaken_llama(2, sharpness=6))


def in_a_process(pair: ModelPair, folder: Path, **options: int) -> BranchParallelDecoder:
    """A decoder whose draft process obeys orders in ``folder``."""
    config = BranchConfig(**OPTIONS, **options, overlap="processes")
    return BranchParallelDecoder(pair, config, VERIFIERS["block"], Sabotaged(folder))


def order(folder: Path, place: str, what: str, times: int = 1) -> None:
    """Have the process ``die``, ``interrupt`` its parent or ``warn`` when it comes to ``place`` (plan or branch)."""
    (folder / f"{place}-{what}").write_text(str(times))


def pid_of(folder: Path) -> int:
    """The process that last began a request."""
    return int((folder / "pid").read_text())


def alive(folder: Path) -> bool:
    """Whether that process lives."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def kept_in_a_process(pair: ModelPair, folder: Path, **options: int) -> Iterator[tuple[BranchParallelDecoder, Path]]:
    """`in_a_process` for as long as a fixture lasts; those that kill the process leave another one behind."""
    decoder = in_a_process(pair, folder, **options)
    yield decoder, folder
    decoder.close()
    wait_for_end(folder / "lock")
