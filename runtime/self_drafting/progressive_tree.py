"""Progressive Tree Drafting (PTD): a tree of guesses that matures alongside the text.

    feed     every node v of the tree; the pass predicts d_v, what follows the text and the path to v
    pool     for every v, what hangs under v, the d below it included, is merged under v's token
    expand   d_v becomes a child of v, unless v has it or is full
    refill   where the spine has room, the d of its last node moves there; an empty first level, and a free position of the
             paper's geometry, get the newest token
    step     a first-level node that has grown too high gives way to its oldest child and that child's subtree
    prune    an end of sequence goes, with everything under the node four levels above it

Geometries: ``paper``, first-level nodes are branches of their own; ``spine``, each stands after the ones before it and carries
its own subtree. Source: paper on progressive tree drafting, section 3; specification of drafting, section 6.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Optional

from torch import Tensor

from predictors.config import Checked, Count, at_least, one_of
from predictors.sampling import SamplingSettings
from runtime.laws import processed_law, says_something
from runtime.request import Request
from runtime.self_drafting.guesses import Guesses, GuessRows, PassOutcome, PromptTokens, Trie, TriePool, merge

FIRST_BRANCHES = 2  # of the initial tree
LONGEST_BEGINNING = 2  # of an initial branch
EOS_CLIMB = 4


@dataclass(frozen=True)
class ProgressiveTreeConfig(Checked):
    """Progressive Tree Drafting: ``max_children`` of a node and of the spine (the paper's geometry has two branches at most),
    ``max_depth`` of a first-level node's subtree, ``pool_nodes`` kept for each token. A guess is the most likely token
    (``draft_top_k=1``), or drawn from the top k or top p of the distribution at temperature 1."""

    geometry: Annotated[str, one_of("spine", "paper")] = "spine"
    max_children: Count = 4
    max_depth: Annotated[int, at_least(2)] = 6
    pool_nodes: Count = 60
    draft_top_k: int = 1
    draft_top_p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draft_top_k == 1 and self.draft_top_p != 1:
            raise ValueError(
                f"draft_top_p={self.draft_top_p} has no effect with draft_top_k=1, which takes the most likely token. Use "
                "draft_top_k=0 to draw from a top-p distribution."
            )
        self.growth  # noqa: B018 (checks top k and top p)

    @property
    def growth(self) -> SamplingSettings:
        """Sampling settings by which a guess is chosen from its distribution."""
        if self.draft_top_k == 1:
            return SamplingSettings(0.0)
        return SamplingSettings(1.0, self.draft_top_k, self.draft_top_p)

    def open(self, request: Request) -> "ProgressiveTree":
        return ProgressiveTree(self, request)


@dataclass(eq=False)
class Node:
    """A guessed token; ``children`` in the order they were added."""

    token: int
    parent: Optional["Node"] = None
    children: dict[int, "Node"] = field(default_factory=dict)

    def add(self, token: int) -> "Node":
        child = self.children[token] = Node(token, self)
        return child

    @property
    def height(self) -> int:
        """Nodes on the longest path down from here, this one included."""
        return 1 + max((child.height for child in self.children.values()), default=0)


class ProgressiveTree(Guesses):
    reads_predictions = True

    def __init__(self, config: ProgressiveTreeConfig, request: Request) -> None:
        self._config = config
        self._growth = config.growth
        self._chance = request.randomness
        self._eos_tokens = request.eos_tokens
        self._pool: TriePool = TriePool(config.pool_nodes)
        self._fed: list[Node] = []
        random = PromptTokens(request)
        self.first: list[Node] = []
        for _ in range(min(FIRST_BRANCHES, config.max_children)):
            top, *below = random.draw(random.length(min(LONGEST_BEGINNING, config.max_depth - 1)))
            self.first.append(Node(top))
            for token in below:
                self.first[-1].add(token)

    def rows(self) -> GuessRows:
        self._fed = []
        parents: list[int] = []
        levels = list(self._levels())
        for level in levels:
            self._fed += [node for node, _ in level]
            parents += [parent for _, parent in level]
        return GuessRows([node.token for node in self._fed], parents, len(levels))

    def follow(self, logits_RV: Tensor) -> list[int]:
        if self._growth.greedy:
            return super().follow(logits_RV)
        logits_RV = logits_RV.masked_fill(~says_something(logits_RV).unsqueeze(1), 0.0)
        following: list[int] = self._chance.categorical(processed_law(logits_RV, self._growth)).tolist()
        return following

    def learn(self, said: PassOutcome) -> None:
        following = dict(zip(self._fed, said.following, strict=True))
        seen = verified(said.candidates, said.predicted, self._eos_tokens) if said.candidates else {}
        self._remember(following)
        self._pool.merge(said.newest, seen)
        new = [
            node.add(token)
            for node, token in following.items()
            if token not in node.children and len(node.children) < self._config.max_children
        ]
        new += self._refill(following, said.committed[-1])
        self._step()
        for node in new:
            if node.token in self._eos_tokens:
                self._prune(node)

    def _levels(self) -> Iterator[list[tuple[Node, int]]]:
        """Yield nodes by distance from the newest token, each with its parent's row."""
        spine = self._config.geometry == "spine"
        waiting = list(self.first)
        level: list[tuple[Node, int]] = []
        count, before = 0, -1  # rows so far; the row of the spine's last node
        while waiting or level:
            roots = waiting[:1] if spine else waiting
            waiting = waiting[len(roots) :]
            level = [*((node, before) for node in roots), *level]
            yield level
            before = count
            rows = enumerate(level, start=count)
            count += len(level)
            level = [(child, row) for row, (node, _) in rows for child in node.children.values()]

    def _remember(self, following: dict[Node, int]) -> None:
        """Merge what hangs under every node, with the tokens just guessed below it, under the node's token."""
        below: dict[Node, Trie] = {}
        for node in reversed(self._fed):  # children come before their parents
            trie = {child.token: below[child] for child in node.children.values()}
            trie.setdefault(following[node], {})
            below[node] = trie
        for node in self._fed:
            self._pool.merge(node.token, below[node])

    def _refill(self, following: dict[Node, int], newest: int) -> list[Node]:
        """Fill a free position on the first level; return what was put there."""
        spine = self._config.geometry == "spine"
        places = self._config.max_children if spine else min(FIRST_BRANCHES, self._config.max_children)
        if len(self.first) >= places or (not spine and newest in {node.token for node in self.first}):
            return []
        if spine and self.first:
            last = self.first[-1]
            moved = last.children.pop(following[last], None) or Node(following[last])
        else:
            moved = Node(newest)
        moved.parent = None
        self.first.append(moved)
        return [moved]

    def _step(self) -> None:
        """Replace a first-level node whose subtree has grown too high by its oldest child, unless that child's token stands on
        the level already."""
        for place, node in reversed(list(enumerate(self.first))):
            if node.height < self._config.max_depth:
                continue
            others = {other.token for other in self.first if other is not node}
            heirs = [child for token, child in node.children.items() if token not in others][:1]
            self.first[place : place + 1] = heirs
            for heir in heirs:
                heir.parent = None

    def _prune(self, node: Node) -> None:
        """Drop the subtree that holds an end of sequence at ``node``."""
        for _ in range(EOS_CLIMB):
            if node.parent is None:
                break
            node = node.parent
        if node.parent is not None:
            node.parent.children.pop(node.token, None)
        elif node in self.first:
            self.first.remove(node)


def verified(candidates: Trie, predicted: Sequence[int], ends: Container[int] = ()) -> Trie:
    """Copy ``candidates``, adding the model's most likely token after the root and after every node that was verified; nothing
    after a token of ``ends``."""
    copy: Trie = {}
    merge(copy, candidates)
    level: list[tuple[int, Trie]] = [(-1, copy)]
    place = 0
    while level and place < len(predicted):
        below = [child for token, trie in level if token not in ends for child in trie.items()]
        for token, trie in level:
            if token in ends:
                trie.clear()
            elif predicted[place] >= 0:
                trie.setdefault(predicted[place], {})
            place += 1
        level = below
    return copy
