"""What a latency profile says of branch-parallel decoding, for the text and the report."""

from collections.abc import Sequence

from predictors.latency import LatencyProfile, balanced_gamma

BLOCK, CANDIDATES = 4, 4  # tokens that the target verifies, and branches that the draft grows meanwhile
OUTSIDE = {"branch_candidates", "branch_drawing", "chain_verification"}
WAYS = {"one by one": {"draft", "target"}, "side by side": {"beside_draft", "beside_target"}}


def hidden_gammas(profile: LatencyProfile, contexts: Sequence[int]) -> dict[str, list[int]]:
    """By way of running both models, the γ whose branches still hide behind the target's greedy pass, at each of ``contexts``.

    Ways whose tables the profile lacks are left out.
    """
    known = profile.tables.keys()
    return {
        way: [balanced_gamma(profile, BLOCK, CANDIDATES, at, False, way == "side by side") for at in contexts]
        for way, passes in WAYS.items()
        if known >= passes | OUTSIDE
    }
