"""The latency profile: what the passes of one model pair and the work between them cost on one machine.

    cost ratio    c(l)    = target(1, l) / draft(1, l)      a target pass in draft steps, at context l
    verify ratio  v(n, l) = target(n, l) / target(1, l)     a pass over n tokens in passes over one

Source: specification of drafting, sections 0 and 10. c is SpecBranch's; the paper on improved multi-candidate decoding calls its
inverse c. Here c is measured, never rounded to a whole number. No table says what passes cost while both models are at work.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from predictors.config import parse_config
from predictors.latency.tables import Latency, LatencyTable

SCHEMA = 2
REMEDY = "Measure the profile on this machine again (dvc repro)."

# Table -> axes. A pass costs `rows` or `tokens` nodes behind `context` committed tokens.
AXES = {
    "draft": ("rows", "context"),  # one draft pass over new nodes: 1 is a chain's step, more a level of a tree
    "draft_first": ("rows", "context"),  # a round's first, over all that was committed, of a draft that reads states
    "target": ("tokens", "context"),  # one target pass over the newest token and the drafted ones
    "draft_hugging_face": ("rows", "context"),  # the same by bare Hugging Face
    "target_hugging_face": ("tokens", "context"),
    "draft_prefill": ("tokens",),  # opening a state and committing a prompt
    "target_prefill": ("tokens",),
    "plain": ("context",),  # a token of plain decoding as it runs, behind passes of its own model
    "chain_drawing": ("drafted", "sampled"),  # a round's laws and draws; sampled: 0 greedy, 1 temperature 1
    "chain_verification": ("drafted", "sampled"),  # the rest of a round outside the models
    "tree_drawing": ("drafted", "sampled"),  # drafted counts distinct nodes
    "tree_verification": ("drafted", "sampled"),
    # verification of sampled trees by other rules than traversal
    "verification_nss": ("drafted",),
    "verification_naive_tree": ("drafted",),
    "verification_spectr": ("drafted",),
    "verification_specinfer": ("drafted",),
    "verification_khisti": ("drafted",),
    # branch-parallel decoding: work of the draft outside its passes, and of the verdict on candidates
    "branch_candidates": ("rows", "sampled"),  # from the law at the branch point to as many candidates as rows
    "branch_drawing": ("rows", "sampled"),  # one level of branches behind them: laws, draws, bookkeeping
    "branch_verdict": ("candidates", "sampled"),
    "reading": ("entropy",),  # a draft law's confidence by the host, and with 1 its entropy too
    "predictor": ("features",),  # one decision of a small MLP, with all that it reads
    "guessing": ("guessed",),  # a model drafting for itself: a pass's candidates, and upkeep of so many guesses
    "stopping": ("features",),  # asking a stop model of so many numbers
    "survival": ("positions",),  # asking the survival model about so many tokens behind the last draft pass
    "selection": ("features",),  # choosing a delayed tree from so many numbers of hidden states, and both models' laws
}

FIRST = "draft_first"
DRAFT_PASSES = ("draft", FIRST, "draft_prefill")


@dataclass(frozen=True, eq=False)
class LatencyProfile:
    """A pair's measured latencies on a machine. A profile may lack tables of `AXES`, and hold others."""

    tables: Mapping[str, LatencyTable]  # those of `AXES` must have those axes, and are brought into their order
    pair: str
    settings: Mapping[str, Any]  # of the measurement
    provenance: Mapping[str, Any]
    noise: tuple[str, ...] = ()  # what spoke against the tables when they were written (`predictors.latency.soundness`)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        ordered = {}
        for name, table in self.tables.items():
            try:
                ordered[name] = table.with_axes(AXES.get(name, tuple(table.axes)))
            except ValueError as error:
                raise ValueError(f"table {name}: {error}") from error
        object.__setattr__(self, "tables", ordered)

    def table(self, name: str) -> LatencyTable:
        """Table ``name``; `ValueError` naming the tables there are."""
        if name not in self.tables:
            raise ValueError(
                f"the profile of {self.pair} has no table {name!r}, only {', '.join(self.tables)}. {REMEDY}"
            )
        return self.tables[name]

    def latency(self, name: str, **coordinates: float) -> Latency:
        """Table ``name`` at ``coordinates``; `ValueError` naming the tables there are, or this one's axes."""
        table = self.table(name)
        try:
            return table.at(**coordinates)
        except ValueError as error:
            raise ValueError(f"table {name!r}: {error}") from error

    def cost_ratio(self, context: float) -> float:
        """c: one target pass over one token, in draft steps."""
        target = self.latency("target", tokens=1, context=context)
        return target.seconds / self.latency("draft", rows=1, context=context).seconds

    def at_cost_ratio(self, ratio: float, context: float) -> "LatencyProfile":
        """The profile of a machine on which c is ``ratio`` behind ``context`` tokens: all passes of the draft scaled alike,
        everything else as it is."""
        if not ratio > 0:
            raise ValueError(f"a cost ratio is > 0, got {ratio}.")
        factor = self.cost_ratio(context) / ratio
        scaled = {name: table.scaled(factor) for name, table in self.tables.items() if name in DRAFT_PASSES}
        return replace(self, tables={**self.tables, **scaled})

    def only(self, quartile: str) -> "LatencyProfile":
        """The profile with one of `QUARTILES` of every cell alone."""
        tables = {name: table.of(getattr(table, quartile)) for name, table in self.tables.items()}
        return replace(self, tables=tables)

    def verify_ratio(self, tokens: float, context: float) -> float:
        """v: one target pass over ``tokens``, in passes over one token."""
        wide = self.latency("target", tokens=tokens, context=context)
        return wide.seconds / self.latency("target", tokens=1, context=context).seconds

    @property
    def profile_hash(self) -> str:
        """SHA-256 of the tables alone: where and when they were measured does not count."""
        tables = {name: table.to_record() for name, table in self.tables.items()}
        return hashlib.sha256(json.dumps(tables, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def to_record(self) -> dict[str, Any]:
        """A JSON mapping; its keys may be sorted."""
        return {
            "schema": SCHEMA,
            "pair": self.pair,
            "tables": {name: table.to_record() for name, table in self.tables.items()},
            "settings": dict(self.settings),
            "provenance": dict(self.provenance),
            "noise": list(self.noise),
        }

    @staticmethod
    def from_record(record: Mapping[str, Any], where: str) -> "LatencyProfile":
        """Parse what `to_record` wrote; a `ValueError` begins with ``where``."""
        if isinstance(record, Mapping) and record.get("schema") != SCHEMA:
            raise ValueError(f"{where}: schema {record.get('schema')} is not this version's, which reads {SCHEMA}.")
        return parse_config(LatencyProfile, record, where)


def read_profile(path: str | Path) -> LatencyProfile:
    """Read a profile's JSON file; `ValueError` with the remedy if it is missing, damaged or not a profile."""
    try:
        record = json.loads(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"{path}: no latency profile can be read there ({error.strerror}). {REMEDY}") from error
    except ValueError as error:
        raise ValueError(f"{path}: damaged latency profile ({error}). {REMEDY}") from error
    try:
        return LatencyProfile.from_record(record, f"{path}: profile")
    except ValueError as error:
        raise ValueError(f"{error} {REMEDY}") from error
