"""What happened in a round, and the field's metrics over rounds.

A *round* is one target pass. Words used everywhere: *drafted* tokens were proposed, *accepted* ones survived verification,
*emitted* ones reached the output (accepted plus the one token the target adds, cut at end-of-sequence and budget), *rolled
back* ones were drafted and rejected, *trimmed* ones were drafted and dropped before verification.

    block efficiency  = emitted / target passes                                (round 0, the prefill, is outside)
    m_excl            = accepted tokens per segment;   m_incl = m_excl + 1     (a segment ends at every rollback)
    rollback rate     = rolled back / drafted levels                           (one level of a tree is one draft step)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

PHASES = ("draft", "target", "verify", "controller")


@dataclass
class RoundRecord:
    """One round, host-side numbers only. ``levels`` counts the drafted levels (by default a chain's, one per token),
    of which ``rolled_back`` were not accepted; ``bypassed``: a learned controller stood aside and a static setting drafted;
    ``seconds`` maps a phase of `PHASES` to wall-clock seconds."""

    drafted: int = 0
    levels: int = -1
    accepted: int = 0
    emitted: int = 0
    rolled_back: int = 0
    trimmed: int = 0
    ends_segment: bool = True
    bypassed: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.levels < 0:
            self.levels = self.drafted


def block_efficiency(rounds: Sequence[RoundRecord]) -> float:
    """Emitted tokens per target pass; ``rounds`` without the prefill round. NaN without rounds."""
    return _ratio(sum(record.emitted for record in rounds), len(rounds))


def mean_accepted_length(rounds: Sequence[RoundRecord], include_correction: bool) -> float:
    """Accepted tokens per segment, plus the corrected or bonus token if ``include_correction`` (``m_incl``)."""
    segments = sum(record.ends_segment for record in rounds)
    mean = _ratio(sum(record.accepted for record in rounds), segments)
    return mean + 1 if include_correction else mean


def rollback_rate(rounds: Sequence[RoundRecord]) -> float:
    """Rolled-back levels per drafted level. NaN when nothing was drafted."""
    return _ratio(sum(record.rolled_back for record in rounds), sum(record.levels for record in rounds))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
