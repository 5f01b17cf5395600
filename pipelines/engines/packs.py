"""Control packs: files that an engine reads, the command that starts it by them, and ``evidence.json``: what stands behind them, and
what cannot be said there. vLLM's lengths by batch size are those that `draftwright measure --engine vllm` chose.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from math import log1p
from pathlib import Path
from typing import Any

from pipelines.engines import draftwright_proposer
from pipelines.measuring.names import FINDINGS
from pipelines.measuring.provenance import provenance
from pipelines.outputs import read_json, read_text, replacing, write_json
from pipelines.places import read_device, read_device_profile
from predictors.sampling import SamplingSettings

HERE = "FOLDER"  # of a pack, in its command
LIMITS = {  # what no pack can say
    "vllm": "a method by batch size, a length by request, or none without a step of an EAGLE drafter; a proposer knows no sampling",
    "sglang": "tiers for drafters but EAGLE's, and DSpark's tables for drafters without a confidence head",
    "llama.cpp": "a length by batch size",
    "transformers": "a length by batch size",
}


def pack_files(
    args: argparse.Namespace, words: dict[str, Any], eagle: bool, evidence: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Files by name for an engine's ``words``, and what these become by them; ``eagle``: they tell of an EAGLE drafter."""
    files: dict[str, Any] = {}
    if args.engine == "transformers":
        files = {"generation_config.json": words["generate"], "draft_generation_config.json": words["draft"]}
    elif args.engine == "vllm":
        evidence["by_batch_size"] = choices = measured(args).get("choices", [])
        files["speculative_config.json"] = words = by_batch_size(choices) or words
    elif args.engine == "sglang":
        from pipelines.engines.from_texts import sglang_files

        files, evidence["files"] = sglang_files(*recorded(args))
        if eagle:
            words |= {"speculative-adaptive": True, "speculative-adaptive-config": f"{HERE}/adaptive.json"}
    return files | {"evidence.json": evidence}, words


def by_batch_size(choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """vLLM's words for the method that gains most over plain decoding: its lengths by batch size, 0 where that is not sure."""
    gains: dict[str, float] = {}
    sure = [one for one in choices if one["k"] and (one["gain_over_plain"]["low"] or 0) > 0]
    for one in sure:
        gains[one["method"]] = gains.get(one["method"], 0.0) + log1p(one["gain_over_plain"]["value"])
    own = {one["batch"]: one for one in sure if one["method"] == max(gains, key=lambda method: gains[method])}
    starts = sorted({1, *(one["batch"] for one in choices)})
    lengths = [own[batch]["k"] if batch in own else 0 for batch in starts]
    by_batch = [[*one] for one in zip(starts, [*(at - 1 for at in starts[1:]), starts[-1]], lengths, strict=True)]
    words = {"num_speculative_tokens": max(lengths), "num_speculative_tokens_per_batch_size": by_batch}
    return {**next(iter(own.values()))["speculative"], **words} if own else {}


def lookup_files(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Files by name of a proposer for vLLM, and vLLM's words."""
    from pipelines.engines.from_texts import lookup_rule

    record, evidence = lookup_rule(*recorded(args), measured(args).get("step_seconds"))
    source = Path(draftwright_proposer.__file__)
    words = {"method": "custom_class", "model": f"{source.stem}.Lookup", "num_speculative_tokens": record["length"]}
    files = {source.name: read_text(source), "rule.json": record, "speculative_config.json": words}
    return files | {"evidence.json": evidence}, words


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """What was measured in vLLM on this machine, if anything was."""
    path = args.engines / "vllm" / read_device(args.device)["slug"] / FINDINGS
    found: dict[str, Any] = read_json(path, "Measure the engine again.") if path.is_file() else {}
    return found


def recorded(args: argparse.Namespace) -> tuple[Any, SamplingSettings, Any]:
    """Recorded texts, the sampling setting, and this machine's prices at it."""
    from predictors.latency.prices import RoundPrices
    from predictors.training.tables import TextTable

    table, profile = TextTable.read(args.texts), read_device_profile(args.latency, read_device(args.device)["slug"])
    setting = named(table.settings, args.setting)
    return table, setting, RoundPrices(profile, not setting.read_off)


def named(settings: Iterable[SamplingSettings], name: str) -> SamplingSettings:
    """The setting of that name; `ValueError` if there is none."""
    known = {one.name: one for one in settings}
    if name not in known:
        raise ValueError(f"--setting {name}: there are {', '.join(known)}. Name one of them.")
    return known[name]


def write(args: argparse.Namespace, files: Mapping[str, Any], command: str) -> None:
    """Write a pack, and say what its engine cannot express."""
    about = {name: getattr(args, name) for name in ("pair", "engine", "setting")} | {"cannot_express": LIMITS[args.engine]}
    about |= {"written": provenance(read_device(args.device)), **files["evidence.json"]}
    shell = {} if args.engine == "transformers" else {"command.sh": command.replace(HERE, '"$(dirname "$0")"') + "\n"}
    for name, content in {**files, **shell, "evidence.json": about}.items():
        if isinstance(content, str):
            with replacing(args.output / name) as path:
                path.write_text(content)
        else:
            write_json(args.output / name, content)
    print(f"{args.output}: {', '.join(sorted(files))}. {args.engine} cannot express {LIMITS[args.engine]}.")
