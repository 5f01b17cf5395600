"""The command line: examples that its parsers accept, mistakes in one line, logs without progress bars."""

import argparse
import re
import shlex
import subprocess
import sys
from textwrap import dedent

import pytest

from pipelines.cli import COMMANDS, add_command, joined, main


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_examples_in_the_help_are_accepted(name):
    command = add_command(argparse.ArgumentParser(prog="draftwright").add_subparsers(), name)
    for example in re.split(r"\n(?=draftwright)", dedent(command.epilog)):
        program, *argv = shlex.split(example, comments=True)
        given, *options = joined(argv)
        assert (program, given) == ("draftwright", name)
        command.parse_args(options)


def test_a_tracking_database_that_is_none_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "mlflow.db").write_text("no database, " * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(SystemExit, match=r"draftwright status: MLflow refused: .*Earlier results are kept\.$"):
        main(["status", "--pair", "p"])


def test_a_log_has_no_progress_bars(tmp_path):
    code = "from pipelines.cli import main; main(['device', sys.argv[1]]); from tqdm import tqdm; list(tqdm('abc'))"
    command = [sys.executable, "-c", f"import sys; {code}", str(tmp_path / "device.json")]
    assert subprocess.run(command, check=True, capture_output=True).stderr == b""


@pytest.mark.parametrize("where", ["/sys/device.json", "file/device.json"])
def test_a_folder_that_cannot_be_written_is_named_in_one_line(where, tmp_path, monkeypatch):
    """Not even root may write into /sys."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["device", where])
    assert where.split("/")[-2] in str(ended.value) and "\n" not in str(ended.value)


def test_a_package_of_another_extra_is_named_in_one_line(monkeypatch):
    """As where only the runtime is installed; a module of our own that is missing is a bug."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///nowhere.db")
    for missing, error in (("mlflow", SystemExit), ("pipelines.commands.releases", ModuleNotFoundError)):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            with pytest.raises(error) as raised:
                main(["status", "--pair", "p"])
        if error is SystemExit:
            assert raised.value.code.startswith(f"draftwright status: needs {missing}, ")
            assert raised.value.code.endswith(" pip install 'draftwright[pipeline]'") and "\n" not in raised.value.code
