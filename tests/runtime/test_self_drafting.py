"""What one model that drafts for itself feeds and remembers: windows, branches and bounded pools."""

import pytest
import torch

from runtime.self_drafting.guesses import NGramPool, PromptTokens, TriePool, levels, merge, num_nodes
from runtime.self_drafting.ngrams import LookaheadConfig, SelfDraftConfig
from runtime.self_drafting.progressive_tree import ProgressiveTreeConfig, verified
from runtime.tree import DraftLaw
from tests.guesses import EOS, Scripted, paths, request, said

# ---- tries and pools


def test_merging_grafts_what_hangs_below():
    trie = {1: {2: {}}}
    assert merge(trie, {1: {3: {4: {}}}, 5: {6: {}}}) == 4
    assert trie == {1: {2: {}, 3: {4: {}}}, 5: {6: {}}}
    assert num_nodes(trie) == 6


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
    assert PromptTokens(request(Scripted(0, 0), prompt=(EOS, 7, EOS))).draw(2) == [7, 7]
    assert PromptTokens(request(Scripted(0), prompt=(EOS,))).draw(1) == [EOS]


def test_ngrams_not_seen_for_longest_go_first():
    pool = NGramPool(capacity=2)
    pool.add([(1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 4, 6)])
    assert pool.get(1) == {2: {3: {}}, 4: {6: {}}}
    pool.add([(1, 4, 7)])
    assert pool.get(1) == {4: {6: {}, 7: {}}}, "those that share a beginning are one path"


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


def test_an_end_of_sequence_in_the_window_is_replaced():
    window = LookaheadConfig(ngram=3, window=2).open(request(Scripted(), prompt=(7,)))
    window.learn(said(50, [EOS, 3]))
    assert paths(window.rows()) == [[7], [7], [7, 3]]


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


def test_overhead_of_self_draft():
    branches = SelfDraftConfig().open(request(Scripted(), prompt=(1, 2, 3)))
    for _ in range(8):
        branches.learn(said(1, [4] * len(branches.rows().tokens)))
    assert len(branches.rows().tokens) == 30


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
