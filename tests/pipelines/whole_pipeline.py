"""The stages of dvc.yaml, in the order in which they stand there, for one tiny pair: as commands, in the current folder."""

import itertools
import json
import re
import shlex
from pathlib import Path

import yaml

from pipelines.cli import main

ROOT = Path(__file__).parent.parent.parent
BUNDLES = ("hrad", "survival", "source", "early_stop-1", "delayed_tree-nss", "lookahead")  # one of every family
ARMS = ("autoregressive", "hf_generate", "chain-{gamma}", "{bundle}", "hrad", "pearl-{gamma}", "{method}", "delayed_tree-{rule}")
SMALL = {  # what stands in params.yaml, made small
    "machine": {"threads": 1},
    "mix": {"temperatures": [1.0]},
    "latency": {
        "draft_rows": [1, 2],
        "target_tokens": [1, 2, 5],
        "reference_rows": [1],
        "reference_tokens": [1],
        "beside_rows": [1],
        "beside_tokens": [1, 5],
        "contexts": [8, 16],
        "prefill_tokens": [8, 16],
        "drafted": [0, 2],
        "tree_nodes": [3],
        "tree_rules": ["nss"],
        "branch_rows": [1],
        "guessed": [2],
        "features": [64],
        "visits": 1,
        "repairs": 0,
        "warmup": 0,
        "calls": 1,
    },
}


def parameters(target: Path, draft: Path, documents: Path, changes: dict) -> dict:
    """The defaults of params.yaml for one pair, made small."""
    sections = yaml.safe_load((ROOT / "params.yaml").read_text())["defaults"]
    merged = _merged(_merged(sections, SMALL), changes)
    merged["fit"] = {name: merged["fit"][name] for name in BUNDLES}
    merged["models"] = {"target": str(target), "draft": str(draft), "dtype": "float32"}
    return merged


def _merged(values: dict, changes: dict) -> dict:
    """``values`` with ``changes``, section by section."""
    return values | {
        key: _merged(values[key], new) if isinstance(new, dict) and isinstance(values.get(key), dict) else new
        for key, new in changes.items()
    }


def commands(pair: str) -> list[list[str]]:
    """Of all stages but ``code``, which lists code."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return [shlex.split(command)[3:] for name, stage in stages.items() if name != "code" for command in _filled(stage, pair)]


def _filled(stage: dict, pair: str) -> list[str]:
    axes = stage.get("matrix", {}) | ({"pair": [pair]} if "matrix" in stage else {})
    axes = {axis: [v for v in values if axis != "predictor" or v in BUNDLES] for axis, values in axes.items()}
    return [
        re.sub(r"\$\{item\.([\w.]+)\}", lambda found, item=dict(zip(axes, some, strict=True)): _value(item, found[1]), stage["cmd"])
        for some in itertools.product(*axes.values())
    ]


def _value(item: dict, name: str) -> str:
    axis, _, key = name.partition(".")
    return item[axis][key] if key else item[axis]


def run_all(pair: str, sections: dict) -> float:
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {pair: sections}}))
    import time

    for command in commands(pair):
        start = time.perf_counter()
        main(command)
        print(f"#### {time.perf_counter() - start:.1f} s: {' '.join(command[:7])}", flush=True)
