"""Stage ``code`` lists exactly what a stage runs, and DVC re-runs by it exactly what changed."""

import ast
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
import yaml

from pipelines import PACKAGES
from pipelines import code as code_stage
from pipelines.code import PLUMBING, ROOT, Code, runs, stage_modules, write_listings

PIPELINES = (ROOT / "dvc.yaml",)
MODULES = sorted({module for file in PIPELINES for module in stage_modules(file).values()})
STARTED = ("runtime.overlap.process", "runtime.overlap.worker")  # a process of its own, which no import shows
BY_NAME = {"pipelines/cli.py"}  # imports by a computed name the stage that was asked for, which its own stage lists


@pytest.fixture(scope="module")
def graph():
    built = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    built.add_import(importer=STARTED[0], imported=STARTED[1])
    return built


@pytest.fixture(scope="module")
def code():
    return Code()


@pytest.fixture
def tree(tmp_path):
    """Writes files by path below ``tmp_path``."""

    def write(**sources):
        for name, source in sources.items():
            file = tmp_path / f"{name.replace('__', '/').replace('/init', '/__init__')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        return Code(tmp_path)

    return write


def reached(graph, module):
    """By grimp: all that ``module`` imports, directly or not, and the packages above."""
    used = {module, *graph.find_upstream_modules(module)}
    above = {name.rsplit(".", count)[0] for name in used for count in range(1, name.count(".") + 1)}
    return used | above


@pytest.mark.parametrize("module", MODULES)
def test_a_stage_runs_what_grimp_says_it_imports(module, graph, code):
    assert code.closure(module) == reached(graph, module)


def test_a_walk_that_reads_no_functions_finds_less(monkeypatch, graph):
    """The twin: stages import inside functions, so that the command line starts fast."""
    monkeypatch.setattr(code_stage, "statements", lambda tree: tree.body)
    assert Code().closure("pipelines.fit") < reached(graph, "pipelines.fit")


def test_a_walk_that_reads_type_checking_finds_more(monkeypatch, graph):
    monkeypatch.setattr(code_stage, "statements", ast.walk)
    assert Code().closure("predictors.features") > reached(graph, "predictors.features")


def test_listings_leave_out_plumbing_alone(code):
    for module in MODULES:
        listed = {re.sub(r"/__init__$", "", path.removesuffix(".py")).replace("/", ".") for path in code.run_by(module)}
        modules = {name for name in listed if "/templates" not in name and not name.endswith(".html")}
        assert code.closure(module) - modules <= PLUMBING and not modules & PLUMBING
    assert all((ROOT / f"{name.replace('.', '/')}.py").is_file() for name in PLUMBING)


def test_templates_belong_to_the_stage_that_fills_them_in(code):
    templates = {file.relative_to(ROOT).as_posix() for file in (ROOT / "pipelines/reporting/templates").iterdir()}
    assert templates and templates <= set(code.run_by("pipelines.report"))
    assert "pipelines/evidence/gain.py" in code.run_by("pipelines.trial")
    assert not templates & set(code.run_by("pipelines.trial"))


@pytest.mark.parametrize(
    ("collects", "module"), [(f"trace_collection.{name}", "pipelines.traces") for name in ("texts", "trees", "guesses")]
)
def test_collections_are_fingerprinted_by_all_that_collects(collects, module, code):
    files = set(code.run_by(collects))
    assert {f"{collects.replace('.', '/')}.py", "predictors/sampling.py", "runtime/overlap/worker.py"} <= files
    assert files < set(code.run_by(module)) and not any(file.startswith("pipelines/") for file in files)


