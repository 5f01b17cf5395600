"""What rounds take on a machine: the one price model, of everything that follows from a latency profile.

A round at context l (cached tokens) with draft passes of r_0, r_1, … rows and N tree nodes in the target pass; drawing is that of
tokens one after the other (chain) and alongside each other (tree), verification the rule's own:

    T(l)   = Σ_i draft(r_i, l + i) + target(1 + N, l) + verification(N) + chain_drawing(tokens) + tree_drawing(tokens)
    T_0(l) = T(l) plain(l') / T(l')                 plain decoding: its passes find warmer caches; l': where it was measured

A chain of γ has γ passes of one row and N = γ. On top of that, a round of a chain pays

    first(1 + behind, l) - draft(1, l)              where the draft model catches up; `draft_first` of one that reads states
    draft(1, l + i) + chain_drawing(1)              for every distribution that a rule stopped in front of
    reading(entropy), question                      for every distribution that the host reads, and for every query

Tokens of a lookup take no pass and are not drawn. In invariant sampling a pass over r rows takes noise(r) more. A delayed tree
(K, L1, L2) with N distinct nodes, F of them fed to a further level, has L1 + 1 passes of one row, as the K first branch tokens
come from one distribution, then L2 - 1 of F / (L2 - 1) rows.

Branch-parallel decoding verifies m submitted tokens, i of them drafted with the target idle, and grows G branch levels: k
candidates, then G - 1 levels of r = (branch tokens - k) / (G - 1) rows on average, each job alone at work:

    T      = idle + max(target, branch) + [all m accepted] branch_verdict(k)
    target = target(1 + m, l) + chain_verification(m)
    branch = [distribution after the block unknown] draft(1, l + m)
             + branch_candidates(k) + (G - 1) branch_drawing(r) + Σ_{j<G-1} draft(r, l + m + j r)
    idle   = Σ_{j<p} draft(1, l + j) + chain_drawing(p),    p = i + [the controller stopped in front of a token]

A model that drafts for itself:  target(1 + drafted + guessed, l) + verification(drafted) + guessing(guessed).

Left out: what a request takes to begin, what a decode spends between its phases, the search for a match, how the draft settles a
verdict, and that a chain accepted whole leaves the draft model one token behind. Sources: specification of verification, section
8, and of drafting, sections 3.4 to 3.6 and 10; paper 004, Eq. 11 (trees). Shape suffixes: A actions, T contexts.
"""

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from predictors.actions import Action, Prices, Traffic
from predictors.latency.profile import FIRST, LatencyProfile, undisturbed
from predictors.rounds import ReplayedRound, RoundRecord
from predictors.sampling import SamplingSettings

# Tables of rules that chains and trees are verified by anyway; others have one by their own name, at temperatures above 0.
VERIFICATION = {"block": "chain_verification", "tokenwise": "chain_verification", "traversal": "tree_verification"}
# What the price of a round with branches follows from.
OF_BRANCHES = ["submitted", "idle_levels", "levels", "drafted", "candidates", "law_known", "accepted", "ends_segment"]
LONGEST_BRANCH = 1024  # where drafting is so cheap that branches of any length are hidden


