"""A drafted chain given the text that comes out: token by token, whatever stops the drafting.

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
Shape suffix: V vocabulary.
"""

from dataclasses import dataclass, field

from torch import Tensor


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
