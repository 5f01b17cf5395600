"""Cells of self-drafting's upkeep.

    guessing   guessed   what a pass over so many guesses takes outside the model: finding candidates, reading what follows every
                         guess, growing the guesses and merging them into the pool (`runtime.self_drafting.progressive_tree`, the
                         dearest of the methods)

The tree is a binary one. Every guess is new to the tree and known to the pool; candidates are as many as guesses.
"""

from collections.abc import Callable, Sequence

import torch

from runtime.adapter import LanguageModel
from runtime.latency.cells import Cell, timed
from runtime.randomness import Randomness
from runtime.request import Request
from runtime.self_drafting.guesses import Said, levels
from runtime.self_drafting.progressive_tree import Node, ProgressiveTree, ProgressiveTreeConfig

CONFIG = ProgressiveTreeConfig(geometry="paper", max_children=3, max_depth=64, pool_nodes=1024)
LONGEST_PATH = 64


class Upkeep:
    """A tree of ``guessed`` nodes and its pool, made anew for every call."""

    def __init__(self, guessed: int, vocabulary_size: int, device: torch.device, generator: torch.Generator) -> None:
        self._guessed = guessed
        self._logits_RV = torch.rand(guessed, vocabulary_size, generator=generator).to(device)
        self._request = Request([0], 1, CONFIG.growth, Randomness(0), frozenset(), vocabulary_size, (), False)
        self.prepare()

    def prepare(self) -> None:
        """The tree as it stands before a pass, and a pool that saw the same pass before."""
        self._tree = ProgressiveTree(CONFIG, self._request)
        self._plant()
        self.take()
        self._plant()

    def take(self) -> int:
        """What happens in front of a pass and behind it; the number of candidates."""
        candidates = self._tree.candidates(0)
        tree = levels(candidates, LONGEST_PATH)
        tree.token_list, tree.parent_list  # noqa: B018 (what the pass is fed)
        rows = self._tree.rows()
        self._tree.follow(self._logits_RV)
        following = [self._guessed + token for token in rows.tokens]
        self._tree.learn(Said(0, candidates, [0] * (1 + tree.num_nodes), following, [1]))
        return tree.num_nodes

    def _plant(self) -> None:
        nodes = [Node(0)]
        for token in range(1, self._guessed):
            nodes.append(nodes[(token - 1) // 2].add(token))
        self._tree.first = nodes[:1]


def guessing_cells(
    guessed: Sequence[int],
    target: LanguageModel,
    device: torch.device,
    generator: torch.Generator,
    evict: Callable[[], None],
) -> list[Cell]:
    """Cells of the table ``guessing``. ``evict`` empties the caches as a pass does."""
    vocabulary = target.vocabulary_size
    return [_cell(Upkeep(count, vocabulary, device, generator), count, device, evict) for count in guessed]


def _cell(upkeep: Upkeep, count: int, device: torch.device, evict: Callable[[], None]) -> Cell:
    def before() -> None:
        upkeep.prepare()
        evict()

    return Cell(("guessing",), {"guessed": count}, timed(upkeep.take, device), before)
