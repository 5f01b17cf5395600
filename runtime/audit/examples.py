"""Rules that look alike, some lossless and some not: ``draftwright audit runtime.audit.examples:Budget``.

Whether a drawn token is verified must not follow from the token or from what is drawn after it; a verifier must know the
distribution q that it was drawn from; and no random number decides twice. p is the target's distribution.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from predictors.controllers import Controller, Session
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw
from runtime.adapter import LanguageModel
from runtime.drafting.chain import ChainConfig, ChainDraft
from runtime.drafting.sampler import PlainSampler
from runtime.request import Request
from runtime.tree import TokenTree
from runtime.verification.chain import tokenwise
from runtime.verification.outcome import OutcomeLaw


class Stateless(Controller, Session):
    """A controller that remembers nothing, and so is its own session."""

    def start(self, settings: SamplingSettings) -> Session:
        return self


class Budget(Stateless):
    """Not lossless: verifies the tokens before the first that its head doubts, any but 0, and that one is drawn by then. With
    p = (.7, .3) and q = (.5, .5) the decoder emits 0 with .5 + .5 · .7 = .85 (DSpark's appendix)."""

    def submit(self, laws: Sequence[NextLaw], tokens: Sequence[int]) -> int:
        return next((place for place, token in enumerate(tokens) if token), len(tokens))


class BudgetBefore(Stateless):
    """Lossless: verifies the tokens before the first whose distribution is not confident. No token decides about itself."""

    def submit(self, laws: Sequence[NextLaw], tokens: Sequence[int]) -> int:
        return next((place for place, law in enumerate(laws) if law.confidence < 0.6), len(tokens))


class GlobalArgmax(Stateless):
    """Not lossless: verifies the n tokens of the largest (1 + Σ_{i<=n} Π_{j<=i} q(x_j)) / (1 + 0.4 n), which reads all tokens."""

    def submit(self, laws: Sequence[NextLaw], tokens: Sequence[int]) -> int:
        probs = [float(law.probs_V[token]) for law, token in zip(laws, tokens, strict=True)]
        gains = torch.tensor([1.0, *probs]).cumprod(0).cumsum(0) / (1 + 0.4 * torch.arange(len(probs) + 1))
        return int(gains.argmax())


class EntropyStop(Stateless):
    """Lossless: draws nothing from a distribution of more than 0.5 nats."""

    def stop_before(self, law: NextLaw) -> Tensor:
        return law.law_entropy > 0.5


class Sharpened(ChainConfig):
    """Not lossless: draws from norm q² and tells the verifier q."""

    def open(self, model: LanguageModel, request: Request) -> ChainDraft:
        draft = ChainDraft(model, request, self.draft_temperature)
        draft._sampler = Sharp(request.settings, request.randomness)
        return draft


class Sharp(PlainSampler):
    """Sampler that draws from the square of the distribution that it tells."""

    def token(self, probs: Tensor) -> Tensor:
        return super().token(probs.square())


def shared_noise(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
    """Not lossless: x is accepted where u < p(x)/q(x), and else replaced by inverting the residual's cumulative distribution at
    the same u, which is not below p(x)/q(x) by then."""
    law = tokenwise(tree, target_probs)

    def residual(row: int | Tensor) -> Tensor:
        residual_V, row = law.residual(row), int(row)
        if tree.draft_probs is None or row == tree.num_nodes:
            return residual_V
        low = (target_probs[row] / tree.draft_probs[row])[tree.tokens[row]]
        return residual_V.cumsum(0).clamp(min=low).diff(prepend=low.reshape(1))

    return OutcomeLaw(law.stop, law.depths, residual)
