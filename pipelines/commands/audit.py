"""Judge whether a controller, drafter or verifier is lossless, by the exact output distribution of decoders that it is part of.

MODULE may be in the working directory. NAME is a `Controller`, whose session may also have ``submit(laws, tokens)``: how many of
the drawn tokens are verified; a `Drafter`; a `Verifier`, or a function of a tree and the target's probabilities that returns an
`OutcomeLaw`; or a class or function that makes one without arguments. Decoders of toy pairs are run under every combination of
draws. Exit codes: 0 lossless, 1 not, or not judged.

    draftwright audit runtime.audit.examples:Budget
"""

import argparse
import importlib
import os
import sys
import traceback
from operator import attrgetter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", nargs="?", metavar="MODULE:NAME", help="what is judged")


def run(args: argparse.Namespace) -> None:
    module, _, name = (args.rule or "").partition(":")
    if not (module and name):
        raise ValueError(f"{args.rule!r} is no MODULE:NAME, such as runtime.audit.examples:Budget.")
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
