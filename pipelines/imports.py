"""What a Python file runs of others, read from its source: imports, modules it starts, files it opens beside itself.

An import counts wherever it stands, inside functions, too. Only what stands under ``if TYPE_CHECKING`` never runs.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import resolve_name
from itertools import pairwise


@dataclass(frozen=True)
class Imports:
    """Dotted names a file runs, and names of files and folders that it opens beside itself.

    Of ``from a import b`` the name is ``a.b``, whether or not ``b`` is a module.
    """

    names: frozenset[str]
    beside: frozenset[str]

    @classmethod
    def of(cls, source: str, package: str) -> "Imports":
        """Of the ``source`` of a module in ``package``, or of that package's own ``__init__``.

        Examples
        --------
        >>> Imports.of("def run():\\n    from . import places", "pipelines").names
        frozenset({'pipelines.places'})
        """
        nodes = list(statements(ast.parse(source)))
        beside = set(_beside(nodes))
        modules = {f"{package}.{name.removesuffix('.py')}" for name in beside if name.endswith(".py")}
        data = {name for name in beside if not name.endswith(".py")}
        return cls(frozenset(_imported(nodes, package)) | _started(nodes) | modules, frozenset(data))


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


def _imported(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _started(nodes: Iterable[ast.AST]) -> set[str]:
    """Modules of commands such as ``[sys.executable, "-m", "package.module"]``."""
    commands = (node.elts for node in nodes if isinstance(node, ast.List | ast.Tuple))
    words = (pair for command in commands for pair in pairwise(map(_text, command)))
    return {name for flag, name in words if flag == "-m" and name is not None}


def _beside(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The ``name`` of every ``Path(__file__).with_name(name)``."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=here, attr="with_name"), args=[ast.Constant(value=str(name))]):
                if ast.unparse(here) == "Path(__file__)":
                    yield name


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
