"""One request in flight: the target's state, the newest token and what is known after it. Loops build on it."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from predictors.rounds import RoundRecord
from predictors.signals import Root
from runtime.adapter import Forward, cache_prompt
from runtime.decoding.base import Decoder, Step
from runtime.device import PhaseClock, is_out_of_memory, on_device
from runtime.laws import processed_law, says_something
from runtime.randomness import Uniform, stream
from runtime.request import Request
from runtime.verification import Verifier
from runtime.verification.graphed import GraphedVerdicts
from runtime.verification.outcome import NotFiniteError

REFUSED = (
    "no memory for a round at {} tokens of context, {} of them new, with drafts of up to {} tokens ({}): draft fewer tokens, "
    "lower max_new_tokens, or free memory. `draftwright plan` counts what they need."
)
NOT_FINITE = "; check the model's weights and dtype."


class Run(ABC):
    """One request in flight. The newest token is never cached."""

    def __init__(self, decoder: Decoder, request: Request) -> None:
        self.request = request
        self.pair = decoder.pair
        self.depth = decoder.depth
        self.clock = PhaseClock()
        self.chance = stream(request.randomness, "verify")
        self.features = decoder.features
        self.taps = tuple(sorted({*request.layers, *self.features}))
        self.target = request.open(self.pair.target, self.taps)
        self.text = list(request.prompt)  # and what was emitted
        self.prefilled = self.done = False
        self.newest = -1
        self.hidden_KD: Tensor | None = None
        self.probs_V: Tensor | None = None
        self.previous: RoundRecord | None = None

    @torch.inference_mode()
    def step(self) -> Step:
        """Run the prefill, later a round; `MemoryError` if one finds no memory. A smaller draft instead would be lossy: how many
        tokens are drafted may depend on them."""
        self.clock.resume()
        begun, self.prefilled = self.prefilled, True
        try:
            step = self.round() if begun else self.prefill()
        except NotFiniteError as error:
            raise ValueError(f"{error} after {len(self.text)} tokens, {self.emitted} of them new{NOT_FINITE}") from None
        except RuntimeError as error:
            if not (begun and is_out_of_memory(error)):
                raise
            raise MemoryError(REFUSED.format(len(self.text), self.emitted, self.depth, error)) from error
        tokens, self.done = self.request.cut(step.tokens, self.emitted)
        self.text += tokens
        step.record.emitted, step.record.seconds = len(tokens), self.clock.end_round()
        if begun:
            self._learn(step.record)
            self.previous = step.record
        return Step(tokens, step.record, step.evidence)

    @abstractmethod
    def round(self) -> Step:
        """Draft, verify in one target pass, commit; return all tokens of the round, not yet cut."""

    def _learn(self, record: RoundRecord) -> None:  # noqa: B027 (only controllers here learn from it)
        """Give the controller the ``record`` of a round that ended."""

    def close(self) -> None:  # noqa: B027 (only a draft that works elsewhere has something to end)
        """End the request, which is over or given up."""

    def prefill(self) -> Step:
        """Round 0: cache the prompt in both models and emit one token of the target."""
        self._begin_draft_prefill()
        out = cache_prompt(self.target, self.request.prompt)
        self.clock.lap("target")
        law = processed_law(out.logits[-1], self.request.settings)
        if not bool(says_something(out.logits[-1])):
            raise ValueError(f"{NotFiniteError()} after the prompt{NOT_FINITE}")
        step = Step(self._begin(law, out), RoundRecord())
        self.clock.lap("verify")
        self._end_draft_prefill(step, self._tapped(out, self.features))
        return step

    def _begin(self, law_V: Tensor, out: Forward) -> list[int]:
        """Draw the tokens that the prefill emits."""
        self._move(out, -1, int(self.chance.categorical(law_V)))
        return [self.newest]

    def _move(self, out: Forward, row: int, token: int) -> None:
        """Make ``token`` the newest: it was drawn from row ``row`` of the target's pass."""
        self.newest = token
        hidden_NKD = self._tapped(out, self.request.layers)
        self.hidden_KD = None if hidden_NKD is None else hidden_NKD[row]

    def _tapped(self, out: Forward, layers: tuple[int, ...]) -> Tensor | None:
        """Return the states [rows, K, D] of ``layers`` alone, of a pass of the target."""
        if out.hidden_NKD is None or layers == self.taps:
            return out.hidden_NKD
        if not layers:
            return None
        return out.hidden_NKD[:, on_device([self.taps.index(layer) for layer in layers], out.hidden_NKD.device)]

    def _begin_draft_prefill(self) -> None:  # noqa: B027 (only a draft that runs concurrently begins)
        """Begin the draft's prefill, before the target's."""

    def _end_draft_prefill(self, step: Step, hidden_NKD: Tensor | None) -> None:  # noqa: B027 (the target may draft)
        """End the draft's prefill, after the target's; ``hidden_NKD`` are the states along the prompt that the draft reads."""

    def _graphed_verdicts(self, verifier: Verifier) -> GraphedVerdicts | None:
        """Return graphed verdicts of ``verifier``; ``None`` where the target's passes are not graphed, the rule takes trees apart
        on the host, or chance does not allow it."""
        programs = self.pair.target.programs
        if programs is None or not verifier.chains_only or not isinstance(self.chance, Uniform):
            return None
        return GraphedVerdicts(verifier, self.request.settings, self.chance, programs)

    @property
    def emitted(self) -> int:
        """Tokens emitted so far."""
        return len(self.text) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.request.max_new_tokens - self.emitted

    def _root(self) -> Root:
        embedding_E = self.pair.target.embedding(self.newest) if self.request.layers else None
        known = self.previous, self.hidden_KD, embedding_E, self.probs_V
        return Root(len(self.text), self.depth, self.request.sampling, *known)
