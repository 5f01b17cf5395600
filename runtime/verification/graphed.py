"""Verdicts on chains as graphed programs: distributions, the rule and both draws at one launch, and one read by the host.

A rule on chains looks at nothing but tensors of fixed shape; rules on trees take the topology apart on the host, and each tree
has another one. Shape suffixes: M rows (the root and the chain's tokens), V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.graphs import GraphMaker, Programs
from runtime.laws import processed_law
from runtime.randomness import Uniform, inverted
from runtime.tree import EMPTY_TREE, TokenTree, chain_tree
from runtime.verification import Verifier, draw_verdict
from runtime.verification.outcome import Rule


@dataclass(frozen=True)
class GraphedVerdicts:
    """Draws the verdicts of one request by a ``verifier``: two numbers of ``chance`` each, as `draw_verdict` does. Where a row of
    the target is no distribution, which is read along, it draws again by plain calls."""

    verifier: Verifier
    settings: SamplingSettings
    chance: Uniform
    programs: Programs

    def draw(self, tree: TokenTree, logits_MV: Tensor) -> tuple[int, int, Tensor]:
        """Draw a verdict as `draw_verdict`, of the chain ``tree`` and the target's logits; also return the distribution [V] of
        the token, which holds until the next verdict. The tree's tokens are read along."""
        draft_MV = tree.draft_probs
        key = ("verdict", self.verifier.name, self.settings, logits_MV.shape, logits_MV.dtype, draft_MV is None)
        program = self.programs.get(
            key, lambda maker: VerdictProgram(maker, self.verifier.rule, self.settings, logits_MV, draft_MV)
        )
        verdict, law_V = program(tree, logits_MV, self.chance)
        row, token, sound = tree.read_with(verdict)
        if not sound:
            law = self.verifier(tree, processed_law(logits_MV, self.settings))
            row, token = draw_verdict(law, self.chance)
            law_V = law.residual(row)
        return row, token, law_V


class VerdictProgram:
    """Program of a verdict for one length of chain under one setting."""

    def __init__(
        self, maker: GraphMaker, rule: Rule, settings: SamplingSettings, logits_MV: Tensor, draft_MV: Tensor | None
    ) -> None:
        self._rule = rule
        self._settings = settings
        self._logits_MV = torch.zeros_like(logits_MV)
        dtype = torch.promote_types(logits_MV.dtype, torch.float32)  # whatever the first draft's was
        self._draft_MV = None if draft_MV is None else torch.ones_like(logits_MV, dtype=dtype)
        self._tokens = torch.zeros(len(logits_MV) - 1, dtype=torch.int64, device=logits_MV.device)
        self._uniform = torch.zeros(2, 1, dtype=torch.float64, device=logits_MV.device)
        self._run = maker.make(self._verdict)

    def __call__(self, tree: TokenTree, logits_MV: Tensor, chance: Uniform) -> tuple[Tensor, Tensor]:
        """Draw row and token of the verdict and whether all rows are distributions [3]; return these and the token's own [V]."""
        self._logits_MV.copy_(logits_MV)
        if self._draft_MV is not None and tree.draft_probs is not None:
            self._tokens.copy_(tree.tokens)
            self._draft_MV.copy_(tree.draft_probs)
        for uniform in self._uniform:  # one after the other, as two draws would
            chance.fill(uniform)
        return self._run()

    def _verdict(self) -> tuple[Tensor, Tensor]:
        tree = EMPTY_TREE if self._draft_MV is None else chain_tree(self._tokens, self._draft_MV)
        target_MV = processed_law(self._logits_MV, self._settings)
        law = self._rule(tree, target_MV)
        row = inverted(law.stop, self._uniform[0])
        law_V = law.residual(row)
        sound = target_MV[:, 0].isnan().logical_not().all()  # a distribution is NaN as a whole
        return torch.stack([row, inverted(law_V, self._uniform[1]), sound.to(row)]), law_V
