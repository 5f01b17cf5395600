"""Decoders of tuning in the words of other engines.

    drafted       at most so many tokens of the draft model          confidence    none after a distribution whose top is below it
    lookup        what followed the last match, instead of or before a chain

An engine has words for some of this. What a decoder needs besides has none there, and is named. Releases whose names these
are: `CHECKED`; sources: docs/serving.md.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from predictors.config import parse_config
from predictors.controllers.confidence import ConfidenceConfig
from predictors.controllers.roc import ROCConfig
from predictors.controllers.takeover import TakeoverConfig
from predictors.lookup import LONGEST
from predictors.sampling import SamplingSettings
from runtime.drafting.lookup import LookupConfig

CHAIN, CONFIDENCE, MOVING, LOOKUP = "a chain", "a confidence threshold", "a moving threshold", "lookup"
LEAST, BEFORE = "a least match", "lookup before a chain"
WORDS = {
    "transformers": {CHAIN, CONFIDENCE, MOVING, LOOKUP},
    "vllm": {CHAIN, LOOKUP, LEAST},
    "sglang": {CHAIN, LOOKUP},
    "llama.cpp": {CHAIN, CONFIDENCE, LOOKUP, LEAST, BEFORE},
}
CHECKED = {"transformers": "5.23.0", "vllm": "0.33.0", "sglang": "0.5.23", "llama.cpp": "commit 00dc8057"}
NOTES = {
    "transformers": "draft.generation_config.update(**…['draft']); target.generate(ids, **…['generate']), with assistant_model=draft "
    "where the first is not empty; verifies token by token; a threshold is tested after a token, and moves where scikit-learn is installed",
    "vllm": "verifies token by token; rejection_sample_method block, as here, needs its model runner V2",
    "sglang": "drafts the likeliest token at every temperature and accepts it if the target draws it; ngrams come from a trie",
    "llama.cpp": "drafts the likeliest token at every temperature and accepts it if the target draws it; a lookup matches exactly "
    "size-n tokens; a threshold may end a draft before its first token",
}


@dataclass(frozen=True)
class Model:
    """Where a model is: a name on the hub or a folder, and its commit if it has one."""

    name: str
    revision: str | None = None


@dataclass(frozen=True)
class Rule:
    """What a decoder drafts; ``beyond``: what it does that no engine has words for. Without anything: plain decoding."""

    drafted: int = 0
    confidence: float = 0.0
    moving: bool = False
    lookup: LookupConfig | None = None
    beyond: str | None = None

    @property
    def needs(self) -> set[str]:
        """The words it takes."""
        found = {CHAIN} if self.drafted else set()
        found |= {MOVING} if self.moving else {CONFIDENCE} if self.confidence else set()
        found |= {self.beyond} if self.beyond else set()
        if self.lookup is not None:
            found |= {LOOKUP} | ({LEAST} if self.lookup.least > 1 else set()) | ({BEFORE} if self.drafted else set())
        return found


def rule_of(served: Mapping[str, Any]) -> Rule:
    """What a candidate of tuning drafts, from what is served: ``decoder``, a configuration, or the name of a ``bundle``."""
    if "bundle" in served:
        return Rule(beyond="a learned rule or calibrated method")
    decoder = served["decoder"]
    drafter = {name: value for name, value in decoder.get("drafter", {}).items() if name != "kind"}
    kind = decoder.get("drafter", {}).get("kind")
    if decoder.get("method") == "autoregressive":
        return Rule()
    if decoder.get("method") != "speculative" or kind not in ("chain", "lookup"):
        return Rule(beyond=f"{decoder.get('preset') or kind or decoder.get('method')}")
    if kind == "lookup":
        return Rule(lookup=parse_config(LookupConfig, drafter, "drafter"))
    return _chain(decoder.get("controller", {"kind": "fixed"}), drafter)


def _chain(controller: Mapping[str, Any], drafter: Mapping[str, Any]) -> Rule:
    """A chain that is stopped by a controller."""
    kind, most = controller["kind"], drafter["gamma"]
    given = {name: value for name, value in controller.items() if name != "kind"}
    if kind == "fixed":
        return Rule(given.get("gamma") or most)
    if kind == "confidence":
        stop = parse_config(ConfidenceConfig, given, kind)
        beyond = (
            "a product of confidences" if stop.product else "tokens before the test" if stop.min_tokens > 1 else None
        )
        return Rule(min(stop.cap or most, most), stop.epsilon, beyond=beyond)
    if kind == "roc":
        return Rule(most, parse_config(ROCConfig, given, kind).threshold, moving=True)
    if kind == "takeover":
        rule = parse_config(TakeoverConfig, given, kind)
        looked = LookupConfig(rule.length, drafter.get("lookup", {}).get("longest", LONGEST), rule.match)
        beyond = "a lookup weighed or continued" if rule.tail or rule.factor or rule.score else None
        other = _chain(rule.otherwise, drafter)
        return replace(other, lookup=looked, beyond=beyond or other.beyond)
    return Rule(beyond=f"controller {kind}")


def transformers(rule: Rule, settings: SamplingSettings, target: Model, draft: Model | None) -> str:
    """A line of Python: what the draft's generation configuration takes, and the arguments of the target's ``generate``."""
    sampling = {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
    generate: dict[str, Any] = {"do_sample": not settings.greedy} | ({} if settings.greedy else sampling)
    assistant: dict[str, Any] = {}
    if rule.drafted:
        assistant = {
            "num_assistant_tokens": rule.drafted,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": rule.confidence,
        }
    if rule.lookup:
        generate |= {
            "prompt_lookup_num_tokens": rule.lookup.length,
            "max_matching_ngram_size": rule.lookup.longest,
        }
    return f"SETTINGS[{settings.name!r}] = { {'draft': assistant, 'generate': generate}!r}"


def vllm(rule: Rule, settings: SamplingSettings, target: Model, draft: Model | None) -> str:
    config: dict[str, Any] = {}
    if rule.lookup:
        looked = rule.lookup
        config = {"method": "ngram", "num_speculative_tokens": looked.length}
        config |= {"prompt_lookup_min": looked.least, "prompt_lookup_max": looked.longest}
    elif rule.drafted and draft is not None:
        config = {"method": "draft_model", "model": draft.name, "num_speculative_tokens": rule.drafted}
        config |= {"revision": draft.revision} if draft.revision else {}
        config |= {} if settings.greedy else {"draft_sample_method": "probabilistic"}
    words = ["--speculative-config", json.dumps(config)] if config else []
    return shlex.join(["vllm", "serve", target.name, *_revision("--revision", target), *words])


def sglang(rule: Rule, settings: SamplingSettings, target: Model, draft: Model | None) -> str:
    words: list[str] = []
    if rule.lookup:
        depth = rule.lookup.longest + rule.lookup.length
        words = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(rule.lookup.length + 1)]
        words += ["--speculative-ngram-max-bfs-breadth", "1", "--speculative-ngram-max-trie-depth", str(depth)]
    elif rule.drafted and draft is not None:
        words = ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft.name]
        words += _revision("--speculative-draft-model-revision", draft)
        words += ["--speculative-num-steps", str(rule.drafted), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(rule.drafted + 1)]  # and the token before them
    start = ["python", "-m", "sglang.launch_server", "--model-path", target.name, *_revision("--revision", target)]
    return shlex.join([*start, *words])


def llama_cpp(rule: Rule, settings: SamplingSettings, target: Model, draft: Model | None) -> str:
    kinds, words = [], []
    if rule.lookup:
        kinds.append("ngram-simple")
        words += ["--spec-ngram-simple-size-n", str(rule.lookup.least)]
        words += ["--spec-ngram-simple-size-m", str(rule.lookup.length)]
    if rule.drafted:
        kinds.append("draft-simple")
        words += ["-md", "draft.gguf", "--spec-draft-n-max", str(rule.drafted), "--spec-draft-n-min", "0"]
        words += ["--spec-draft-p-min", f"{rule.confidence:g}"]
    chosen = ["--spec-type", ",".join(kinds)] if kinds else []
    return shlex.join(["llama-server", "-m", "target.gguf", *chosen, *words])


Engine = Callable[[Rule, SamplingSettings, Model, Model | None], str]
ENGINES: dict[str, Engine] = {
    "transformers": transformers,
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llama_cpp,
}


def _revision(option: str, model: Model) -> list[str]:
    return [option, model.revision] if model.revision else []
