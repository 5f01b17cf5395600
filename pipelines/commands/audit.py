"""Judge whether speculation is lossless: a rule's, by enumeration, or an engine's, by samples.

MODULE:NAME is a `Controller`, whose session may also have ``submit(laws, tokens)``: how many of the drawn tokens are verified; a
`Drafter`; a `Verifier`, or a function of a tree and the target's probabilities that returns an `OutcomeLaw`; or a class or
function that makes one without arguments. Decoders of toy pairs are run under every combination of draws.
Answers of an engine, from its server or a file, are scored by the target's own forward: it needs no access to the engine.
Exit codes: 0 lossless, 1 not, or not judged, 4 undecided, as there are too few tokens.

    draftwright audit runtime.audit.examples:Budget
    draftwright audit --server http://localhost:8000 --target data/smollm2/pair/target
"""

import argparse
import importlib
import os
import sys
import traceback
from operator import attrgetter
from pathlib import Path

from pipelines.terminal import add_json_argument, count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("rule", nargs="?", metavar="MODULE:NAME", help="what is judged; MODULE may be in this folder")
    add("--server", metavar="URL", help="ask this server of vLLM or llama.cpp")
    add("--samples", type=Path, metavar="FILE", help="judge the answers in this file of JSON lines")
    add("--target", help="local folder or hub id of the model that answers are to be drawn from")
    add("--draft", help="the engine's draft model, if it has one: what it changes shows with fewer tokens")
    add("--control", metavar="URL|FILE", help="the same engine without speculation: its rounding is allowed for")
    add("--prompts", type=Path, help="folder of the prompts stage: its test prompts (default: chat prompts by rule)")
    add("--count", type=count, default=30, help="answers to ask for (default: %(default)s)")
    add("--new-tokens", type=count, default=64, help="of an answer at most (default: %(default)s)")
    add("--together", type=count, default=1, help="requests at a time (default: %(default)s)")
    add("--temperature", type=float, default=1.0, help="0 is greedy (default: %(default)s)")
    add("--top-k", type=int, default=0)
    add("--top-p", type=float, default=1.0)
    add("--min-p", type=float, default=0.0)
    add("--seed", type=int, default=0, help="of the first request; each has one of its own")
    add("--save", type=Path, metavar="FILE", help="add answers to this file as they come; those there count, too")
    add("--device", default="auto")
    add("--dtype", default="auto", help="number format of our forward, best the engine's: near-ties are by it")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    if args.rule is None and (args.server or args.samples):
        from pipelines.audit import engine  # loads libraries that no rule needs

        engine.run(args)
        return
    module, _, name = (args.rule or "").partition(":")
    if not (module and name) or args.server or args.samples:
        what = f"{args.rule!r} is no MODULE:NAME, such as runtime.audit.examples:Budget. "
        raise ValueError(f"{what}Name one, or the --server or --samples of an engine and their --target.")
    audit_rule(module, name)


def audit_rule(module: str, name: str) -> None:
    """Print the verdict about a rule; exit with 1 if it is not lossless. `ValueError` if it cannot be judged."""
    from runtime.audit import parts

    sys.path.insert(0, os.getcwd())
    rule = f"{module}:{name}"
    try:
        kind, part = parts.part_of(rule, attrgetter(name)(importlib.import_module(module)))
        lossless, lines = parts.judged(f"{rule}, a {kind}", part)
    except Exception as error:  # what is judged is a program
        frames = traceback.extract_tb(error.__traceback__)[::-1]
        at = next((one for one in frames if "site-packages" not in one.filename), frames[0])
        ours = at.filename.startswith(os.path.dirname(parts.__file__))
        raised = "" if ours else f"{type(error).__name__} at {at.filename}:{at.lineno}: "
        raise ValueError(f"{rule} is not judged: {raised}{' '.join(str(error).split())}") from error
    print("\n".join(lines))
    if not lossless:
        sys.exit(1)
