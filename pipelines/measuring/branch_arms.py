"""The benchmark's branch-parallel arms, ``preset-γ``: on the virtual clock, or (``preset-γ-wall``) with both models at once.

PEARL and SpecBranch without H-RAD are static in γ, which is chosen on validation prompts, the latter also with shorter draft
stages (``preset-γd-γ``); those with H-RAD come from bundles, whose γ their head speaks of.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from pipelines.measuring.names import PEARL, SPECBRANCH, WALL, WITHOUT_BRANCHES, WITHOUT_HRAD, BranchArm, branch_arm
from predictors.bundle import read_bundle
from runtime import Decoder, ModelPair, build_decoder, load_decoder

STATIC = (PEARL, WITHOUT_HRAD)
LEARNED = (SPECBRANCH, WITHOUT_BRANCHES)


def branch_decoders(
    pair: ModelPair, gammas: Sequence[int], draft_stages: Sequence[int], bundles: Mapping[str, Path]
) -> dict[str, Decoder]:
    """Decoders by arm, all on the virtual clock; presets without a bundle among ``bundles`` are left out. Of ``draft_stages``
    those are tried that are shorter than a branch."""
    arms = [BranchArm(preset, gamma) for preset in STATIC for gamma in gammas]
    arms += [BranchArm(WITHOUT_HRAD, gamma, stage) for gamma in gammas for stage in draft_stages if stage < gamma]
    arms += [BranchArm(preset, bundle_gamma(bundles[preset])) for preset in LEARNED if preset in bundles]
    return {arm.name: _decoder(pair, arm, bundles) for arm in arms}


def wall_decoders(pair: ModelPair, names: Iterable[str], bundles: Mapping[str, Path]) -> dict[str, Decoder]:
    """The same arms with a draft process each (on accelerators a stream); not sequential decoders, whose clock is the wall's."""
    arms = [arm for arm in map(branch_arm, names) if arm is not None and arm.preset != WITHOUT_BRANCHES]
    on_cpu = torch.device(getattr(pair.draft, "device", "cpu")).type == "cpu"
    overlap = "processes" if on_cpu else "streams"
    return {arm.name + WALL: _decoder(pair, arm, bundles, overlap) for arm in arms}


def bundle_gamma(bundle: Path) -> int:
    """γ of an exported bundle's decoder."""
    return int(read_bundle(bundle).card["decoder"]["gamma"])


def _decoder(pair: ModelPair, arm: BranchArm, bundles: Mapping[str, Path], overlap: str = "none") -> Decoder:
    own = {} if arm.preset == WITHOUT_BRANCHES else {"overlap": overlap}
    if arm.preset in LEARNED:
        return load_decoder(bundles[arm.preset], pair, own)
    lengths = {"gamma": arm.gamma, **({} if arm.draft_stage is None else {"draft_stage_gamma": arm.draft_stage})}
    return build_decoder(pair, {"preset": arm.preset, **lengths, **own})