class RoundPrices:
    """Seconds on the machine of ``profile``; ``sampled``: tokens are drawn, ``perturbed``: in invariant sampling. Of the profile
    without its neighbours (`undisturbed`), or, where it is not ``quiet``, of its medians. Kept once they are known:

    chain(drafted, context)         a round of a chain of so many tokens behind ``context`` cached ones
    plain(context)                  one of plain decoding, as it runs; the sum of its parts without table ``plain``
    drawing(tokens)                 so many tokens' distributions and draws
    law(context)                    a draft pass and its distribution
    catching_up(behind, context)    what a round's first draft pass over so many tokens more than one takes longer
    """

    def __init__(self, profile: LatencyProfile, sampled: bool, quiet: bool = True, perturbed: bool = False) -> None:
        self._given, self.sampled, self._perturbed = profile, sampled, perturbed
        self.profile = undisturbed(profile) if quiet else profile
        self._first = FIRST if FIRST in profile.tables else "draft"
        self.chain = cache(lambda drafted, context: self.round((1,) * drafted, drafted, context, chain=drafted))
        self.plain = cache(self._plain)
        self.drawing = cache(lambda tokens: self._outside("chain_drawing", drafted=tokens) if tokens else 0.0)
        self.law = cache(lambda context: self._draft(1, context) + self.drawing(1))
        self.catching_up = cache(self._catching_up)

    @staticmethod
    def at(profile: LatencyProfile, settings: SamplingSettings) -> "RoundPrices":
        """Prices of a request at ``settings``."""
        return RoundPrices(profile, not settings.read_off, perturbed=settings.invariant)

    def round(
        self, rows: Sequence[float], nodes: float, context: float, chain: int = 0, tree: float = 0, rule: str = "block"
    ) -> float:
        """A round of draft passes of so many ``rows`` in order, and of ``nodes`` that target and verification ``rule`` see;
        tokens drawn one after the other (``chain``) and alongside each other (``tree``). Means need not be whole."""
        total = self._target(1 + nodes, context)
        total = sum((self._draft(count, context + place) for place, count in enumerate(rows)), total)
        if rule in VERIFICATION:
            total += self._outside(VERIFICATION[rule], drafted=nodes)
        else:
            total += self._spent(f"verification_{rule}", drafted=nodes)
        total += self.drawing(chain)
        return total + self._outside("tree_drawing", drafted=tree) if tree else total

    def prefill(self, tokens: int, drafts: bool) -> float:
        """Price a prompt of so many ``tokens``; ``drafts``: the draft's too."""
        target = self._spent("target_prefill", tokens=tokens)
        return target + self._spent("draft_prefill", tokens=tokens) if drafts else target

    # ---- chains

    def rounds(self, rounds: Iterable[ReplayedRound], question: float = 0.0) -> float:
        """Price rounds on chains, each ``question`` to a model included. Rounds with branches have `branch_request`."""
        rounds = list(rounds)
        assert not any(one.candidates or one.idle_levels or one.survived for one in rounds), "a round with branches"
        return sum(
            (self.chain(one.chain, one.context) if one.submitted or one.passes else self.plain(one.context))
            + self.leaves(one.chain, one.drafted, one.context)
            + self.looked_up(one.looked_up, one.submitted, one.context)
            + (self.catching_up(one.behind, one.context) if one.passes else 0.0)
            + sum(self.law(one.context + place) for place in range(one.chain, one.passes))
            + self.reading(one.confidences, one.entropies)
            + one.asked * question
            for one in rounds
        )

    def reading(self, confidences: int, entropies: int) -> float:
        """Price the host's reading of distributions: of so many the confidence, of so many the entropy too."""
        counts = enumerate((confidences, entropies))
        return sum(count * self._spent("reading", entropy=entropy) for entropy, count in counts if count)

    def leaves(self, submitted: int, nodes: int, context: float) -> float:
        """Price what a chain of ``submitted`` tokens takes more where leaves make it so many ``nodes``."""
        if nodes <= submitted:
            return 0.0
        with_leaves = self._target(1 + nodes, context)
        with_leaves += self._outside("tree_verification", drafted=nodes)
        alone = self._target(1 + submitted, context)
        return with_leaves - alone - self._outside("chain_verification", drafted=submitted)

    def looked_up(self, tokens: int, submitted: int, context: int) -> float:
        """Price what changes, below 0, where so many of a chain's ``submitted`` tokens came from a lookup."""
        if not tokens:
            return 0.0
        drawn = submitted - tokens
        passes = sum(self.law(context + place) - self.drawing(1) for place in range(drawn, submitted))
        return self.drawing(drawn) - self.drawing(submitted) - passes

    def draft_cost(self, gamma: int, context: float) -> float:
        """A drafted token of a chain of ``gamma`` in target passes: a round's drafting per token over all the rest of the
        round."""
        return (self.chain(gamma, context) / self.round((), gamma, context) - 1) / gamma

    def chain_costs(self, gamma: int, context: float, question: float = 0.0) -> tuple[float, ...]:
        """Rounds of 0, 1, … ``gamma`` drafted tokens, in summed rounds of none; about each token a ``question`` of so many
        seconds. Where accepted tokens are run over again, one is."""
        usual = self.catching_up(1, context) if self._first == FIRST else 0.0
        seconds = [
            self.chain(drafted, context) + drafted * question + usual * (drafted > 0) for drafted in range(gamma + 1)
        ]
        return tuple(one / seconds[0] for one in seconds)

    def grow_costs(self, nodes: int, context: float, question: float) -> tuple[float, tuple[float, ...]]:
        """One more level of a chain, with a ``question`` of so many seconds, and target passes over 0, 1, … ``nodes`` with their
        verdicts, in summed rounds of none."""
        plain = self.chain(0, context)
        passes = [1 + self.leaves(0, count, context) / plain for count in range(nodes + 1)]
        return (self.law(context) + question) / plain, tuple(passes)

    def lookup_costs(self, length: int, tails: Sequence[int], context: float) -> tuple[tuple[float, ...], ...]:
        """Rounds of 0, 1, … ``length`` tokens of a lookup, after which each of ``tails`` tokens are drawn, in summed rounds of
        none. Before a tail the draft model reads the lookup's tokens."""

        def seconds(tokens: int, tail: int) -> float:
            made = self.round((1,) * tail, tokens + tail, context, chain=tail)
            return made + tokens * self.behind(tokens, context) if tail else made

        plain = self.chain(0, context)
        return tuple(tuple(seconds(tokens, tail) / plain for tokens in range(length + 1)) for tail in tails)

    def behind(self, tokens: int, context: float) -> float:
        """`catching_up` with so many ``tokens``, per token; none where noise has the wider pass faster."""
        return max(0.0, self.catching_up(tokens, context)) / max(tokens, 1)

    # ---- delayed trees

    def tree(self, action: Action, traffic: Traffic, rule: str, context: float) -> float:
        """A step of ``action``, whose trees have ``traffic``, verified by ``rule``."""
        one_row = action.l1 if action.is_chain else action.l1 + 1
        levels = max(0, action.l2 - 1)
        rows = (1,) * one_row + (traffic.fed / max(1, levels),) * levels
        drawn = 0 if action.is_chain else traffic.nodes - action.l1
        return self.round(rows, traffic.nodes, context, action.l1, drawn, rule)

    def actions(self, rule: str, actions: Sequence[Action], traffic: Sequence[Traffic], features: int) -> Prices:
        """Prices of ``actions`` verified by ``rule``; choosing reads states of ``features`` numbers."""
        contexts = tuple(int(point) for point in self.profile.table("target").axes["context"])
        made = [*zip(actions, traffic, strict=True)]
        steps = tuple(tuple(self.tree(*one, rule, context) for one in made) for context in contexts)
        return Prices(contexts, steps, self._spent("selection", features=features), self._given.profile_hash)

    # ---- branch-parallel decoding

    def branch_request(self, rounds: Iterable[ReplayedRound], prompt_tokens: int) -> float:
        """One request after a prompt of ``prompt_tokens``: both prefills side by side, and ``rounds``."""
        times = [self.branch_round(made) for made in rounds]
        target, draft = (self._spent(f"{name}_prefill", tokens=prompt_tokens) for name in ("target", "draft"))
        return sum(times, max(target, draft))

    def branch_round(self, made: ReplayedRound) -> float:
        """One round; `ValueError` for one that cannot be."""
        require_possible(made)
        passes = (self._draft(1, made.context + place) for place in range(made.idle_passes))
        total = sum(passes, self.drawing(made.idle_passes))
        total += max(self._block(made.context, made.submitted), self._branches(made))
        if made.candidates and made.accepted >= made.submitted:
            total += self._outside("branch_verdict", candidates=made.candidates)
        return total

    def balanced_gamma(self, submitted: int, candidates: int, context: float) -> int:
        """The most continuation tokens (``gamma``) whose branches are grown within the target's pass over ``submitted`` tokens.

        All ``candidates`` go on, and the distribution after the block is unknown, as it is where drafting ran to its cap. At 0
        not even one level is hidden; `LONGEST_BRANCH` stands for any length.
        """
        end, hidden = context + submitted, self._block(context, submitted)
        branches = self._point(end, candidates, law_known=False)
        for gamma in range(LONGEST_BRANCH):
            branches += self._level(end, candidates, gamma)
            if branches > hidden:
                return gamma
        return LONGEST_BRANCH

    # ---- a model that drafts for itself

    def guessing_pass(self, guessed: int, drafted: int, context: float) -> float:
        """A pass over so many ``guessed`` tokens and ``drafted`` candidates, which rule ``match`` verifies: ``nss``."""
        total = self._target(1 + drafted + guessed, context)
        total += self._spent("guessing", guessed=guessed) if guessed else 0.0
        if drafted and self.sampled:
            return total + self._spent("verification_nss", drafted=drafted)
        return total + self._outside("tree_verification" if drafted else "chain_verification", drafted=drafted)

    # ---- rounds that really ran

    def ran(self, rounds: Iterable[RoundRecord], prompt_tokens: int) -> float:
        """``rounds`` after the prefill of ``prompt_tokens``: chains, trees verified by traversal, or branches."""
        total, context, kept = 0.0, prompt_tokens, False
        for made in rounds:
            if made.candidates:
                values = {name: getattr(made, name) for name in OF_BRANCHES}
                total += self.branch_round(
                    ReplayedRound(**values, context=context, survived=kept and not made.idle_levels)
                )
            elif made.drafted > made.levels:
                rows = (made.drafted / made.levels,) * made.levels
                total += self.round(rows, made.drafted, context, tree=made.drafted, rule="traversal")
            else:
                total += self.chain(made.submitted, context) if made.submitted else self.plain(context)
            context, kept = context + made.emitted, not made.ends_segment
        return total

    # ---- parts

    def _plain(self, context: float) -> float:
        summed = self.chain(0, context)
        if "plain" not in self.profile.tables:
            return summed
        measured = self.profile.tables["plain"].axes["context"][0]
        parts = self._spent("target", tokens=1, context=measured)
        parts += self._spent("chain_verification", drafted=0, sampled=0)  # as it was timed
        return summed * (self._spent("plain", context=measured) / parts)

    def _catching_up(self, behind: int, context: float) -> float:
        if not behind and self._first != FIRST:
            return 0.0
        return self._spent(self._first, rows=1 + behind, context=context) - self._spent(
            "draft", rows=1, context=context
        )

    def _block(self, context: float, submitted: int) -> float:
        """The target's pass over a block of branch-parallel decoding, and its verdict."""
        passed = self._target(1 + submitted, context)
        return passed + self._outside("chain_verification", drafted=submitted)

    def _branches(self, made: ReplayedRound) -> float:
        """Growing the branches."""
        if made.levels == made.idle_levels:
            return 0.0
        end = made.context + made.submitted
        levels = (self._level(end, made.rows, place) for place in range(made.grown_levels))
        return sum(levels, self._point(end, made.candidates, made.law_known))

    def _point(self, end: float, candidates: int, law_known: bool) -> float:
        """Candidates behind ``end`` tokens."""
        drawn = self._outside("branch_candidates", rows=candidates)
        return drawn if law_known else drawn + self._draft(1, end)

    def _level(self, end: float, rows: float, place: int) -> float:
        """The branch level after ``place`` others of ``rows`` that follow ``end`` tokens."""
        return self._draft(rows, end + place * rows) + self._outside("branch_drawing", rows=rows)

    def _target(self, tokens: float, context: float) -> float:
        return self._spent("target", tokens=tokens, context=context) + self._noise(tokens)

    def _draft(self, rows: float, context: float) -> float:
        return self._spent("draft", rows=rows, context=context) + self._noise(rows)

    def _noise(self, rows: float) -> float:
        return self._spent("noise", rows=rows) if self._perturbed else 0.0

    def _outside(self, table: str, **at: float) -> float:
        return self._spent(table, sampled=int(self.sampled), **at)

    def _spent(self, table: str, **at: float) -> float:
        return self.profile.latency(table, **at).seconds


