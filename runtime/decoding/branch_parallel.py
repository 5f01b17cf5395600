"""The branch-parallel loop: the draft grows branches after the pending block while the target verifies it (SpecBranch).

    advance    the draft settles the last verdict; its controller retains a part of the surviving branch, or drafts anew
    fork       target: one pass over the newest token and the pending block      draft: candidates and branches after the block
    join       the block is verified; if all of it is accepted, the branch verifier gets the target's distribution after it

Where one job runs after the other, the clock is virtual: the draft's would have begun with the target's pass, and both at once
save overlapped = min(the draft's job, the target's work since its pass began).

One exchange per round: the verdict goes out, the next block and then the branches come back. Round 0 prefills both models
concurrently. Source: specification of drafting, section 3.4. Shape suffixes: R rows of the pass, V vocabulary.
"""

from dataclasses import replace

from torch import Tensor

from predictors.controllers import Controller
from predictors.rounds import RoundRecord
from predictors.signals import Root
from runtime.adapter import LanguageModel, features_of
from runtime.branching.candidates import Branches, Pending, Verdict, draw_at_branch_point
from runtime.branching.draft import BranchConfig, BranchDraft
from runtime.decoding.base import Decoder, Evidence, Step
from runtime.decoding.run import Run
from runtime.device import PhaseClock
from runtime.laws import processed_law
from runtime.overlap import Overlap
from runtime.pair import ModelPair
from runtime.randomness import Chance, spawn, stream
from runtime.request import Request
from runtime.tree import TokenTree, behind
from runtime.verification import Verifier
from runtime.verification.outcome import greedy_verdict


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


class BranchParallelDecoder(Decoder):
    """Drafts and verifies concurrently; ``verifier`` is the pending block's, ``overlap`` is where the draft runs."""

    def __init__(self, pair: ModelPair, config: BranchConfig, verifier: Verifier, controller: Controller) -> None:
        super().__init__(pair, controller)
        self.config = config
        self.verifier = verifier
        assert pair.draft is not None
        self.draft = (pair.draft, config, controller)
        if pair.draft.programs is not None:
            controller.graph_with(pair.draft.programs.maker)  # it runs where the draft does
        self.overlap = Overlap(config.overlap, pair.draft.device, pair.target.device)

    @property
    def depth(self) -> int:
        return self.config.gamma

    @property
    def features(self) -> tuple[int, ...]:
        assert self.pair.draft is not None
        return features_of(self.pair.draft)

    @property
    def context_limit(self) -> int:
        assert self.pair.draft is not None
        return min(self.pair.target.context_limit, self.pair.draft.context_limit)

    def _open(self, request: Request) -> "BranchRun":
        return BranchRun(self, request)


class BranchRun(Run):
    def __init__(self, decoder: BranchParallelDecoder, request: Request) -> None:
        super().__init__(decoder, request)
        self.overlap = decoder.overlap
        self.verifier = decoder.verifier
        self.graphed = self._graphed_verdicts(decoder.verifier)
        self.jobs = DraftJobs(decoder.draft, request, decoder.overlap, self.clock)
        self.verdict = Verdict((), -1)

    def step(self) -> Step:
        with self.overlap.target_threads():
            return super().step()

    def close(self) -> None:
        self.jobs.close()

    def _begin_draft_prefill(self) -> None:
        if not self.features:
            self.jobs.open(stream(self.request.randomness, "draft"))

    def _end_draft_prefill(self, step: Step, hidden_NKD: Tensor | None) -> None:
        if self.features:
            self.jobs.open(stream(self.request.randomness, "draft"), hidden_NKD)
        self.jobs.opened()
        self.jobs.end_round(step.record)
        self.verdict = Verdict((), self.newest)

    def round(self) -> Step:
        """Settle the last round, then verify the pending block while the draft grows branches."""
        root = self._root()
        pending = self.jobs.advance(self.verdict, root, self.remaining)
        out = self.target.forward(behind(self.newest, pending.tree.tokens))
        self.clock.lap("target")
        accepted, token, law_V = self._verify(pending.tree, out.logits)
        self.clock.lap("verify")
        branches = self.jobs.branches()
        branch = None
        if accepted == pending.tree.num_nodes:
            token, branch = self._at_branch_point(branches, token, law_V)
        hidden_NKD = self._tapped(out, self.features)
        known = None if hidden_NKD is None else hidden_NKD[: accepted + 1]
        self.verdict = Verdict(pending.tree.token_list[:accepted], token, branch, known)
        self.target.keep(range(1 + accepted))
        self._move(out, accepted, token)
        record = self._ended(branches.record or pending.record)
        self.clock.lap("verify")
        self.jobs.end_round(record)
        evidence = None
        if self.request.observe:
            target_probs = processed_law(out.logits, self.request.settings)
            tapped = self._tapped(out, self.request.layers)
            evidence = Evidence(root, pending.tree, pending.laws, target_probs, tapped)
        return Step([*self.verdict.accepted, token], record, evidence)

    def _verify(self, tree: TokenTree, logits_RV: Tensor) -> tuple[int, int, Tensor]:
        """Verify the pending block: the accepted tokens, and the token after a rejection; after the last, the distribution [V] at
        the branch point instead (at temperature 0 its one token)."""
        if self.request.settings.greedy:
            accepted, token = greedy_verdict(tree, logits_RV)
            return accepted, token, logits_RV[accepted]
        if self.graphed is not None:
            accepted, token, law_V = self.graphed.draw(tree, logits_RV)
            return accepted, token, law_V.clone()
        law = self.verifier(tree, processed_law(logits_RV, self.request.settings))
        if not tree.num_nodes:
            return 0, -1, law.residual(0)
        accepted = int(self.chance.categorical(law.stop))
        law_V = law.residual(accepted)
        token = -1 if accepted == tree.num_nodes else int(self.chance.categorical(law_V))
        return accepted, token, law_V

    def _at_branch_point(self, branches: Branches, token: int, law_V: Tensor) -> tuple[int, int | None]:
        """Draw the token at the branch point, and find the branch that starts with it."""
        if self.request.settings.greedy:
            return token, None if branches.candidates is None else branches.candidates.place(token)
        if branches.candidates is None:
            return int(self.chance.categorical(law_V)), None
        return draw_at_branch_point(branches.candidates, law_V, self.chance)

    def _ended(self, record: RoundRecord) -> RoundRecord:
        """Add the verdict to the draft's part of the round's ``record``."""
        hit, accepted = self.verdict.branch is not None, len(self.verdict.accepted)
        branch_levels = record.levels - record.idle_levels
        rolled_back = 0 if hit else record.submitted - accepted + branch_levels
        return replace(record, accepted=accepted + hit, rolled_back=rolled_back, ends_segment=not hit)
