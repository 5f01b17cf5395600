"""Verdicts at temperature 0, where the target's laws are one-hot: every lossless rule follows the target's own tokens.

With p(x*) = 1, a rule whose output has law p emits x*, and it is accepted as a drafted token where it was drafted. So the path is
found by equality, whatever the rule; the tests compare with each rule's law.
"""

from collections.abc import Sequence

from torch import Tensor

from runtime.tree import TokenTree


def greedy_verdict(tree: TokenTree, logits: Tensor) -> tuple[int, int]:
    """The row where the accepted path ends, and the token emitted after it, of target logits [N + 1, V]: one host read."""
    return greedy_path(tree, tree.read_with(logits.argmax(dim=-1)))


def greedy_path(tree: TokenTree, best: Sequence[int]) -> tuple[int, int]:
    """The same of the target's most likely token at each of the N + 1 rows."""
    row = 0
    for node, (token, parent) in enumerate(zip(tree.token_list, tree.parent_list, strict=True)):
        if parent == row - 1 and token == best[row]:
            row = node + 1
    return row, best[row]
