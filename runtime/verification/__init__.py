"""Verifiers by name, each with the draft laws it is lossless for."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from runtime.tree import DraftLaw, TokenTree
from runtime.verification.chain import block, tokenwise
from runtime.verification.outcome import OutcomeLaw, draw_verdict


@dataclass(frozen=True)
class Verifier:
    """A rule: ``rule(tree, target_probs)`` gives the outcome's law.

    ``target_probs`` is [N + 1, V]: row 0 after the root, row i + 1 after node i. ``lossless_for`` lists the draft laws under
    which the emitted tokens follow the target exactly.
    """

    name: str
    rule: Callable[[TokenTree, Tensor], OutcomeLaw]
    lossless_for: frozenset[DraftLaw]

    def __call__(self, tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
        """The law of the outcome on ``tree``; `ValueError` if this rule would be lossy on it."""
        if tree.law not in self.lossless_for:
            known = ", ".join(sorted(law.name for law in self.lossless_for))
            raise ValueError(f"verifier {self.name!r} is not lossless for {tree.law.name} drafts; it is for {known}.")
        if len(target_probs) != tree.num_nodes + 1:
            raise ValueError(f"target_probs has {len(target_probs)} rows, expected N + 1 = {tree.num_nodes + 1}.")
        return self.rule(tree, target_probs)


# One draw per node: i.i.d. and without replacement coincide, and a deterministic chain is a chain with one-hot laws.
_ONE_DRAW = frozenset(DraftLaw)

VERIFIERS: dict[str, Verifier] = {
    "tokenwise": Verifier("tokenwise", tokenwise, _ONE_DRAW),
    "block": Verifier("block", block, _ONE_DRAW),
    "hsd": Verifier("hsd", block, _ONE_DRAW),
}

__all__ = ["VERIFIERS", "OutcomeLaw", "Verifier", "draw_verdict"]
