"""Tokens to try at a branch point, and the distribution of the verdict on them (specification of drafting, section 2); and what
the halves of a branch-parallel request exchange every round: a verdict goes out, a block and then branches come back.

match    S = the k most likely tokens of q; z ~ p; a hit iff z is in S.                                    P(hit) = p(S)
rrs      x_1 … x_k ~ q without replacement, tried in that order by recursive rejection sampling.
hybrid   T = the k - 1 most likely tokens, x ~ q off T; z ~ p; a hit iff z is in T. Otherwise, with p~ and q~ both off T,
         x is a hit with probability min(1, p~(x) / q~(x)), and after a miss z ~ norm [p~ - q~]_+. (Where q has fewer tokens than
         asked for, the last of them is all that is left: the same formulas.)

All leave z ~ p whatever the draws. The order of draws is kept, nothing drawn is dropped. Shape suffixes: K tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from predictors.rounds import RoundRecord
from predictors.signals import NextLaw
from runtime.drafting.sampler import PlainSampler, most_likely, read_rows
from runtime.randomness import Chance
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import VERIFIERS
from runtime.verification.outcome import OutcomeLaw, normalised, normalised_or


@dataclass(frozen=True)
class Candidates:
    """Candidate ``tokens`` [K] int64 in draw order, all distinct; ``draft_V`` [V], the distribution they come from. Where the
    host has read none of it yet, the first ``number`` (0-d) of them are meant."""

    tokens: Tensor
    draft_V: Tensor
    kind: str
    number: Tensor | None = None

    @cached_property
    def token_list(self) -> list[int]:
        """The candidate tokens on the host."""
        tokens: list[int] = self.tokens.tolist()
        return tokens

    def read(self, tokens: list[int]) -> "Candidates":
        """Return these candidates as the host knows them, once it has read their ``number`` and these ``tokens``."""
        known = Candidates(self.tokens[: len(tokens)], self.draft_V, self.kind)
        vars(known)["token_list"] = tokens
        return known

    def place(self, token: int) -> int | None:
        """Return the index of ``token`` among the candidates; ``None`` if it is none."""
        return self.token_list.index(token) if token in self.token_list else None

    def verdict_law(self, target_V: Tensor) -> OutcomeLaw:
        """Compute the verdict's distribution under the target's [V]: row 0 is a miss, whose token ``residual(0)`` gives, row
        i + 1 a hit of candidate i."""
        tokens_K = self.tokens.to(target_V.device)
        if self.kind == "match":
            return _hits(target_V[tokens_K], _without(target_V, tokens_K), target_V)
        if self.kind == "hybrid":
            return _hybrid_law(tokens_K, self.draft_V.to(target_V), target_V)
        count = len(self.tokens)
        tree = TokenTree(
            tokens=self.tokens,
            parents=torch.full((count,), -1),
            draft_probs=self.draft_V.expand(count + 1, -1),
            law=DraftLaw.WITHOUT_REPLACEMENT,
        )
        return VERIFIERS["rrs_without_replacement"](tree, target_V.expand(count + 1, -1))


def draw_candidates(kind: str, law: NextLaw, count: int, sampler: PlainSampler) -> Candidates:
    """Draw ``count`` tokens for a branch point of ``law``, fewer if fewer are possible; unread if ``sampler`` does not read."""
    if kind == "match":
        row = most_likely(law.logits_V.unsqueeze(0), count)[0]
    else:
        row = sampler.distinct(law.probs_V.unsqueeze(0), count, count - 1 if kind == "hybrid" else 0)[0]
    drawn = Candidates(row[:-1], law.probs_V, kind, row[-1])
    return drawn.read(read_rows(row.unsqueeze(0))[0]) if sampler.reads else drawn


def draw_at_branch_point(candidates: Candidates, target_V: Tensor, randomness: Chance) -> tuple[int, int | None]:
    """Draw the token emitted at the branch point, and the index of the candidate that it is (``None``: a miss)."""
    law = candidates.verdict_law(target_V)
    row = int(randomness.categorical(law.stop))
    if row:
        return candidates.token_list[row - 1], row - 1
    return int(randomness.categorical(law.residual(0))), None


def _hybrid_law(tokens_K: Tensor, draft_V: Tensor, target_V: Tensor) -> OutcomeLaw:
    top, last = tokens_K[:-1], tokens_K[-1:]
    target_rest_V, draft_rest_V = _without(target_V, top), _without(draft_V, top)
    mass, draft_mass = target_rest_V.sum(), draft_rest_V.sum()
    taken = torch.minimum(mass, target_V[last] * draft_mass / draft_rest_V[last])
    residual_V = (target_rest_V - mass / draft_mass * draft_rest_V).clamp(min=0)
    return _hits(torch.cat([target_V[top], taken]), residual_V, target_V)


def _hits(hits_K: Tensor, residual_V: Tensor, target_V: Tensor) -> OutcomeLaw:
    """Hit candidate i with probability ``hits_K[i]``; after a miss the token follows ``residual_V``, unnormalised."""
    hits_K = hits_K.double()
    stop = torch.cat([(1 - hits_K.sum()).clamp(min=0).reshape(1), hits_K])
    return OutcomeLaw(normalised(stop), [0] + [1] * len(hits_K), lambda row: normalised_or(residual_V, target_V))


def _without(law_V: Tensor, tokens_K: Tensor) -> Tensor:
    return law_V.index_fill(0, tokens_K, 0.0)


@dataclass(frozen=True)
class Verdict:
    """A round's result: the ``accepted`` pending tokens, the ``newest`` token after them, and the branch that it is in.
    ``hidden_NKD``: the target's states in front of all of them, where the draft reads any; those of the prompt came with it."""

    accepted: Sequence[int]
    newest: int
    branch: int | None = None
    hidden_NKD: Tensor | None = None


@dataclass(frozen=True)
class Pending:
    """The block that the target verifies next: a ``tree`` that is a chain; ``laws`` only for observers. ``record``: the draft's
    part of the round's up to here. Its levels were drafted with the target idle."""

    tree: TokenTree
    record: RoundRecord = field(default_factory=RoundRecord)
    laws: list[NextLaw] = field(default_factory=list)


@dataclass(frozen=True)
class Branches:
    """Result of drafting while the target verifies: ``candidates`` at the branch point (``None``: there is none). ``record``: the
    draft's whole part of the round's; ``None``: that of the block, as nothing else came of drafting. ``seconds``: what they
    took."""

    candidates: Candidates | None = None
    record: RoundRecord | None = None
    seconds: float = 0.0


NO_BRANCHES = Branches()
