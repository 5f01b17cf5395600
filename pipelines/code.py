"""Stage ``code``: for every other stage, the files of code that it runs, with their content hashes.

A stage depends on its own file, which ``sha256sum --check`` reads. It is written only where it changes: a change in code
re-runs the stages that run that code and no other. What a stage runs is found from the source:

    code(module) = packages(reach(module)) - PLUMBING,    reach = module and all it imports, directly or not

An import counts wherever it stands, inside functions, too; only what stands under ``if TYPE_CHECKING`` never runs. A package's
``__init__`` counts wherever one of its modules does. What it imports counts only where the package itself is imported: nothing
happens at import here, so what an ``__init__`` merely gathers decides nothing for who takes another module.

    draftwright code dvc.yaml data/code
"""

import argparse
import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import resolve_name
from itertools import accumulate, pairwise
from pathlib import Path

from pipelines import PACKAGES
from pipelines.outputs import file_sha256, replacing
from pipelines.parameters import parsed_yaml

ROOT = Path(__file__).parents[1]
# Decides nothing of what a stage makes: the command line, this list, files of parameters, device and profile, outputs, tracking.
PLUMBING = frozenset(
    {
        "pipelines.__main__",
        "pipelines.applicability",
        "pipelines.cli",
        "pipelines.code",
        "pipelines.device",
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
        self._read = cache(self._parsed)

    def run_by(self, module: str) -> dict[str, str]:
        """SHA-256 by path below ``root`` of every file that ``module`` runs or reads as part of the code."""
        files = {file for name in self.closure(module) - PLUMBING for file in self._read(name)[1]}
        return {path: file_sha256(self.root / path) for path in sorted(file.as_posix() for file in files)}

    def listing(self, module: str) -> str:
        """`run_by` as lines of ``sha256sum``."""
        return "".join(f"{digest}  {path}\n" for path, digest in self.run_by(module).items())

    def digest(self, module: str) -> str:
        """SHA-256 over all that ``module`` runs."""
        return hashlib.sha256(self.listing(module).encode()).hexdigest()

    def closure(self, module: str) -> set[str]:
        """``module``, all it imports, directly or not, and the packages they lie in. `ValueError` if ``module``, or one
        that is imported, is no module here."""
        if self._path(module) is None:
            raise ValueError(f"{module} is no module below {self.root}. Correct the command.")
        reached: set[str] = set()
        pending = {module}
        while pending:
            reached |= pending
            pending = {self._module(name) for importer in pending for name in self._read(importer)[0]} - reached
        packages = {package for name in reached for package in accumulate(name.split("."), "{}.{}".format)}
        return reached | {package for package in packages if self._path(package)}

    def _module(self, name: str) -> str:
        """``name``, or where it is something in a module, that module."""
        for module in (name, name.rpartition(".")[0]):
            if module and self._path(module):
                return module
        raise ValueError(f"{name}: neither a module below {self.root} nor a name in one. Correct the import.")

    def _parsed(self, module: str) -> tuple[set[str], set[Path]]:
        """What the module imports of `PACKAGES`, and its file and the data beside it, relative to ``root``."""
        path = self._path(module)
        assert path is not None, module
        names, beside = runs(path.read_text(), module if path.name == "__init__.py" else module.rpartition(".")[0])
        places = [path, *map(path.with_name, beside)]
        files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
        ours = {name for name in names if name.partition(".")[0] in PACKAGES}
        return ours, {file.relative_to(self.root) for file in files if not file.is_dir()}

    def _path(self, module: str) -> Path | None:
        stem = self.root / module.replace(".", "/")
        return next((path for path in (stem / "__init__.py", stem.with_suffix(".py")) if path.is_file()), None)


def runs(source: str, package: str) -> tuple[set[str], set[str]]:
    """Dotted names that the ``source`` of a module in ``package``, or of that package's own ``__init__``, runs, and names of data
    that it opens beside itself: ``Path(__file__).with_name(name)``.

    Of ``from a import b`` the name is ``a.b``, whether or not ``b`` is a module.

    Examples
    --------
    >>> runs("def run():\\n    from . import places", "pipelines")
    ({'pipelines.places'}, set())
    """
    names: set[str] = set()
    beside: set[str] = set()
    for node in statements(ast.parse(source)):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(names=aliases):
                origin = resolve_name("." * node.level + (node.module or ""), package)
                names |= {f"{origin}.{alias.name}" for alias in aliases}
            case ast.List(elts=words) | ast.Tuple(elts=words):
                # a command such as [sys.executable, "-m", "package.module"]
                said = [word.value if isinstance(word, ast.Constant) else None for word in words]
                names |= {name for flag, name in pairwise(said) if flag == "-m" and isinstance(name, str)}
            case ast.Call(func=ast.Attribute(value=here, attr="with_name"), args=[ast.Constant(value=str(name))]) if (
                ast.unparse(here) == "Path(__file__)"
            ):
                if name.endswith(".py"):
                    names.add(f"{package}.{name.removesuffix('.py')}")
                else:
                    beside.add(name)
    return names, beside


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of ``tree`` that can run."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                pending.extend(node.orelse)
            case _:
                pending.extend(ast.iter_child_nodes(node))


def stage_modules(pipeline: Path) -> dict[str, str]:
    """The module that each stage of a ``dvc.yaml`` runs; those that always run need no reason.

    A stage that takes its module from its matrix (``python -m pipelines ${item.of.run}``) has one per value, named by the value.
    """
    found: dict[str, str] = {}
    document = parsed_yaml(pipeline.read_text(), str(pipeline))
    stages = document.get("stages") if isinstance(document, dict) else None
    if not isinstance(stages, dict):
        raise ValueError(f"{pipeline}: there is no mapping of stages under 'stages:'.")
    for stage, body in stages.items():
        if body.get("always_changed"):
            continue
        body = body.get("do", body)
        command = re.match(r"python -m pipelines ([\w.${}]+) ", body["cmd"])
        if command is None:
            raise ValueError(
                f"stage {stage}: its code is found from 'python -m pipelines …', which {body['cmd']!r} is not."
            )
        axis = re.fullmatch(r"\$\{item\.(\w+)\.(\w+)\}", command[1])
        commands = {one[axis[2]]: one[axis[2]] for one in body["matrix"][axis[1]]} if axis else {stage: command[1]}
        found |= {name: f"pipelines.{one}" for name, one in commands.items()}
    return found


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
