"""Names that the measurement writes and its readers read: arms, their families, splits and files."""

import re
from dataclasses import dataclass

# Arms. Others are named after what they are: a rule, an exported bundle, a configuration.
PLAIN, HF_PLAIN, HF_ASSISTED, HF_LOOKUP = "autoregressive", "hf_generate", "hf_assisted", "hf_prompt_lookup"
HRAD, LENGTH = "hrad", "length"
UNLEARNED = ("roc", "ema")  # rules with nothing to choose
ASKED = "forced"  # after the name of a stop model that runs although calibration leaves it off
METHODS = ("progressive_tree", "lookahead", "self_draft")  # without a draft model
# Families of arms; those of branch-parallel ones are `BranchArm.family`.
PLAIN_FAMILY, HUGGING_FACE = "plain", "hugging_face"
CHAIN, CONFIDENCE, ENTROPY = "chain", "confidence", "entropy"
RULE, LEARNED = "rule", "learned"  # rule: also stop models; learned: heads
LOOKUP, TAKEOVER = "lookup", "static takeover"  # a lookup alone, and one that takes over from a chain by a fixed rule
SOURCE = "source"  # the bundle that weighs both
FORK, CONFIG, DYNAMIC = "fork", "config", "dynamic fork"
SELECTOR = "selector"  # of delayed trees
CALIBRATED, GIVEN = "calibrated", "given"  # methods without a draft model: as exported, by configuration
TREES = (FORK, CONFIG, DYNAMIC)

PEARL, SPECBRANCH = "pearl", "specbranch"
WITHOUT_HRAD, WITHOUT_BRANCHES = "specbranch-no-hrad", "specbranch-no-branch"  # the latter drafts, then verifies
# As the paper has it; the same deciding a priori how far branches grow; with an explicit length for branches.
PAPER, PRIOR, EXPLICIT = "specbranch-paper", "specbranch-prior", "specbranch-length"
# Arms: preset-γ, or preset-γd-γ, γd that of idle draft stages.
BRANCH_PRESETS = (PEARL, SPECBRANCH, PAPER, PRIOR, EXPLICIT, WITHOUT_HRAD, WITHOUT_BRANCHES)
VALIDATION, TEST = "validation", "test"
DECODES_FILE, ROUNDS_FILE = "decodes.parquet", "rounds.parquet"
CHOICES = "choices.json"  # of tuning
FINDINGS, PROVENANCE = "findings.json", "provenance.json"


def chain_gamma(arm: str) -> int | None:
    """γ of a static chain; ``None`` for an arm of another kind.

    Examples
    --------
    >>> chain_gamma("chain-4"), chain_gamma("early_stop-1")
    (4, None)
    """
    found = re.fullmatch(rf"{CHAIN}-(\d+)", arm)
    return None if found is None else int(found[1])


@dataclass(frozen=True)
class BranchArm:
    """An arm of `BRANCH_PRESETS` taken apart: branches of ``specbranch-no-hrad-4-8`` have 8 tokens, idle draft stages 4.

    Examples
    --------
    >>> branch_arm("specbranch-no-hrad-4-8")
    BranchArm(preset='specbranch-no-hrad', lengths=(4, 8))
    """

    preset: str
    lengths: tuple[int, ...]  # γ of branches, before it that of an idle draft stage if it is another

    @property
    def name(self) -> str:
        return f"{self.preset}-{'-'.join(map(str, self.lengths))}"

    @property
    def family(self) -> str:
        """The arms among which lengths are chosen."""
        return self.preset


def branch_arm(name: str) -> BranchArm | None:
    """The parts of an arm's name; ``None`` for an arm of another kind."""
    found = re.fullmatch(rf"({'|'.join(BRANCH_PRESETS)})-(\d+(?:-\d+)?)", name)
    return None if found is None else BranchArm(found[1], tuple(map(int, found[2].split("-"))))
