"""Configurations of decoders: which drafters go with which verifiers, and what is refused with its key or value."""

import pytest

from runtime import ModelPair, build_decoder
from runtime.drafting import DRAFTERS
from runtime.self_drafting import GUESSERS
from runtime.verification import VERIFIERS
from tests.runtime.test_drafting import DELAYED, FORK, PAIRS, speculative, toys
from tests.toys import TableModel

BRANCHES = {"method": "branch_parallel"}
BAD = [
    ({}, "key 'method' is missing"),
    ({"method": "magic"}, "unknown method 'magic'"),
    ({"method": "autoregressive", "drafter": {"kind": "chain"}}, "neither drafter nor controller"),
    ({"method": "lookahead", "widnow": 3}, "'widnow'. Did you mean 'window'"),
    ({"preset": "medusa"}, "unknown preset 'medusa'"),
    ({"preset": "specbranch", "controller": {"kind": "hrad"}}, "no bundle is named"),
    (BRANCHES | {"gama": 3}, "'gama'. Did you mean 'gamma'"),
    (BRANCHES | {"gamma": 0}, "gamma must be >= 1, got 0"),
    (BRANCHES | {"draft_stage": "preverify", "draft_stage_gamma": 4}, "draft_stage 'preverify'"),
    (BRANCHES | {"gamma": 3, "draft_stage_gamma": 4}, "draft_stage_gamma=4 exceeds gamma=3"),
    (BRANCHES | {"k_rule": "round"}, "k_rule .* 'round'"),
    (BRANCHES | {"verifier": "spectr"}, "chain.* 'spectr'"),
    (BRANCHES | {"epsilon": 0.3, "controller": {"kind": "fixed"}}, "epsilon=0.3"),
    (speculative(DELAYED, "block"), "'block' takes chains only, and DelayedTreeConfig"),
    (speculative(FORK, "block"), "Verifiers for this drafter: traversal, nss"),
    (speculative(PAIRS, "specinfer"), "'specinfer' is not lossless for WITHOUT_REPLACEMENT"),
    (speculative({"kind": "chain"}, "hsd_as_published"), "unknown verifier 'hsd_as_published'"),
    (speculative({"kind": "bush"}, "block"), "unknown kind 'bush'"),
    (speculative({"kind": "chain", "gama": 3}, "block"), "'gama'. Did you mean 'gamma'"),
    (speculative({"kind": "chain", "gamma": 0}, "block"), "gamma must be >= 1, got 0"),
    (speculative({"kind": "delayed_tree", "k": 0}, "traversal"), "got k=0"),
    (speculative({"kind": "delayed_tree", "choices": [{"k": 2}]}, "traversal"), "choices are the controller's"),
    (speculative({"kind": "multi_candidate", "config": []}, "traversal"), "config needs a number per level"),
    (speculative({"kind": "multi_candidate", "candidates": "best"}, "traversal"), "candidates must be one of"),
    (speculative({"kind": "fork", "width": 0}, "traversal"), "width must be >= 1, got 0"),
    (speculative({"kind": "chain", "draft_temperature": -1.0}, "block"), "draft_temperature .* got -1"),
    (speculative({"kind": "lookup", "length": 0}, "block"), "length must be >= 1, got 0"),
    (speculative({"kind": "lookup", "least": 17}, "block"), "least=17 is more than longest=16"),
    (speculative({"kind": "chain", "gamma": 5, "lookup": {"length": 6}}, "block"), "lookup.length=6"),
    (speculative({"kind": "chain", "lookup": {"most": 6}}, "block"), "unknown key 'most'"),
]
OF_A_PAIR = {"drafter": {"kind": "chain"}, "controller": {"kind": "fixed"}, "verifier": "block", "gamma": 4}
BAD += [
    ({"method": method, key: value}, f"'{method}'.*{key}") for method in GUESSERS for key, value in OF_A_PAIR.items()
]


@pytest.mark.parametrize(("config", "message"), BAD, ids=str)
def test_bad_configurations_are_refused_by_name(config, message):
    with pytest.raises(ValueError, match=message):
        build_decoder(toys(), config)


@pytest.mark.parametrize("config", [speculative({"kind": "chain"}, "block"), BRANCHES], ids=str)
def test_methods_with_a_draft_need_one(config):
    with pytest.raises(ValueError, match="needs a draft model"):
        build_decoder(ModelPair(TableModel(3, 0)), config)


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
