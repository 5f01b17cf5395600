"""Named configurations of decoders, and what a configuration leaves out.

specbranch             SpecBranch: branches while the target verifies, H-RAD before drafting and for retention
specbranch-no-hrad     everything drafted is retained (the paper's Table 18)
specbranch-no-branch   H-RAD before drafting, then ordinary verification (the paper's single-GPU variant)
pearl                  PEARL: one sampled branch, everything retained, branches from the first token on (specification, 3.7)

Given keys override a preset's; ``gamma`` reaches the chain of a preset that drafts one. H-RAD comes from a bundle: that of
`load_decoder`, or one that ``controller`` names. Without a bundle, SpecBranch's soft threshold decides alone.
"""

from collections.abc import Mapping
from typing import Any

SOFT_THRESHOLD = {"kind": "confidence", "epsilon": 0.2}  # best in the paper's Tables 4 and 19
PRESETS: dict[str, dict[str, Any]] = {
    "specbranch": {"method": "branch_parallel", "controller": SOFT_THRESHOLD},
    "specbranch-no-hrad": {"method": "branch_parallel", "controller": {"kind": "fixed"}},
    "specbranch-no-branch": {
        "method": "speculative",
        "drafter": {"kind": "chain", "gamma": 8},
        "controller": SOFT_THRESHOLD,
    },
    "pearl": {
        "method": "branch_parallel",
        "k_max": 1,
        "k_rule": "const",
        "branch_verifier": "rrs",
        "draft_stage": "preverify",
        "verifier": "tokenwise",
        "controller": {"kind": "fixed"},
    },
}


def expanded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config`` with its preset's keys filled in; `ValueError` for an unknown preset."""
    given = dict(config)
    name = given.pop("preset", None)
    if name is None:
        return given
    if name not in [*PRESETS]:
        raise ValueError(f"decoder: unknown preset {name!r}. Known presets: {', '.join(PRESETS)}.")
    preset = PRESETS[name]
    if preset["method"] == "speculative" and "gamma" in given:
        given = {"drafter": preset["drafter"] | {"gamma": given.pop("gamma")}, **given}
    return preset | given


def default_controller(method: str) -> dict[str, Any]:
    """Return the configuration of the controller that decides where a decoder's names none."""
    return SOFT_THRESHOLD if method == "branch_parallel" else {"kind": "fixed"}
