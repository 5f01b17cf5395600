"""The stages of dvc.yaml as commands, in the order in which they stand there, for one tiny pair: in the current folder."""

import itertools
import re
import shlex
from pathlib import Path

import yaml

from pipelines.cli import main

ROOT = Path(__file__).parent.parent.parent
BUNDLES = ("hrad", "survival", "source", "early_stop-1", "delayed_tree-nss", "lookahead")  # one of every family
SMALL = """
machine: {threads: 1}
latency:
  {draft_rows: [1, 2], target_tokens: [1, 2, 5], reference_rows: [1], reference_tokens: [1], contexts: [8, 16],
   prefill_tokens: [8, 16], drafted: [0, 2], tree_nodes: [3], tree_rules: [nss], branch_rows: [1], guessed: [2],
   features: [64], visits: 1, repairs: 0, warmup: 0, calls: 1}
prompts:
  sources: [{name: mine, kind: file, path: prompts.jsonl, cut: window}]
  shares: {train: 0.4, validation: 0.2, test: 0.3, reserve: 0.1}
  <<: {train: 6, validation: 4, test: 4, reserve: 2, min_tokens: 10, max_tokens: 16, room: 8}
traces:
  texts:
    {gamma_max: 4, candidates: 6, prompts: [6, 4, 4], max_new_tokens: 16, temperatures: [0.0, 1.0], top: 4, layers: 1,
     prompts_per_shard: 8, threads: 1}
  trees:
    actions: {chains: [1, 2], k: [2], l1: [0, 1], l2: [1], max_nodes: 6}
    settings: [{temperature: 1.0}]
    <<: {rules: [nss], spacing: 4, roots_per_prompt: 2, prompts: [6, 4, 4], draws: [1, 1, 2], threads: 1}
  guesses:
    ways: [{method: lookahead, ngram: 3, window: 2, guesses: 2}]
    <<: {prompts: 2, max_new_tokens: 8, temperatures: [1.0], threads: 1}
labels: {chains: {gamma: 2}}
fit:
  hrad:
    decoding: {gamma: 4}
    training: {hidden_sizes: [8, 4], reduced_size: 4, epochs: 1}
    candidates: {epsilons: [0.1], probabilities: [0.5], folds: 2}
    <<: {iterations: 1, bootstrap_replicates: 5}
  survival: &survival
    {training: {hidden: 4, epochs: 1}, gamma: 4, lookup: 4, calibrated_tokens: 2, shares: [1.0], least: [1], folds: 2,
     cost_ratios: [4]}
  source: {survival: *survival, matches: [2], lengths: [4], tails: [0], shares: [1.0], paces: [1.0], folds: 2}
  early_stop-1: {network: {hidden_sizes: [8]}, epochs: 1, gamma: 4, calibrated_tokens: 2, folds: 2}
  delayed_tree-nss:
    candidates: [{objective: tokens, states: true}]
    training: {width: 4, hidden_sizes: [8, 4], epochs: 1}
    calibration: {bootstrap_replicates: 5}
  lookahead: {bootstrap_replicates: 5}
replay: {gammas: [1, 2, 4], epsilons: [0.1], rivals: [], branch_gammas: [[4]], cost_ratios: []}
measure:
  <<: {temperatures: [0.0, 1.0], validation_prompts: 1, test_prompts: 2, max_new_tokens: 12, exactness_prompts: 1}
  arms:
  - {name: autoregressive, family: plain, decoder: {method: autoregressive}}
  - {name: hf_generate, family: hugging_face, hugging_face: generate}
  - name: chain-{gamma}
    decoder: {method: speculative, drafter: {kind: chain, gamma: '{gamma}'}, verifier: block}
    <<: {family: chain, choose: true, each: {gamma: [2, 4]}}
  - {name: '{bundle}', family: learned, each: {bundle: [survival, source, hrad]}, bundle: '{bundle}'}
  - {name: lookup-1, family: lookup,
     decoder: {method: speculative, drafter: {kind: lookup, length: 4}, verifier: block}}
  - {name: early_stop-1, family: rule, bundle: early_stop-1}
  - {name: lookahead, family: calibrated, bundle: lookahead}
  - {name: delayed_tree-nss, family: selector, bundle: delayed_tree-nss}
tune: {temperatures: [0.0, 1.0], candidates: 1, validation_prompts: 1, max_new_tokens: 12}
trial: {gammas: [2], test_prompts: 2, reserve_prompts: 1, exactness_prompts: 1, max_new_tokens: 12}
"""  # what stands in params.yaml, made small


def write_parameters(pair: str, **models: Path) -> None:
    """params.yaml of the current folder: the defaults of this checkout's, made small."""
    sections = _merged(yaml.safe_load((ROOT / "params.yaml").read_text())["defaults"], yaml.safe_load(SMALL))
    sections["fit"] = {name: sections["fit"][name] for name in BUNDLES}
    sections["models"] = {**{name: str(path) for name, path in models.items()}, "dtype": "float32"}
    if "draft" not in models:
        sections["tune"] |= {"candidates": 4, "validation_prompts": 2}
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {pair: sections}}))


def run_all(pair: str) -> None:
    """Every stage."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for command in (one for stage in stages.values() for one in _filled(stage, pair)):
        main(shlex.split(command)[3:])


def _merged(values: dict, changes: dict) -> dict:
    """``values`` with ``changes``, section by section."""
    return values | {
        key: _merged(values[key], new) if isinstance(new, dict) and isinstance(values.get(key), dict) else new
        for key, new in changes.items()
    }


def _filled(stage: dict, pair: str) -> list[str]:
    """The stage's command for every value of its matrix."""
    matrix = stage.get("matrix", {})
    axes = [[pair] if axis == "pair" else matrix[axis] for axis in matrix]
    made = (dict(zip(matrix, values, strict=True)) for values in itertools.product(*axes))
    return [
        re.sub(r"\$\{item\.(\w+)\.?(\w*)\}", lambda found, item=item: _value(item, *found.groups()), stage["cmd"])
        for item in made
    ]


def _value(item: dict, axis: str, key: str) -> str:
    return item[axis][key] if key else item[axis]
