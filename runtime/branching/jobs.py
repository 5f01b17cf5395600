"""Jobs of one request's draft, wherever they run, and the time that they overlap with the target's.

Where one runs after the other, the clock is virtual. The job would have begun with the target's pass, so both at once save

    overlapped = min(the draft's job, the target's work since its pass began).
"""

from dataclasses import replace

from torch import Tensor

from predictors.controllers import Controller
from predictors.rounds import RoundRecord
from predictors.signals import Root
from runtime.adapter import LanguageModel
from runtime.branching.candidates import Branches, Pending, Verdict
from runtime.branching.draft import BranchConfig, BranchDraft
from runtime.clock import PhaseClock
from runtime.overlap import Overlap
from runtime.randomness import Chance, spawn
from runtime.request import Request


class DraftJobs:
    """Calls of one request's `BranchDraft`, of a ``draft`` model by a ``config`` and a ``controller``. The methods are called
    in this order: ``open``, ``opened``, then every round ``advance``, ``branches`` and ``end_round``."""

    def __init__(
        self,
        draft: tuple[LanguageModel, BranchConfig, Controller],
        request: Request,
        overlap: Overlap,
        clock: PhaseClock,
    ) -> None:
        self._of_decoder = draft
        self._request = request
        self._executor = overlap.executor()
        self._clock = clock
        self._virtual = overlap.virtual
        self._overlapped = 0.0  # seconds of this round
        self._fork = clock.now
        self._draft: BranchDraft  # once the prompt is cached

    def open(self, chance: Chance, hidden_NKD: Tensor | None = None) -> None:
        """Begin to cache the prompt, concurrently with what the target does from now on; the draft draws from ``chance``.
        ``hidden_NKD``: the target's states along the prompt, where the draft reads any."""
        self._fork = self._clock.now
        self._executor.submit(self._open, replace(self._request, randomness=spawn(chance)), hidden_NKD)

    def _open(self, request: Request, hidden_NKD: Tensor | None) -> float:
        self._draft = BranchDraft(*self._of_decoder, request)
        return self._draft.begin(request.prompt, hidden_NKD)

    def opened(self) -> None:
        """Wait until the prompt is cached."""
        self._joined(self._executor.result())

    def advance(self, verdict: Verdict, root: Root, remaining: int) -> Pending:
        """Return the next pending block, and begin to grow the branches after it."""
        self._executor.submit(self._draft.advance, verdict, _known(root), remaining)
        self._executor.submit(self._draft.branch)
        pending: Pending = self._executor.result()
        self._clock.lap("draft")
        self._fork = self._clock.now
        return pending

    def branches(self) -> Branches:
        """Wait for the branches that were drafted during the target's pass, since ``advance``."""
        branches: Branches = self._executor.result()
        self._joined(branches.seconds)
        return branches

    def end_round(self, record: RoundRecord) -> None:
        """Write into the round's record the seconds that running both jobs concurrently would have saved."""
        record.concurrent, record.overlapped = True, self._overlapped
        self._overlapped = 0.0

    def close(self) -> None:
        """End the jobs: the request is over, or given up."""
        self._executor.close()

    def _joined(self, seconds: float) -> None:
        """Count a job of so many ``seconds`` that the target's side has waited for."""
        if self._virtual:
            self._overlapped += min(seconds, self._clock.now - self._fork)
        self._clock.lap("draft" if self._virtual else "wait")


def _known(root: Root) -> Root:
    """Hide from ``root`` what a controller may not know before it decides on a surviving branch: of the last round it may know
    the verdict, but not how far its branches were drafted, which depends on tokens that nobody verified."""
    previous = root.previous
    if previous is None:
        return root
    known = RoundRecord(
        drafted=previous.submitted,
        accepted=previous.accepted,
        emitted=previous.emitted,
        ends_segment=previous.ends_segment,
        bypassed=previous.bypassed,
    )
    return replace(root, previous=known)
