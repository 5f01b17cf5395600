"""The arms of the GPU benchmark, as rows of the table of arms (`pipelines.measuring.arm_rows`)."""

from typing import Any

from pipelines.measuring.arm_rows import ArmRow, chain
from pipelines.measuring.names import (
    CHAIN,
    CONFIG,
    DYNAMIC,
    GIVEN,
    HF_ASSISTED,
    HF_PLAIN,
    HUGGING_FACE,
    PEARL,
    PLAIN,
    PLAIN_FAMILY,
    RULE,
    WITHOUT_HRAD,
)

GAMMAS, BRANCH_GAMMAS = (2, 4, 6, 8), (4, 8)
PRESETS = (PEARL, WITHOUT_HRAD)
STATIC = (PLAIN_FAMILY, CHAIN, *PRESETS)  # families that the latency model covers


def _tree(kind: str, verifier: str) -> dict[str, Any]:
    return {"method": "speculative", "drafter": {"kind": kind}, "verifier": verifier}


ALONE = ArmRow(PLAIN, PLAIN_FAMILY, {"method": "autoregressive"})
CHAINS = ArmRow("chain-{gamma}", CHAIN, chain("{gamma}"), each={"gamma": GAMMAS})
OTHERS = (
    ArmRow("confidence-0.4", RULE, chain(8, controller={"kind": "confidence", "epsilon": 0.4})),
    ArmRow("ema", RULE, chain(8, controller={"kind": "ema"})),
    ArmRow("delayed-3.1.3", DYNAMIC, _tree("delayed_tree", "traversal")),
    ArmRow("multi-candidate", CONFIG, _tree("multi_candidate", "nss")),
    ArmRow("lookahead", GIVEN, {"method": "lookahead"}),
    ArmRow("progressive_tree", GIVEN, {"method": "progressive_tree"}),
)
THEIRS = (
    ArmRow(HF_PLAIN, HUGGING_FACE, hugging_face="generate"),
    ArmRow(HF_ASSISTED, HUGGING_FACE, hugging_face="assisted"),
)
COMPILED = (ArmRow("hf_compiled", HUGGING_FACE, hugging_face="generate", options={"cache_implementation": "static"}),)


def branches(preset: str, gamma: int | str, overlap: str) -> dict[str, Any]:
    """A branch-parallel preset, whose jobs run as ``overlap`` says."""
    return {"preset": preset, "gamma": gamma, "overlap": overlap}


def static_rows(overlap: str) -> tuple[ArmRow, ...]:
    """The families of `STATIC`."""
    each = {"gamma": BRANCH_GAMMAS}
    decoders = {preset: branches(preset, "{gamma}", overlap) for preset in PRESETS}
    rows = (ArmRow(f"{preset}-{{gamma}}", preset, decoder, each=each) for preset, decoder in decoders.items())
    return (ALONE, CHAINS, *rows)
