"""Stage ``code``: for every other stage, the files of code that it runs, with their content hashes.

A stage depends on its own file, which ``sha256sum --check`` reads. It is written only where it changes: a change in code
re-runs the stages that run that code and no other. What a stage runs is found from the source:

    code(module) = packages(reach(module)) - PLUMBING,    reach = module and all it imports, directly or not

A package's ``__init__`` counts wherever one of its modules does. What it imports counts only where the package itself is
imported: nothing happens at import here, so what an ``__init__`` merely gathers decides nothing for who takes another module.

    draftwright code dvc.yaml data/code
"""

import argparse
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipelines import PACKAGES
from pipelines.imports import Imports
from pipelines.outputs import file_sha256, replacing

ROOT = Path(__file__).parents[1]
# Decides nothing of what a stage makes: the command line, this list, files of parameters, device and profile, outputs, tracking.
PLUMBING = frozenset(
    {
        "pipelines.__main__",
        "pipelines.applicability",
        "pipelines.cli",
        "pipelines.code",
        "pipelines.device_file",
        "pipelines.imports",
        "pipelines.outputs",
        "pipelines.parameters",
        "pipelines.scale",
        "pipelines.tracking",
        "predictors.config",
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", type=Path, help="the dvc.yaml whose stages are listed")
    parser.add_argument("output", type=Path, help="folder to write, one file per stage")


def run(args: argparse.Namespace) -> None:
    code = Code()
    listings = {stage: code.listing(module) for stage, module in stage_modules(args.pipeline).items()}
    changed = write_listings(listings, args.output)
    print(f"{args.output}: {len(listings)} stages, changed: {', '.join(changed) or 'none'}")


class Code:
    """The modules of `PACKAGES` below ``root``, and what each of them runs.

    A file is read once: make another object after a change.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._imports: dict[str, Imports] = {}

    def run_by(self, module: str) -> dict[str, str]:
        """SHA-256 by path below ``root`` of every file that ``module`` runs or reads as part of the code."""
        files = {file for name in self.closure(module) - PLUMBING for file in self._files(name)}
        return {path: file_sha256(self.root / path) for path in sorted(file.as_posix() for file in files)}

    def listing(self, module: str) -> str:
        """`run_by` as lines of ``sha256sum``."""
        return "".join(f"{digest}  {path}\n" for path, digest in self.run_by(module).items())

    def digest(self, module: str) -> str:
        """SHA-256 over all that ``module`` runs."""
        return hashlib.sha256(self.listing(module).encode()).hexdigest()

    def closure(self, module: str) -> set[str]:
        """``module``, all it imports, directly or not, and the packages they lie in.

        Raises
        ------
        ValueError
            If ``module``, or one that is imported, is no module here.
        """
        if self._path(module) is None:
            raise ValueError(f"{module} is no module below {self.root}. Correct the command.")
        reached: set[str] = set()
        pending = {module}
        while pending:
            reached |= pending
            pending = {name for importer in pending for name in self._imported(importer)} - reached
        return reached | {package for name in reached for package in _packages(name) if self._path(package)}

    def _imported(self, module: str) -> set[str]:
        names = self._read(module).names
        return {self._module(name) for name in names if name.partition(".")[0] in PACKAGES}

    def _module(self, name: str) -> str:
        """``name``, or where it is something in a module, that module."""
        for module in (name, name.rpartition(".")[0]):
            if module and self._path(module):
                return module
        raise ValueError(f"{name}: neither a module below {self.root} nor a name in one. Correct the import.")

    def _read(self, module: str) -> Imports:
        if module not in self._imports:
            path = self._path(module)
            assert path is not None, module
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            self._imports[module] = Imports.of(path.read_text(), package)
        return self._imports[module]

    def _files(self, module: str) -> set[Path]:
        """The module's file and the data beside it, relative to ``root``."""
        path = self._path(module)
        assert path is not None, module
        beside = [path.with_name(name) for name in self._read(module).beside]
        data = [file for place in beside for file in (place.rglob("*") if place.is_dir() else [place])]
        return {file.relative_to(self.root) for file in [path, *data] if not file.is_dir()}

    def _path(self, module: str) -> Path | None:
        stem = self.root / module.replace(".", "/")
        return next((path for path in (stem / "__init__.py", stem.with_suffix(".py")) if path.is_file()), None)


def stage_modules(pipeline: Path) -> dict[str, str]:
    """The module that each stage of a ``dvc.yaml`` runs; those that always run need no reason.

    A stage that takes its module from its matrix (``python -m pipelines ${item.of.run}``) has one per value, named by the value.
    """
    stages = yaml.safe_load(pipeline.read_text())["stages"]
    bodies = {name: stage.get("do", stage) for name, stage in stages.items() if not stage.get("always_changed")}
    return {value: module for name, body in bodies.items() for value, module in _modules(name, body)}


def write_listings(listings: Mapping[str, str], folder: Path) -> list[str]:
    """Make ``folder`` hold these listings and no others; names the stages whose file was written."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.txt"):
        if file.stem not in listings:
            file.unlink()
    files = {stage: folder / f"{stage}.txt" for stage in listings}
    changed = [stage for stage, file in files.items() if not file.is_file() or file.read_text() != listings[stage]]
    for stage in changed:
        with replacing(files[stage]) as partial:
            partial.write_text(listings[stage])
    return changed


def _modules(stage: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    command = re.match(r"python -m pipelines ([\w.${}]+) ", body["cmd"])
    if command is None:
        raise ValueError(
            f"stage {stage}: its code is found from 'python -m pipelines …', which {body['cmd']!r} is not."
        )
    axis = re.fullmatch(r"\$\{item\.(\w+)\.(\w+)\}", command[1])
    if axis is None:
        return [(stage, f"pipelines.{command[1]}")]
    return [(one[axis[2]], f"pipelines.{one[axis[2]]}") for one in body["matrix"][axis[1]]]


def _packages(module: str) -> list[str]:
    """The packages that ``module`` lies in."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
