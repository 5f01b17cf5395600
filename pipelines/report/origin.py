"""Sections ``pair``, ``checks`` and ``origin``: what was measured, on what, what predictors learned from, what the project holds
itself to on this machine, and where the numbers come from."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipelines.measuring.names import CHAIN, PLAIN, PROVENANCE
from pipelines.measuring.provenance import commit_of, numerics
from pipelines.outputs import read_json
from pipelines.report.comparison import By
from pipelines.report.inputs import Inputs
from pipelines.report.section import Check, Row, Section, Table
from pipelines.report.text import TINY, alone, listed

MANIFEST = "manifest.json"
AGREEMENT = 1e-5
LOGITS = "{}'s logits, compact against Hugging Face's in float32, of 1 + abs(logit)"


def pair_section(inputs: Inputs) -> Section:
    """The pair, the cost of its passes as decoded, and the size of what predictors learned from."""
    pair = inputs.data / "pair"
    facts = read_json(pair / "pair.json")
    target = facts["gguf"]["target"]["file"] if "gguf" in facts else facts["target"]
    draft = f"draft {facts['draft']}" if "draft" in facts else "no draft"
    models = f"target {target}, {'a drafter trained for it' if 'drafter' in facts else draft}"
    tables = [
        Table([_cost(inputs, one) for one in inputs.measured.settings], "In decoding, prefill spread over passes"),
        Table([*map(_traced, sorted((inputs.data / "traces").glob(f"*/{MANIFEST}")))], "What predictors learn from"),
    ]
    return Section("pair", "The pair", f"Measured: {models}.", tables)


def checked(sections: Iterable[Section], agreement: Mapping[str, Any], missing: list[str]) -> Section:
    """The sections' checks, and how far our forward's logits in float32 are from Hugging Face's (``agreement``, by model)."""
    ours = [
        Check(LOGITS.format(model), alone(found["compact"]), AGREEMENT, TINY, at_most=True)
        for model, found in agreement.items()
    ]
    rows = [check.row() for check in [*(one for section in sections for one in section.checks), *ours]]
    notes = ["Met: the measured value. Surely: its whole interval."]
    notes += [f"Nothing was measured of: {listed(missing)}."] if missing else []
    met = sum(bool(row["met"]) for row in rows)
    return Section("checks", "Checks", f"{met} of {len(rows)} checks pass.", [Table(rows)], notes=notes)


def origin_section(inputs: Inputs) -> Section:
    """Provenance of the measurement."""
    origin = inputs.measured.origin
    device = origin["device"]
    gpus = [f"{gpu['name']} ({gpu['memory']}, driver {gpu['driver']})" for gpu in device["gpus"]]
    hashed = [name.removesuffix("_sha256") for name in origin if name.endswith("_sha256")]
    hashes = [f"{name} {str(origin[f'{name}_sha256'])[:12]}" for name in hashed if not name.endswith("_bundle")]
    parameters = [f"{name}={value}" for name, value in origin["parameters"].items() if name not in ("arms", "settings")]
    facts = {
        "date": origin["date"],
        "commit": commit_of(origin, digits=40),
        "machine": f"{device['cpu']}, {device['cores']} cores, {device['system']}",
        "bfloat16": ", ".join(device["bfloat16_flags"]) or "not native",
        "accelerators": ", ".join(gpus) or "none",
        "number formats": f"{numerics(origin)}, {origin['threads']} threads",
        "forwards": ", ".join(f"{name} {model['forward']}" for name, model in origin["models"].items()),
        "versions": ", ".join(f"{package} {version}" for package, version in origin["versions"].items()),
        "parameters": ", ".join(parameters),
        "hashes": ", ".join(hashes),
        "arms and bundles": f"in {PROVENANCE} of the measurement",
    }
    rows = [{"what": name, "value": value} for name, value in facts.items()]
    finding = f"Commit {commit_of(origin)}, {origin['date']}."
    return Section("origin", "Where these numbers come from", finding, [Table(rows)])


def _cost(inputs: Inputs, setting: str) -> Row:
    plain, static = (inputs.measured.rows(arm, By(setting)) for arm in (PLAIN, CHAIN))
    target = float(plain["seconds_target"].sum() / (plain["rounds"].sum() + len(plain)))
    draft = float(static["seconds_draft"].sum() / max(static["drafted"].sum(), 1))
    drafted = {"drafted token, ms": draft, "ratio": target / draft} if draft else {}
    return {"setting": setting, "target pass, ms": target, **drafted}


def _traced(path: Path) -> Row:
    manifest = read_json(path)
    size, rows = sum((path.parent / shard["name"]).stat().st_size for shard in manifest["shards"]), manifest["num_rows"]
    each = round(size / max(1, rows))
    return {"traces": path.parent.name, "rows": rows, "megabytes": round(size / 1e6, 1), "bytes per row": each}
