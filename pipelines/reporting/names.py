"""Arms as people read them."""

from pipelines.measuring import names

NAMES = {
    names.CHAIN: "best static chain",
    names.PLAIN: "plain decoding",
    names.HF_FORWARD: "plain, HF's forward",
    names.HF_PLAIN: "HF generate",
    names.HF_ASSISTED: "HF assisted",
    names.HF_LOOKUP: "HF prompt lookup",
    names.ENTROPY: "entropy (AdaEDL)",
    names.HRAD: "H-RAD",
    names.LENGTH: "explicit length",
}
PRESETS = {
    names.PEARL: "PEARL",
    names.SPECBRANCH: "SpecBranch",
    names.PAPER: "SpecBranch, paper's rule",
    names.PRIOR: "SpecBranch, paper's rule a priori",
    names.EXPLICIT: "SpecBranch, explicit length",
    names.WITHOUT_HRAD: "SpecBranch without H-RAD",
    names.WITHOUT_BRANCHES: "SpecBranch without branches",
}


def arm_name(arm: str) -> str:
    """An arm as a person reads it."""
    gamma = names.chain_gamma(arm)
    if gamma is not None:
        return f"chain, γ={gamma}"
    branching = names.branch_arm(arm)
    if branching is not None:
        lengths = "/".join(map(str, branching.lengths))
        return f"{PRESETS[branching.preset]} γ={lengths}{', concurrent' if branching.wall else ''}"
    family, _, number = arm.partition("-")
    return f"confidence ε={number}" if family == names.CONFIDENCE and number else NAMES.get(arm, arm)
