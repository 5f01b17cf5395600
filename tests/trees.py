"""Every drafted tree of a toy pair with its probability, drawn by hand, and the output law a rule gives over them."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

import torch

from runtime.audit.enumeration import Forking, enumerate_outcomes
from runtime.audit.tables import TableModel
from runtime.tree import DraftLaw, TokenTree
from runtime.verification.outcome import OutcomeLaw

ROOT = [0, 1]
EXACT, MISSED = 1e-12, 1e-3  # an exact rule's error stays below the first (float64), a wrong one's exceeds the second
PAIRS = [  # target and draft; the first pair has tokens that only one of them can emit
    (TableModel(3, seed=4, zeros=True), TableModel(3, seed=5, zeros=True)),
    (TableModel(3, seed=6), TableModel(3, seed=7, sharpness=0.7)),
]
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
    before, newest = zip(*([*ROOT, *path][-2:] for path in paths), strict=True)
    return model.table[list(before), list(newest)].softmax(-1)


def probability(model: TableModel, path: tuple[int, ...], before: tuple[int, ...] = ()) -> float:
    """P(the model continues ``before`` with ``path``)."""
    total = 1.0
    for place, token in enumerate(path):
        total *= float(model.logits([*ROOT, *before, *path[:place]]).softmax(-1)[token])
    return total


def delayed_trees(draft: TableModel, k: int, l1: int, l2: int) -> Iterator[Tree]:
    """A trunk of ``l1`` tokens, then ``k`` i.i.d. rollouts of ``l2``."""

    def program(growth: Growth) -> None:
        trunk: tuple[int, ...] = ()
        for _ in range(l1):
            trunk = growth.draw(trunk)
        paths = [trunk] * k
        for _ in range(l2):
            paths = [growth.draw(path) for path in paths]

    yield from grown_trees(draft, program)


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


class Growth:
    """The hands of a drafting program. Paths are tuples of tokens, ``()`` the root; every draw forks."""

    def __init__(self, draft: TableModel, chance: Forking) -> None:
        self.trie, self.chance = Trie(draft, DraftLaw.IID), chance

    def sample(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """A child of ``path`` that stays out of the tree."""
        return (*path, int(self.chance.categorical(laws(self.trie.draft, [path])[0])))

    def draw(self, path: tuple[int, ...]) -> tuple[int, ...]:
        child = self.sample(path)
        self.trie.draw(child)
        return child


def grown_trees(draft: TableModel, program: Callable[[Growth], object]) -> Iterator[Tree]:
    """Every tree that ``program`` grows by i.i.d. draws."""

    def run(chance: Forking) -> TokenTree:
        growth = Growth(draft, chance)
        program(growth)
        return growth.trie.build()

    yield from enumerate_outcomes(run)


def striped_trees(draft: TableModel, length: int) -> Iterator[Tree]:
    """A main chain of ``length`` tokens, then one spare rollout from each of its depths to the same length."""

    def program(growth: Growth) -> None:
        main: list[tuple[int, ...]] = [()]
        for _ in range(length):
            main.append(growth.draw(main[-1]))
        for path in main:
            while len(path) < length:
                path = growth.draw(path)

    yield from grown_trees(draft, program)


def unmerged_trees(draft: TableModel, k: int, length: int) -> Iterator[Tree]:
    """``k`` i.i.d. rollouts, each with nodes of its own: equal siblings stay apart."""
    for rollouts in itertools.product(itertools.product(range(draft.vocabulary_size), repeat=length), repeat=k):
        weight = math.prod(probability(draft, rollout) for rollout in rollouts)
        if weight == 0:
            continue
        paths = [rollout[: depth + 1] for rollout in rollouts for depth in range(length)]
        parents = [node - 1 if node % length else -1 for node in range(k * length)]
        tokens = torch.tensor([path[-1] for path in paths])
        draft_probs = laws(draft, [(), *paths])
        yield TokenTree(tokens=tokens, parents=torch.tensor(parents), draft_probs=draft_probs), weight


def greedy(model: TableModel) -> TableModel:
    """The model at temperature 0: every law is one-hot."""
    likely = TableModel(model.vocabulary_size, seed=0)
    best = model.table.argmax(-1, keepdim=True)
    likely.table = torch.full_like(model.table, -torch.inf).scatter(-1, best, 0.0)
    return likely


def node_paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """The tokens from the root to every row."""
    return [tuple(tree.token_list[node] for node in tree.path(row)) for row in range(tree.num_nodes + 1)]


def rule_law(
    trees: Iterable[Tree], target: TableModel, rule: Callable[[TokenTree, torch.Tensor], OutcomeLaw], horizon: int
) -> torch.Tensor:
    """Exact law of the first ``horizon`` tokens [V] * horizon: the rule's outcome, then the target's own continuation."""
    output = torch.zeros([target.vocabulary_size] * horizon, dtype=torch.float64)
    after = cache(partial(continuations, target, horizon=horizon))
    for tree, weight in trees:
        paths = node_paths(tree)
        outcome = rule(tree, laws(target, paths))
        for row, (path, share) in enumerate(zip(paths, outcome.stop.tolist(), strict=True)):
            if share:
                output[path] += weight * share * each(outcome.residual(row), after(path))
    return output


def continuation(target: TableModel, before: tuple[int, ...], horizon: int) -> torch.Tensor:
    """The target's law of the tokens after ``before`` up to ``horizon`` tokens in all [V] * (horizon - len(before))."""
    if len(before) == horizon:
        return torch.ones((), dtype=torch.float64)
    return each(target.logits([*ROOT, *before]).softmax(-1), continuations(target, before, horizon))


