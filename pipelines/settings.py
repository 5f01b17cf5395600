"""Write what tuning found in the words of another engine, with the evidence and with what that engine has no words for.

For every sampling setting it is the fastest candidate of tuning that the engine can express. Gains are of Draftwright's own loop, one
request at a time, on the machine that tuned: measure them in the engine. A server takes one of the lines.

    draftwright settings --pair pystdlib --for vllm
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.parameters import add_pair_arguments
from pipelines.places import add_place_arguments, fill_in

if TYPE_CHECKING:
    from pipelines.engines import Model

PLACES = {"pair_folder": "pair", "tuning": "tuning"}
NAMES = ("transformers", "vllm", "sglang", "llama.cpp")
SURE = 1.96  # standard errors to either side: 95 %


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    add_place_arguments(parser, PLACES)
    parser.add_argument("--for", dest="engine", required=True, choices=NAMES, help="whose words")
    parser.add_argument("--out", type=Path, help="write to this file instead of the terminal")


def run(args: argparse.Namespace) -> None:
    from pipelines.device_file import read_device
    from pipelines.measuring.names import PROVENANCE
    from pipelines.measuring.tuning.names import CHOICES

    fill_in(args, PLACES)
    folder = args.tuning / read_device(args.device)["slug"]
    try:
        choices, origin = (json.loads((folder / name).read_text()) for name in (CHOICES, PROVENANCE))
    except (OSError, ValueError) as error:
        remedy = f"Run dvc repro tune@{args.pair}, or draftwright tune --pair {args.pair}, first."
        raise ValueError(f"{folder} holds no tuning of this machine ({error}). {remedy}") from error
    text = "\n".join(lines(args.engine, choices, origin, models(args.pair_folder))) + "\n"
    if args.out:
        args.out.write_text(text)
    else:
        print(text, end="")


def models(folder: Path) -> "dict[str, Model]":
    """Target and, if there is one, draft of a pair's folder: folders of the built-in pair, names of any other."""
    from pipelines.engines import Model
    from pipelines.pair_folder import FACTS

    facts = json.loads((folder / FACTS).read_text())
    names = {key: facts[key] for key in ("target", "draft") if facts.get(key)}
    if facts["source"] == "builtin":
        return {key: Model(str(folder / name)) for key, name in names.items()}
    return {key: Model(name, facts.get("revisions", {}).get(key)) for key, name in names.items()}


def lines(
    engine: str, choices: Sequence[Mapping[str, Any]], origin: Mapping[str, Any], named: "Mapping[str, Model]"
) -> Iterator[str]:
    """What the engine is told by sampling setting, below comments.

    Parameters
    ----------
    choices, origin
        What tuning chose at every setting, and where that was measured.
    named
        The pair's target and draft.
    """
    from pipelines.engines import CHECKED, ENGINES, NOTES, WORDS, rule_of
    from pipelines.measuring.tuning.candidates import Candidate
    from pipelines.measuring.tuning.speedups import Speedup, fastest
    from predictors.sampling import SamplingSettings

    device = origin["device"]
    yield f"# {origin['pair']} in the words of {engine} (names of {CHECKED[engine]}): " + ", ".join(
        f"{key} {model.name}" for key, model in named.items()
    )
    yield f"# Measured by Draftwright on {device['cpu']} ({device['slug']}), commit {origin['commit']}, {origin['date']}."
    yield f"# {engine}: {NOTES[engine]}."
    if engine == "transformers":
        yield "SETTINGS = {}"
    settings = {one.name: one for one in map(SamplingSettings, origin["parameters"]["temperatures"])}
    for choice in choices:
        found = {
            row["name"]: Candidate(**{key: row[key] for key in ("name", "family", "served", "predicted")})
            for row in choice["candidates"]
        }
        speedups = {row["name"]: Speedup(**row["speedup"]) for row in choice["candidates"]}
        rules = {name: rule_of(one.served) for name, one in found.items()}
        said = [one for name, one in found.items() if rules[name].needs <= WORDS[engine]]
        best = fastest(said, speedups, origin["parameters"]["tie"])
        yield ""
        yield f"# {choice['setting']}: {best.name}, {_over_plain(speedups[best.name])}"
        yield from _tuned(choice)
        for name, rule in rules.items():
            if rule.needs - WORDS[engine] and speedups[name].value > speedups[best.name].value:
                yield f"#   faster, without words here: {name} ({', '.join(sorted(rule.needs - WORDS[engine]))})"
        yield ENGINES[engine](rules[best.name], settings[choice["setting"]], named["target"], named.get("draft"))


def _over_plain(one: Any) -> str:
    """A candidate's speed-up over plain decoding, of the clock and of replay on validation documents."""
    value, low, high = (math.expm1(one.value + side * SURE * one.error) for side in (0, -1, 1))
    known = f"clock on {one.documents} validation documents, and replay" if one.documents else "replay"
    return f"{value:+.1%} ({low:.1%} to {high:.1%}) over plain decoding by {known}" if one.error else "plain decoding"


def _tuned(choice: Mapping[str, Any]) -> Iterator[str]:
    """What tuning itself chose, and its gains on test prompts."""
    gains = [
        f"{one['gain']['value']:+.1%} ({one['gain']['low']:.1%} to {one['gain']['high']:.1%}) over {rival}"
        for rival, one in (choice.get("score") or {}).items()
    ]
    yield f"#   tuning chose {choice['winner']}" + (f": {', '.join(gains)}, on test prompts" if gains else "")
