"""Every controller that stops chains really changes how far is drafted, and trees too."""

import pytest

from runtime import Randomness, build_decoder
from tests.selectors import small_pair

RULES = [  # thresholds within what these models, almost uniform over 32 tokens, say
    {"kind": "confidence", "epsilon": 0.06},
    {"kind": "entropy", "threshold": 0.1737, "step": 0.0},
    {"kind": "roc", "threshold": 0.03},
    {"kind": "ema", "tiers": [1, 2, 4]},
]
CHAIN = {"drafter": {"kind": "chain", "gamma": 4}, "verifier": "block"}
FORK = {"drafter": {"kind": "fork", "width": 2, "depth": 4}, "verifier": "traversal"}


@pytest.mark.parametrize("drafter", [CHAIN, FORK], ids=["chain", "fork"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["kind"])
def test_a_rule_changes_how_far_is_drafted(rule, drafter):
    decoder = build_decoder(small_pair(), {"method": "speculative", **drafter, "controller": rule})
    rounds = []
    for seed in range(3):
        out = decoder.generate(
            [1 + seed, 2, 3], max_new_tokens=40, temperature=1.0, randomness=Randomness(seed), eos_token_id=()
        )
        rounds += out.rounds[1:-4]
    levels = {record.levels for record in rounds}
    assert len(levels) > 1 and max(levels) <= 4, levels
