"""What predictors learned from: rows and bytes of the traces, and counts of the labels made of them by replay."""

from pathlib import Path

from pipelines.reporting.inputs import Record, read_record

MANIFEST = "manifest.json"


def learned(data: Path) -> Record:
    """By trace and by kind of label, below a pair's data folder."""
    manifests = sorted((data / "traces").glob(f"*/{MANIFEST}"))
    reports = sorted((data / "labels").glob("*.json"))
    return {
        "traces": {path.parent.name: _size(path) for path in manifests},
        "labels": {path.stem: read_record(path) for path in reports},
    }


def _size(path: Path) -> Record:
    """Rows, and bytes on disk."""
    manifest = read_record(path)
    size = sum((path.parent / shard["name"]).stat().st_size for shard in manifest["shards"])
    return {"rows": manifest["num_rows"], "bytes": size, "bytes_per_row": size / max(1, manifest["num_rows"])}
