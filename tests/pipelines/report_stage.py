"""The report stage on a folder that holds what other stages left, each part under its own name."""

from pathlib import Path
from types import SimpleNamespace

from pipelines import report

PARTS = ("benchmark", "calibration", "labels", "verifiers", "latency", "selection", "selectors", "stopping", "stoppers")
PARTS += ("self_drafting", "guessers", "replay", "tuning", "trials")


def stage(inputs: Path, output: Path) -> Path:
    """Run the stage of pair p on device toy-1c; the folder it wrote."""
    places = {name: inputs / name for name in PARTS} | {
        "device": inputs / "device.json",
        "pair_folder": inputs / "pair",
    }
    report.run(SimpleNamespace(pair="p", params=inputs / "params.yaml", output=output, **places))
    return output / "toy-1c"
