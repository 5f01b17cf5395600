"""Rules of a user's own, which `runtime.audit` was not made for: lossless ones, lossy ones, and what cannot be judged."""

import random

import numpy as np
import torch

from predictors.actions import Action
from predictors.controllers import Controller, Session
from runtime.drafting.chain import ChainConfig, ChainDraft
from runtime.drafting.draft import Draft, Drafter
from runtime.drafting.drafted import DraftedTree
from runtime.drafting.trees import MultiCandidateConfig, MultiCandidateDraft
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import VERIFIERS, Verifier
from runtime.verification.chain import tokenwise
from runtime.verification.outcome import OutcomeLaw, normalised_or

# ---- verifiers of chains, each by its test and by what it emits after a token that fails


def by_tests(tests, residual):
    def rule(tree, target_probs):
        rows = torch.arange(tree.num_nodes)
        draft = None if tree.draft_probs is None else tree.draft_probs[rows]
        accepted = torch.cat([tests(target_probs[rows], draft, tree.tokens).double(), torch.zeros(1)])
        reached = torch.cat([torch.ones(1), accepted[:-1].cumprod(0)])

        def emitted(row):
            return residual(target_probs[row], draft[row]) if int(row) < tree.num_nodes else target_probs[row]

        return OutcomeLaw(reached * (1 - accepted), tree.depths, emitted)

    return lambda tree, target_probs: rule(tree, target_probs) if tree.num_nodes else tokenwise(tree, target_probs)


def ratio(p, q, tokens):
    rows = torch.arange(len(tokens))
    return (p[rows, tokens] / q[rows, tokens]).clamp(max=1)


def clamped(p, q):
    return normalised_or((p - q).clamp(min=0), p)


halved = by_tests(lambda *given: ratio(*given) / 2, lambda p, q: p - torch.minimum(p, q) / 2)
unclamped = by_tests(ratio, lambda p, q: p - q)
draft_again = by_tests(ratio, lambda p, q: q)
lenient = by_tests(lambda *given: (1.1 * ratio(*given)).clamp(max=1), clamped)
typical = by_tests(lambda p, q, tokens: p[torch.arange(len(tokens)), tokens] > 0.3, lambda p, q: p)
not_a_number = by_tests(lambda p, q, tokens: torch.full((len(tokens),), torch.nan), lambda p, q: p)
traversal = VERIFIERS["traversal"]
misplaced = Verifier(
    "misplaced", VERIFIERS["spectr"].rule, frozenset({DraftLaw.WITHOUT_REPLACEMENT, DraftLaw.DETERMINISTIC})
)


# ---- controllers


class Stateless(Controller, Session):
    def start(self, settings):
        return self


class BehindZero(Stateless):
    """Lossless: verifies what comes after zeros, and the token that is none."""

    def submit(self, laws, tokens):
        return next((place for place in range(1, len(tokens)) if tokens[place - 1]), len(tokens))


class UnlikelyLast(Stateless):
    """Lossless: an unlikely token ends the draft, and is verified."""

    def stop_after(self, drawn):
        return drawn.probability < 0.5


class Choosing(Stateless):
    """Lossless: two rollouts of a token, or a chain of two, by the distribution that both begin with."""

    actions = Action(2, 0, 1), Action(1, 2, 0)

    def tree(self, root):
        return self.actions[int(root.law.confidence > 0.6)]


class Recalling(Controller):
    """Lossless: drafts one token more than were accepted. Its sessions are of a class that has no name to be found by."""

    def start(self, settings):
        class Recall(Session):
            def __init__(self):
                self.length, self.more = 1, lambda accepted: accepted + 1

            def plan(self, root):
                return self.length

            def end_round(self, outcome):
                self.length = self.more(outcome.accepted)

        return Recall()


class Doubting(Stateless):
    """Lossy: leaves out a token for its own probability."""

    def submit(self, laws, tokens):
        probs = (law.probs_V[token] for law, token in zip(laws, tokens, strict=True))
        return next((place for place, prob in enumerate(probs) if prob < 0.35), len(tokens))


