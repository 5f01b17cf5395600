"""What predictors learned from: rows and bytes of the traces, and counts of the labels made of them by replay."""

from pathlib import Path
from typing import Any, Self

from matplotlib.figure import Figure

from pipelines.reporting.inputs import Inputs, Record, read_record

MANIFEST = "manifest.json"


class LearnedReport:
    """Builds the record of ``quality.json``."""

    def __init__(self, traces: dict[str, Record], labels: dict[str, Record]) -> None:
        self.traces = traces
        self.labels = labels

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        manifests = sorted((inputs.data / "traces").glob(f"*/{MANIFEST}"))
        traces = {path.parent.name: _size(path) for path in manifests}
        labels = {path.stem: read_record(path) for path in sorted((inputs.data / "labels").glob("*.json"))}
        return cls(traces, labels) if traces or labels else None

    def quality(self) -> dict[str, Any]:
        """By trace and by kind of label."""
        return {"traces": self.traces, "labels": self.labels}

    def timing(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    @staticmethod
    def figures(quality: Record, timing: Record) -> dict[str, Figure]:
        """None."""
        return {}


def _size(path: Path) -> Record:
    """Rows, and bytes on disk."""
    manifest = read_record(path)
    size = sum((path.parent / shard["name"]).stat().st_size for shard in manifest["shards"])
    return {"rows": manifest["num_rows"], "bytes": size, "bytes_per_row": size / max(1, manifest["num_rows"])}
