"""dvc.yaml and params.yaml hold together: declared code exists, imported code is declared, commands and
sections parse."""

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import grimp
import pytest
import yaml

ROOT = Path(__file__).parent.parent
FILES = (ROOT / "dvc.yaml", ROOT / "pipelines/studies/dvc.yaml")
STAGES = {
    f"{file.parent.name}/{name}" if file.parent != ROOT else name: stage
    for file in FILES
    for name, stage in yaml.safe_load(file.read_text())["stages"].items()
}
PACKAGES = ("pipelines", "trace_collection", "predictors", "runtime")
# Plumbing that decides nothing: the command line, parameter, device and profile files, atomic outputs, tracking.
PLUMBING = {
    "pipelines",
    "pipelines.cli",
    "pipelines.device_file",
    "pipelines.device_profile",
    "pipelines.parameters",
    "pipelines.outputs",
    "pipelines.tracking",
    "predictors.config",
}


def body(stage):
    return STAGES[stage].get("do", STAGES[stage])


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)


def path_of(module):
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("stage", STAGES)
def test_declared_code_exists(stage):
    for dep in body(stage)["deps"]:
        assert dep.startswith("data/") or (ROOT / dep).exists(), dep


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_declares_the_code_it_imports(stage, imports):
    """Everything a stage's module imports, directly or not, is one of its deps or lies in one."""
    module = body(stage)["cmd"].split("-m ")[1].split()[0]
    declared = [ROOT / dep for dep in body(stage)["deps"]]
    used = {module, *imports.find_upstream_modules(module)} - PLUMBING
    used = {name for name in used if path_of(name).name != "__init__.py"}
    missing = [name for name in used if not any(path_of(name).is_relative_to(dep) for dep in declared)]
    assert not missing, f"{stage}: {sorted(missing)}"


class ParsedError(Exception):
    """The command line was taken; nothing is to be run."""


@pytest.mark.parametrize("stage", STAGES)
def test_commands_are_what_their_stages_take(stage, monkeypatch):
    """Every argument that a stage needs is given, and no other."""
    filled = re.sub(r"\$\{[^}]*\}", "x", body(stage)["cmd"].removeprefix("python -m "))
    name, *arguments = shlex.split(filled)
    module, parse = import_module(name), argparse.ArgumentParser.parse_args

    def parsed(parser):
        parse(parser, arguments)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    with pytest.raises(ParsedError):
        if hasattr(module, "add_arguments"):
            parser = argparse.ArgumentParser()
            module.add_arguments(parser)
            parser.parse_args()
        else:
            module.main()


def test_commands_name_their_inputs_and_outputs():
    for stage in STAGES:
        command = body(stage)["cmd"]
        outs = [*body(stage).get("outs", []), *body(stage).get("metrics", [])]
        for out in outs:
            name = out if isinstance(out, str) else next(iter(out))
            assert name in command or str(Path(name).parent) in command, f"{stage}: {name}"


def test_outputs_persist_or_are_not_cached():
    """DVC removes other outputs before it runs a command: a stage that fails would lose the earlier result."""
    for stage in STAGES:
        for out in [*body(stage).get("outs", []), *body(stage).get("metrics", [])]:
            options = {} if isinstance(out, str) else next(iter(out.values()))
            assert options.get("persist") or options.get("cache") is False, f"{stage}: {out}"


@pytest.mark.parametrize("parameters", ["params.yaml", "pipelines/studies/params.yaml"])
def test_sections_of_the_verifier_comparison_parse(parameters):
    from pipelines.measuring.verifiers.shapes import shapes_of
    from pipelines.measuring.verifiers.study import VerifierConfig
    from pipelines.parameters import load_parameters
    from runtime.verification import VERIFIERS

    config = load_parameters(VerifierConfig, "pystdlib", "verifiers", ROOT / parameters)
    compared = {verifier for shape in shapes_of(config.drafters) for verifier in shape.verifiers}
    assert compared | {"hsd", "match"} == set(VERIFIERS)


def test_the_studies_are_no_part_of_the_main_pipeline():
    main = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert not any("studies" in str(stage) for stage in main.values())


@pytest.mark.parametrize(
    "section", ["traces.tokens", "traces.positions", "traces.guesses", "benchmark", "self_drafting", "stopping", "tune"]
)
def test_headline_numbers_are_at_the_temperatures_of_the_mix(section):
    from pipelines.parameters import read_section

    mix, values = (read_section("pystdlib", name, ROOT / "params.yaml") for name in ("mix", section))
    assert values["temperatures"] == mix["temperatures"]


def test_prompts_of_edits_leave_the_pair_room_to_decode():
    """A passage, half of its copy and the line between them, in the context that the pair was trained with."""
    from pipelines.builtin.builtin_pair import BuiltinParameters
    from pipelines.parameters import load_parameters
    from pipelines.prompts import Mix, PromptParameters

    pair = load_parameters(BuiltinParameters, "pystdlib", "models.builtin", ROOT / "params.yaml")
    prompts = load_parameters(PromptParameters, "pystdlib", "prompts", ROOT / "params.yaml")
    assert 1.5 * prompts.edit.max_tokens + 64 + prompts.room <= pair.target.training.context
    assert load_parameters(Mix, "pystdlib", "mix", ROOT / "params.yaml").slices == ("code", "prose", "tables")
