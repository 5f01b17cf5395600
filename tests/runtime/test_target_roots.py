"""A wrong twin: several tokens of the target compete as roots of drafts (paper on multi-candidate speculative decoding, "target
initialisation"). With one root it is exact."""

from functools import cache

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime.laws import processed_law
from tests.ancestral import target_law
from tests.runtime.test_exactness import PROMPT
from tests.toys import TableModel, output_law, total_variation


def competing_roots(target, draft, num_roots, length, settings, chance):
    """``length`` tokens: one is drafted after each of ``num_roots`` distinct tokens of the target's distribution, and the root
    whose draft is accepted is emitted, the first among equals."""
    law = cache(lambda model, text: processed_law(model.logits(list(text)), settings))

    def roots_of(probs_V, text):
        if settings.greedy:
            return target.logits(list(text)).topk(num_roots).indices.tolist()
        roots, left_V = [], probs_V.clone()
        while len(roots) < num_roots and float(left_V.sum()) > 0:
            roots.append(int(chance.categorical(left_V)))
            left_V[roots[-1]] = 0.0
        return roots

    text = tuple(PROMPT)
    after_V = law(target, text)
    while len(text) < len(PROMPT) + length:
        best = ()
        for root in roots_of(after_V, text):
            p_V, q_V = (law(model, (*text, root)) for model in (target, draft))
            taken_V = torch.minimum(p_V, q_V)  # P(a token is drafted and accepted)
            outcome = int(chance.categorical(torch.cat([taken_V, (1 - taken_V.sum()).clamp(min=0).reshape(1)])))
            path = (root,) if outcome == len(p_V) else (root, outcome)
            if len(path) > len(best):
                best = path
                best_V = law(target, (*text, *path)) if len(path) > 1 else (p_V - q_V).clamp(min=0)
        text, after_V = (*text, *best), best_V
    return text[len(PROMPT) : len(PROMPT) + length]


def error(seeds, num_roots, settings):
    """Total variation of emitted tokens from the target's own, of toy models: of several, and of the first one where roots that
    are drawn compete."""
    target, draft = (TableModel(3, seed=seed) for seed in seeds)
    length = 3 if num_roots == 1 or settings.greedy else 1
    law = output_law(lambda chance: competing_roots(target, draft, num_roots, length, settings, chance))
    assert sum(law.values()) == pytest.approx(1)
    return total_variation(law, target_law(target, PROMPT, length, settings))


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_several_target_roots_are_lossy(temperature):
    settings = SamplingSettings(temperature)
    assert error((3, 4), 1, settings) < 1e-9 and error((3, 4), 2, settings) > 0.05
