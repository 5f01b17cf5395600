"""Which drafters go with which verifiers: the rest is refused by name."""

import dataclasses

import pytest

from runtime import build_decoder
from runtime.drafting import DRAFTERS
from runtime.tree import DraftLaw
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
        ({"kind": "chain"}, "hsd_as_published", "'hsd_as_published' is lossy; say lossy=True"),
        ({"kind": "chain"}, "blok", "unknown verifier 'blok'. Known verifiers: tokenwise, block"),
        ({"kind": "bush"}, "block", "unknown kind 'bush'. Known kinds: chain, delayed_tree, multi_candidate, fork"),
        ({"kind": "delayed_tree", "k": 0}, "traversal", "needs k >= 1, l1 >= 0.*got k=0"),
        ({"kind": "multi_candidate", "config": []}, "traversal", "one number >= 1 per level"),
        ({"kind": "multi_candidate", "candidates": "best"}, "traversal", "unknown candidates 'best'"),
        ({"kind": "multi_candidate", "roots": "both"}, "traversal", "unknown roots 'both'"),
        ({"kind": "fork", "width": 0}, "traversal", "width >= 1 and depth >= 1, got width=0"),
    ],
    ids=str,
)
def test_wrong_combinations_are_refused_by_name(drafter, verifier, message):
    with pytest.raises(ValueError, match=message):
        build_decoder(toys(), speculative(drafter, verifier))


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
