"""A wrong twin: several tokens of the target compete as roots of drafts (paper on multi-candidate speculative decoding, "target
initialisation"). With one root it is exact."""

import pytest

from predictors.sampling import SamplingSettings
from runtime.laws import processed_law
from tests.ancestral import target_law
from tests.runtime.test_exactness import PROMPT
from tests.toys import TableModel, output_law, total_variation


def competing_roots(target, draft, num_roots, length, settings, chance):
    """``length`` tokens: one is drafted after each of ``num_roots`` distinct tokens of the target's distribution, and the root
    whose draft is accepted is emitted, the first among equals."""

    def law(model, text):
        return processed_law(model.logits(text), settings)

    def roots_of(probs_V, logits_V):
        if settings.greedy:
            return logits_V.topk(num_roots).indices.tolist()
        roots, left_V = [], probs_V.clone()
        while len(roots) < num_roots and float(left_V.sum()) > 0:
            roots.append(int(chance.categorical(left_V)))
            left_V[roots[-1]] = 0.0
        return roots

    text = list(PROMPT)
    after_V, logits_V = law(target, text), target.logits(text)
    while len(text) < len(PROMPT) + length:
        best = []
        for root in roots_of(after_V, logits_V):
            path = [root]
            p_V, q_V = law(target, [*text, root]), law(draft, [*text, root])
            token = int(chance.categorical(q_V))
            taken = float((p_V[token] / q_V[token]).clamp(max=1))
            following_V = (p_V - q_V).clamp(min=0)
            if int(chance.categorical(p_V.new_tensor([1 - taken, taken]))):
                path.append(token)
                following_V = law(target, [*text, *path])
            if len(path) > len(best):
                best, best_V = path, following_V
        text += best
        after_V, logits_V = best_V / best_V.sum(), target.logits(text)
    return tuple(text[len(PROMPT) : len(PROMPT) + length])


def error(seeds, num_roots, settings):
    """Total variation of two emitted tokens from the target's own, of toy models."""
    target, draft = (TableModel(3, seed=seed) for seed in seeds)
    law = output_law(lambda chance: competing_roots(target, draft, num_roots, 2, settings, chance))
    assert sum(law.values()) == pytest.approx(1)
    return total_variation(law, target_law(target, PROMPT, 2, settings))


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_several_target_roots_are_lossy(temperature):
    settings = SamplingSettings(temperature)
    assert error((3, 4), 1, settings) < 1e-9 and error((3, 4), 2, settings) > 0.05


def test_more_roots_are_further_from_the_target():
    distances = {
        roots: [error((20 + n, 40 + n), roots, SamplingSettings(1.0)) for n in range(2)] for roots in (1, 2, 3)
    }
    means = {roots: sum(found) / len(found) for roots, found in distances.items()}
    assert max(distances[1]) < 1e-9 and 0.05 < means[2] < means[3], means
