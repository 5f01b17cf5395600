"""Tasks that need no model, for workers that start fast; and what is killed amid its work. A worker imports this module, so it
imports little."""

import os
import signal
import time


def slow(made, task):
    time.sleep(0.05)
    return made + task


def wrong(made, task):
    raise ValueError(f"{task} is wrong")


def refused():
    raise ValueError("no such pair")


def deadly(made, task):
    """Task 2 ends its worker."""
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def dies(file):
    """Once: whose ``file`` is there lives on."""
    file.touch()
    os.kill(os.getpid(), signal.SIGKILL)


class KilledCollector:
    """A collector whose process is killed amid the fourth shard, once."""

    def __init__(self, file, *of):
        from pipelines.stages.traces import loaded

        self.made, self.file = loaded(*of), file

    def __getattr__(self, name):
        return getattr(self.made, name)

    def rows(self, jobs):
        for rows in self.made.rows(jobs):
            yield rows
            if jobs == self.jobs[6:8] and not self.file.exists():
                dies(self.file)
