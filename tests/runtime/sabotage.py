"""A controller that sabotages the draft process it decides in; importable there, and without a library of models."""

import fcntl
import os
import signal
import warnings
from pathlib import Path

import torch

from predictors.controllers.unlearned import Confidence

EPSILON = 0.2


class Sabotaged(Confidence):
    """Decides as `Confidence`. In ``folder`` it keeps ``lock`` locked for as long as its process lives, and writes the process's
    ``pid`` and ``threads``, and whether a branch ``survived`` the last round."""

    kind = "sabotaged"

    def __init__(self, folder: Path) -> None:
        super().__init__(EPSILON)
        self.folder = folder
        self.held = None

    def start(self, settings):
        if self.held is None:
            self.held = (self.folder / "lock").open("w")
            fcntl.flock(self.held, fcntl.LOCK_EX)
        (self.folder / "pid").write_text(str(os.getpid()))
        (self.folder / "threads").write_text(str(torch.get_num_threads()))
        return super().start(settings)

    def plan(self, root):
        survived = root.previous is not None and not root.previous.ends_segment
        (self.folder / "survived").write_text(str(survived))
        obey(self.folder, "plan")

    def branch_count(self, law):
        obey(self.folder, "branch")


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
