"""Sampled trees of one root, joined: what the delayed trees of an action set have in common is drafted and verified once.

    trunk      x_1 … x_T from the draft, T the longest chain or trunk
    rollouts   from every trunk length L1 that branches, the most rollouts K of the most depth L2 that any action with it has

The tree of (K, L1, L2) is the first L1 trunk tokens and the first K rollouts from there, cut at depth L2: each is distributed
exactly as a tree drawn by itself. Equal tokens under one node are one node, whichever path drew them, so a pass of either model
runs over every distinct node once. A path ends at an end-of-sequence token. Source: specification of verification, section 7
("label economics"). Shape suffixes: N nodes, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from predictors.actions import Action
from predictors.sampling import SamplingSettings
from runtime.adapter import ModelState
from runtime.laws import fit_vocabulary, recorded_law
from runtime.randomness import Chance
from runtime.tree import TokenTree

ROOT = -1


@dataclass
class TreePath:
    """Nodes drawn one after the other below ``start``, at most ``length`` of them."""

    start: int
    length: int
    nodes: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.nodes[-1] if self.nodes else self.start


@dataclass
class Sample:
    """A sample of trees: one trunk, and by trunk length the rollouts from there (none if the trunk ended before)."""

    trunk: TreePath
    rollouts: dict[int, list[TreePath]] = field(default_factory=dict)


@dataclass(frozen=True)
class Extent:
    """Extent of an action set's trees: the longest ``trunk``, and by trunk length the most rollouts and their depth."""

    trunk: int
    branches: dict[int, tuple[int, int]]

    @staticmethod
    def of(actions: Sequence[Action]) -> "Extent":
        trees = [action for action in actions if not action.is_chain]
        behind = {l1: [tree for tree in trees if tree.l1 == l1] for l1 in sorted({tree.l1 for tree in trees})}
        branches = {l1: (max(tree.k for tree in some), max(tree.l2 for tree in some)) for l1, some in behind.items()}
        return Extent(max(action.l1 for action in actions), branches)

    @property
    def most_nodes(self) -> int:
        """Number of nodes of one sample if no paths meet."""
        return self.trunk + sum(k * depth for k, depth in self.branches.values())

    @property
    def depth(self) -> int:
        return max([self.trunk, *(l1 + depth for l1, (_, depth) in self.branches.items())])


class Grove:
    """Nodes of all samples at a root, with the draft's distribution after every node that was drawn from; ``draft`` has committed
    everything up to the root and keeps no scratch."""

    def __init__(
        self, draft: ModelState, root_law_V: Tensor, extent: Extent, settings: SamplingSettings, eos: frozenset[int]
    ) -> None:
        self.draft, self.extent, self.settings, self.eos_tokens = draft, extent, settings, eos
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.samples: list[Sample] = []
        self.laws: dict[int, Tensor] = {ROOT: root_law_V}
        self._known: dict[tuple[int, int], int] = {}

    def draw(self, count: int, chance: Chance) -> "Grove":
        """Draw ``count`` samples level by level."""
        places, active = {ROOT: -1}, []
        for _ in range(count):
            sample = Sample(TreePath(ROOT, self.extent.trunk))
            self.samples.append(sample)
            active += [sample.trunk, *self._branched(sample)]
        while active := [path for path in active if len(path.nodes) < path.length and not self.ends(path.end)]:
            unknown = list(dict.fromkeys(path.end for path in active if path.end not in self.laws))
            if unknown:
                self._feed(unknown, places)
            tokens = chance.categorical(torch.stack([self.laws[path.end] for path in active])).tolist()
            for path, token in zip(active, tokens, strict=True):
                path.nodes.append(self._child(path.end, token))
            active += [path for sample in self.samples for path in self._branched(sample)]
        self.draft.keep([])
        return self

    def _branched(self, sample: Sample) -> list[TreePath]:
        """Begin new rollouts from the end of the trunk, if any action branches at this length."""
        trunk, depth = sample.trunk, len(sample.trunk.nodes)
        k, length = self.extent.branches.get(depth, (0, 0))
        if not k or depth in sample.rollouts or self.ends(trunk.end):
            return []
        sample.rollouts[depth] = [TreePath(trunk.end, length) for _ in range(k)]
        return sample.rollouts[depth]

    def _feed(self, nodes: Sequence[int], places: dict[int, int]) -> None:
        """Run one pass of the draft over ``nodes``, whose parents were fed before."""
        parents = [places[self.parents[node]] for node in nodes]
        for node in nodes:
            places[node] = len(places) - 1
        logits = self.draft.forward(torch.tensor([self.tokens[node] for node in nodes]), parents).logits
        laws = recorded_law(fit_vocabulary(logits, self.laws[ROOT].shape[-1]), self.settings)
        self.laws |= dict(zip(nodes, laws, strict=True))

    def _child(self, parent: int, token: int) -> int:
        """Return the node of ``token`` under ``parent``."""
        node = self._known.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    def ends(self, node: int) -> bool:
        """Tell whether nothing may follow ``node``."""
        return node != ROOT and self.tokens[node] in self.eos_tokens

    def tree(self, paths: Sequence[Sequence[int]]) -> tuple[TokenTree, list[int]]:
        """Join ``paths`` of nodes from the root, in draw order, to a tree; also return its nodes: rows beneath the root's.

        A step that several paths share counts as drawn by each of them, as those of rollouts do; give a trunk once.
        """
        nodes = list(dict.fromkeys(node for path in paths for node in path))
        place = {ROOT: -1} | {node: index for index, node in enumerate(nodes)}
        law_V = self.laws[ROOT]
        rows = [self.laws.get(node, torch.zeros_like(law_V)) for node in (ROOT, *nodes)]
        tree = TokenTree(
            tokens=torch.tensor([self.tokens[node] for node in nodes]),
            parents=torch.tensor([place[self.parents[node]] for node in nodes]),
            draws=torch.tensor([place[node] for path in paths for node in path]),
            draft_probs=torch.stack(rows),
        )
        return tree, nodes