def test_no_file_runs_code_that_its_source_does_not_name():
    """No import by a computed name but the command line's, no file found from ``__file__`` but beside it or by the root."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            source, path = file.read_text(), file.relative_to(ROOT).as_posix()
            assert path in BY_NAME or not re.search(r"import_module|__import__|runpy|\bexec\(", source), path
            places = re.findall(r"__file__\S*", source)
            if path != "pipelines/code.py":
                assert all(re.match(r"__file__\)\.(with_name\(\"|parents\[)", place) for place in places), path


@pytest.mark.parametrize(
    ("source", "runs"),
    [
        ("import runtime.tree", {"runtime.tree"}),
        ("def run():\n    import runtime.tree", {"runtime.tree"}),
        ("from runtime import tree", {"runtime.tree"}),
        ("from runtime.tree import Tree", {"runtime.tree"}),
        ("from runtime import VERIFIERS", {"runtime.gathered"}),  # the package itself, with what it gathers
        ("from runtime.tree import *", {"runtime.tree"}),
        ("from . import labels", {"pipelines.labels"}),
        ("from .labels import read", {"pipelines.labels"}),
        ("import os, torch.nn", set()),
        ("if TYPE_CHECKING:\n    import runtime.tree\nelse:\n    import runtime.gathered", {"runtime.gathered"}),
        ("import typing\nif typing.TYPE_CHECKING:\n    import runtime.tree", set()),
        ("command = [sys.executable, '-P', '-m', 'runtime.tree', '3']", {"runtime.tree"}),
        ("names = ['runtime.tree', 'runtime.gathered']", set()),
        ("CODE = Path(__file__).with_name('labels.py')", {"pipelines.labels"}),
        ("CODE = path.with_name('labels.py')", set()),
    ],
)
def test_every_form_of_an_import(tree, source, runs):
    made = tree(
        pipelines__init="",
        pipelines__stage=source,
        pipelines__labels="",
        runtime__init="from runtime.gathered import VERIFIERS",
        runtime__gathered="",
        runtime__tree="",
    )
    found = made.closure("pipelines.stage") - {"pipelines", "runtime"}
    assert found == {"pipelines.stage", *runs}


def test_dots_lead_up_from_the_package():
    assert runs("from . import c", "a.b")[0] == {"a.b.c"}
    assert runs("from .c import d", "a.b")[0] == {"a.b.c.d"}
    assert runs("from .. import c", "a.b")[0] == {"a.c"}
    assert runs("from ..c import d, e", "a.b")[0] == {"a.c.d", "a.c.e"}


def test_a_package_counts_with_its_modules_and_what_it_gathers_with_itself(tree):
    made = tree(
        pipelines__init="",
        pipelines__stage="import runtime.tree",
        runtime__init="import runtime.gathered",
        runtime__gathered="",
        runtime__tree="from runtime.deep.leaf import x",
        runtime__deep__init="",
        runtime__deep__leaf="import runtime.tree",  # a cycle ends
    )
    assert made.closure("pipelines.stage") == {
        *("pipelines", "pipelines.stage", "runtime", "runtime.tree", "runtime.deep", "runtime.deep.leaf")
    }
    assert "runtime.gathered" in made.closure("runtime")


def test_what_is_no_module_is_refused(tree):
    made = tree(pipelines__init="", pipelines__stage="from runtime.tree import x")
    with pytest.raises(ValueError, match=r"runtime\.tree\.x: neither a module"):
        made.closure("pipelines.stage")
    with pytest.raises(ValueError, match=r"pipelines\.nothing is no module"):
        made.closure("pipelines.nothing")


def test_stages_without_a_module_are_refused(tmp_path):
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"one": {"cmd": "cp a b"}}}))
    with pytest.raises(ValueError, match="stage one: its code is found from"):
        stage_modules(tmp_path / "dvc.yaml")
    for content, problem in (("stages: {", "is not valid YAML"), ("[]", "no mapping of stages")):
        (tmp_path / "dvc.yaml").write_text(content)
        with pytest.raises(ValueError, match=rf"dvc\.yaml.*{problem}"):
            stage_modules(tmp_path / "dvc.yaml")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The packages, to be changed."""
    folder = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("module", ["pipelines.pair", "pipelines.labels", "pipelines.report"])
def test_a_listing_changes_with_the_code_that_the_stage_runs_and_no_other(module, copy):
    before = Code(copy).run_by(module)
    originals = {file: file.read_bytes() for file in copy.rglob("*.*")}
    others = [file for file in originals if file.relative_to(copy).as_posix() not in before]
    assert others and before == Code().run_by(module)
    try:
        for file in others:
            file.write_bytes(originals[file] + b"\n# changed\n")
        assert Code(copy).run_by(module) == before
        for path in before:
            (copy / path).write_bytes(originals[copy / path] + b"\n# changed\n")
        after = Code(copy).run_by(module)
        assert set(after) == set(before) and all(after[path] != before[path] for path in before)
    finally:
        for file, content in originals.items():
            file.write_bytes(content)


def test_listings_are_lines_of_sha256sum(tree):
    made = tree(pipelines__init="", pipelines__stage="import runtime.tree", runtime__init="", runtime__tree="x = 1")
    lines = made.listing("pipelines.stage").splitlines()
    assert [line[66:] for line in lines] == sorted(
        ["pipelines/__init__.py", "pipelines/stage.py", "runtime/__init__.py", "runtime/tree.py"]
    )
    assert lines[-1] == f"{hashlib.sha256(b'x = 1').hexdigest()}  runtime/tree.py"
    digest = made.digest("pipelines.stage")
    assert digest == hashlib.sha256(made.listing("pipelines.stage").encode()).hexdigest()


