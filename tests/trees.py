"""Every drafted tree of a toy pair with its probability, drawn by hand, and the output law a rule gives over them."""

import itertools
from collections.abc import Callable, Iterable, Iterator

import torch

from runtime.tree import DraftLaw, TokenTree
from runtime.verification.outcome import OutcomeLaw
from tests.toys import TableModel

ROOT = [0, 1]
Tree = tuple[TokenTree, float]


class Trie:
    """A tree grown by draws; equal siblings are one node."""

    def __init__(self, draft: TableModel, law: DraftLaw) -> None:
        self.draft, self.law = draft, law
        self.paths: list[tuple[int, ...]] = []
        self.draws: list[int] = []

    def draw(self, path: tuple[int, ...]) -> None:
        if path not in self.paths:
            self.paths.append(path)
        self.draws.append(self.paths.index(path))

    def build(self) -> TokenTree:
        parents = [self.paths.index(path[:-1]) if len(path) > 1 else -1 for path in self.paths]
        return TokenTree(
            tokens=torch.tensor([path[-1] for path in self.paths], dtype=torch.int64),
            parents=torch.tensor(parents, dtype=torch.int64),
            draws=torch.tensor(self.draws, dtype=torch.int64),
            draft_probs=laws(self.draft, [(), *self.paths]),
            law=self.law,
        )


def laws(model: TableModel, paths: Iterable[tuple[int, ...]]) -> torch.Tensor:
    """The model's laws after the root and each path [N + 1, V]."""
    return torch.stack([model.logits([*ROOT, *path]).softmax(-1) for path in paths])


def probability(model: TableModel, path: tuple[int, ...], before: tuple[int, ...] = ()) -> float:
    """P(the model continues ``before`` with ``path``)."""
    total = 1.0
    for place, token in enumerate(path):
        total *= float(model.logits([*ROOT, *before, *path[:place]]).softmax(-1)[token])
    return total


def delayed_trees(draft: TableModel, k: int, l1: int, l2: int) -> Iterator[Tree]:
    """A trunk of ``l1`` tokens, then ``k`` i.i.d. rollouts of ``l2``."""
    tokens = range(draft.vocabulary_size)
    for trunk in itertools.product(tokens, repeat=l1):
        for rollouts in itertools.product(itertools.product(tokens, repeat=l2), repeat=k):
            weight = probability(draft, trunk)
            for rollout in rollouts:
                weight *= probability(draft, rollout, trunk)
            if weight == 0:
                continue
            trie = Trie(draft, DraftLaw.IID)
            for depth in range(1, l1 + 1):
                trie.draw(trunk[:depth])
            for depth in range(1, l2 + 1):
                for rollout in rollouts:
                    trie.draw((*trunk, *rollout[:depth]))
            yield trie.build(), weight


def distinct_trees(draft: TableModel, config: list[int]) -> Iterator[Tree]:
    """Level l draws ``config[l]`` distinct children at every node, fewer where the support is smaller."""
    yield from _distinct(draft, config, [()], Trie(draft, DraftLaw.WITHOUT_REPLACEMENT), 1.0)


def _distinct(draft, config, frontier, trie, weight) -> Iterator[Tree]:
    if not config:
        yield trie.build(), weight
        return
    choices = [list(_sequences(draft, path, config[0])) for path in frontier]
    for choice in itertools.product(*choices):
        grown = Trie(draft, trie.law)
        grown.paths, grown.draws = list(trie.paths), list(trie.draws)
        following, share = [], weight
        for path, (sequence, chance) in zip(frontier, choice, strict=True):
            share *= chance
            for token in sequence:
                grown.draw((*path, token))
                following.append((*path, token))
        yield from _distinct(draft, config[1:], following, grown, share)


def _sequences(draft: TableModel, path: tuple[int, ...], count: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Ordered draws without replacement after ``path`` with their probabilities."""
    law = draft.logits([*ROOT, *path]).softmax(-1).tolist()
    support = [token for token, share in enumerate(law) if share > 0]
    for sequence in itertools.permutations(support, min(count, len(support))):
        chance, left = 1.0, 1.0
        for token in sequence:
            chance *= law[token] / left
            left -= law[token]
        yield sequence, chance


def deterministic_tree(draft: TableModel, config: list[int], with_laws: bool = False) -> TokenTree:
    """The draft's most likely tokens."""
    trie, frontier = Trie(draft, DraftLaw.DETERMINISTIC), [()]
    for width in config:
        grown = []
        for path in frontier:
            for token in draft.logits([*ROOT, *path]).topk(width).indices.tolist():
                trie.draw((*path, token))
                grown.append((*path, token))
        frontier = grown
    tree = trie.build()
    return tree if with_laws else TokenTree(tokens=tree.tokens, parents=tree.parents, law=tree.law)


def node_paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """The tokens from the root to every row."""
    return [tuple(tree.token_list[node] for node in tree.path(row)) for row in range(tree.num_nodes + 1)]


def rule_law(
    trees: Iterable[Tree], target: TableModel, rule: Callable[[TokenTree, torch.Tensor], OutcomeLaw], horizon: int
) -> torch.Tensor:
    """Exact law of the first ``horizon`` tokens [V] * horizon: the rule's outcome, then the target's own continuation."""
    size = target.vocabulary_size
    output = torch.zeros([size] * horizon, dtype=torch.float64)
    for tree, weight in trees:
        paths = node_paths(tree)
        outcome = rule(tree, laws(target, paths))
        for row, path in enumerate(paths):
            if outcome.stop[row] == 0:
                continue
            following = weight * outcome.stop[row] * outcome.residual(row)
            for token in following.nonzero().flatten().tolist():
                output[(*path, token)] += following[token] * continuation(target, (*path, token), horizon)
    return output


def continuation(target: TableModel, before: tuple[int, ...], horizon: int) -> torch.Tensor:
    """The target's law of the tokens after ``before`` up to ``horizon`` tokens in all [V] * (horizon - len(before))."""
    if len(before) == horizon:
        return torch.ones((), dtype=torch.float64)
    following = target.logits([*ROOT, *before]).softmax(-1)
    rest = [continuation(target, (*before, token), horizon) for token in range(len(following))]
    return torch.stack([share * law for share, law in zip(following, rest, strict=True)])


def largest_error(trees: Iterable[Tree], target: TableModel, rule, horizon: int) -> float:
    """Largest deviation of a token sequence's probability from the target's own."""
    return float((rule_law(trees, target, rule, horizon) - continuation(target, (), horizon)).abs().max())


def expected_length(trees: Iterable[Tree], target: TableModel, rule) -> float:
    """E[accepted tokens] over drafts and outcomes."""
    return sum(w * rule(tree, laws(target, node_paths(tree))).expected_accepted_length() for tree, w in trees)
