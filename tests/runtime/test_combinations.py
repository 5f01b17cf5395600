"""Which drafters go with which verifiers: the rest is refused by name."""

import dataclasses

import pytest
import torch

from runtime import build_decoder
from runtime.drafting import DRAFTERS
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import VERIFIERS
from tests.runtime.test_drafting import DELAYED, FORK, PAIRS, speculative, toys


@pytest.mark.parametrize(
    "drafter, verifier, message",
    [
        (DELAYED, "block", "'block' takes chains only, and DelayedTreeConfig.*branches"),
        (PAIRS, "specinfer", "MultiCandidateConfig.*'specinfer' is not lossless for WITHOUT_REPLACEMENT drafts"),
        (FORK, "spectr", "ForkConfig.*'spectr' is not lossless for DETERMINISTIC"),
        (
            DELAYED,
            "rrs_without_replacement",
            "'rrs_without_replacement' is not lossless for IID drafts; it is for DETERM",
        ),
        ({"kind": "chain"}, "hsd_as_published", "unknown verifier 'hsd_as_published'"),
        ({"kind": "chain"}, "blok", "unknown verifier 'blok'. Known verifiers: tokenwise, block"),
        ({"kind": "bush"}, "block", "unknown kind 'bush'. Known kinds: chain, delayed_tree, multi_candidate, fork"),
        ({"kind": "delayed_tree", "k": 0}, "traversal", "needs k >= 1, l1 >= 0.*got k=0"),
        ({"kind": "multi_candidate", "config": []}, "traversal", "config needs a number per level"),
        ({"kind": "multi_candidate", "candidates": "best"}, "traversal", "candidates must be one of sampled, top_k"),
        ({"kind": "multi_candidate", "roots": "target"}, "traversal", "unknown key 'roots'"),
        ({"kind": "fork", "width": 0}, "traversal", "width must be >= 1, got 0"),
        ({"kind": "chain", "draft_temperature": -1.0}, "block", "draft_temperature must be >= 0.*got -1"),
        ({"kind": "fork", "draft_temperature": -1.0}, "traversal", "draft_temperature must be >= 0.*got -1"),
        (FORK, "block", "'block' takes chains only.*Verifiers for this drafter: traversal, nss"),
    ],
    ids=str,
)
def test_wrong_combinations_are_refused_by_name(drafter, verifier, message):
    with pytest.raises(ValueError, match=message):
        build_decoder(toys(), speculative(drafter, verifier))


def test_distinct_draws_are_distinct():
    tree = TokenTree(
        tokens=torch.tensor([1]),
        parents=torch.tensor([-1]),
        draws=torch.tensor([0, 0]),
        draft_probs=torch.full((2, 3), 1 / 3),
        law=DraftLaw.WITHOUT_REPLACEMENT,
    )
    with pytest.raises(ValueError, match="drawn twice under one node.*without replacement"):
        VERIFIERS["traversal"](tree, torch.full((2, 3), 1 / 3))


def test_every_pair_of_drafter_and_verifier_is_lossless_or_refused():
    for kind, config in DRAFTERS.items():
        for verifier in VERIFIERS.values():
            drafter = config()
            fits = drafter.laws <= verifier.lossless_for and not (verifier.chains_only and drafter.branches)
            try:
                build_decoder(toys(), speculative({"kind": kind}, verifier.name))
                assert fits
            except ValueError:
                assert not fits


def test_drafters_are_frozen_configurations():
    for config in DRAFTERS.values():
        assert dataclasses.is_dataclass(config) and config.__dataclass_params__.frozen
        assert all(isinstance(law, DraftLaw) for law in config().laws)
