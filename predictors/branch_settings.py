"""Settings of branch-parallel decoding that its rounds follow from, whether they are run, replayed or priced (SpecBranch;
specification of drafting, section 3)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from predictors.config import Checked, Count, one_of

K_RULES: dict[str, Callable[[float], int]] = {"floor": math.floor, "ceil": math.ceil}
CHOICES = {
    "k_rule": ("floor", "ceil", "const"),
    "branch_verifier": ("match", "rrs", "hybrid"),
    "retention": ("posterior", "prior"),
    "draft_stage": ("idle", "preverify"),
}


@dataclass(frozen=True)
class BranchSettings(Checked):
    """Settings of drafting ahead: how far and how wide.

    gamma                most tokens of a branch after its branch token (L of the specification)
    draft_stage_gamma    most tokens of an idle draft stage (γ_d of the specification), at most ``gamma``, and that if ``None``.
                         They always cost time, those of branches only beyond the target's pass: the best is often shorter
    k_max                most branches: max(1, rule(k_max (1 - max_x q_b(x)))), q_b that of the branch point at temperature 1
    k_rule               ``floor`` (the paper's; never reaches k_max), ``ceil``, or ``const`` for k_max always
    branch_verifier      how the token at the branch point is verified above temperature 0: ``match`` (most likely tokens; a hit
                         where the target draws one of them), ``rrs`` (draws without replacement, recursive rejection
                         sampling) or ``hybrid`` (k - 1 most likely tokens, and one draw from the rest); at 0 all are ``match``
    retention            ``posterior``: the controller decides how much of the surviving branch to keep, from the state after it;
                         ``prior``: how far to draft the branches, from a state that is one round old. Exact both ways, as either
                         decision reads what stands in front of a token only. Learned thresholds are made for ``posterior``
    draft_stage          after a rollback, ``idle``: draft with the target idle; ``preverify``: branches at once, as PEARL
    """

    gamma: Count = 8
    draft_stage_gamma: Count | None = None
    k_max: Count = 6
    k_rule: Annotated[str, one_of(*CHOICES["k_rule"])] = "ceil"
    branch_verifier: Annotated[str, one_of(*CHOICES["branch_verifier"])] = "rrs"
    retention: Annotated[str, one_of(*CHOICES["retention"])] = "posterior"
    draft_stage: Annotated[str, one_of(*CHOICES["draft_stage"])] = "idle"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draft_stage_gamma is not None and self.draft_stage_gamma > self.gamma:
            raise ValueError(
                f"draft_stage_gamma={self.draft_stage_gamma} exceeds gamma={self.gamma}, the most tokens of a pending block. "
                "Raise gamma, or lower it."
            )
        if self.draft_stage_gamma is not None and self.draft_stage == "preverify":
            raise ValueError(
                f"draft_stage_gamma={self.draft_stage_gamma} bounds idle draft stages, and with draft_stage 'preverify' there "
                "are none. Leave it out."
            )

    def num_branches(self, confidence: float | Tensor) -> int:
        """Return the branches at a point whose distribution has maximum ``confidence``, read only if they depend on it."""
        if self.k_rule == "const":
            return self.k_max
        return max(1, K_RULES[self.k_rule](self.k_max * (1 - float(confidence))))
