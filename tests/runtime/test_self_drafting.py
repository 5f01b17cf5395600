"""What one model that drafts for itself feeds and remembers: rows of both geometries, windows, branches and bounded pools."""

from types import SimpleNamespace

import pytest
import torch

from runtime.self_drafting.guesses import PromptTokens, Said
from runtime.self_drafting.lookahead import LookaheadConfig
from runtime.self_drafting.progressive_tree import Node, ProgressiveTreeConfig, verified
from runtime.self_drafting.self_draft import SelfDraftConfig
from runtime.self_drafting.trie import NGramPool, TriePool, chain, levels, merge, num_nodes
from runtime.tree import DraftLaw

EOS = 99


class Scripted:
    """Chance that gives these outcomes in turn (at most the last one possible), then zeros."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def categorical(self, weights):
        shape = weights.shape[:-1]
        drawn = [self.outcomes.pop(0) if self.outcomes else 0 for _ in range(max(1, shape.numel()))]
        return torch.tensor(drawn).clamp(max=weights.shape[-1] - 1).reshape(shape)


def request(prompt=(7,), eos=(EOS,)):
    return SimpleNamespace(prompt=list(prompt), eos_tokens=frozenset(eos))


def said(newest, following, committed=(5,), candidates=None, predicted=(0,)):
    return Said(newest, candidates or {}, list(predicted), list(following), list(committed))


def paths(rows):
    """The tokens each row sees, itself last."""
    found = []
    for token, parent in zip(rows.tokens, rows.parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found


# ---- tries and pools


def test_merging_grafts_what_hangs_below():
    trie = {1: {2: {}}}
    assert merge(trie, {1: {3: {4: {}}}, 5: {6: {}}}) == 4
    assert trie == {1: {2: {}, 3: {4: {}}}, 5: {6: {}}}
    assert num_nodes(trie) == 6


def test_merging_copies():
    trie, other = {}, {1: {2: {}}}
    merge(trie, other)
    trie[1][3] = {}
    assert other == {1: {2: {}}}


def test_levels_are_a_deterministic_tree():
    tree = levels({1: {2: {}, 3: {4: {}}}, 5: {}}, deepest=2)
    assert tree.token_list == [1, 5, 2, 3] and tree.parent_list == [-1, -1, 0, 0]
    assert tree.law is DraftLaw.DETERMINISTIC and tree.draft_probs is None
    assert levels({1: {}}, deepest=0).num_nodes == 0


def test_a_full_pool_forgets_its_oldest_first_token():
    pool = TriePool(capacity=4)
    pool.merge(0, {1: {2: {}}})
    pool.merge(0, {3: {}, 4: {}})
    assert pool.get(0) == {1: {2: {}}, 3: {}, 4: {}}
    pool.merge(0, {1: {5: {}}})
    assert pool.get(0) == {3: {}, 4: {}}, "the oldest and all behind it, also what was just added there"
    assert pool.get(9) == {}


def test_a_continuation_larger_than_the_pool_is_not_kept():
    pool = TriePool(capacity=3)
    pool.merge(0, {1: {2: {3: {4: {}}}}})
    assert pool.get(0) == {}
    pool.merge(0, {5: {}})
    assert pool.get(0) == {5: {}}


def test_nothing_follows_an_end_of_sequence():
    tree = levels({EOS: {1: {}}, 2: {EOS: {3: {}}}}, 3, ends={EOS})
    assert tree.token_list == [EOS, 2, EOS] and tree.parent_list == [-1, -1, 1]
    seen = verified({EOS: {1: {}}, 2: {EOS: {}}}, [2, 7, EOS, 8], ends={EOS})
    assert seen == {EOS: {}, 2: {EOS: {}}}
    prompt = request(prompt=(EOS, 7, EOS))
    assert PromptTokens(prompt, Scripted(0, 0)).draw(2) == [7, 7]
    assert PromptTokens(request(prompt=(EOS,)), Scripted(0)).draw(1) == [EOS]


def test_no_pool_ever_exceeds_its_capacity():
    generator = torch.Generator().manual_seed(0)
    pool = TriePool(capacity=6)
    for _ in range(300):
        first, *rest = torch.randint(5, (5,), generator=generator).tolist()
        pool.merge(first, chain(rest))
        assert all(num_nodes(pool.get(token)) <= 6 for token in range(5))


def test_ngrams_not_seen_for_longest_go_first():
    pool = NGramPool(capacity=2)
    pool.add([(1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 4, 6)])
    assert pool.get(1) == {2: {3: {}}, 4: {6: {}}}
    pool.add([(1, 4, 7)])
    assert pool.get(1) == {4: {6: {}, 7: {}}}, "those that share a beginning are one path"


# ---- progressive trees


def grown(config, *trees):
    """A progressive tree over first-level ``trees``: (token, children as a trie)."""

    def hang(node, trie):
        for token, below in trie.items():
            hang(node.add(token), below)

    tree = ProgressiveTreeConfig(**config).open(request(), Scripted())
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
    tree = ProgressiveTreeConfig(geometry="paper").open(request(prompt=(10, 11, 12)), chance)
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


def test_what_was_cut_from_the_candidates_says_nothing():
    assert verified({2: {3: {}}}, [9, 8]) == {2: {3: {}, 8: {}}, 9: {}}


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
    tree = ProgressiveTreeConfig(max_depth=depth).open(request(prompt=(1, 2, 3)), Scripted(*[1] * 9))
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


# ---- lookahead


def test_lookahead_fills_its_window_then_moves_it():
    """N = 4, W = 3: after two passes the levels hold W - 1, W and W tokens, (N - 1) W - 1 in all."""
    window = LookaheadConfig(ngram=4, window=3, guesses=5).open(request(prompt=(1,)), Scripted())
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
    guesses = LookaheadConfig(ngram=ngram, window=window).open(request(), Scripted())
    for _ in range(8):
        rows = guesses.rows()
        guesses.learn(said(1, [2] * len(rows.tokens)))
    assert len(guesses.rows().tokens) == overhead


def test_an_end_of_sequence_in_the_window_is_replaced():
    window = LookaheadConfig(ngram=3, window=2).open(request(prompt=(7,)), Scripted())
    window.learn(said(50, [EOS, 3]))
    assert paths(window.rows()) == [[7], [7], [7, 3]]


# ---- self-draft


def test_branches_grow_to_their_length_and_leave_ngrams():
    config = SelfDraftConfig(branches=2, length=4, ngram=3, guesses=5)
    branches = config.open(request(prompt=(7, 8)), Scripted(1, 0, 1, 0, 1))  # prefixes [7, 8] and [8]
    assert paths(branches.rows()) == [[7], [7, 8], [8]]
    branches.learn(said(50, [0, 20, 30]))
    assert paths(branches.rows()) == [[7], [7, 8], [7, 8, 20], [8], [8, 30]]
    assert branches.candidates(7) == {8: {20: {}}} and branches.candidates(8) == {}
    branches.learn(said(51, [0, 0, 21, 0, 31]))
    assert branches.candidates(8) == {20: {21: {}}, 30: {31: {}}}
    assert paths(branches.rows()) == [[8], [8, 20], [8, 20, 21], [8], [8, 30], [8, 30, 31]]


def test_a_branch_that_ends_begins_anew():
    branches = SelfDraftConfig(branches=1, length=4, ngram=3).open(request(prompt=(7,)), Scripted())
    branches.learn(said(50, [EOS]))
    assert branches.rows().tokens == [7]


def test_overhead_of_self_draft():
    branches = SelfDraftConfig().open(request(prompt=(1, 2, 3)), Scripted())
    for _ in range(8):
        branches.learn(said(1, [4] * len(branches.rows().tokens)))
    assert len(branches.rows().tokens) == 30


@pytest.mark.parametrize(
    "config, options, message",
    [
        (ProgressiveTreeConfig, {"geometry": "flat"}, "geometry must be one of spine, paper, got 'flat'"),
        (ProgressiveTreeConfig, {"max_depth": 1}, "max_depth must be >= 2, got 1"),
        (ProgressiveTreeConfig, {"draft_top_k": 0, "draft_top_p": 0.0}, "top_p"),
        (ProgressiveTreeConfig, {"draft_top_p": 0.5}, "has no effect beside draft_top_k=1"),
        (LookaheadConfig, {"ngram": 2}, "ngram must be >= 3"),
        (LookaheadConfig, {"window": 0}, "window must be >= 1, got 0"),
        (SelfDraftConfig, {"length": 3, "ngram": 4}, "length must be >= 4, got 3"),
        (SelfDraftConfig, {"length": 2, "ngram": 2}, "the longest prefix, got 2"),
    ],
)
def test_bad_settings(config, options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


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
    guesses = config.open(request(prompt=(1, 2, 3)), Scripted())
    seen = []
    for step in range(1500):
        count = len(guesses.rows().tokens)
        following = torch.randint(4, (count,), generator=generator).tolist()
        guesses.learn(said(step % 4, following, committed=(step % 4,)))
        seen.append(max(num_nodes(guesses.candidates(token)) for token in range(4)))
    assert max(seen) <= most and max(seen[:750]) == max(seen[750:]) > most / 2
