"""Branch-parallel decoding with the real source of chance: draws follow the target unless streams are shared."""

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness
from runtime.branching.candidates import Candidates
from runtime.tree import DraftLaw, TokenTree
from runtime.verification import VERIFIERS
from tests.ancestral import target_law
from tests.runtime.test_branch_exactness import PROMPT, decoder_of
from tests.toys import TableModel


def chi_squared(draws, one_stream):
    """χ² of the first tokens' counts against the target's law, by real draws; and its degrees of freedom."""
    pair = ModelPair(TableModel(3, seed=1, sharpness=0.7), TableModel(3, seed=2, sharpness=0.7))
    decoder, counts = decoder_of(pair=pair), {}
    for seed in range(draws):
        chance = Randomness(seed)
        if one_stream:  # proposals and verdicts read the same numbers
            same = Randomness(seed)
            same.spawn = lambda seed=seed: Randomness(seed)
            chance._streams = {"draft": same, "verify": Randomness(seed)}
        tokens = decoder.generate(PROMPT, max_new_tokens=4, temperature=1.0, randomness=chance, eos_token_id=()).tokens
        counts[tuple(tokens)] = counts.get(tuple(tokens), 0) + 1
    law = target_law(pair.target, PROMPT, 4, SamplingSettings(1.0))
    return sum((counts.get(key, 0) - draws * share) ** 2 / (draws * share) for key, share in law.items()), len(law) - 1


@pytest.mark.parametrize("one_stream, draws", [(False, 3000), (True, 500)])
def test_real_draws_follow_the_target_unless_streams_are_shared(one_stream, draws):
    torch.manual_seed(0)
    statistic, freedom = chi_squared(draws, one_stream)
    deviations = (statistic - freedom) / (2 * freedom) ** 0.5
    assert deviations > 10 if one_stream else deviations < 5


def test_match_at_a_branch_point_is_the_rule_of_that_name():
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 4):
        target_V, draft_V = torch.rand(2, 5, generator=generator, dtype=torch.float64).softmax(-1)
        tokens = torch.randperm(5, generator=generator)[:count]
        tree = TokenTree(tokens=tokens, parents=torch.full((count,), -1), law=DraftLaw.DETERMINISTIC)
        known = VERIFIERS["match"](tree, target_V.expand(count + 1, -1))
        law = Candidates(tokens, draft_V, "match").verdict_law(target_V)
        torch.testing.assert_close(law.stop, known.stop)
        torch.testing.assert_close(law.residual(0), known.residual(0))
