"""The sequential loop: draft a tree, verify it in one target pass, commit. Without a drafter it is plain decoding.

Round 0 prefills the prompt and emits one target token, so that root features exist from round 1. The newest token is never
cached: a target pass runs over it and the tree, row 0 being its own.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from predictors.controllers import Controller
from predictors.rounds import RoundRecord
from predictors.signals import NextLaw, Root
from runtime.clock import PhaseClock
from runtime.decoding.base import Decoder, Evidence, Step
from runtime.drafting.draft import Draft, Drafter
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.randomness import stream
from runtime.request import Request
from runtime.tree import EMPTY_TREE, TokenTree
from runtime.verification import VERIFIERS, Verifier, draw_verdict


class SequentialDecoder(Decoder):
    """Alternates drafting and verification. ``drafter=None`` decodes with the target alone."""

    def __init__(
        self,
        pair: ModelPair,
        drafter: Drafter | None,
        verifier: Verifier,
        controller: Controller,
        lossy: bool = False,
    ) -> None:
        super().__init__(pair, controller, lossy)
        if drafter is not None:
            require_compatible(drafter, verifier, lossy)
        self.drafter = drafter
        self.verifier = verifier

    @property
    def context_limit(self) -> int:
        limit = self.pair.target.context_limit
        return limit if self.drafter is None or self.pair.draft is None else min(limit, self.pair.draft.context_limit)

    def _steps(self, request: Request) -> Iterator[Step]:
        run = self._open(request)
        yield run.prefill()
        while not run.done:
            yield run.round()

    def _open(self, request: Request) -> "Run":
        return Run(self, request)


class Run:
    """One request in flight."""

    def __init__(self, decoder: SequentialDecoder, request: Request) -> None:
        pair = decoder.pair
        self.request = request
        self.pair = pair
        self.verify = partial(decoder.verifier, lossy=decoder.lossy)
        self.session = decoder.controller.start(request.settings)
        self.clock = PhaseClock()
        self.chance = stream(request.randomness, "verify")
        self.target = pair.target.open(request.max_length, request.layers)
        self.depth = 0
        self.draft: Draft | None = None
        if decoder.drafter is not None:
            assert pair.draft is not None
            self.depth = decoder.drafter.depth
            draft_chance = stream(request.randomness, "draft")
            self.draft = decoder.drafter.open(pair.draft, pair.target.vocabulary_size, request, draft_chance)
        self.emitted = 0
        self.done = False
        self.newest = -1
        self.hidden_KD: Tensor | None = None
        self.previous: RoundRecord | None = None

    @torch.inference_mode()
    def prefill(self) -> Step:
        """Round 0: cache the prompt in both models and emit one token of the target."""
        prompt = self.request.prompt
        self.clock.resume()
        out = self.target.forward(prompt, last=1)
        self.target.keep(range(len(prompt)))
        self.hidden_KD = None if out.hidden_NKD is None else out.hidden_NKD[-1]
        self.clock.lap("target")
        law = processed_law(out.logits[-1], self.request.settings)
        if not bool(torch.isfinite(law).all()):
            raise ValueError(
                "the target's logits are not finite after the prompt; check the model's weights and dtype."
            )
        emitted = self._begin(law, out.logits[-1])
        self.clock.lap("verify")
        if self.draft is not None:
            self.draft.prefill(prompt, emitted)
            self.clock.lap("draft")
        return Step(*self._emit(RoundRecord(), emitted))

    def _begin(self, law_V: Tensor, logits_V: Tensor) -> list[int]:
        """The tokens that the prefill emits."""
        self.newest = int(self.chance.categorical(law_V))
        return [self.newest]

    @torch.inference_mode()
    def round(self) -> Step:
        """Draft, verify in one target pass, commit."""
        self.clock.resume()
        root = self._root()
        tree, draft_laws = self._draft(root)
        out = self.target.forward([self.newest, *tree.token_list], [-1, *(parent + 1 for parent in tree.parent_list)])
        self.clock.lap("target")
        target_probs = processed_law(out.logits, self.request.settings)
        row, token = draw_verdict(self.verify(tree, target_probs), self.chance)
        path = tree.path(row)
        accepted = [tree.token_list[node] for node in path]
        self.target.keep([0, *(node + 1 for node in path)])
        self.newest = token
        self.hidden_KD = None if out.hidden_NKD is None else out.hidden_NKD[row]
        self.clock.lap("verify")
        if self.draft is not None:
            self.draft.commit(path, accepted, [token])
            self.clock.lap("draft")
        tokens, record = self._end(tree.num_nodes, max(tree.depths), len(path), [*accepted, token])
        evidence = Evidence(root, tree, draft_laws, target_probs, out.hidden_NKD) if self.request.observe else None
        return Step(tokens, record, evidence)

    def _root(self) -> Root:
        embedding_E = self.pair.target.embedding(self.newest) if self.request.layers else None
        position = len(self.request.prompt) + self.emitted
        return Root(position, self.depth, self.request.settings, self.previous, self.hidden_KD, embedding_E)

    def _draft(self, root: Root) -> tuple[TokenTree, list[NextLaw]]:
        cap = self._cap(root)
        if self.draft is None:
            return EMPTY_TREE, []
        return self.draft.draft(root, cap, self.session, self.clock)

    def _cap(self, root: Root) -> int:
        """Most levels to draft: the drafter's, the controller's plan, and one less than the remaining budget."""
        planned = self.session.plan(root)
        self.clock.lap("controller")
        budget = self.request.max_new_tokens - self.emitted - 1
        return min(self.depth, budget, self.depth if planned is None else planned)

    def _end(self, drafted: int, levels: int, accepted: int, tokens: list[int]) -> tuple[list[int], RoundRecord]:
        """Emit ``tokens``, record the round and let the controller learn from it."""
        record = RoundRecord(drafted=drafted, levels=levels, accepted=accepted, rolled_back=levels - accepted)
        record.bypassed = self.session.bypassed
        tokens, record = self._emit(record, tokens)
        self.session.end_round(record)
        self.previous = record
        return tokens, record

    def _emit(self, record: RoundRecord, tokens: list[int]) -> tuple[list[int], RoundRecord]:
        tokens, self.done = self.request.cut(tokens, self.emitted)
        self.emitted += len(tokens)
        record.emitted = len(tokens)
        record.seconds = self.clock.end_round()
        return tokens, record


def require_compatible(drafter: Drafter, verifier: Verifier, lossy: bool) -> None:
    """`ValueError` naming both if ``drafter`` may draw a tree that ``verifier`` cannot read or, unless ``lossy``, is lossy on."""
    if verifier.chains_only and drafter.branches:
        raise ValueError(f"verifier {verifier.name!r} takes chains only, and {drafter} branches. {_remedy(drafter)}")
    for law in () if lossy else sorted(drafter.laws, key=lambda law: law.name):
        try:
            verifier.require_lossless(law)
        except ValueError as error:
            raise ValueError(f"drafter {drafter}: {error} {_remedy(drafter)}") from None


def _remedy(drafter: Drafter) -> str:
    fitting = [
        name
        for name, verifier in VERIFIERS.items()
        if drafter.laws <= verifier.lossless_for and not (verifier.chains_only and drafter.branches)
    ]
    return f"Verifiers for this drafter: {', '.join(fitting)}."