def require_possible(made: ReplayedRound) -> None:
    """`ValueError` unless branch-parallel decoding makes such rounds."""
    grown, tokens = made.levels - made.idle_levels, made.drafted - made.idle_levels
    if min(made.context, made.submitted, made.idle_levels, made.candidates, grown) < 0:
        raise ValueError(f"a round has no counts below 0, and no fewer levels than idle ones: {made}.")
    if made.idle_levels not in (0, made.submitted) or (made.survived and made.idle_levels):
        raise ValueError(f"a block is drafted with the target idle, or retained, never both: {made}.")
    least = made.candidates + max(0, grown - 1)
    if (tokens < least or not grown) if made.candidates else (tokens or grown > 1):
        raise ValueError(f"branches have candidates and then a token on every level, or there are none: {made}.")


class PriceTable:
    """Rounds of at most ``depth`` tokens behind ``contexts``, priced in arrays."""

    def __init__(self, prices: RoundPrices, contexts: np.ndarray, depth: int) -> None:
        self._prices, self._context_C = prices, np.unique(contexts)
        known = self._context_C.tolist()
        self._chain_CL = np.array(
            [[prices.chain(drafted, context) for drafted in range(depth + 1)] for context in known]
        )
        self._plain_C = np.array([prices.plain(context) for context in known])
        laws = (prices.law(context) for context in range(known[0], known[-1] + depth))
        self._laws_C = np.cumsum([0.0, *laws])  # of all passes behind contexts from the first one up to this one

        self._leaves = cache(prices.leaves)
        self._drawing_L = np.array([prices.drawing(drafted) for drafted in range(depth + 1)])

    def rounds(self, context_V: np.ndarray, submitted_V: np.ndarray, passes_V: np.ndarray) -> np.ndarray:
        """Seconds of rounds, without readings and questions."""
        place_V = np.searchsorted(self._context_C, context_V)
        none_V = (submitted_V == 0) & (passes_V == 0)
        chain_V = np.where(none_V, self._plain_C[place_V], self._chain_CL[place_V, submitted_V])
        first_V = context_V - self._context_C[0]
        return np.asarray(chain_V + self._laws_C[first_V + passes_V] - self._laws_C[first_V + submitted_V])

    def leaves(self, context_V: np.ndarray, submitted_V: np.ndarray, nodes_V: np.ndarray) -> np.ndarray:
        """Price what `rounds` leave out where a chain has leaves."""
        rows_3P, place_V = np.unique([submitted_V, nodes_V, context_V], axis=1, return_inverse=True)
        return np.array([self._leaves(*row) for row in rows_3P.T.tolist()])[place_V]

    def looked_up(self, submitted_V: np.ndarray, tokens_V: np.ndarray) -> np.ndarray:
        """Price what `rounds` leave out where ``tokens_V`` of the submitted came from a lookup."""
        drawing_V = (
            self._drawing_L[submitted_V - tokens_V] - self._drawing_L[submitted_V] + self._drawing_L[1] * tokens_V
        )
        return np.where(tokens_V > 0, drawing_V, 0.0)

    def catching_up(self, context_V: np.ndarray, passes_V: np.ndarray, behind_V: np.ndarray) -> np.ndarray:
        """Price what `rounds` leave out where the draft model is ``behind_V``."""
        pairs_2P, place_V = np.unique([behind_V, context_V], axis=1, return_inverse=True)
        catching_P = np.array([self._prices.catching_up(*pair) for pair in pairs_2P.T.tolist()])
        return np.where(passes_V > 0, catching_P[place_V], 0.0)
