"""The report stage on a folder that holds what other stages left, each part under its own name."""

from pathlib import Path
from types import SimpleNamespace

from pipelines import report
from pipelines.outputs import write_json
from predictors.training.labelling.table import write_labels
from predictors.training.labelling.trees import TreeLabelConfig, label
from predictors.training.root_table import RootTable
from tests.pipelines.hand_made_measured import decodes, head_record, write_measured, write_records
from tests.pipelines.hand_made_profile import PROFILE
from tests.pipelines.hand_made_release import write_release
from tests.pipelines.hand_made_replay import write_replay
from tests.predictors_training.synthetic_roots import write_roots


def stage(inputs: Path, output: Path) -> Path:
    """Run the stage of pair p on device toy-1c; the folder it wrote."""
    report.run(SimpleNamespace(device=inputs / "device.json", data=inputs, output=output))
    return output / "toy-1c"


def write_inputs(folder: Path) -> None:
    """All that the stage reads, made by hand: every section of the report has something to say."""
    write_json(folder / "device.json", {"slug": "toy-1c"})
    write_measured(folder / "measured" / "toy-1c", decodes())
    write_records(folder / "fit")
    write_json(folder / "fit" / "hrad.json", head_record("classes"))
    write_json(folder / "fit" / "length.json", head_record("length"))
    write_json(folder / "pair" / "pair.json", {"source": "builtin", "pair": "p"})
    write_roots(folder / "traces" / "trees")
    roots = RootTable.read(folder / "traces" / "trees")
    write_replay(folder / "replay" / "toy-1c")
    write_release(folder / "tuning", folder / "trials", "toy-1c")
    write_json(folder / "latency" / "toy-1c.json", PROFILE)
    counts = {"train": 80, "validation": 20, "test": 29}
    write_json(
        folder / "labels" / "chains.json", {"rows": counts, "documents": {"train": 8, "validation": 2, "test": 3}}
    )
    write_labels(label(roots, TreeLabelConfig()), folder / "labels" / "trees.parquet")
    shards = [{"name": "part-00000.parquet"}]
    write_json(folder / "traces" / "texts" / "manifest.json", {"num_rows": 20, "shards": shards})
    (folder / "traces" / "texts" / "part-00000.parquet").write_bytes(b"x" * 3000)
