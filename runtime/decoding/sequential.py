"""The sequential loop: draft a tree, verify it in one target pass, commit. Without a drafter it is plain decoding.

Round 0 prefills the prompt and emits one target token, so that root features exist from round 1. The newest token is never
cached: a target pass runs over it and the tree, row 0 being its own.

Shape suffixes: V vocabulary, M rows of a pass (N nodes + 1).
"""

from dataclasses import replace

from torch import Tensor

from predictors.controllers import Controller
from predictors.rounds import RoundRecord
from predictors.signals import Root
from runtime.adapter import Forward, features_of
from runtime.decoding.base import Decoder, Evidence, Step
from runtime.decoding.run import Run
from runtime.device import on_device
from runtime.drafting.chain import LookupDraft
from runtime.drafting.draft import Draft, Drafter
from runtime.drafting.drafted import Drafted, DraftedTree
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.randomness import stream
from runtime.request import Request
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree, behind
from runtime.verification import VERIFIERS, Verifier
from runtime.verification.graphed import GraphedVerdicts
from runtime.verification.outcome import greedy_verdict


class SequentialDecoder(Decoder):
    """Alternates drafting and verification. ``drafter=None`` decodes with the target alone."""

    def __init__(self, pair: ModelPair, drafter: Drafter | None, verifier: Verifier, controller: Controller) -> None:
        super().__init__(pair, controller)
        if drafter is not None:
            require_compatible(drafter, verifier)
        self.drafter = drafter
        self.verifier = verifier
        programs = pair.target.programs
        if programs is not None:
            controller.graph_with(programs.maker)

    @property
    def depth(self) -> int:
        return 0 if self.drafter is None else self.drafter.depth

    @property
    def features(self) -> tuple[int, ...]:
        unread = self.drafter is None or not self.drafter.needs_draft or self.pair.draft is None
        return () if unread or self.pair.draft is None else features_of(self.pair.draft)

    @property
    def context_limit(self) -> int:
        limit, draft = self.pair.target.context_limit, self.pair.draft
        unread = self.drafter is None or not self.drafter.needs_draft
        return limit if unread or draft is None else min(limit, draft.context_limit)

    def _open(self, request: Request) -> "SequentialRun":
        return SequentialRun(self, request)


class SequentialRun(Run):
    def __init__(self, decoder: SequentialDecoder, request: Request) -> None:
        pair, drafter = decoder.pair, decoder.drafter
        super().__init__(decoder, request)
        self.draws = not request.settings.greedy  # a verdict is drawn, not read off
        self.verify = decoder.verifier
        self.graphed: GraphedVerdicts | None = None
        if (drafter is None or drafter.laws == {DraftLaw.IID}) and not (request.views or request.observe):
            self.graphed = self._graphed_verdicts(decoder.verifier)
        self.session = decoder.controller.start(request.sampling)
        self.draft: Draft | None = None
        self.passes = 0  # of the draft's model, in the rounds before
        if drafter is not None:
            model = pair.draft if drafter.needs_draft else pair.target
            assert model is not None
            self.draft = drafter.open(model, replace(request, randomness=stream(request.randomness, "draft")))
        self.lookup = self.draft if isinstance(self.draft, LookupDraft) else None

    def _begin(self, law_V: Tensor, out: Forward) -> list[int]:
        self.probs_V = law_V
        return super()._begin(law_V, out)

    def _end_draft_prefill(self, step: Step, hidden_NKD: Tensor | None) -> None:
        if self.draft is not None:
            self.draft.prefill(self.request.prompt, step.tokens, hidden_NKD)
            self.clock.lap("draft")

    def round(self) -> Step:
        root = self._root()
        drafted = self._draft(root)
        tokens_M, parents = behind(self.newest, drafted.tokens), [-1, *(parent + 1 for parent in drafted.parents)]
        out = self.target.forward(tokens_M, parents)
        self.clock.lap("target")
        tree, out = drafted.tree, drafted.of_nodes(out)
        probs_MV = None  # unless somebody reads the target's distributions at the rows: they are computed once a round
        if (self.draws and self.graphed is None) or self.request.views or self.request.observe:
            probs_MV = processed_law(out.logits, self.request.settings)
        row, token = self._verdict(tree, out.logits, probs_MV)
        path = tree.path(row)
        accepted = [tree.token_list[node] for node in path]
        self.target.keep([0, *(place + 1 for place in drafted.places(path))])
        self._move(out, row, token)
        self.probs_V = None if probs_MV is None else probs_MV[row]
        self.clock.lap("verify")
        if self.draft is not None:
            hidden_NKD = self._tapped(out, self.features)
            if hidden_NKD is not None:  # in front of each of them
                hidden_NKD = hidden_NKD[on_device([0, *(node + 1 for node in path)], hidden_NKD.device)]
            self.draft.commit(path, accepted, [token], hidden_NKD)
            self.clock.lap("draft")
        record = RoundRecord(tree.num_nodes, max(tree.depths), accepted=len(path), looked_up=drafted.looked_up)
        evidence = None
        if self.request.observe and probs_MV is not None:
            evidence = Evidence(root, tree, drafted.laws, probs_MV, self._tapped(out, self.request.layers))
        return Step([*accepted, token], self._counted(record), evidence)

    def _verdict(self, tree: TokenTree, logits: Tensor, probs_MV: Tensor | None) -> tuple[int, int]:
        """Draw the verdict: the row where the accepted path ends, and the token after it."""
        if not self.draws:
            return greedy_verdict(tree, logits)
        if probs_MV is None:
            assert self.graphed is not None
            row, token, _ = self.graphed.draw(tree, logits)
            return row, token
        return self.verify.verdict(tree, probs_MV, self.chance)

    def _root(self) -> Root:
        root = super()._root()
        if self.lookup is not None and self.session.reads_lookup:
            root = replace(root, found=self.lookup.found())
            self.clock.lap("draft")
        return root

    def _draft(self, root: Root) -> Drafted:
        if self.lookup is not None and root.found is not None and root.found.length:
            sourced = self.session.source(root)
            self.clock.lap("controller")
            if sourced is not None:
                return self.lookup.follow(root, sourced, min(self.depth, self.remaining - 1), self.clock)
        cap = self._cap(root)
        if self.draft is None:
            return DraftedTree(EMPTY_TREE, [])
        return self.draft.draft(root, cap, self.session, self.clock)

    def _cap(self, root: Root) -> int:
        """Return the most levels to draft: the drafter's, the controller's plan, and one less than the remaining budget."""
        planned = self.session.plan(root)
        self.clock.lap("controller")
        return min(self.depth, self.remaining - 1, self.depth if planned is None else planned)

    def _counted(self, record: RoundRecord) -> RoundRecord:
        """Add what draft and controller did to a round's ``record``."""
        record.rolled_back = record.levels - record.accepted
        passes = 0 if self.draft is None else self.draft.passes
        record.passes, self.passes = passes - self.passes, passes
        record.asked = self.session.asked
        record.bypassed = self.session.bypassed
        record.forecasts = tuple(self.session.forecasts) if record.drafted == record.levels else ()
        return record

    def _learn(self, record: RoundRecord) -> None:
        self.session.end_round(record)


def require_compatible(drafter: Drafter, verifier: Verifier) -> None:
    """Raise `ValueError` naming both if ``drafter`` may draw a tree that ``verifier`` cannot read or is lossy on."""
    if verifier.chains_only and drafter.branches:
        raise ValueError(f"verifier {verifier.name!r} takes chains only, and {drafter} branches. {_remedy(drafter)}")
    for law in sorted(drafter.laws, key=lambda law: law.name):
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
