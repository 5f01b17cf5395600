"""Tasks that need no model, for workers that start fast."""

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
