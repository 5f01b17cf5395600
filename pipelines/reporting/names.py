"""Arms as people read them."""

from pipelines.measuring.names import (
    CHAIN,
    CONFIDENCE,
    ENTROPY,
    EXPLICIT,
    HF_LOOKUP,
    HRAD,
    LENGTH,
    PAPER,
    PEARL,
    PRIOR,
    SPECBRANCH,
    WITHOUT_BRANCHES,
    WITHOUT_HRAD,
    branch_arm,
    chain_gamma,
)

NAMES = {
    CHAIN: "best static chain",
    "autoregressive": "plain decoding",
    "plain_hf_forward": "plain, HF's forward",
    "hf_generate": "HF generate",
    "hf_assisted": "HF assisted",
    HF_LOOKUP: "HF prompt lookup",
    ENTROPY: "entropy (AdaEDL)",
    HRAD: "H-RAD",
    LENGTH: "explicit length",
}
PRESETS = {
    PEARL: "PEARL",
    SPECBRANCH: "SpecBranch",
    PAPER: "SpecBranch, paper's rule",
    PRIOR: "SpecBranch, paper's rule a priori",
    EXPLICIT: "SpecBranch, explicit length",
    WITHOUT_HRAD: "SpecBranch without H-RAD",
    WITHOUT_BRANCHES: "SpecBranch without branches",
}


def arm_name(arm: str) -> str:
    """An arm as a person reads it."""
    gamma = chain_gamma(arm)
    if gamma is not None:
        return f"chain, γ={gamma}"
    branching = branch_arm(arm)
    if branching is not None:
        lengths = "/".join(map(str, branching.lengths))
        return f"{PRESETS[branching.preset]} γ={lengths}{', concurrent' if branching.wall else ''}"
    family, _, number = arm.partition("-")
    return f"confidence ε={number}" if family == CONFIDENCE and number else NAMES.get(arm, arm)
