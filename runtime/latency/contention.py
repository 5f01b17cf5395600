"""How long this process waited for a processor: what other jobs took from it, by the scheduler's own account."""

from pathlib import Path

TASKS = Path("/proc/self/task")
NANOSECOND = 1e-9


def seconds_waited(tasks: Path = TASKS) -> float:
    """Seconds that the process's threads were ready to run and did not, summed over them; 0 where the system does not tell.

    Linux counts them (``schedstat``: nanoseconds run, nanoseconds waited, turns). Timings alone need not show them: passes that
    outlast every slice of time are slowed down alike.
    """
    return NANOSECOND * sum(_waited(thread) for thread in tasks.glob("*/schedstat"))


def _waited(thread: Path) -> int:
    try:
        return int(thread.read_text().split()[1])
    except OSError:
        return 0  # it ended meanwhile
