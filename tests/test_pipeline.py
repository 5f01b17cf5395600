"""dvc.yaml and params.yaml hold together: stages depend on the code that they run and on what their commands read, commands
and sections parse."""

import argparse
import re
import shlex
from pathlib import Path

import grimp
import networkx
import pytest
import yaml
from dvc.repo import Repo

from pipelines import PACKAGES
from pipelines.cli import COMMANDS, module_of
from pipelines.parameters import RECIPES, read_section
from pipelines.stages.fit import FAMILIES, load_predictor
from predictors.head import DecisionRule

ROOT = Path(__file__).parent.parent
DRAFTER = "data/${item.pair}/drafter"  # named by what the pair's folder says
# Decide nothing of what a stage makes: the command line, files of parameters, device and pair, outputs, tracking, workers.
PLUMBING = {"applicability", "cli", "encoding", "hardware", "outputs", "parameters", "places", "prompt_table", "scale"}
PLUMBING |= {"terminal", "registry", "registry.tracking"}
PLUMBING = {"pipelines"} | {f"pipelines.{name}" for name in PLUMBING}


def variants(name, stage):
    """A stage whose matrix has a mapping as an axis, once per value; the first of a mapping's values names it."""
    matrix = stage.get("matrix", {})
    axes = [axis for axis, values in matrix.items() if isinstance(values, list) and isinstance(values[0], dict)]
    if not axes:
        return {name: stage}
    text, made = yaml.safe_dump(stage, width=1000), {}
    for value in matrix[axes[0]]:
        filled = re.sub(rf"\$\{{item\.{axes[0]}\.(\w+)\}}", lambda found, value=value: value[found[1]], text)
        made[f"{name}@{next(iter(value.values()))}"] = yaml.safe_load(filled)
    return made


STAGES = {
    variant: made
    for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items()
    for variant, made in variants(name, stage).items()
}


def body(stage):
    return STAGES[stage].get("do", STAGES[stage])


def made_by(stage):
    """Outputs with their options."""
    outs = [*body(stage).get("outs", []), *body(stage).get("metrics", [])]
    return dict((out, {}) if isinstance(out, str) else next(iter(out.items())) for out in outs)


def touch(path, other):
    """Whether one is the other or holds it."""
    return Path(path).is_relative_to(other) or Path(other).is_relative_to(path)


def command_of(stage):
    return body(stage)["cmd"].split()[3]


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)


@pytest.mark.parametrize("stage", [name for name in STAGES if not body(name).get("always_changed")])
def test_a_stage_depends_on_every_package_that_it_runs(stage, imports):
    """By package, those of ``pipelines`` one by one, and files there by themselves; and on no code that it does not run."""
    code = [dep for dep in body(stage)["deps"] if not dep.startswith("data/")]
    assert code == body(stage)["deps"][: len(code)] and code[0] == f"pipelines/stages/{stage.partition('@')[0]}.py"
    module = code[0].removesuffix(".py").replace("/", ".")
    run = {module, *imports.find_upstream_modules(module)} - PLUMBING
    paths = {one.replace(".", "/") for one in run}
    units = {"/".join(path.split("/")[: 1 + path.startswith("pipelines/")]) for path in paths}
    held = [dep.removesuffix(".py") for dep in code if not dep.endswith(".yaml")]
    assert not [unit for unit in units if not any(touch(dep, unit) for dep in held)]
    assert not [dep for dep in held if not any(touch(dep, path) for path in paths)]


def test_a_change_in_reporting_collects_nothing_anew():
    for stage in ("pair", "prompts", "latency", "traces", "labels@chains", "fit", "replay"):
        assert not any(dep.startswith(("pipelines/report", "pipelines/gate")) for dep in body(stage)["deps"])


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_command_reads_is_a_dependency(stage):
    """A folder that the command names is a dep, holds deps, or lies in one; where it is the pair's, that names the drafter's."""
    deps = [dep for dep in body(stage).get("deps", []) if dep.startswith("data/")]
    named = {word for word in shlex.split(body(stage)["cmd"]) if word.startswith("data/")}
    written = {out if out in named else str(Path(out).parent) for out in made_by(stage)}
    read = named - written
    assert not [word for word in read if not any(touch(word, dep) for dep in deps)]
    read |= {DRAFTER} if "data/${item.pair}/pair" in read else set()
    assert not [dep for dep in deps if not any(touch(word, dep) for word in read)]


def test_a_machine_of_more_threads_keeps_pair_traces_and_what_is_fitted():
    """They have threads of their own, and do not follow the machine's."""
    kept = [STAGES[name] for name in ("traces", "pair", "fit")]
    assert kept and not any("machine.threads" in yaml.safe_dump(stage["params"], width=1000) for stage in kept)
    for sections in yaml.safe_load((ROOT / "params.yaml").read_text())["pairs"].values():
        own = [one for one in sections["traces"].values() if isinstance(one, dict)]
        assert own and all("threads" in one for one in own)


