"""Ready-made pairs: their blocks for the parameter file, one file each in ``pairs/``."""

import difflib
import re
from argparse import ArgumentParser, Namespace
from pathlib import Path

import yaml

from pipelines.outputs import read_text, replacing
from pipelines.parameters import PARAMETERS, parsed_yaml

BLOCKS = Path(__file__).parents[1] / "pairs"


def add_arguments(parser: ArgumentParser, command: str) -> None:
    if command == "pair add":
        parser.add_argument("name", help="of a ready-made pair")
        parser.add_argument("--as", dest="own", metavar="NAME", help="its name under 'pairs:' (default: the same)")
        parser.add_argument("--params", type=Path, default=PARAMETERS, help="parameter file (default: %(default)s)")


def pair_list(args: Namespace) -> None:
    """List the ready-made pairs that `draftwright pair add` copies into the parameter file.

    draftwright pair list
    """
    paths = ready_pairs()
    width = max(len(path.stem) for path in paths)
    for path in paths:
        comments = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
        print(f"{path.stem:{width}}  " + f"\n{'':{width}}  ".join(comments))


def pair_add(args: Namespace) -> None:
    """Copy a ready-made pair's block into the parameter file; `draftwright pair list` names them.

    Nothing else in the file changes: comments and anchors stay. What the block costs, `draftwright plan` says.

        draftwright pair add llama-3-2-1b-8b
    """
    known = {path.stem: path for path in ready_pairs()}
    if args.name not in known:
        near = difflib.get_close_matches(args.name, known, n=3, cutoff=0.4)
        raise ValueError(
            f"there is no ready-made pair {args.name!r}. Close to it: {', '.join(near) or 'none'}; all: draftwright pair list."
        )
    name = args.own or args.name
    text = with_pair(read_text(args.params), name, known[args.name].read_text(), str(args.params))
    with replacing(args.params) as partial:
        partial.write_text(text, encoding="utf-8")
    print(f"{args.params}: pair {name} is there. Next: draftwright plan --pair {name}")


def ready_pairs() -> list[Path]:
    """The files of the ready-made pairs' blocks."""
    return sorted(BLOCKS.glob("*.yaml"))


def with_pair(text: str, name: str, block: str, where: str) -> str:
    """The parameter file ``text`` with a pair of that name after its last one; a ``block`` holds its sections.

    `ValueError` for a name that a pair has already, or that is not of letters, digits and dashes, and for a file that does not
    end with its pairs or lacks an anchor that the block refers to.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name) or yaml.safe_load(name) != name:
        raise ValueError(f"pair name {name!r} must be a letter, then letters, digits and dashes, and no word of YAML.")
    before = parsed_yaml(text, where) or {}
    if not isinstance(before.get("pairs"), dict) or next(reversed(before)) != "pairs":
        raise ValueError(f"{where}: its last section must be 'pairs:', with a block for each pair below it.")
    if name in before["pairs"]:
        raise ValueError(f"{where}: there is a pair {name!r} already. Remove it, or give the new one a name with --as.")
    indent = min(
        re.findall(r"^ +(?=[^\s#])", re.split("^pairs:", text, flags=re.MULTILINE)[-1], re.MULTILINE), default="  "
    )
    added = ["", f"{indent}{name}:", *(f"{indent}  {line}".rstrip() for line in block.splitlines())]
    after = "\n".join([text.rstrip("\n"), *added]) + "\n"
    pairs = parsed_yaml(after, f"{where} with the pair's block")["pairs"]
    assert {key: value for key, value in pairs.items() if key != name} == before["pairs"], "other pairs stay"
    return after
