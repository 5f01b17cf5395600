"""A decoder whose draft process sabotages itself where a test orders it to; importable, so that the process can run it."""

import fcntl
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from predictors.controllers.confidence import Confidence, ConfidenceConfig, ConfidenceSession
from runtime import ModelPair
from runtime.branching.config import BranchConfig
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.verification import VERIFIERS
from tests.branches import shaken_llama, sharp_llama
from tests.runtime.overlap_services import wait_for_end

EPSILON = 0.2
OPTIONS = {"gamma": 3, "k_max": 2}


class Sabotaged(Confidence):
    """Decides as `Confidence`. In ``folder`` it keeps ``lock`` locked for as long as its process lives, and writes the process's
    ``pid`` and ``threads``, and whether a branch ``survived`` the last round."""

    kind = "sabotaged"

    def __init__(self, folder: Path) -> None:
        super().__init__(ConfidenceConfig(EPSILON))
        self.folder = folder
        self.held = None

    def start(self, settings):
        if self.held is None:
            self.held = (self.folder / "lock").open("w")
            fcntl.flock(self.held, fcntl.LOCK_EX)
        (self.folder / "pid").write_text(str(os.getpid()))
        (self.folder / "threads").write_text(str(torch.get_num_threads()))
        return SabotagedSession(self)


class SabotagedSession(ConfidenceSession):
    def __init__(self, controller):
        super().__init__(controller.config)
        self.folder = controller.folder

    def plan(self, root):
        survived = root.previous is not None and not root.previous.ends_segment
        (self.folder / "survived").write_text(str(survived))
        obey(self.folder, "plan")

    def branch_count(self, law):
        obey(self.folder, "branch")


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


def obey(folder: Path, place: str) -> None:
    """Do what is ordered for ``place``."""
    for what in ("die", "interrupt", "warn"):
        file = folder / f"{place}-{what}"
        if not file.exists():
            continue
        left = int(file.read_text()) - 1
        file.write_text(str(left)) if left else file.unlink()
        if what == "warn":
            warnings.warn("the draft is far from home", stacklevel=1)
        else:
            victim, sent = (os.getpid(), signal.SIGKILL) if what == "die" else (os.getppid(), signal.SIGINT)
            os.kill(victim, sent)


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
