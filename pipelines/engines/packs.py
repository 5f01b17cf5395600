"""Control packs: files that an engine reads, the command that starts it by them, and ``evidence.json``: what stands behind them,
and what cannot be said there. vLLM's lengths by batch size are those that `draftwright measure --engine vllm` chose.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.engines import draftwright_proposer
from pipelines.measuring.names import FINDINGS
from pipelines.measuring.provenance import provenance
from pipelines.outputs import read_json, read_text, replacing
from pipelines.places import read_device, read_device_profile
from predictors.sampling import SamplingSettings

Record = dict[str, Any]
HERE, WORDS = "FOLDER", "speculative_config.json"  # of a pack, in its command; what vLLM reads
LIMITS = {  # what no pack can say; of other engines no length by batch size
    "vllm": "a method by batch size, a length by request or sampling; and at a length of 0 it runs an EAGLE drafter once",
    "sglang": "tiers for drafters but EAGLE's, and DSpark's tables for drafters without a confidence head",
}


def pack_files(args: argparse.Namespace, words: Record, evidence: Record) -> tuple[Record, Record]:
    """What an engine's ``words`` become by its files, and these by name, with the ``evidence``."""
    files: Record = {}
    if args.engine == "transformers":
        files = {"generation_config.json": words["generate"], "draft_generation_config.json": words["draft"]}
    elif args.engine == "vllm":
        evidence["by_batch_size"] = choices = measured(args).get("choices", [])
        files[WORDS] = words = by_batch_size(choices) or words
    elif args.engine == "sglang":
        from pipelines.engines.from_texts import sglang_files

        files, evidence["files"] = sglang_files(*recorded(args))
        if words.get("speculative-algorithm") == "EAGLE3":
            words |= {"speculative-adaptive": True, "speculative-adaptive-config": f"{HERE}/adaptive.json"}
    return words, files | {"evidence.json": evidence}


def by_batch_size(choices: Sequence[Mapping[str, Any]]) -> Record:
    """vLLM's words for the method of the largest gain over plain decoding: its lengths by batch size, 0 where none is sure."""
    sure = [one for one in choices if one["k"] and (one["gain_over_plain"]["low"] or 0) > 0]
    if not sure:
        return {}
    best = max(sure, key=lambda one: float(one["gain_over_plain"]["value"]))
    own = {one["batch"]: one["k"] for one in sure if one["method"] == best["method"]}
    starts = sorted({1, *(one["batch"] for one in choices)})
    ends = [*(start - 1 for start in starts[1:]), starts[-1]]
    by_batch = [[start, end, own.get(start, 0)] for start, end in zip(starts, ends, strict=True)]
    words = {"num_speculative_tokens": max(own.values()), "num_speculative_tokens_per_batch_size": by_batch}
    return {**best["speculative"], **words}


def lookup_files(args: argparse.Namespace) -> Record:
    """Files by name of a proposer for vLLM."""
    from pipelines.engines.from_texts import lookup_rule

    record, evidence = lookup_rule(*recorded(args), measured(args).get("step_seconds"))
    source = Path(draftwright_proposer.__file__)
    words = {"method": "custom_class", "model": f"{source.stem}.Lookup", "num_speculative_tokens": record["length"]}
    files = {"rule.json": record, WORDS: words, "evidence.json": evidence}
    return files | {source.name: read_text(source)}


def measured(args: argparse.Namespace) -> Any:
    """What was measured in vLLM on this machine, if anything was."""
    path = args.engines / "vllm" / read_device(args.device)["slug"] / FINDINGS
    return read_json(path, "Measure the engine again.") if path.is_file() else {}


def recorded(args: argparse.Namespace) -> tuple[Any, SamplingSettings, Any]:
    """Recorded texts, the sampling setting, and this machine's prices at it."""
    from predictors.latency.prices import RoundPrices
    from predictors.training.tables import TextTable

    table, profile = TextTable.read(args.texts), read_device_profile(args.latency, read_device(args.device)["slug"])
    setting = named(table.settings, args.setting)
    return table, setting, RoundPrices.at(profile, setting)


def named(settings: Iterable[SamplingSettings], name: str) -> SamplingSettings:
    """The setting of that name; `ValueError` if there is none."""
    known = {one.name: one for one in settings}
    if name not in known:
        raise ValueError(f"--setting {name}: there are {', '.join(known)}. Name one of them.")
    return known[name]


def write(args: argparse.Namespace, files: Mapping[str, Any], command: str) -> None:
    """Write a pack, and say what its engine cannot express."""
    limits = LIMITS.get(args.engine, "a length by batch size")
    about = {name: getattr(args, name) for name in ("pair", "engine", "setting")} | {"cannot_express": limits}
    about |= {"written": provenance(read_device(args.device)), **files["evidence.json"]}
    shell = (
        {} if args.engine == "transformers" else {"command.sh": command.replace(HERE, '"$(dirname "$0")"') + ' "$@"\n'}
    )
    for name, content in {**files, **shell, "evidence.json": about}.items():
        with replacing(args.output / name) as path:
            path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2) + "\n")
    print(f"{args.output}: {', '.join(sorted(files))}. {args.engine} cannot express {limits}.")