class Peeking(Stateless):
    """Lossy: leaves out the token before an unconfident distribution, which follows from the token."""

    def submit(self, laws, tokens):
        return next((place for place in range(len(tokens) - 1) if laws[place + 1].confidence < 0.7), len(tokens))


class Overwriting(Stateless):
    """Lossy: puts the likeliest token in the place of the drawn one."""

    def stop_after(self, drawn):
        drawn.token.copy_(drawn.law.probs_V.argmax())
        return False


class Coin(Stateless):
    """Not to be judged: a coin of Python's stops it."""

    def stop_before(self, law):
        return random.random() < 0.5


class RareCoin(Stateless):
    """Not to be judged: its coin has not come up yet."""

    def stop_before(self, law):
        return random.random() < 0


class OwnCoin(Coin):
    """Not to be judged: the coin is its own."""

    def __init__(self):
        self.numbers = np.random.default_rng()

    def stop_before(self, law):
        return self.numbers.random() < 0.5


class Counting(Stateless):
    """Not to be judged: what it counts goes on from request to request."""

    calls = 0

    def plan(self, root):
        self.calls += 1
        return self.calls % 3


class Failing(Stateless):
    def plan(self, root):
        return {}["no such key"]


class Picky(Stateless):
    def __init__(self, length):
        self.length = length


# ---- drafters


class Repeating(Drafter):
    """Lossless: proposes the newest token once more, and says that nothing was drawn."""

    needs_draft, depth = False, 2

    def open(self, model, request):
        return Repeat()


class Repeat(Draft):
    def prefill(self, prompt, newest, hidden_NKD=None):
        self.newest = newest[-1]

    def commit(self, path, accepted, newest, hidden_NKD=None):
        self.newest = newest[-1]

    def draft(self, root, cap, session, clock):
        tokens, parents = torch.full((cap,), self.newest), torch.arange(-1, cap - 1)
        return DraftedTree(TokenTree(tokens, parents, law=DraftLaw.DETERMINISTIC), [])


class Told(ChainConfig):
    """Lossless: draws from the square of the draft's distribution, as `Sharpened`, and says so."""

    def open(self, model, request):
        return ChainDraft(model, request, request.settings.temperature / 2)


class BestOfTwo(ChainConfig):
    """Lossy: draws two tokens and drafts the likelier one."""

    def open(self, model, request):
        draft = ChainDraft(model, request, None)
        draft._sampler.token = Best(draft._randomness)
        return draft


class Best:
    def __init__(self, chance):
        self.chance = chance

    def __call__(self, probs):
        two = [self.chance.categorical(probs) for _ in range(2)]
        return max(two, key=lambda token: float(probs[token]))


class Sorted(MultiCandidateConfig):
    """Lossy: sorts distinct children by probability after they were drawn."""

    def __init__(self):
        super().__init__((2, 1))

    def open(self, model, request):
        return SortedDraft(self, model, request)


class SortedDraft(MultiCandidateDraft):
    def _draw(self, depth, laws, copies):
        drawn = super()._draw(depth, laws, copies)
        return [sorted(row, key=lambda token: -law.probs_V[token]) for row, law in zip(drawn, laws, strict=True)]


def two_children():
    return MultiCandidateConfig((2, 1))


LOSSLESS = [
    "halved",
    "traversal",
    "BehindZero",
    "UnlikelyLast",
    "Recalling",
    "Choosing",
    "Repeating",
    "Told",
    "two_children",
]
VERIFIERS_WRONG = ["unclamped", "draft_again", "lenient", "typical", "misplaced", "not_a_number"]
LOSSY = [*VERIFIERS_WRONG, "Doubting", "Peeking", "Overwriting", "BestOfTwo", "Sorted"]
ERRATIC = ["Coin", "RareCoin", "OwnCoin", "Counting"]
