"""MLflow runs: one per trained predictor, found again by the content hash of its head.

Run ids never enter a stage's outputs (they would re-run everything downstream); the tag ``head_sha256`` leads back.
"""

import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from filelock import FileLock

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

SQLITE = "sqlite:///"
DEFAULT_URI = f"{SQLITE}mlflow.db"
PROBE_SECONDS = 5.0
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
HEAD_TAG = "head_sha256"


def tracking_uri() -> str:
    """``MLFLOW_TRACKING_URI``, or one SQLite file in the current folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI.replace("mlflow.db", os.path.abspath("mlflow.db"))


def require_reachable(uri: str) -> None:
    """Fail within seconds, before any work is done, if no tracking server answers at ``uri``. `ValueError` otherwise."""
    parts, shown = urlsplit(uri), without_password(uri)
    scheme = parts.scheme.split("+")[0]
    try:
        if scheme in ("http", "https"):
            _probe_http(uri)
        elif scheme in PORTS and parts.hostname:
            socket.create_connection((parts.hostname, parts.port or PORTS[scheme]), timeout=PROBE_SECONDS).close()
        elif scheme not in ("sqlite", *PORTS):
            raise ValueError(
                f"MLFLOW_TRACKING_URI {shown!r} names no server: use http(s)://, sqlite:/// or a database URI."
            )
    except OSError as error:
        raise ValueError(
            f"the MLflow tracking server at {shown} cannot be reached ({without_password(str(error))}). Start it, or "
            f"unset MLFLOW_TRACKING_URI to track in {DEFAULT_URI}. Nothing was changed; earlier results are kept."
        ) from error


def without_password(uri: str) -> str:
    """``uri`` as it may be shown."""
    return re.sub("//[^/]*@", "//", uri)


def _probe_http(uri: str) -> None:
    """As MLflow asks: its own settings say which certificates are trusted. Refusals are the client's to explain."""
    _settle()
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        answer = http_request(get_default_host_creds(uri), "/health", "GET", max_retries=0, timeout=PROBE_SECONDS)
    except MlflowException as error:
        raise OSError(str(error.__cause__ or error)) from error
    if answer.status_code == 404:
        raise OSError("it answers, but not as an MLflow server")


class Tracking:
    """Runs of a pair's experiment ``draftwright-<pair>`` at a tracking server that was found reachable (`tracking_uri`)."""

    def __init__(self, pair: str, uri: str | None = None) -> None:
        self.uri = uri or tracking_uri()
        require_reachable(self.uri)
        self.client, self.experiment = new_client(self.uri), f"draftwright-{pair}"
        self.experiment_id = self._experiment_id()

    def _experiment_id(self, last: bool = False) -> str:
        """Of the experiment, which is made where there is none."""
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(self.experiment)
        if found is not None and found.lifecycle_stage == "deleted":
            remedy = f"mlflow experiments restore --experiment-id {found.experiment_id}"
            raise ValueError(f"experiment {self.experiment} was deleted at {without_password(self.uri)}. Run {remedy}.")
        place = found and Path(found.artifact_location.removeprefix("file://"))
        if place and place.is_absolute() and not place.exists() and not place.is_relative_to(Path.cwd()):  # moved
            self.client.rename_experiment(found.experiment_id, f"{self.experiment} at {place}")
            found = None
        try:
            return str(self.client.create_experiment(self.experiment) if found is None else found.experiment_id)
        except MlflowException:
            if last:
                raise
            return self._experiment_id(last=True)  # another process may have made it meanwhile

    @contextmanager
    def new_run(self, name: str, parameters: Mapping[str, Any], tags: Mapping[str, str]) -> Iterator[str]:
        """A run that ends as FINISHED, or as FAILED if the block raises; gives its id."""
        from mlflow.entities import Param

        run_id: str = self.client.create_run(self.experiment_id, run_name=name, tags=dict(tags)).info.run_id
        try:
            self.client.log_batch(run_id, params=[Param(key, str(value)) for key, value in parameters.items()])
            yield run_id
        except BaseException:
            self.client.set_terminated(run_id, "FAILED")
            raise
        self.client.set_terminated(run_id, "FINISHED")

    def run_of(self, head_sha256: str, name: str) -> str:
        """The newest run that trained this head; a new one where the head came from a cache."""
        found = self.found_run(head_sha256)
        if found is not None:
            return found
        with self.new_run(name, {}, {HEAD_TAG: head_sha256, "restored_from_cache": "true"}) as run_id:
            return run_id

    def found_run(self, head_sha256: str) -> str | None:
        """The newest run that trained this head, if this server knows it."""
        found = self.client.search_runs(
            [self.experiment_id], f"tags.{HEAD_TAG} = '{head_sha256}'", order_by=["start_time DESC"], max_results=1
        )
        return str(found[0].info.run_id) if found else None

    def lightning_logger(self, run_id: str) -> "Logger":
        """A logger for curves in that run; nothing of the model is logged by it."""
        from lightning.pytorch.loggers import MLFlowLogger

        return MLFlowLogger(self.experiment, tracking_uri=self.uri, run_id=run_id, log_model=False)

    def log(self, run_id: str, tags: Mapping[str, str], metrics: Mapping[str, float | None]) -> None:
        """Set tags, and log metrics, undefined ones left out; they replace those of the same name."""
        for key, tag in tags.items():
            self.client.set_tag(run_id, key, tag)
        for key, value in metrics.items():
            if value is not None:
                self.client.log_metric(run_id, key, value)


def _settle() -> None:
    """What MLflow reads when it is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # a server's links, among our own lines


def new_client(uri: str) -> Any:
    """An MLflow client, without telemetry, long retries, progress bars or migration chatter."""
    _settle()
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    path = uri.removeprefix(SQLITE)
    with nullcontext() if path == uri else FileLock(f"{path}.lock"):  # two that make a new file's tables at once fail
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
