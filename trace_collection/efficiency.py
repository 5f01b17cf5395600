"""Expected tokens of a step by action and rule, exactly, on the trees of a grove (`trace_collection.grove`).

    node by node    E = 1 + Σ_v reach(v) [v does not end the text],    reach(child c of u) = reach(u) B(u; draws at u -> c)
    block           the same with reach(token t) = P_t, the prefix weights of a chain, which do not know what is drawn after t
    traversal       on chains block; else E = Σ_i P(stop at i) (depth_i + 1 - [i ends the text]), from the outcome on every tree

A node that ends the text is emitted without a token after it. A node-by-node rule treats a node by its draws alone, whatever
hangs below and wherever in an action's tree it stands: its branching probabilities are computed once for all actions and samples.
On chains all of them are tokenwise verification, but for nss. Source: specification of verification, sections 2, 6 and 7. Shape
suffixes: C contexts (a node with its draws in order), N nodes, V vocabulary, A actions, K rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predictors.actions import Action
from runtime.tree import DraftLaw
from runtime.verification import VERIFIERS
from runtime.verification.chain import log_prefix_weights, log_ratios
from runtime.verification.draws import Draws
from runtime.verification.top_down import NODE_SOLVERS, branching
from trace_collection.grove import ROOT, Grove, Sample

Context = tuple[int, tuple[int, ...]]  # a node, and its children as drawn: one of several copies stands several times
BY_LAW = ("block", "traversal")  # rules that look at more than a node and its draws; on chains they are one


@dataclass(frozen=True)
class Drawn:
    """Tree of an action: its trunk and the rollouts after it, the ``contexts`` a walk may come through, parents first, and its
    distinct nodes and fed branch nodes."""

    paths: list[list[int]]
    contexts: tuple[Context, ...]
    nodes: int
    fed: int


class Efficiencies:
    """Evaluates the trees of ``actions`` in the samples of a grove; ``target_probs_NV`` are the target's distributions at the
    root and after every node."""

    def __init__(self, grove: Grove, target_probs_NV: Tensor, actions: Sequence[Action]) -> None:
        self._grove, self._target_probs_NV, self._actions = grove, target_probs_NV, actions
        self._drawn = [[self.drawn(sample, action) for action in actions] for sample in grove.samples]
        self._contexts = list(dict.fromkeys(one for trees in self._drawn for tree in trees for one in tree.contexts))
        self._branching: dict[str, dict[Context, dict[int, float]]] = {}
        self._prefixes: dict[int, list[float]] = {}

    def array(self, rules: Sequence[str]) -> np.ndarray:
        """Compute E[emitted] [samples, K, A] in float64; NaN for branching trees under a rule for chains."""
        return np.array(
            [
                [
                    [self._expected(rule, sample, *made) for made in zip(self._actions, trees, strict=True)]
                    for rule in rules
                ]
                for sample, trees in zip(self._grove.samples, self._drawn, strict=True)
            ]
        )

    def traffic(self) -> tuple[np.ndarray, np.ndarray]:
        """Count distinct nodes [A] and fed branch nodes [A] of the actions' trees, means over the samples."""
        counts = np.array([[(tree.nodes, tree.fed) for tree in trees] for trees in self._drawn], dtype=float)
        nodes_A, fed_A = counts.mean(axis=0).T
        return nodes_A, fed_A

    def drawn(self, sample: Sample, action: Action) -> Drawn:
        """Cut the tree of ``action`` from a sample: the trunk's beginning, and after it the first rollouts, cut."""
        trunk = sample.trunk.nodes[: action.l1]
        rollouts = [] if action.is_chain else sample.rollouts.get(action.l1, [])[: action.k]
        paths = [path.nodes[: action.l2] for path in rollouts]
        below = {node for path in paths for node in path}
        fed = {node for path in paths for node in path[: max(0, action.l2 - 1)] if not self._grove.ends(node)}
        lists: dict[int, list[int]] = {}
        for start, nodes in [(ROOT, trunk), *((trunk[-1] if trunk else ROOT, path) for path in paths)]:
            for parent, node in zip([start, *nodes], nodes, strict=False):
                lists.setdefault(parent, []).append(node)
        contexts = tuple((node, tuple(some)) for node, some in lists.items())
        return Drawn([trunk, *paths], contexts, len(trunk) + len(below), len(fed))

    def _expected(self, rule: str, sample: Sample, action: Action, tree: Drawn) -> float:
        if VERIFIERS[rule].chains_only and not action.is_chain:
            return float("nan")
        if rule not in BY_LAW:
            return self._node_by_node(rule, tree)
        if len(tree.paths) > 1:
            return self._by_law(rule, tree.paths)
        if id(sample) not in self._prefixes:
            self._prefixes[id(sample)] = self._prefix_weights(sample.trunk.nodes)
        weights = zip(tree.paths[0], self._prefixes[id(sample)], strict=False)
        return 1 + sum(weight for node, weight in weights if not self._grove.ends(node))

    def _prefix_weights(self, chain: Sequence[int]) -> list[float]:
        """Compute P_t of block verification for every token of a chain of nodes."""
        before = [ROOT, *chain[:-1]]
        draft_GV = torch.stack([self._grove.laws[node] for node in before])
        chosen_G1 = torch.tensor([self._grove.tokens[node] for node in chain]).unsqueeze(1)
        ratios_G = log_ratios(self._target_probs_NV[[node + 1 for node in before]], draft_GV, chosen_G1)
        weights: list[float] = log_prefix_weights(ratios_G).exp()[1:].tolist()
        return weights

    def _by_law(self, rule: str, paths: Sequence[Sequence[int]]) -> float:
        tree, nodes = self._grove.tree(paths)
        law = VERIFIERS[rule](tree, self._target_probs_NV[[0, *(node + 1 for node in nodes)]])
        emitted = [
            depth + (not end) for depth, end in zip(law.depths, [False, *map(self._grove.ends, nodes)], strict=True)
        ]
        return float(law.stop @ law.stop.new_tensor(emitted))

    def _node_by_node(self, rule: str, tree: Drawn) -> float:
        if rule not in self._branching:
            self._branching[rule] = self._branching_of(rule)
        steps, reach, emitted = self._branching[rule], {ROOT: 1.0}, 1.0
        for context in tree.contexts:
            for child, probability in steps[context].items():
                reach[child] = reach[context[0]] * probability
                emitted += 0.0 if self._grove.ends(child) else reach[child]
        return emitted

    def _branching_of(self, rule: str) -> dict[Context, dict[int, float]]:
        """Compute B(node; draws -> child) of every context, from one call of the rule's solver."""
        contexts, grove = self._contexts, self._grove
        target_CV = self._target_probs_NV[[node + 1 for node, _ in contexts]]
        draft_CV = torch.stack([grove.laws[node] for node, _ in contexts])
        lists, tokens = [list(children) for _, children in contexts], torch.tensor(grove.tokens)
        draws = Draws(lists, tokens, DraftLaw.IID, target_CV, draft_CV)
        step_CK = branching(draws, NODE_SOLVERS[rule][0](draws))
        found: dict[Context, dict[int, float]] = {}
        for context, row in zip(contexts, step_CK.tolist(), strict=True):
            shares = found.setdefault(context, {})
            for child, share in zip(context[1], row, strict=False):
                shares[child] = shares.get(child, 0.0) + share
        return found