@pytest.mark.parametrize("stage", STAGES)
def test_commands_are_what_their_stages_take(stage):
    """Every argument that a stage needs is given, and no other."""
    values = {axis: some[0] for axis, some in body(stage).get("matrix", {}).items() if isinstance(some, list)}
    filled = re.sub(r"\$\{item\.([^}]*)\}", lambda found: str(values.get(found[1], "x")), body(stage)["cmd"])
    name, *arguments = shlex.split(filled.removeprefix("python -m pipelines "))
    assert name in COMMANDS
    parser = argparse.ArgumentParser()
    module_of(name).add_arguments(parser)
    parser.parse_args(arguments)


@pytest.mark.parametrize("stage", STAGES)
def test_commands_name_their_outputs_which_persist_or_are_not_cached(stage):
    """DVC removes other outputs before it runs a command: a stage that fails would lose the earlier result."""
    command = body(stage)["cmd"]
    for out, options in made_by(stage).items():
        assert out in command or str(Path(out).parent) in command, out
        assert options.get("persist") or options.get("cache") is False, out


def test_the_pipeline_is_a_table_of_contents():
    assert len((ROOT / "dvc.yaml").read_text().splitlines()) <= 150
    assert len(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]) <= 13


def test_the_lock_holds_no_stage_that_is_gone():
    """Every call of DVC reads it whole, in seconds where it is long, and DVC drops nothing."""
    file = ROOT / "dvc.lock"
    locked = yaml.safe_load(file.read_text())["stages"] if file.is_file() else {}
    assert {name.partition("@")[0] for name in locked} <= {name.partition("@")[0] for name in STAGES}


def test_the_pipeline_holds_together_in_dvc():
    """Acyclic, no overlapping outputs; the report of a pair, which `make repro PAIR=` names, needs all of its stages."""
    graph = Repo(str(ROOT)).index.graph
    by_name = {made.addressing: made for made in graph}
    needed = {made.addressing for made in networkx.descendants(graph, by_name["report@smollm2"])}
    assert needed >= set(by_name) - {"report@smollm2"}


def test_a_pair_whose_name_begins_another_is_chosen_alone(tmp_path, monkeypatch):
    """And without git: what was downloaded as an archive has none."""
    names = ["small", "small-2", "small-2-report", "2-small"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {name: {} for name in names}}))
    for file in ("dvc.yaml", ".dvc/config"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    monkeypatch.chdir(tmp_path)
    repo = Repo()
    for name in names:
        (chosen,) = repo.stage.collect(f"report@{name}")
        needed = {made.addressing for made in networkx.descendants(repo.index.graph, chosen)} - {"device"}
        assert len(needed) > 10 and {re.split("[@]", made)[1].removesuffix("-auto") for made in needed} <= {
            *(f"{name}{end}" for end in ("", "-texts", "-trees", "-guesses", "-of0", "-of1", "-of2", "-bundle0"))
        }
    assert repo.config["core"]["no_scm"] and not (tmp_path / ".git").exists()


def test_every_recipe_is_a_predictor_that_is_fitted_by_its_name(tmp_path):
    names = list(yaml.safe_load(RECIPES.read_text()))
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({"pairs": {"p": {"fit": dict.fromkeys(names)}}}))
    made = {name: load_predictor("p", name, path) for name in names}
    assert len(names) == 24 and {family for family, _ in made.values()} == set(FAMILIES)
    assert list(read_section("smollm2", "fit", ROOT / "params.yaml")) == [
        *("hrad", "specbranch", "survival", "grow", "takeover", "source", "early_stop-1", "early_stop-2"),
        *("delayed_tree-nss", "delayed_tree-traversal"),
    ]
    _, paper = made["specbranch-paper"]
    assert (paper.feature_set, paper.decoding.k_rule, paper.iterations) == ("paper", "floor", 1)
    assert paper.rule == DecisionRule(epsilon=0.2) and paper.rule.none_probability is None, "argmax at the paper's ε"
    assert (paper.training.learning_rate, paper.training.batch_size, paper.training.epochs) == (5e-5, 32, 20)


@pytest.mark.parametrize("section", ["traces.texts", "traces.guesses", "measure", "tune"])
def test_headline_numbers_are_at_the_temperatures_of_the_mix(section):
    mix, values = (read_section("smollm2", name, ROOT / "params.yaml") for name in ("mix", section))
    assert values["temperatures"] == mix["temperatures"]
