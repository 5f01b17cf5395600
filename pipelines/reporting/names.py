"""Arms as people read them."""

from pipelines.measuring.names import CHAIN, CONFIDENCE, ENTROPY, HF_LOOKUP, HRAD, LENGTH, chain_gamma

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


def arm_name(arm: str) -> str:
    """An arm as a person reads it."""
    gamma = chain_gamma(arm)
    if gamma is not None:
        return f"chain, γ={gamma}"
    family, _, number = arm.partition("-")
    return f"confidence ε={number}" if family == CONFIDENCE else NAMES.get(arm, arm)
