"""The report stage on a folder that holds what other stages left, each part under its own name."""

from pathlib import Path
from types import SimpleNamespace

import yaml

from pipelines import report
from pipelines.outputs import write_json
from tests.pipelines.hand_made_comparison import comparison_decodes, write_comparison
from tests.pipelines.hand_made_measured import calibration, counts_of, decodes, write_measured, write_records
from tests.pipelines.hand_made_profile import PROFILE
from tests.pipelines.hand_made_release import write_release
from tests.pipelines.hand_made_replay import write_replay
from tests.pipelines.hand_made_selection import selection_decodes, selection_rounds, write_selection

PARTS = ("measured", "calibration", "labels", "verifiers", "latency", "selection", "selectors", "stoppers", "guessers")
PARTS += ("replay", "tuning", "trials")


def stage(inputs: Path, output: Path) -> Path:
    """Run the stage of pair p on device toy-1c; the folder it wrote."""
    places = {name: inputs / name for name in PARTS} | {
        "device": inputs / "device.json",
        "pair_folder": inputs / "pair",
    }
    report.run(SimpleNamespace(pair="p", params=inputs / "params.yaml", output=output, **places))
    return output / "toy-1c"


def timed() -> list[dict]:
    """Decodes of every section: two more prompts at T=1 timed the rules and selectors, beside plain decoding."""
    others = [*selection_decodes(), *comparison_decodes()]
    by_block = {(row["arm"], row["block"]): counts_of(row["arm"], row["seconds"]) | row for row in others}
    return [*decodes(), *by_block.values()]


def write_inputs(folder: Path) -> None:
    """All that the stage reads, made by hand: every section of the report has something to say."""
    write_json(folder / "device.json", {"slug": "toy-1c"})
    write_measured(folder / "measured" / "toy-1c", timed(), rounds=selection_rounds())
    write_records(folder / "stoppers", folder / "guessers")
    for name in ("paper", "extended"):
        write_json(folder / "calibration" / f"{name}.json", calibration(name))
    write_json(folder / "calibration" / "length.json", calibration("extended", "length"))
    write_json(folder / "pair" / "pair.json", {"source": "builtin", "pair": "p"})
    write_comparison(folder / "verifiers" / "toy-1c")
    write_selection(folder / "selection" / "toy-1c", folder / "selectors")
    write_replay(folder / "replay" / "toy-1c")
    write_release(folder / "tuning", folder / "trials", "toy-1c")
    write_json(folder / "latency" / "toy-1c.json", PROFILE)
    write_json(folder / "labels" / "hrad.json", {"classes": {"test": {"none": 9, "some": 13, "all": 7}}})
    (folder / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"report": {"bootstrap_replicates": 200}}}}))
