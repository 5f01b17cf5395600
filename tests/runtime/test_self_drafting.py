"""What one model that drafts for itself feeds and remembers: windows, branches, trees and bounded pools."""

from types import SimpleNamespace

import pytest
import torch

from runtime.self_drafting.guesses import PassOutcome, PromptTokens, levels, num_nodes
from runtime.self_drafting.ngrams import LookaheadConfig, SelfDraftConfig
from runtime.self_drafting.progressive_tree import Node, ProgressiveTreeConfig, verified

EOS = 99


class Scripted:
    """Chance that gives these outcomes in turn (at most the last one possible), then zeros."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def categorical(self, weights):
        shape = weights.shape[:-1]
        drawn = [self.outcomes.pop(0) if self.outcomes else 0 for _ in range(max(1, shape.numel()))]
        return torch.tensor(drawn).clamp(max=weights.shape[-1] - 1).reshape(shape)


def request(chance, prompt=(7,), eos=(EOS,)):
    return SimpleNamespace(prompt=list(prompt), eos_tokens=frozenset(eos), randomness=chance)


def said(newest, following, committed=(5,), candidates=None, predicted=(0,)):
    return PassOutcome(newest, candidates or {}, list(predicted), list(following), list(committed))


def chain(tokens):
    """A trie of one path."""
    trie = {}
    for token in reversed(tokens):
        trie = {token: trie}
    return trie


def paths(rows):
    """The tokens each row sees, itself last."""
    found = []
    for token, parent in zip(rows.tokens, rows.parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found


# ---- tries and pools


def test_nothing_follows_an_end_of_sequence():
    tree = levels({EOS: {1: {}}, 2: {EOS: {3: {}}}}, 3, ends={EOS})
    assert tree.token_list == [EOS, 2, EOS] and tree.parent_list == [-1, -1, 1]
    seen = verified({EOS: {1: {}}, 2: {EOS: {}}}, [2, 7, EOS, 8], ends={EOS})
    assert seen == {EOS: {}, 2: {EOS: {}}}
    assert PromptTokens(request(Scripted(0, 0), prompt=(EOS, 7, EOS))).draw(2) == [7, 7]
    assert PromptTokens(request(Scripted(0), prompt=(EOS,))).draw(1) == [EOS]


# ---- lookahead


def test_lookahead_fills_its_window_then_moves_it():
    """N = 4, W = 3: after two passes the levels hold W - 1, W and W tokens, (N - 1) W - 1 in all."""
    window = LookaheadConfig(ngram=4, window=3, guesses=5).open(request(Scripted(), prompt=(1,)))
    assert paths(window.rows()) == [[1], [1, 1], [1, 1, 1], [1, 1, 1, 1]]
    window.learn(said(50, [11, 12, 13, 14]))
    assert paths(window.rows()) == [[1], [1, 1], [1, 1, 1], [11], [1, 12], [1, 1, 13], [1, 1, 1, 14]]
    window.learn(said(51, [0, 0, 0, 20, 21, 22, 23]))
    rows = window.rows()
    expected = [[1], [1, 1], [12], [1, 13], [1, 1, 14], [12, 21], [1, 13, 22], [1, 1, 14, 23]]
    assert paths(rows) == expected and rows.depth == 4
    window.learn(said(52, [0, 0, 0, 0, 0, 31, 32, 33]))
    assert window.candidates(52) == {12: {21: {31: {}}}}, "column 0 begins with the newest token"
    assert window.candidates(1) == {13: {22: {32: {}}}, 14: {23: {33: {}}}}
    assert paths(window.rows()) == [
        [13],
        [13, 14],
        [21],
        [13, 22],
        [13, 14, 23],
        [21, 31],
        [13, 22, 32],
        [13, 14, 23, 33],
    ]


@pytest.mark.parametrize("ngram, window, overhead", [(5, 15, 59), (5, 10, 39), (5, 7, 27), (3, 1, 1)])
def test_overhead_of_lookahead(ngram, window, overhead):
    guesses = LookaheadConfig(ngram=ngram, window=window).open(request(Scripted()))
    for _ in range(8):
        rows = guesses.rows()
        guesses.learn(said(1, [2] * len(rows.tokens)))
    assert len(guesses.rows().tokens) == overhead


# ---- self-draft


def test_branches_grow_to_their_length_and_leave_ngrams():
    config = SelfDraftConfig(branches=2, length=4, ngram=3, guesses=5)
    branches = config.open(request(Scripted(1, 0, 1, 0, 1), prompt=(7, 8)))  # prefixes [7, 8] and [8]
    assert paths(branches.rows()) == [[7], [7, 8], [8]]
    branches.learn(said(50, [0, 20, 30]))
    assert paths(branches.rows()) == [[7], [7, 8], [7, 8, 20], [8], [8, 30]]
    assert branches.candidates(7) == {8: {20: {}}} and branches.candidates(8) == {}
    branches.learn(said(51, [0, 0, 21, 0, 31]))
    assert branches.candidates(8) == {20: {21: {}}, 30: {31: {}}}
    assert paths(branches.rows()) == [[8], [8, 20], [8, 20, 21], [8], [8, 30], [8, 30, 31]]


@pytest.mark.parametrize(
    "config, most",
    [
        (ProgressiveTreeConfig(pool_nodes=20), 20),
        (ProgressiveTreeConfig(geometry="paper", pool_nodes=20), 20),
        (LookaheadConfig(ngram=4, window=3, guesses=5), 15),
        (SelfDraftConfig(branches=3, ngram=4, guesses=5), 15),
    ],
    ids=str,
)
def test_retrieval_reads_one_bounded_entry_however_long_the_text(config, most):
    generator = torch.Generator().manual_seed(0)
    guesses = config.open(request(Scripted(), prompt=(1, 2, 3)))
    seen = []
    for step in range(600):
        count = len(guesses.rows().tokens)
        following = torch.randint(4, (count,), generator=generator).tolist()
        guesses.learn(said(step % 4, following, committed=(step % 4,)))
        seen.append(max(num_nodes(guesses.candidates(token)) for token in range(4)))
    assert max(seen) <= most and max(seen[:300]) == max(seen[300:]) > most / 2


# ---- progressive trees


def grown(config, *trees):
    """A progressive tree over first-level ``trees``: (token, children as a trie)."""

    def hang(node, trie):
        for token, below in trie.items():
            hang(node.add(token), below)

    tree = ProgressiveTreeConfig(**config).open(request(Scripted()))
    tree.first = [Node(token) for token, _ in trees]
    for node, (_, trie) in zip(tree.first, trees, strict=True):
        hang(node, trie)
    return tree


TREES = ((1, {2: {3: {}}, 4: {}}), (5, {6: {}}), (7, {}))


def test_geometry_of_the_paper():
    rows = grown({"geometry": "paper"}, *TREES).rows()
    assert sorted(paths(rows)) == [[1], [1, 2], [1, 2, 3], [1, 4], [5], [5, 6], [7]] and rows.depth == 3


def test_geometry_with_a_spine():
    rows = grown({"geometry": "spine"}, *TREES).rows()
    expected = [[1], [1, 2], [1, 2, 3], [1, 4], [1, 5], [1, 5, 6], [1, 5, 7]]
    assert sorted(paths(rows)) == expected and rows.depth == 3


def state(tree):
    def trie(node):
        return {token: trie(child) for token, child in node.children.items()}

    return [(node.token, trie(node)) for node in tree.first]


def follow(tree, mapping, **options):
    """Learn from a pass that says ``mapping[token]`` behind every row, 0 where it names none."""
    rows = tree.rows()
    tree.learn(said(options.pop("newest", 50), [mapping.get(token, 0) for token in rows.tokens], **options))


def test_every_node_that_was_there_gets_at_most_one_child():
    tree = grown({"geometry": "paper", "max_children": 2}, (1, {2: {}, 3: {}}), (4, {5: {}}))
    follow(tree, {1: 9, 2: 8, 3: 8, 4: 5, 5: 6})
    assert state(tree) == [(1, {2: {8: {}}, 3: {8: {}}}), (4, {5: {6: {}}})], "1 is full, 4 has a child 5 already"


def test_the_pool_knows_what_hangs_under_every_node_before_pruning():
    tree = grown({"geometry": "paper", "max_children": 1, "max_depth": 2}, (1, {2: {}}))
    follow(tree, {1: 3, 2: 4})
    assert tree.candidates(1) == {2: {4: {}}, 3: {}}, "the token guessed behind a full node is remembered too"
    assert tree.candidates(2) == {4: {}}
    assert state(tree) == [(2, {4: {}})], "grown too high: the oldest child took over"


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_no_branch_grows_beyond_its_depth(depth):
    tree = ProgressiveTreeConfig(max_depth=depth).open(request(Scripted(*[1] * 9), prompt=(1, 2, 3)))
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        rows = tree.rows()
        assert all(node.height < depth for node in tree.first) and len(tree.first) <= 4
        assert all(len(node.children) <= 4 for node in tree._fed) and rows.depth <= depth + 3
        tree.learn(said(1, torch.randint(6, (len(rows.tokens),), generator=generator).tolist()))


@pytest.mark.parametrize(
    "depth, left", [(1, []), (4, []), (5, [(1, {})]), (6, [(1, {2: {}})])], ids=["near", "four", "five", "six"]
)
def test_an_end_of_sequence_goes_with_four_levels_above_it(depth, left):
    text = list(range(1, depth + 1))
    tree = grown({"geometry": "paper", "max_depth": 20}, (1, chain(text[1:])))
    rows = tree.rows()
    following = [2, 3, 4, 5, 6, 7][: depth - 1]
    tree.learn(said(50, [*following, EOS], committed=(1,)))
    assert rows.tokens == text and state(tree) == left
