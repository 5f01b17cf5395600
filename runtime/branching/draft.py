"""The draft model's half of a branch-parallel request (specification of drafting, section 3.4).

    advance   settle the last verdict; then draft a pending block with the target idle, or keep what the controller retains of the
              branch that survived
    branch    try candidates at the point after the pending block and draft on after each, while the target verifies

Branches hang under the pending block's end. Which tokens are submitted is settled from distributions, before they are read:
retention walks down the branch by the same hooks that stop drafting. Shape suffixes: A branches that still grow, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from predictors.config import NotNegative, one_of
from predictors.controllers import Controller, Session
from predictors.rounds import BranchSettings, RoundRecord
from predictors.signals import DrawnToken, NextLaw, Root
from runtime.adapter import LanguageModel, Row
from runtime.branching.candidates import NO_BRANCHES, Branches, Candidates, Pending, Verdict, draw_candidates
from runtime.device import PhaseClock
from runtime.drafting.chain import Chain, ChainDraft
from runtime.request import Request


@dataclass(frozen=True)
class BranchConfig(BranchSettings):
    """Configuration of drafting ahead: how far and how wide (`BranchSettings`), and where it runs.

    Parameters
    ----------
    overlap
        ``streams``: the draft in a thread, on its own CUDA stream; ``threads``: in a thread; ``none``: one job after the other,
        with a virtual clock; ``auto``: ``streams`` on CUDA devices, else ``threads`` (``none`` on one core).
    draft_temperature
        As in `ChainConfig`.
    """

    overlap: Annotated[str, one_of("auto", "streams", "threads", "none")] = "auto"
    draft_temperature: NotNegative | None = None


@dataclass
class Branch:
    """A candidate's node, then those drafted after it, with their ``drawn`` tokens (0-d; ``tokens`` as far as the host has read
    them); ``rows[j]`` and the distribution ``probs[j]`` are those after node j."""

    nodes: list[int]
    drawn: list[Tensor]
    tokens: list[int]
    rows: list[Row] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class BranchDecoderConfig(BranchConfig):
    """Configuration of method ``branch_parallel``: drafting ahead, the ``verifier``, the ``controller``, its ``epsilon``."""

    method: str = "branch_parallel"
    verifier: str = "block"
    controller: dict | None = None
    epsilon: float | None = None


class BranchDraft(ChainDraft):
    """One request's draft model state, pending block and branches."""

    def __init__(self, model: LanguageModel, config: BranchConfig, controller: Controller, request: Request) -> None:
        super().__init__(model, request, config.draft_temperature)
        self._config = config
        self._session = controller.start(request.sampling)
        self._kind = "match" if request.settings.greedy else config.branch_verifier
        self._observe = request.observe
        self._clock = PhaseClock()
        self._root: Root  # the round's, from `advance` on
        self._record: RoundRecord  # likewise: the draft's part of it
        self._pending = Chain()
        self._branches: list[Branch] = []
        self._num_nodes = 0
        self._cap = 0
        self._remaining = 0

    @torch.inference_mode()
    def begin(self, prompt: list[int], hidden_NKD: Tensor | None = None) -> float:
        """Cache the prompt; return the seconds that it took."""
        self._clock.resume()
        self.prefill(prompt, [], hidden_NKD)
        self._clock.lap("draft")
        return sum(self._clock.end_round().values())

    @torch.inference_mode()
    def advance(self, verdict: Verdict, root: Root, remaining: int) -> Pending:
        """Draft the next pending block after ``root``; ``remaining`` tokens may still be emitted."""
        self._clock.resume()
        self._remaining = remaining
        self.passes = 0
        if root.previous is not None:
            self._session.end_round(root.previous)
        self._root = root
        planned = self._session.plan(root)
        self._cap = root.cap if planned is None else min(planned, root.cap)
        self._clock.lap("controller")
        drafted = trimmed = 0
        if verdict.branch is not None:
            self._offer(verdict.hidden_NKD)
            trimmed = self._retain(verdict.branch)
        else:  # all branches go
            self.commit(range(len(verdict.accepted)), verdict.accepted, [verdict.newest], verdict.hidden_NKD)
            self._pending = Chain()
            if self._config.draft_stage == "idle":
                most = min(self._cap, self._config.draft_stage_gamma or self._config.gamma, remaining - 1)
                self._pending = self.draw(root, most, self._session, self._clock)
                drafted = len(self._pending.tokens)
        tree, observed = self._pending.tree(), self._pending.laws if self._observe else []
        self._clock.lap("draft")
        self._record = RoundRecord(
            drafted=drafted,
            levels=drafted,
            submitted=tree.num_nodes,
            idle_levels=drafted,
            trimmed=trimmed,
            passes=self.passes,
            asked=self._session.asked,
            bypassed=self._session.bypassed,
            forecasts=tuple(self._session.forecasts),
        )
        return Pending(tree, self._record, observed)

    @torch.inference_mode()
    def branch(self) -> Branches:
        """Grow branches after the pending block, as far as tokens may still be submitted after a branch token."""
        self._clock.end_round()
        self._clock.resume()
        tokens = self._pending.tokens
        self._branches, self._num_nodes = [], len(tokens)
        length = min(self._config.gamma, self._remaining - len(tokens) - 2)
        if length < 1 or (tokens and self._sampler.reads and int(tokens[-1]) in self._eos_tokens):
            return NO_BRANCHES
        law = self._branch_point()
        if law is None:
            return Branches(record=self._with_branches())
        wanted = self._session.branch_count(law)
        count = self._config.num_branches(law.confidence) if wanted is None else wanted
        if count < 0:
            raise ValueError(f"a controller's branch_count must be >= 0 or None, got {count}.")
        if count == 0:
            return Branches(record=self._with_branches())
        candidates = draw_candidates(self._kind, law, count, self._sampler)
        parent = self._num_nodes - 1
        for drawn in candidates.tokens:
            self._branches.append(Branch([self._new_node()], [drawn], []))
        if self._config.retention == "prior":
            length = min(length, self._cap)
        self._clock.lap("draft")
        levels = 1 + self._grow(length, parent)
        candidates = self._read(candidates)
        record = self._with_branches()
        record.drafted += sum(len(branch.drawn) for branch in self._branches)
        record.levels += levels
        record.candidates = len(candidates.tokens)
        record.law_known = self._pending.next_law is not None
        self._clock.lap("draft")
        return Branches(candidates, record, sum(self._clock.end_round().values()))

    def _with_branches(self) -> RoundRecord:
        """Return the round's record with what passes and queries of the controller have come to."""
        return replace(self._record, passes=self.passes, asked=self._session.asked)

    def _branch_point(self) -> NextLaw | None:
        """Return the distribution after the pending block, known where drafting stopped before a token; ``None`` without one."""
        if self._pending.next_law is not None or self._pending.silent:
            return self._pending.next_law
        row = self._next_row(self._pending)
        return None if any(self._silent[-1:]) else self._law(self._root, len(self._pending.tokens), row)

    def _grow(self, length: int, parent: int) -> int:
        """Draft up to ``length`` tokens after every branch token; return the deepest branch's length."""
        growing = list(self._branches)
        deepest = 0
        for depth in range(length):
            if self._sampler.reads:
                self._read_tokens()
                growing = [branch for branch in growing if branch.tokens[-1] not in self._eos_tokens]
            if not growing:
                break
            parents = [branch.nodes[-2] if depth else parent for branch in growing]
            newest = torch.stack([branch.drawn[-1] for branch in growing])
            rows = self._feed([branch.nodes[-1] for branch in growing], newest, parents)
            if any(self._silent):
                saying = [place for place, silent in enumerate(self._silent) if not silent]
                growing, rows = [growing[place] for place in saying], [rows[place] for place in saying]
                if not growing:
                    break
            probs_AV = self._sampler.law(torch.stack([logits_V for logits_V, _ in rows]))
            for branch, row, probs_V in zip(growing, rows, probs_AV, strict=True):
                branch.rows.append(row)
                branch.probs.append(probs_V)
            if self._config.retention == "prior":
                going = [branch for branch in growing if not self._session.stop_before(self._branch_law(branch, depth))]
                if not going:
                    break
                if len(going) < len(growing):
                    growing, probs_AV = going, torch.stack([branch.probs[-1] for branch in going])
            deepest = depth + 1
            growing = self._draw_level(growing, probs_AV, depth)
        return deepest

    def _draw_level(self, growing: Sequence[Branch], probs_AV: Tensor, depth: int) -> list[Branch]:
        """Draw one more token on each branch, from its distribution; return those that go on."""
        going = []
        for branch, token in zip(growing, self._sampler.token(probs_AV), strict=True):
            branch.nodes.append(self._new_node())
            branch.drawn.append(token)
            if self._config.retention == "posterior" or not self._stops_after(branch, depth):
                going.append(branch)
        return going

    def _read_tokens(self, along: Sequence[Tensor] = ()) -> list[int]:
        """Read on the host, all at once, what was drawn since the last time, and what is read ``along`` (0-d)."""
        unread = [(branch, token) for branch in self._branches for token in branch.drawn[len(branch.tokens) :]]
        if not unread and not along:
            return []
        numbers: list[int] = torch.stack([*along, *(token for _, token in unread)]).tolist()
        for (branch, _), token in zip(unread, numbers[len(along) :], strict=True):
            branch.tokens.append(token)
        return numbers[: len(along)]

    def _read(self, candidates: Candidates) -> Candidates:
        """Read all tokens, and drop branches of candidates that do not exist."""
        if candidates.number is None:
            self._read_tokens()
            return candidates
        (number,) = self._read_tokens([candidates.number])
        self._branches = self._branches[:number]
        return candidates.read([branch.tokens[0] for branch in self._branches])

    def _stops_after(self, branch: Branch, depth: int) -> bool:
        return bool(self._session.stop_after(DrawnToken(self._branch_law(branch, depth), branch.drawn[-1])))

    def _branch_law(self, branch: Branch, depth: int) -> NextLaw:
        """Return the distribution after the branch's token at ``depth`` (0: the branch token), as a controller sees it."""
        logits_V, hidden_KD = branch.rows[depth]
        return NextLaw(self._root, self._settings, depth, logits_V, branch.probs[depth], hidden_KD)

    def _retain(self, place: int) -> int:
        """Commit the pending block and the branch token that was hit; what the controller retains of the branch is pending now.
        Return how many levels it trimmed."""
        branch = self._branches[place]
        available = len(branch.tokens) - 1
        most, session, pending = min(available, self._remaining - 1), Session(), Chain()
        if self._config.retention == "posterior":
            most, session = min(most, self._cap), self._session
        while len(pending.tokens) < most:
            law = self._branch_law(branch, len(pending.tokens))
            if bool(session.stop_before(law)):
                break
            token = branch.drawn[1 + len(pending.tokens)]
            pending.laws.append(law)
            pending.tokens.append(token)
            if bool(session.stop_after(DrawnToken(law, token))):
                break
        kept = len(pending.tokens)
        if kept < len(branch.probs):
            pending.next_law = self._branch_law(branch, kept)
        self._clock.lap("controller")
        self._commit_branch(branch, kept)
        self._pending = pending
        return available - kept

    def _commit_branch(self, branch: Branch, kept: int) -> None:
        committed = [*range(len(self._pending.tokens)), branch.nodes[0]]
        fed = [self._scratch[node] for node in committed if node in self._scratch]
        tail = [self._scratch[node] for node in branch.nodes[1 : 1 + kept] if node in self._scratch]
        self._state.keep([*fed, *tail], pending=len(tail))
        self._scratch = {node: node for node in range(len(tail))}
        self._uncached = [] if len(fed) == len(committed) else [branch.tokens[0]]

    def _new_node(self) -> int:
        self._num_nodes += 1
        return self._num_nodes - 1