def continuations(target: TableModel, before: tuple[int, ...], horizon: int) -> torch.Tensor:
    """`continuation` behind every token after ``before``."""
    tokens = range(target.vocabulary_size)
    return torch.stack([continuation(target, (*before, token), horizon) for token in tokens])


def each(shares_V: torch.Tensor, laws: torch.Tensor) -> torch.Tensor:
    """Laws [V, ...], each times its share."""
    return shares_V.reshape(-1, *[1] * (laws.dim() - 1)) * laws


def largest_error(trees: Iterable[Tree], target: TableModel, rule, horizon: int) -> float:
    """Largest deviation of a token sequence's probability from the target's own."""
    return float((rule_law(trees, target, rule, horizon) - continuation(target, (), horizon)).abs().max())


def expected_length(trees: Iterable[Tree], target: TableModel, rule) -> float:
    """E[accepted tokens] over drafts and outcomes."""
    return sum(w * rule(tree, laws(target, node_paths(tree))).expected_accepted_length() for tree, w in trees)


# Straightforward procedures: one dense law per step, no closed form. An outcome is P(stop at a row, emit a token) [R, V].


def joint(law: OutcomeLaw) -> torch.Tensor:
    return torch.stack([share * law.residual(row) for row, share in enumerate(law.stop)])


def outcome(tree: TokenTree, joint_RV: torch.Tensor) -> OutcomeLaw:
    return OutcomeLaw(joint_RV.sum(1), tree.depths, lambda row: norm(joint_RV[row]))


def norm(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum() if weights.sum() > 0 else weights


def certainly(token: int, size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.float64).index_fill(0, torch.tensor(token), 1.0)


def visit(tree: TokenTree, target: torch.Tensor, row: int, mass: torch.Tensor, output: torch.Tensor) -> float:
    """VISIT of the specification of verification, section 0.1; adds the outcome to ``output``, returns P[it rejects]."""
    pending, draft = 1.0, tree.draft_probs[row].clone()
    for node in tree.child_lists[row]:
        token = tree.token_list[node]
        below = torch.zeros_like(output)
        rejects = visit(tree, target, node + 1, min(1.0, mass[token] / draft[token]) * target[node + 1], below)
        output += pending * below
        pending *= rejects
        if pending < 1e-15:
            return 0.0
        mass = (mass - draft).clamp(min=0) / (1 - torch.minimum(mass, draft).sum())
        if tree.law is DraftLaw.WITHOUT_REPLACEMENT:
            draft = norm(draft * (1 - certainly(token, len(draft))))
    output[row] += pending * mass
    return float(pending * (1 - mass.sum()))


def walk(tree: TokenTree, target: torch.Tensor, solver: Callable, row: int, reach: float, output: torch.Tensor) -> None:
    """Top-down: ``solver(p, q, tokens, without_replacement)`` is the law of the token at a node, given its list of draws."""
    tokens = [tree.token_list[node] for node in tree.child_lists[row]]
    children = dict(zip(tokens, tree.child_lists[row], strict=True))
    without = tree.law is DraftLaw.WITHOUT_REPLACEMENT
    law = solver(target[row], tree.draft_probs[row], tokens, without) if tokens else target[row]
    for token, share in enumerate(law):
        if token in children:
            walk(tree, target, solver, children[token] + 1, reach * share, output)
        else:
            output[row, token] += reach * share
