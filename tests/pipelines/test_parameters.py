"""Sections of a pair: what they leave out is the machine's, what they say is their own."""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from pipelines.parameters import is_fitted, load_parameters
from predictors.config import Checked, Count


@dataclass(frozen=True)
class Training(Checked):
    epochs: Count = 1
    seed: int = 7
    threads: Count = 1


@dataclass(frozen=True)
class Stage(Checked):
    threads: Count
    rate: float | None = 1.0
    training: Training = field(default_factory=Training)
    trainings: tuple[Training, ...] = ()


@pytest.fixture
def load(tmp_path):
    def load(section, machine=None, besides=()):
        pair = {"s": section} | ({} if machine is None else {"machine": machine})
        (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": pair}}))
        return load_parameters(Stage, "p", "s", tmp_path / "params.yaml", besides)

    return load


def test_what_a_section_leaves_out_is_the_machines(load):
    machine = {"threads": 4, "seed": 3}
    assert load({}, machine) == Stage(4)
    assert load({"threads": 2, "rate": 5}, machine) == Stage(2, 5.0)
    assert load({"training": {"epochs": 9}}, machine) == Stage(4, 1.0, Training(9, 3, 4)), "within a section, too"
    assert load({"training": {"threads": 1}}, machine).training == Training(1, 3, 1)
    assert load({"trainings": [{"epochs": 2}]}, machine).trainings == (Training(2),), (
        "items of a list speak for themselves"
    )


@pytest.mark.parametrize(
    ("section", "machine", "reason"),
    [
        ({}, None, r"pairs\.p\.s: key 'threads' is missing"),
        ({"threads": 1}, {"threads": 0}, r"pairs\.p\.machine: threads must be >= 1, got 0"),
        ({"threads": 1}, {"thread": 2}, r"pairs\.p\.machine: unknown key 'thread'"),
        ({"threads": 1, "seed": 1}, {"seed": 1}, r"pairs\.p\.s: unknown key 'seed'"),
        ({"threads": 1, "family": "x"}, None, "unknown key 'family'"),
        ({"threads": 1, "trainings": [{"sede": 1}]}, None, r"trainings\[0\]: unknown key 'sede'\. Did you mean 'seed'"),
    ],
)
def test_mistakes_are_named_with_their_place(load, section, machine, reason):
    assert load({"threads": 1, "family": "x"}, besides=("family",)) == Stage(1), "keys besides are the caller's"
    with pytest.raises(ValueError, match=reason):
        load(section, machine)


@pytest.mark.parametrize(("sections", "wanted"), [({"fit": {"hrad": {}}}, (True, False)), ({}, (True, True))])
def test_what_is_named_no_more_is_stale(tmp_path, sections, wanted):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": sections}}))
    assert tuple(is_fitted("p", name, tmp_path / "params.yaml") for name in ("hrad", "old")) == wanted


@pytest.mark.parametrize("name", ["407", "2023-12-31", "yes", "Off", "null", "~", "2e5", "012", "3.5"])
def test_a_name_that_is_no_text_to_yaml_is_refused_in_one_line(tmp_path, name):
    path = tmp_path / "params.yaml"
    path.write_text(f"pairs:\n  other: {{s: {{threads: 1}}}}\n  {name}: {{s: {{threads: 2}}}}\n")
    for asked in (name, "other"):  # DVC would leave the pair out, in silence
        with pytest.raises(ValueError, match=f"(?s)line 3.*{re.escape(name)}|{re.escape(name)}.*quotes") as error:
            load_parameters(Stage, asked, "s", path)
        assert "\n" not in str(error.value)
    path.write_text(path.read_text().replace(f"  {name}:", f'  "{name}":'))
    assert load_parameters(Stage, name, "s", path).threads == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pairs: {p: {s: {threads: 1}}, p: {s: {threads: 2}}}", "key 'p' is there twice"),
        ("pairs: {p: {s: {threads: 1, seed: 1, threads: 2}}}", "key 'threads' is there twice"),
        ("pairs: {p: {s: {threads: 1}}} # \xe9", "no text in UTF-8.*Save it in UTF-8"),
        ("pairs:\n  p: {s: {threads: 1, no: 2}, no: {}}\n", "no.*quotes"),
        ("pairs:\n  p: {s: {threads: 1, 12: 2}, 12: {}}\n", "12.*quotes"),
    ],
)
def test_a_file_that_says_something_twice_or_in_no_text_is_named(tmp_path, text, reason):
    (path := tmp_path / "params.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{path}.*{reason}") as error:
        load_parameters(Stage, "p", "s", path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"), [("2e-4", 2e-4), ("1E3", 1e3), ("1.5e2", 150.0), ("+.5e1", 5.0), ("5.e-1", 0.5), ("7", 7.0)]
)
def test_numbers_are_read_as_dvc_reads_them(tmp_path, text, value):
    (tmp_path / "params.yaml").write_text(f"pairs:\n  p: {{s: {{threads: 1, rate: {text}}}}}\n")
    assert load_parameters(Stage, "p", "s", tmp_path / "params.yaml").rate == value
    (tmp_path / "params.yaml").write_text(f"pairs:\n  p: {{s: {{threads: 1, rate: '{text}'}}}}\n")
    with pytest.raises(ValueError, match=f"expected float, got '{re.escape(text)}'"):
        load_parameters(Stage, "p", "s", tmp_path / "params.yaml")


def test_what_is_merged_may_be_replaced_in_any_encoding_of_the_system(tmp_path):
    merged = "a: &a {threads: 1}\nb: &b {<<: *a, threads: 2}\npairs: {é: {s: {<<: *b, rate: 3}}}"
    (tmp_path / "params.yaml").write_text(merged, encoding="utf-8-sig")
    assert load_parameters(Stage, "é", "s", tmp_path / "params.yaml") == Stage(2, 3.0)
    code = "from pipelines.parameters import *; print(read_section('\\xe9', 's')['threads'])"
    environment = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONPATH": str(Path.cwd())}
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert told.stdout.split() == [b"2"]
