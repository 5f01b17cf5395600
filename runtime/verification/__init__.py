"""Verifiers by name, each with the draft laws it is lossless for."""

from dataclasses import dataclass, replace

from torch import Tensor

from runtime.tree import DraftLaw, TokenTree
from runtime.verification.chain import block, tokenwise
from runtime.verification.multi_draft import hsd_multi_draft
from runtime.verification.outcome import OutcomeLaw, Rule, draw_verdict
from runtime.verification.top_down import ANY, NODE_SOLVERS, top_down
from runtime.verification.traversal import traversal

ALIASES = {"hsd": "block", "match": "nss"}  # names that are another rule's


@dataclass(frozen=True)
class Verifier:
    """A rule: ``rule(tree, target_probs)`` gives the outcome's law.

    ``target_probs`` is [N + 1, V]: row 0 after the root, row i + 1 after node i. ``lossless_for`` lists the draft laws under
    which the emitted tokens follow the target exactly; ``chains_only`` rules take no branching tree.
    """

    name: str
    rule: Rule
    lossless_for: frozenset[DraftLaw]
    chains_only: bool = False

    def __call__(self, tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
        """The law of the outcome on ``tree``; `ValueError` if this rule would be lossy on it."""
        if tree.num_nodes:
            self.require_lossless(tree.law)
        if len(target_probs) != tree.num_nodes + 1:
            raise ValueError(f"target_probs has {len(target_probs)} rows, expected N + 1 = {tree.num_nodes + 1}.")
        return self.rule(tree, target_probs)

    def require_lossless(self, law: DraftLaw) -> None:
        """`ValueError` naming both if this rule is lossy on drafts of ``law``."""
        if law not in self.lossless_for:
            known = ", ".join(sorted(known.name for known in self.lossless_for))
            raise ValueError(f"verifier {self.name!r} is not lossless for {law.name} drafts; it is for {known}.")


_RULES = [
    # A chain has one draw per node: all draft laws coincide there, with one-hot laws for deterministic drafts.
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
