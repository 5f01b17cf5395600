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
Of tokens that a lookup drafts it is told: q is one-hot there.

Random numbers are drawn by position: arms that decide the same on one text draw the same, in whatever order. The position ``(row,
slot)`` is the ``row`` of the text where the draw is made or where the drafted chain left the text, and the ``slot`` there.

    KEEP = 0       whether the token drafted at this row is the text's
    1, 2, …        the tokens drafted instead of it and after that
    EXTEND = -1    the target's own token after the end of the text

Shape suffix: V vocabulary.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.laws import processed_law
from runtime.leading.text import GivenText
from runtime.randomness import Chance, inverted, number_of

LARGEST_DIFFERENCE = 0.1  # total variation; coarse, to notice another pair and not another rounding
KEEP, EXTEND = 0, -1
Uniforms = Callable[[int, int], float]  # a number in [0, 1) by row and slot
Luck = Callable[[Tensor, int, int], int]  # a draw from unnormalised weights [V] with positive mass, by row and slot


def luck_of(uniforms: Uniforms) -> Luck:
    """Draws that invert the cumulative distribution at ``uniforms``."""

    def draw(weights_V: Tensor, row: int, slot: int) -> int:
        uniform = torch.tensor([uniforms(row, slot)], dtype=torch.float64, device=weights_V.device)
        return int(inverted(weights_V, uniform))

    return draw


def seeded_uniforms(seed: int) -> Uniforms:
    """Independent uniform numbers that follow from ``seed``.

    Examples
    --------
    >>> seeded_uniforms(3)(5, KEEP) == seeded_uniforms(3)(5, KEEP)
    True
    """

    def uniform(row: int, slot: int) -> float:
        key = hashlib.sha256(f"{seed}/{row}/{slot}".encode()).digest()
        return (int.from_bytes(key[:8], "little") >> 11) * 2.0**-53

    return uniform


@dataclass
class LedChain:
    """A round and its chain: it starts at the text's row ``start``, and the first ``kept`` of its ``tokens`` so far are the
    text's. ``joint``: the verifier weighs whole prefixes, as block verification does; ``weight`` is that of the tokens so far.
    ``next_token``: what the round emits after those it kept, once it has ended. For every draw also a uniform number that
    `runtime.randomness.inverted` makes it of: ``uniforms`` of the tokens (0 for one of a lookup, which is not drawn) and
    ``verdict_uniforms``."""

    start: int
    joint: bool
    tokens: list[int] = field(default_factory=list)
    kept: int = 0
    weight: float = field(default=1.0, compare=False)  # its last bits depend on how passes were batched
    next_token: int = -1
    uniforms: list[float] = field(default_factory=list)
    verdict_uniforms: list[float] = field(default_factory=list)

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
        self.rounds: list[LedChain] = []
        self.first_uniform = 0.0
        self._text = text
        self._joint = joint
        self._luck = luck
        self._tails = tails
        self._tokens = list(text.tokens)  # and those after its end that a round has reached
        self._chain: LedChain | None = None  # none before the prefill's token
        self._certain: list[int] = []  # drafted without a draw, and not in the chain yet

    def stream(self, purpose: str) -> Chance:
        """The stream of one purpose, ``draft`` or ``verify``."""
        answer = {"draft": self._drafted, "verify": self._verified}[purpose]
        return Answers(answer, self._certain.extend)

    def _drafted(self, draft_V: Tensor) -> int:
        """A draft token."""
        chain = self._chain
        assert chain is not None, "a round is in flight"
        self._take_certain(chain, weigh=True)
        token = self._along_text(chain, draft_V) if chain.on_text else self._leave(chain, draft_V, self._target(chain))
        chain.uniforms.append(number_of(draft_V, token))
        return token

    def _take_certain(self, chain: LedChain, weigh: bool) -> None:
        """Add the tokens that were not drawn; without ``weigh`` as if the prefix kept its weight: nothing is drawn then."""
        for token in self._certain:
            target_V = self._target(chain) if weigh else None
            kept = chain.on_text and token == self._token(chain.row)
            (chain.keep if kept else chain.leave)(token, 1.0, 1.0 if target_V is None else float(target_V[token]))
            chain.uniforms.append(0.0)
        self._certain.clear()

    def _target(self, chain: LedChain) -> Tensor | None:
        """The target's probabilities [V] after ``chain``. ``None`` beside the text where no tail is weighed: at weight 0 the next
        token is the draft's own, whatever the target says."""
        if chain.on_text:
            return self._probs(chain.row)
        return self._beyond(chain.row, chain.beside) if chain.weight > 0 and self._tails else None

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
        if not chain.verdict_uniforms:
            self._take_certain(chain, weigh=False)
            assert len(weights) == len(chain.tokens) + 1, "every drafted token was drawn"
            answer = chain.kept
        else:
            answer = chain.next_token = self._token(chain.row)
            self.rounds.append(chain)
            self._chain = LedChain(chain.row + 1, self._joint)
        chain.verdict_uniforms.append(number_of(weights, answer))
        return answer

    def _require_same(self, target_V: Tensor) -> None:
        """`ValueError` unless the decoder's target says after the prompt what the text's target did."""
        apart = float((target_V - self._text.probs_RV[0].to(target_V)).abs().sum() / 2)
        if not apart < LARGEST_DIFFERENCE:
            raise ValueError(
                f"after the prompt the decoder's target and the text's differ by a total variation of {apart:.2g}: the text is "
                "of another pair, number format or setting. Make it with `GivenText.of` this pair."
            )

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
        logits = self._text.logits(self._text.target)
        return processed_law(logits.after([*self._tokens[:row], *beside]), self._text.settings)
