"""The source of chance that a decode is planned with: it makes each choice of a drafted chain given the text that comes out.

A chain x_1 x_2 … is drawn from q and verified against p; y_1 y_2 … is the text after the round's start. P_t is the weight that
the verifier gives the drafted prefix x_1..t (`runtime.verification.chain`; specification of verification, section 2):

    block        P_0 = 1,  P_t = min(1, P_{t-1} p(x_t | x_<t) / q(x_t | x_<t))
    tokenwise    P_t = 1 along the text, 0 after the first token beside it

Bayes' rule with the likelihood W of the text given the drafted prefix (docs/leading.md) turns q into

    along the text    x_t = y_t                           with probability min(1, q(y_t) / (P_{t-1} p(y_t)))
                      else x_t ~ norm [q - P_{t-1} p]_+   and the chain leaves the text
    beside it         x_t ~ norm [q - P_{t-1} p]_+        (tokenwise: q)
    verdict           accepted are the tokens along the text, and the text's next token is emitted

Nothing here depends on how many tokens follow, so any rule that stops by what was drafted before keeps its own distribution.

A decoder queries it as any other: for a token of the draft's probabilities, for the row where the accepted path ends, and for the
token after that. Of tokens that a lookup drafts it is told: q is one-hot there, and the formulas leave no choice. Shape suffix:
V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.laws import processed_law
from runtime.leading.luck import EXTEND, KEEP, Luck
from runtime.leading.tape import LedRound, number_of
from runtime.leading.text import GivenText
from runtime.randomness import Chance

LARGEST_DIFFERENCE = 0.1  # total variation; coarse, to notice another pair and not another rounding


@dataclass
class LedChain:
    """A round's chain so far: it starts at the text's row ``start``, and the first ``kept`` of its ``tokens`` are the text's.
    ``joint``: the verifier weighs whole prefixes, as block verification does; ``weight`` is that of the tokens so far."""

    start: int
    joint: bool
    tokens: list[int] = field(default_factory=list)
    kept: int = 0
    weight: float = 1.0

    @property
    def on_text(self) -> bool:
        """Whether every token so far is the text's."""
        return self.kept == len(self.tokens)

    @property
    def row(self) -> int:
        """The text's row where the chain left it, or would now."""
        return self.start + self.kept

    @property
    def beside(self) -> list[int]:
        """The tokens since the chain left the text."""
        return self.tokens[self.kept :]

    def keep_probability(self, draft: float, target: float) -> float:
        """min(1, q / (P p)) of the text's next token, with probabilities ``draft`` and ``target``."""
        return min(1.0, draft / (self.weight * target))

    def surplus(self, draft_V: Tensor, target_V: Tensor) -> Tensor:
        """[q - P p]_+ in float64."""
        return (draft_V.double() - self.weight * target_V.to(draft_V.device).double()).clamp(min=0)

    def keep(self, token: int, draft: float, target: float) -> None:
        """Add the text's next token."""
        self.tokens.append(token)
        self.kept += 1
        if self.joint:
            self.weight = min(1.0, self.weight * target / draft)

    def leave(self, token: int, draft: float, target: float) -> None:
        """Add a token beside the text."""
        self.tokens.append(token)
        self.weight = min(1.0, self.weight * target / draft) if self.joint else 0.0


@dataclass(frozen=True)
class Answers:
    """`Chance` whose draws are made by ``answer``; ``note`` hears of tokens that are drafted without a draw."""

    answer: Callable[[Tensor], int]
    note: Callable[[Sequence[int]], None]

    def categorical(self, weights: Tensor) -> Tensor:
        return torch.tensor(self.answer(weights), device=weights.device)


