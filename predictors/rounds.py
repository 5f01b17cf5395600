"""Records of rounds, the field's metrics over them, and the settings that rounds of branch-parallel decoding follow from.

A *round* is one target pass. Words used everywhere: *drafted* tokens were proposed, *accepted* ones survived verification,
*emitted* ones reached the output (accepted plus the one token the target adds, cut at end-of-sequence and budget), *rolled
back* ones were drafted and rejected, *trimmed* ones were drafted and dropped before verification.

    block efficiency  = emitted / target passes                                (round 0, the prefill, is outside)
    m_excl            = accepted tokens per segment;   m_incl = m_excl + 1     (a segment ends at every rollback)
    rollback rate     = rolled back / drafted levels                           (one level of a tree is one draft step)

Of a model that drafts for itself, where a pass may find nothing to verify (paper on progressive tree drafting, section 4.1):

    hit rate      HR  = rounds with candidates / rounds
    accept length AL  = committed tokens per round with candidates             (committed: accepted and one more, not cut)
    efficiency    DE  = committed tokens per round = HR AL + 1 - HR            (a round without candidates commits one token)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from torch import Tensor

from predictors.config import Checked, Count, one_of

PHASES = ("draft", "target", "verify", "controller", "wait")
K_RULES: dict[str, Callable[[float], int]] = {"floor": math.floor, "ceil": math.ceil}
CHOICES = {
    "k_rule": ("floor", "ceil", "const"),
    "branch_verifier": ("match", "rrs", "hybrid"),
    "retention": ("posterior", "prior"),
    "draft_stage": ("idle", "preverify"),
}


class Forecast(NamedTuple):
    """A learned controller's prediction: if the target accepts the first ``place`` tokens of a round's chain, it accepts the next
    one with this ``probability``."""

    place: int
    probability: float
    distance: float  # squared, of its features from the training rows
    sketch: tuple[float, ...] = ()  # the first of their standardised coordinates


@dataclass
class RoundRecord:
    """Record of one round, host-side numbers only. Where a branch point's token was hit, it is one more ``accepted`` one."""

    drafted: int = 0
    levels: int = -1  # drafted ones; by default a chain's, one per token
    submitted: int = -1  # levels that the target tested, of which the first ``accepted`` passed; by default all
    idle_levels: int = 0  # drafted while the target waited, by a decoder that else drafts concurrently
    guessed: int = 0  # tokens in the target's pass that are not tested: a model drafting for itself goes on from them
    candidates: int = 0  # tried at the branch point
    law_known: bool = False  # the draft's probabilities there were, as drafting had stopped at them or a branch was cut
    accepted: int = 0
    emitted: int = 0
    rolled_back: int = 0  # levels that were not accepted
    trimmed: int = 0
    looked_up: int = 0  # tokens, the first ones, that came from a lookup
    passes: int = 0  # of the draft model
    asked: int = 0  # queries of a controller's model
    ends_segment: bool = True
    bypassed: bool = False  # a learned controller was not run and a static setting drafted
    forecasts: tuple[Forecast, ...] = ()  # about the chain that was submitted; of a tree there are none
    seconds: dict[str, float] = field(default_factory=dict)  # wall-clock, by phase of `PHASES`
    concurrent: bool = False  # the draft may work during the target's pass
    overlapped: float = 0.0  # seconds that both at once would have saved; 0 where they really were

    def __post_init__(self) -> None:
        if self.levels < 0:
            self.levels = self.drafted
        if self.submitted < 0:
            self.submitted = self.levels

    @property
    def nodes(self) -> int:
        """Drafted tokens in the target's pass: all, or the block of a decoder that drafts concurrently."""
        return self.submitted if self.concurrent else self.drafted

    @property
    def accepted_in_sequence(self) -> int:
        """Accepted tokens of the ``submitted`` levels: without a branch point's hit."""
        return min(self.accepted, self.submitted)


@dataclass(kw_only=True)
class ReplayedRound(RoundRecord):
    """Record of a round on a recorded text, as the runtime would write it, and what its price depends on besides. Of rounds with
    branches ``passes`` are their levels, and ``drafted`` counts branches that end early whole.

    Of distributions without a query of a model, the host read the confidence of ``confidences`` and also the entropy of
    ``entropies``, while the target waited. The first draft pass feeds ``behind`` tokens more than one: those of rounds that
    drew nothing, this round's lookup, and, of a draft that reads the target's states, those accepted the round before."""

    context: int  # cached tokens before the round: all committed ones but the newest
    confidences: int = 0
    entropies: int = 0
    behind: int = 0
    beyond: int = 0  # of the submitted levels, those that a lookup beside the chain has alone
    survived: bool = False  # a branch did, the round before: the block is what was retained of it

    @property
    def idle_passes(self) -> int:
        """Draft passes with the target idle."""
        return self.idle_levels + (self.law_known and not self.survived)

    @property
    def chain(self) -> int:
        """Submitted levels of the chain."""
        return self.submitted - self.beyond

    @property
    def grown_levels(self) -> int:
        """Branch levels after the candidates'."""
        return max(0, self.levels - self.idle_levels - 1)

    @property
    def rows(self) -> float:
        """Mean number of tokens on the grown levels."""
        tokens = self.drafted - self.idle_levels - self.candidates
        return tokens / self.grown_levels if self.grown_levels else 0.0


def block_efficiency(rounds: Sequence[RoundRecord]) -> float:
    """Compute emitted tokens per target pass, of ``rounds`` without the prefill round. NaN without rounds."""
    return _ratio(sum(record.emitted for record in rounds), len(rounds))


def mean_accepted_length(rounds: Sequence[RoundRecord], include_correction: bool) -> float:
    """Compute accepted tokens per segment, plus the corrected or bonus token if ``include_correction`` (``m_incl``)."""
    segments = sum(record.ends_segment for record in rounds)
    mean = _ratio(sum(record.accepted for record in rounds), segments)
    return mean + 1 if include_correction else mean


def hit_rate(rounds: Sequence[RoundRecord]) -> float:
    """Compute the share of rounds that had something to verify. NaN without rounds."""
    return _ratio(sum(record.drafted > 0 for record in rounds), len(rounds))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")


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
