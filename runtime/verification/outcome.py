"""The distribution of a verification's outcome, and how a verdict is drawn from it.

Every verifier is a pure function of a tree and the target's distributions that returns where the accepted path stops, and which
token is emitted there, as distributions. A verdict is then two categorical draws; the expected accepted length is a dot product;
exactness is tested without any random number. Shape suffixes: N nodes, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.randomness import Chance
from runtime.tree import TokenTree

LARGEST_RATIO = 1e30  # finite in float32, where a smaller scale has lost its weight anyway


class NotFiniteError(ValueError):
    """Error of a verdict where the target has no distribution at the end of the accepted path."""

    def __init__(self) -> None:
        super().__init__("the target's logits are not finite")


@dataclass(frozen=True)
class OutcomeLaw:
    """Distribution of a verification's outcome: ``stop`` [N + 1] float64, P(the accepted path ends at this row's node), sums to
    1; ``depths`` [N + 1] of the rows; ``residual(row)`` [V] of the token emitted after ``row`` (int or 0-d tensor), on demand."""

    stop: Tensor
    depths: Sequence[int]
    residual: Callable[[int | Tensor], Tensor]

    def expected_accepted_length(self) -> float:
        """Compute E[accepted tokens] of this tree."""
        return float((self.stop * self.stop.new_tensor(self.depths)).sum())


Rule = Callable[[TokenTree, Tensor], OutcomeLaw]


def draw_verdict(law: OutcomeLaw, randomness: Chance) -> tuple[int, int]:
    """Draw the row where the accepted path ends and the token emitted after it: two draws, one host read."""
    row_index, token_id = read_verdict(law, randomness)
    return row_index, token_id


def read_verdict(law: OutcomeLaw, randomness: Chance, *along: Tensor) -> list[int]:
    """Draw a verdict as `draw_verdict`, and read the numbers ``along`` (0-d) with it."""
    row = randomness.categorical(law.stop)
    token = randomness.categorical(law.residual(row))
    read: list[int] = torch.stack([row, token, *(number.to(row) for number in along)]).tolist()
    return read


def greedy_verdict(tree: TokenTree, logits: Tensor) -> tuple[int, int]:
    """Find the verdict at temperature 0 of target logits [N + 1, V]: one host read.

    The target's distributions are one-hot there: with p(x*) = 1, a lossless rule emits x*, and it is accepted as a drafted
    token where it was drafted. So the path is found by equality, whatever the rule; the tests compare with each rule's outcome.
    """
    return greedy_path(tree, tree.read_with(likeliest(logits)))


def likeliest(logits: Tensor) -> Tensor:
    """Find the most likely token [...] of logits [..., V]; -1 where there is no distribution, which no drafted token is."""
    best = logits.argmax(dim=-1)  # of a row with NaN, the index of one
    value = logits.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    return torch.where(value.isfinite(), best, -1)


def greedy_path(tree: TokenTree, best: Sequence[int]) -> tuple[int, int]:
    """Find the verdict at temperature 0 from the target's most likely token at each of the N + 1 rows (`likeliest`);
    `NotFiniteError` if the path ends at a row that has none."""
    row = 0
    for node, (token, parent) in enumerate(zip(tree.token_list, tree.parent_list, strict=True)):
        if parent == row - 1 and token == best[row]:
            row = node + 1
    if best[row] < 0:
        raise NotFiniteError
    return row, best[row]


def at_row(tensor: Tensor, row: int | Tensor) -> Tensor:
    """Take a row of a tensor, by an int or by a 0-d tensor on its device, which is not read by the host."""
    return tensor.index_select(0, row.reshape(1)).squeeze(0) if isinstance(row, Tensor) else tensor[row]


def excess_mass(target_RV: Tensor, draft_RV: Tensor, scale_R: Tensor, draft_scale_R: Tensor) -> Tensor:
    """Compute Σ_y [s p(y) - t q(y)]_+ [R] float64 of float64 scales s, t: one fused pass over the distributions and a sum."""
    ratio_R = (draft_scale_R / scale_R).nan_to_num(0.0, posinf=0.0).to(target_RV.dtype).clamp_(max=LARGEST_RATIO)
    difference_RV = torch.addcmul(target_RV, draft_RV, ratio_R.unsqueeze(1), value=-1)
    return scale_R * difference_RV.clamp_(min=0).sum(1).double()


def first_success(tests: Tensor) -> Tensor:
    """Compute P(test i is the first to succeed) [n] of independent tests in order; the last must be certain."""
    before = (1 - tests).cumprod(0)
    return tests * torch.cat([before.new_ones(1), before[:-1]])


def normalised_or(weights: Tensor, fallback: Tensor) -> Tensor:
    """Normalise ``weights`` [V]; ``fallback`` where they have no mass (reached with probability zero, by rounding only)."""
    mass = weights.sum()
    return torch.where(mass > 0, weights / mass, fallback)


def normalised(stop: Tensor) -> Tensor:
    """Divide stop probabilities by their sum, which is 1 up to rounding."""
    return stop / stop.sum()
