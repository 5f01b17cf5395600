"""The one command-line parser. A subcommand is the module of that name in room `stages` or `commands`, with
``add_arguments(parser)`` and ``run(args)``.

Those that share a module (`SHARED`) are functions there, by their names; its ``add_arguments(parser, name)`` tells them apart.
Modules are imported only when their subcommand is chosen, so ``draftwright generate`` imports nothing but the runtime and
``--help`` imports nothing at all. ``python -m pipelines labels …`` is ``draftwright labels …``. A docstring ends with an example.
"""

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from pipelines import PACKAGES
from pipelines.outputs import left_out

COMMANDS = {
    "generate": "decode a prompt with any decoder or exported bundle",
    "device": "stage: describe this machine",
    "pair": "stage: resolve a pair's models and pin their files",
    "pair list": "the ready-made pairs",
    "pair add": "copy a ready-made pair's block into the parameter file",
    "plan": "what a pair needs of memory and disk, before anything is downloaded",
    "prompts": "stage: draw prompts, split by document",
    "drafter": "stage: train an EAGLE-3 drafter for the target, where the pair asks for one",
    "profile": "stage latency: measure what the pair's passes cost on this machine",
    "traces": "stage: collect texts with what the draft predicts along them, trees of drafts, or the target's own guesses",
    "labels": "stage: turn traces into label tables: chains, tokens or trees",
    "fit": "stage: train, calibrate and export every predictor of a pair as controller bundles",
    "replay": "stage: predict every policy for chains and branches on recorded texts, at this machine's prices",
    "measure": "stage: time every arm of the parameter file on held-out prompts, interleaved and paired",
    "measure --engine": "time vLLM in its own environment by batch size, and choose how many tokens it drafts",
    "tune": "stage: find the fastest exact decoder for a pair on this machine, and export it as bundle auto",
    "settings": "write what tuning found in the words of transformers, vllm, sglang or llama.cpp",
    "trial": "stage: time an exported bundle, and let the gate judge it over plain decoding and static chains",
    "report": "stage: turn measurements into tables, plots and one HTML page",
    "drift": "compare served requests with what the bundle's card says of recorded ones; exit code 3 says drift",
    "audit": "judge whether speculation is lossless: a rule of your own, or an engine's",
    "register": "register exported bundles in the MLflow model registry (idempotent)",
    "promote": "promote a registered bundle to champion, if the gate lets it pass",
    "rollback": "put back the champion before the present one",
    "status": "who is champion and who challenges",
    "history": "every change of champion",
    "fetch": "fetch a bundle from the registry into a folder, checked against its registered content hash",
    "latency": "show the latency profiles, draw one, predict tokens/s from one",
    "reports": "print where the reports are and their headline figures",
}
SHARED = dict.fromkeys(("register", "fetch", "status", "history", "rollback", "reports"), "releases")
SHARED |= dict.fromkeys(("pair list", "pair add"), "ready_pairs")
MODULES = SHARED | {
    "profile": "latency",
    "measure --engine": "measure_engine",
}  # where it is not the command's own name


def add_command(subparsers: "argparse._SubParsersAction", name: str) -> argparse.ArgumentParser:
    """The parser of subcommand ``name``. The last paragraph of its docstring is an example, and ends the help."""
    module, shares = module_of(name), name in SHARED
    run = getattr(module, name.replace(" ", "_")) if shares else module.run
    text, _, example = inspect.cleandoc((run if shares else module).__doc__ or "").rpartition("\n\n")
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=COMMANDS[name],
        description=text,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser, *([name] if shares else []))
    parser.set_defaults(run=run)
    return parser


def joined(argv: Sequence[str]) -> list[str]:
    """``argv`` with a command of two words as one; ``measure`` may have its ``--engine`` anywhere."""
    if argv[:1] == ["measure"] and "--engine" in argv:
        at = list(argv).index("--engine")
        argv = [argv[0], *argv[at : at + 2], *argv[1:at], *argv[at + 2 :]]
    two = " ".join(argv[:2])
    return [two, *argv[2:]] if two in COMMANDS else list(argv)


def module_of(name: str) -> Any:
    """The module that runs a command; those of stages have a room of their own."""
    room = "stages" if COMMANDS[name].startswith("stage") else "commands"
    return importlib.import_module(f"pipelines.{room}.{MODULES.get(name, name)}")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse ``argv`` (default: the process's own) and run the subcommand.

    A user's mistake (`ValueError`, `OSError`), a missing package or a refusal of MLflow is one line; a bug keeps its traceback.
    """
    argv = joined(sys.argv[1:] if argv is None else argv)
    if not sys.stderr.isatty():  # a log: no bars, ours or the libraries'
        os.environ.setdefault("TQDM_DISABLE", "1")  # tqdm reads it when it is imported
    parser = argparse.ArgumentParser(
        prog="draftwright",
        description="Trains, calibrates, ships and runs drafting controllers for speculative decoding.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next(iter(argv), None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what its encoding lacks is printed as a question mark
            stream.reconfigure(errors="replace")
    try:
        for name, summary in COMMANDS.items():
            if name == chosen:
                add_command(subparsers, name)
            else:
                subparsers.add_parser(name, help=summary)
        args = parser.parse_args(argv)
        if not left_out(args):
            args.run(args)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in PACKAGES:  # what lacks one of these is broken
            raise
        sys.exit(
            f"draftwright {chosen}: needs {error.name}, which is not installed. All that the pipeline needs: "
            "pip install 'draftwright[pipeline]'"
        )
    except (ValueError, OSError, MemoryError) as error:
        sys.exit(f"draftwright {chosen}: {error}")
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("mlflow", "sqlalchemy"):
            raise
        sys.exit(f"draftwright {chosen}: MLflow refused: {str(error).splitlines()[0]}. Earlier results are kept.")
    except KeyboardInterrupt:
        sys.exit(f"draftwright {chosen}: interrupted; finished work is kept, run the same command again to go on")
