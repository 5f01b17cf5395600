"""What a pair without a draft leaves out, and that a draft that is added later takes it up again."""

from argparse import Namespace
from pathlib import Path

import pytest
import yaml

from pipelines.outputs import absent, draftless, left_out, needs_draft

FIT = {"hrad": {"family": "head"}, "lookahead": {"family": "guess"}}


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Whether a command is left out for a pair of these models."""
    monkeypatch.chdir(tmp_path)

    def run(models: dict, command: str, **arguments) -> bool:
        Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"models": models, "fit": FIT}}}))
        return left_out(Namespace(command=command, pair="p", params=Path("params.yaml"), **arguments))

    return run


@pytest.mark.parametrize(
    ("command", "arguments", "wanted"),
    [
        ("traces", {"of": "texts"}, True),
        ("traces", {"of": "guesses"}, False),
        ("trial", {"bundle": Path("bundles/hrad")}, True),
        ("trial", {"bundle": Path("bundles/auto")}, False),
        ("replay", {}, True),
        ("measure", {}, False),
    ],
)
def test_what_needs_a_draft_is_left_out_where_there_is_none(stage, command, arguments, wanted):
    outputs = {"out": Path("out"), "output": Path("output")}
    arguments = {"bundle": Path("bundle")} | arguments | outputs
    assert stage({"target": "t"}, command, **arguments) == wanted
    for models in ({"target": "t", "draft": "d"}, {"target": "t", "draft": {"train": "eagle3"}}):
        assert not stage(models, command, **arguments)
        assert not any(map(absent, outputs.values())), "what it said before is gone"


def test_predictors_of_chains_need_a_draft(stage):
    stage({"target": "t"}, "measure")
    needed = {name: needs_draft("p", name, Path("params.yaml")) for name in ("hrad", "lookahead", "auto")}
    assert needed == {"hrad": True, "lookahead": False, "auto": False}


def test_files_take_the_place_of_earlier_ones_and_folders_of_all_that_was_there(stage):
    (labels := Path("chains.parquet")).write_text("rows")
    Path("replay").mkdir()
    (stale := Path("replay/policies.json")).touch()
    assert stage({"target": "t"}, "labels", output=labels, report=None)
    assert stage({"target": "t"}, "replay", output=Path("replay"))
    assert absent(Path("replay")) and not stale.exists()
    assert not stage({"target": "t", "draft": "d"}, "labels", output=labels, report=None)
    assert labels.is_file() and draftless("p", Path("params.yaml")) is False
