"""Names that the benchmark writes and the report reads: arms, splits and files."""

import re
from dataclasses import dataclass

PLAIN, HF_PLAIN, HF_ASSISTED, HRAD = "autoregressive", "hf_generate", "hf_assisted", "hrad"
HF_FORWARD = "plain_hf_forward"  # plain decoding by our loop over Hugging Face's own forward
CHAIN, CONFIDENCE = "chain-", "confidence-"  # followed by γ and by ε
PEARL, SPECBRANCH = "pearl", "specbranch"
WITHOUT_HRAD, WITHOUT_BRANCHES = "specbranch-no-hrad", "specbranch-no-branch"  # the latter drafts, then verifies
BRANCH_PRESETS = (PEARL, SPECBRANCH, WITHOUT_HRAD, WITHOUT_BRANCHES)  # arms are named preset-γ
WALL = "-wall"  # behind an arm's name: draft and target really ran side by side
VALIDATION, TEST, REPLAY = "validation", "test", "replay"
MEASUREMENTS, REPLAYS, TIMELINES = "measurements.parquet", "replay.parquet", "timelines.json"
FINDINGS, PROVENANCE = "findings.json", "provenance.json"


@dataclass(frozen=True)
class BranchArm:
    """An arm of `BRANCH_PRESETS` taken apart: ``pearl-4-wall`` is PEARL at γ = 4 with both models at once.

    Examples
    --------
    >>> branch_arm("pearl-4-wall")
    BranchArm(preset='pearl', gamma=4, wall=True)
    >>> branch_arm("pearl-4-wall").family
    'pearl-wall'
    """

    preset: str
    gamma: int
    wall: bool = False

    @property
    def name(self) -> str:
        return f"{self.preset}-{self.gamma}{WALL if self.wall else ''}"

    @property
    def family(self) -> str:
        """The arms among which γ is chosen."""
        return f"{self.preset}{WALL if self.wall else ''}"


def branch_arm(name: str) -> BranchArm | None:
    """The parts of an arm's name; ``None`` for an arm of another kind."""
    found = re.fullmatch(rf"({'|'.join(BRANCH_PRESETS)})-(\d+)({WALL})?", name)
    return None if found is None else BranchArm(found[1], int(found[2]), found[3] is not None)
