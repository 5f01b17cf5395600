"""Parameters of the verifier comparison. Its draft shapes: what is drafted, under which name, and which rules are compared on it.

    family     drafter                                     name                rules
    chain      chain γ                                     chain-4             those for chains only
    iid        delayed tree without a trunk, (k, 0, l)     iid-3x4             all that are lossless for i.i.d. draws
    delayed    delayed tree (k, l1, l2)                    delayed-3.1.3       the same
    distinct   multi-candidate tree, fork                  distinct-4.2.2.1    all that are lossless without replacement

Other options than those in the name are appended, as in ``chain-4, draft_temperature 0.5``. A rule that is another one under a
second name is measured once (`runtime.verification.ALIASES`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from predictors.config import Checked, Count, not_empty, parse_config
from predictors.sampling import SamplingSettings
from runtime.drafting import DRAFTERS, Drafter
from runtime.verification import ALIASES, VERIFIERS

OPTIONS = ("verifiers", "family")  # of a shape; every other key is the drafter's


@dataclass(frozen=True)
class Shape:
    """A drafter's configuration and the ``verifiers`` compared on its trees.

    Shapes of one ``family`` compete for being chosen.
    """

    name: str
    family: str
    drafter: dict[str, Any]
    verifiers: tuple[str, ...]
    depth: int


def shapes_of(entries: Iterable[Mapping[str, Any]]) -> tuple[Shape, ...]:
    """Shapes from entries of the parameter file. `ValueError` for an unknown kind or key, a rule that is lossy on the shape,
    or a shape given twice."""
    shapes = tuple(_shape(entry, f"drafters[{index}]") for index, entry in enumerate(entries))
    names = [shape.name for shape in shapes]
    if len(set(names)) < len(names):
        raise ValueError(f"drafters: {max(names, key=names.count)} is given twice; keep one of them.")
    return shapes


def compatible_verifiers(drafter: Drafter) -> tuple[str, ...]:
    """Rules that are lossless on every tree of ``drafter``; for chains those made for chains, which the others equal there."""
    return tuple(
        name
        for name, verifier in VERIFIERS.items()
        if name not in ALIASES
        and verifier.chains_only is not drafter.branches
        and drafter.laws <= verifier.lossless_for
    )


def _shape(entry: Mapping[str, Any], where: str) -> Shape:
    drafter = {key: value for key, value in entry.items() if key not in OPTIONS}
    options = {key: value for key, value in drafter.items() if key != "kind"}
    kind = drafter.get("kind")
    if kind not in NAMERS:
        raise ValueError(f"{where}: unknown kind {kind!r}. Known kinds: {', '.join(NAMERS)}.")
    parsed: Any = parse_config(DRAFTERS[kind], options, where)
    family, name = NAMERS[kind](parsed)
    others = [f.name for f in fields(parsed) if f.name not in IN_NAME and getattr(parsed, f.name) != f.default]
    name = ", ".join([name, *(f"{option} {getattr(parsed, option)}" for option in others)])
    known = compatible_verifiers(parsed)
    verifiers = tuple(entry.get("verifiers", known))
    wrong = [verifier for verifier in verifiers if verifier not in known]
    if wrong or not verifiers:
        raise ValueError(f"{where}: {name} cannot be verified by {wrong}. Rules for it: {', '.join(known)}.")
    return Shape(name, str(entry.get("family", family)), drafter, verifiers, parsed.depth)


def _delayed(drafter: Any) -> tuple[str, str]:
    if not drafter.branches:
        return "chain", f"chain-{drafter.depth}"
    if drafter.l1 == 0:
        return "iid", f"iid-{drafter.k}x{drafter.l2}"
    return "delayed", f"delayed-{drafter.k}.{drafter.l1}.{drafter.l2}"


IN_NAME = ("gamma", "k", "l1", "l2", "width", "depth", "config")  # numbers that a name holds; options are all else
NAMERS: dict[str, Callable[[Any], tuple[str, str]]] = {
    "chain": lambda chain: ("chain", f"chain-{chain.gamma}"),
    "delayed_tree": _delayed,
    "fork": lambda fork: ("distinct", f"fork-{fork.width}x{fork.depth}"),
    "multi_candidate": lambda tree: ("distinct", "distinct-" + ".".join(map(str, tree.config))),
}


@dataclass(frozen=True)
class AcceptanceConfig(Checked):
    """Shape ``k`` paths of ``depth`` tokens; ``draws`` fixed draws per node; ``lists`` sampled per node for Khisti's rate."""

    k: Count = 4
    depth: Count = 6
    draws: Count = 4
    lists: Count = 4

    def shape(self) -> Shape:
        """``k`` i.i.d. paths of ``depth`` tokens."""
        (shape,) = shapes_of([{"kind": "delayed_tree", "k": self.k, "l1": 0, "l2": self.depth}])
        return shape


@dataclass(frozen=True)
class VerifierConfig(Checked):
    """Section ``verifiers``: ``settings`` at the roots, a root every ``root_spacing`` tokens. ``drafters`` are shapes."""

    drafters: Annotated[tuple[dict, ...], not_empty]
    settings: Annotated[tuple[SamplingSettings, ...], not_empty]
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
    root_spacing: Count = 16
    roots_per_prompt: Count = 2
    trees_per_root: Count = 1
    validation_prompts: Count = 6
    test_prompts: Count = 12
    threads: Count = 2
    seed: int = 0
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes_of(self.drafters)
