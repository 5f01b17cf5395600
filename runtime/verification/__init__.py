"""Verifiers by name, each with the ways of drawing a draft that it is lossless for."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from runtime.randomness import Chance, Uniform
from runtime.tree import DraftLaw, TokenTree
from runtime.verification.chain import block, tokenwise
from runtime.verification.multi_draft import hsd_multi_draft
from runtime.verification.outcome import NotFiniteError, OutcomeLaw, Rule, draw_verdict, read_verdict
from runtime.verification.top_down import ANY, NODE_SOLVERS, top_down
from runtime.verification.traversal import traversal

ALIASES = {"hsd": "block", "match": "nss"}  # names that are another rule's


@dataclass(frozen=True)
class Verifier:
    """A verification rule: ``rule(tree, target_probs)`` gives the distribution of the outcome.

    ``target_probs`` is [N + 1, V]: row 0 after the root, row i + 1 after node i. ``lossless_for`` lists the ways of drawing
    under which the emitted tokens follow the target exactly; ``chains_only`` rules take no branching tree.
    """

    name: str
    rule: Rule
    lossless_for: frozenset[DraftLaw]
    chains_only: bool = False

    def __call__(self, tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
        """Compute the distribution of the outcome on ``tree``; `ValueError` if this rule would be lossy on it.

        A row that is no distribution (NaN, infinity) is a leaf: what was drafted below it is dropped, before its tokens are
        looked at. ``residual`` of such a row is a `NotFiniteError`.
        """
        self._require(tree, target_probs)
        sound = target_probs.sum(dim=1).isfinite()
        return self.rule(tree, target_probs) if bool(sound.all()) else self._pruned(tree, target_probs, sound)

    def verdict(self, tree: TokenTree, target_probs: Tensor, chance: Chance) -> tuple[int, int]:
        """Draw a verdict by `draw_verdict`. Where draws from what is no distribution do no harm, the host reads along whether all
        rows are some."""
        if not isinstance(chance, Uniform):
            return draw_verdict(self(tree, target_probs), chance)
        self._require(tree, target_probs)
        sound = target_probs.sum(dim=1).isfinite()
        *drawn, all_sound = read_verdict(self.rule(tree, target_probs), chance, sound.all())
        return (drawn[0], drawn[1]) if all_sound else draw_verdict(self._pruned(tree, target_probs, sound), chance)

    def _require(self, tree: TokenTree, target_probs: Tensor) -> None:
        if tree.num_nodes:
            self.require_lossless(tree.law)
        if len(target_probs) != tree.num_nodes + 1:
            raise ValueError(f"target_probs has {len(target_probs)} rows, expected N + 1 = {tree.num_nodes + 1}.")

    def _pruned(self, tree: TokenTree, target_probs: Tensor, sound: Tensor) -> OutcomeLaw:
        """Compute the outcome's distribution, by the rows of ``tree``, on what is left where rows not ``sound`` are leaves."""
        leaf: list[bool] = (~sound).tolist()
        kept = [0]
        for node, parent in enumerate(tree.parent_list):
            if parent + 1 in kept and not leaf[parent + 1]:
                kept.append(node + 1)
        nodes, place = [row - 1 for row in kept[1:]], {row: number for number, row in enumerate(kept)}
        assert tree.draws is not None
        drawn = [place[node + 1] - 1 for node in tree.draws.tolist() if node + 1 in place]
        left = TokenTree(
            tokens=tree.tokens[nodes],
            parents=torch.tensor([place[tree.parent_list[node] + 1] - 1 for node in nodes], dtype=torch.int64),
            draws=torch.tensor(drawn, dtype=torch.int64),
            draft_probs=None if tree.draft_probs is None else tree.draft_probs[kept],
            law=tree.law,
        )
        size = target_probs.shape[1]
        probs = torch.where(sound.unsqueeze(1), target_probs, 1 / size)[kept]  # what stands at a leaf changes nothing
        law = self.rule(left, probs)
        stop = law.stop.new_zeros(len(leaf))
        stop[kept] = law.stop

        def residual(row: int | Tensor) -> Tensor:
            if leaf[int(row)]:
                raise NotFiniteError
            return law.residual(place[int(row)])

        return OutcomeLaw(stop, tree.depths, residual)

    def require_lossless(self, law: DraftLaw) -> None:
        """Raise `ValueError` naming both if this rule is lossy on drafts of ``law``."""
        if law not in self.lossless_for:
            known = ", ".join(sorted(known.name for known in self.lossless_for))
            raise ValueError(f"verifier {self.name!r} is not lossless for {law.name} drafts; it is for {known}.")


_RULES = [
    # A chain has one draw per node: all ways of drawing coincide there; deterministic drafts are one-hot.
    Verifier("tokenwise", tokenwise, ANY, chains_only=True),
    Verifier("block", block, ANY, chains_only=True),
    Verifier("traversal", traversal, ANY),
    *(Verifier(name, top_down(solver), laws) for name, (solver, laws) in NODE_SOLVERS.items()),
    Verifier("hsd_multi_draft", hsd_multi_draft, frozenset({DraftLaw.IID})),
]
VERIFIERS: dict[str, Verifier] = {
    name: replace(rule, name=name)
    for rule in _RULES
    for name in (rule.name, *(alias for alias, own in ALIASES.items() if own == rule.name))
}

__all__ = ["ALIASES", "VERIFIERS", "OutcomeLaw", "Verifier", "draw_verdict"]
