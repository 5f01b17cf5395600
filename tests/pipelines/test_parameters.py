"""Sections of a pair: what they leave out is the machine's, what they say is their own."""

from dataclasses import dataclass, field

import pytest
import yaml

from pipelines.parameters import Machine, is_fitted, load_parameters
from predictors.config import Checked, Count


@dataclass(frozen=True)
class Training(Checked):
    epochs: Count = 1
    seed: int = 7
    threads: Count = 1


@dataclass(frozen=True)
class Stage(Checked):
    threads: Count
    max_minutes: float | None = 1.0
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
    machine = {"threads": 4, "seed": 3, "max_minutes": None}
    assert load({}, machine) == Stage(4, None)
    assert load({"threads": 2, "max_minutes": 5}, machine) == Stage(2, 5.0)
    assert load({"training": {"epochs": 9}}, machine) == Stage(4, None, Training(9, 3, 4)), "within a section, too"
    assert load({"training": {"threads": 1}}, machine).training == Training(1, 3, 1)
    assert load({"trainings": [{"epochs": 2}]}, machine).trainings == (Training(2),), (
        "items of a list speak for themselves"
    )


def test_a_machine_says_no_more_than_it_is_asked(load):
    assert load({}, {"threads": 4}) == Stage(4, 1.0)
    with pytest.raises(ValueError, match=r"pairs\.p\.s: key 'threads' is missing"):
        load({})


def test_mistakes_of_the_machine_are_its_own(load):
    with pytest.raises(ValueError, match=r"pairs\.p\.machine: threads must be >= 1, got 0"):
        load({"threads": 1}, {"threads": 0})
    with pytest.raises(ValueError, match=r"pairs\.p\.machine: unknown key 'thread'"):
        load({"threads": 1}, {"thread": 2})
    with pytest.raises(ValueError, match=r"pairs\.p\.s: unknown key 'seed'"):
        load({"threads": 1, "seed": 1}, {"seed": 1})
    assert Machine().max_minutes is None


def test_keys_besides_are_the_callers(load):
    assert load({"threads": 1, "family": "x"}, besides=("family",)) == Stage(1)
    with pytest.raises(ValueError, match="unknown key 'family'"):
        load({"threads": 1, "family": "x"})


@pytest.mark.parametrize(("sections", "wanted"), [({"fit": {"hrad": {}}}, (True, False)), ({}, (True, True))])
def test_what_is_named_no_more_is_stale(tmp_path, sections, wanted):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": sections}}))
    assert tuple(is_fitted("p", name, tmp_path / "params.yaml") for name in ("hrad", "old")) == wanted