class Leader:
    """Leads one decode along ``text``; ``rounds`` are those so far, ``first_uniform`` is the number of the prefill's draw.

    ``joint``: the verifier weighs whole prefixes. ``tails=False`` draws what follows the first token beside the text from the
    draft's own probabilities, which saves the target's passes there (see `plan`).
    """

    def __init__(self, text: GivenText, joint: bool, luck: Luck, tails: bool = True) -> None:
        self.rounds: list[LedRound] = []
        self.first_uniform = 0.0
        self._text = text
        self._joint = joint
        self._luck = luck
        self._tails = tails
        self._tokens = list(text.tokens)  # and those after its end that a round has reached
        self._chain: LedChain | None = None  # none before the prefill's token
        self._certain: list[int] = []  # drafted without a draw, and not in the chain yet
        self._draft_uniforms: list[float] = []
        self._stop_uniform: float | None = None  # of the verdict whose token is not drawn yet

    def stream(self, purpose: str) -> Chance:
        """The stream of one purpose, ``draft`` or ``verify``."""
        answer = {"draft": self._drafted, "verify": self._verified}[purpose]
        return Answers(answer, self._certain.extend)

    def _drafted(self, draft_V: Tensor) -> int:
        """A draft token."""
        chain = self._chain
        assert chain is not None, "a round is in flight"
        self._take_certain(chain, weigh=True)
        token = self._along_text(chain, draft_V) if chain.on_text else self._beside_text(chain, draft_V)
        self._draft_uniforms.append(number_of(draft_V, token))
        return token

    def _take_certain(self, chain: LedChain, weigh: bool) -> None:
        """Add the tokens that were not drawn; without ``weigh`` as if the prefix kept its weight: nothing is drawn then."""
        for token in self._certain:
            target = self._target(chain, token) if weigh else 1.0
            kept = chain.on_text and token == self._token(chain.row)
            (chain.keep if kept else chain.leave)(token, 1.0, target)
            self._draft_uniforms.append(0.0)
        self._certain.clear()

    def _target(self, chain: LedChain, token: int) -> float:
        """The target's probability of a token that was not drawn; 1 beside the text where no tail is weighed."""
        if chain.on_text:
            return float(self._probs(chain.row)[token])
        weighed = chain.weight > 0 and self._tails
        return float(self._beyond(chain.row, chain.beside)[token]) if weighed else 1.0

    def _along_text(self, chain: LedChain, draft_V: Tensor) -> int:
        """The text's next token, or the first one beside it."""
        token, target_V = self._token(chain.row), self._probs(chain.row)
        draft, target = float(draft_V[token]), float(target_V[token])
        keep = chain.keep_probability(draft, target)
        weights = torch.tensor([keep, 1 - keep], dtype=torch.float64)
        if keep < 1 and self._luck(weights, chain.row, KEEP):
            return self._leave(chain, draft_V, target_V)
        chain.keep(token, draft, target)
        return token

    def _beside_text(self, chain: LedChain, draft_V: Tensor) -> int:
        """A token after the first one beside the text. At weight 0 it is the draft's own, whatever the target says."""
        if chain.weight == 0 or not self._tails:
            return self._leave(chain, draft_V, None)
        return self._leave(chain, draft_V, self._beyond(chain.row, chain.beside))

    def _leave(self, chain: LedChain, draft_V: Tensor, target_V: Tensor | None) -> int:
        """A token beside the text; without the target's probabilities as the draft draws it."""
        target_V = draft_V if target_V is None else target_V
        surplus_V = chain.surplus(draft_V, target_V)
        weights_V = surplus_V if surplus_V.sum() > 0 else draft_V.double()  # rounding may leave none
        token = self._luck(weights_V, chain.row, 1 + len(chain.beside))
        chain.leave(token, float(draft_V[token]), float(target_V[token]))
        return token

    def _verified(self, weights: Tensor) -> int:
        """The prefill's token; then of every round the row where the accepted path ends, and the token there."""
        chain = self._chain
        if chain is None:
            self._require_same(weights)
            self._chain = LedChain(1, self._joint)
            self.first_uniform = number_of(weights, self._text.tokens[0])
            return self._text.tokens[0]
        if self._stop_uniform is None:
            self._take_certain(chain, weigh=False)
            assert len(weights) == len(chain.tokens) + 1, "every drafted token was drawn"
            self._stop_uniform = number_of(weights, chain.kept)
            return chain.kept
        token = self._token(chain.row)
        self._end_round(chain, token, (self._stop_uniform, number_of(weights, token)))
        return token

    def _require_same(self, target_V: Tensor) -> None:
        """`ValueError` unless the decoder's target says after the prompt what the text's target did."""
        apart = float((target_V - self._text.probs_RV[0].to(target_V)).abs().sum() / 2)
        if not apart < LARGEST_DIFFERENCE:
            raise ValueError(
                f"after the prompt the decoder's target and the text's differ by a total variation of {apart:.2g}: the text is "
                "of another pair, number format or setting. Make it with `GivenText.of` this pair."
            )

    def _end_round(self, chain: LedChain, token: int, verdict_uniforms: tuple[float, float]) -> None:
        drafted, numbers = tuple(chain.tokens), tuple(self._draft_uniforms)
        self.rounds.append(LedRound(drafted, chain.kept, token, numbers, verdict_uniforms))
        self._chain = LedChain(chain.row + 1, self._joint)
        self._draft_uniforms, self._stop_uniform = [], None

    def _token(self, row: int) -> int:
        """The text's token at ``row``; after its end, where drafting may go on, a token that the target continues it with."""
        while row >= len(self._tokens):
            end = len(self._tokens)
            self._tokens.append(self._luck(self._probs(end), end, EXTEND))
        return self._tokens[row]

    def _probs(self, row: int) -> Tensor:
        """The target's probabilities [V] of that token."""
        return self._text.probs_RV[row] if row < len(self._text.probs_RV) else self._beyond(row, [])

    def _beyond(self, row: int, beside: list[int]) -> Tensor:
        """The target's probabilities [V] where the text has ended, or ``beside`` it from ``row`` on."""
        text, last = self._text, min(row, len(self._text.tokens))
        logits_V = text.logits(text.target).beside(last, [*self._tokens[last:row], *beside])
        return processed_law(logits_V, text.settings)
