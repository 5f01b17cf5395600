"""The progressive tree: what it feeds in both geometries, how it grows, what it remembers and what it prunes."""

import pytest
import torch

from runtime.self_drafting.progressive_tree import Node, ProgressiveTreeConfig
from tests.guesses import EOS, Scripted, chain, paths, request, said


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


def test_a_first_tree_is_two_short_chains_of_the_prompt():
    chance = Scripted(1, 0, 2, 0, 1)  # length 2: tokens 0 and 2 of the prompt; length 1: token 1
    tree = ProgressiveTreeConfig(geometry="paper").open(request(chance, prompt=(10, 11, 12)))
    assert state(tree) == [(10, {12: {}}), (11, {})]


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


def test_verified_candidates_are_remembered_with_what_the_model_said():
    tree = grown({}, (1, {}))
    candidates = {2: {3: {}}, 4: {}}
    follow(tree, {1: 9}, newest=50, candidates=candidates, predicted=[2, 6, 7, 8])
    assert tree.candidates(50) == {2: {3: {8: {}}, 6: {}}, 4: {7: {}}}
    assert candidates == {2: {3: {}}, 4: {}}


def test_a_free_place_of_the_spine_is_filled_by_the_last_ones_guess():
    tree = grown({"max_children": 3}, (1, {}), (2, {4: {}}))
    follow(tree, {1: 5, 2: 4, 4: 6})
    assert state(tree) == [(1, {5: {}}), (2, {}), (4, {6: {}})], "moved there with what hangs below it"
    follow(tree, {})
    assert len(tree.first) == 3, "no free place"


@pytest.mark.parametrize("geometry", ["spine", "paper"])
def test_an_empty_tree_begins_with_the_newest_token(geometry):
    tree = grown({"geometry": geometry})
    assert tree.rows().tokens == []
    tree.learn(said(50, [], committed=(8, 5)))
    assert state(tree) == [(5, {})]


def test_the_oldest_child_takes_over_unless_its_token_is_there():
    tree = grown({"geometry": "paper", "max_depth": 3}, (1, {2: {3: {}}, 4: {5: {}}}), (2, {}))
    follow(tree, {}, committed=(2,))
    assert state(tree)[0] == (4, {5: {0: {}}, 0: {}}), "token 2 stands on the level, so the next child takes over"


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


def test_an_end_of_sequence_on_the_spine_goes():
    tree = grown({}, (1, {}))
    follow(tree, {1: EOS})
    assert state(tree) == [(1, {})]