def test_files_are_written_where_they_change_and_others_go(tmp_path):
    assert write_listings({"labels": "a", "train": "b"}, tmp_path / "code") == ["labels", "train"]
    kept = (tmp_path / "code/labels.txt").stat()
    (tmp_path / "code/gone.txt").write_text("of a stage that was deleted")
    assert write_listings({"labels": "a", "train": "c"}, tmp_path / "code") == ["train"]
    written = {file.name: file.read_text() for file in (tmp_path / "code").iterdir()}
    assert written == {"labels.txt": "a", "train.txt": "c"}
    now = (tmp_path / "code/labels.txt").stat()
    assert (now.st_mtime_ns, now.st_ino) == (kept.st_mtime_ns, kept.st_ino)


TOY = """
stages:
  code:
    cmd: python -m pipelines code dvc.yaml data/code
    always_changed: true
    outs: [data/code: {cache: false, persist: true}]
  labels:
    matrix: {pair: "${pairs}"}
    cmd: python -m pipelines labels ${item.pair}
    deps: [data/code/labels.txt]
    outs: ["data/${item.pair}/labels": {persist: true}]
  fit:
    matrix: {pair: "${pairs}"}
    cmd: python -m pipelines fit ${item.pair}
    deps: [data/code/fit.txt, "data/${item.pair}/labels"]
    outs: ["data/${item.pair}/fit": {persist: true}]
"""
STAGE = """
from pathlib import Path
from pipelines.{needs} import VALUE

def add_arguments(parser):
    parser.add_argument("pair")
    nothing = dict.fromkeys(("output", "report", "bundle", "quality"))
    parser.set_defaults(params=Path("params.yaml"), predictor="", **nothing)

def run(args):
    out = Path("data", args.pair, "{name}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("always the same")
"""


def test_dvc_runs_again_what_runs_changed_code_and_nothing_else(tmp_path, monkeypatch):
    """A toy pipeline, its commands and its code list run by DVC itself."""
    from dvc.repo import Repo

    for name in ("pipelines/__init__.py", *(f"{name.replace('.', '/')}.py" for name in PLUMBING)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name, needs in (("labels", "first"), ("fit", "second")):
        (tmp_path / f"pipelines/{name}.py").write_text(STAGE.format(name=name, needs=needs))
        (tmp_path / f"pipelines/{needs}.py").write_text("VALUE = 1\n")
    (tmp_path / "dvc.yaml").write_text(TOY)
    (tmp_path / "params.yaml").write_text("pairs: {toy: {}, other: {}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{'/usr/bin:/bin'}")
    repo = Repo.init(no_scm=True)

    def ran(target):
        return {made.addressing for made in repo.reproduce(target)}

    assert ran("fit@toy") == {"code", "labels@toy", "fit@toy"}
    assert ran("fit@toy") == {"code"}
    Path("pipelines/second.py").write_text("VALUE = 2\n")
    assert ran("fit@toy") == {"code", "fit@toy"}
    Path("pipelines/cli.py").write_text(Path("pipelines/cli.py").read_text() + "# plumbing\n")
    assert ran("fit@toy") == {"code"}
    Path("pipelines/first.py").write_text("VALUE = 2\n")
    assert ran("fit@toy") == {"code", "labels@toy"}  # whose output is as before


def test_both_pipelines_hold_together_in_dvc():
    """Acyclic, no overlapping outputs; the report of a pair, which `make repro PAIR=` names, needs the list of code."""
    import networkx
    from dvc.repo import Repo

    graph = Repo(str(ROOT)).index.graph
    by_name = {made.addressing: made for made in graph}
    needed = {made.addressing for made in networkx.descendants(graph, by_name["report@pystdlib"])}
    assert {"code", "device", "pair@pystdlib", "fit@pystdlib-hrad", "tune@pystdlib", "trial@pystdlib-auto"} <= needed


def test_the_stage_writes_a_file_for_every_stage_with_dependencies(tmp_path):
    """As DVC runs it; `device`, which always runs, has none."""
    command = [sys.executable, "-m", "pipelines", "code", "dvc.yaml", str(tmp_path / "code")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    written = {file.stem: file.read_text() for file in (tmp_path / "code").iterdir()}
    assert set(written) == set(stage_modules(PIPELINES[0])) and not {"code", "device"} & set(written)
    assert written["labels"] == Code().listing("pipelines.labels")
