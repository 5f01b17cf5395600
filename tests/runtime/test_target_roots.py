"""Target-initialised trees: one root is the ordinary loop, several are lossy, refused and marked."""

import pytest

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.laws import processed_law
from tests.ancestral import LlamaLogits, target_law
from tests.runtime.test_drafting import PAIRS, speculative, toys
from tests.runtime.test_exactness import PROMPT, decoder_law
from tests.toys import TableModel, tiny_llama, total_variation


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_one_target_root_is_the_ordinary_tree(temperature):
    pair, settings = toys(), SamplingSettings(temperature)
    rooted = {"kind": "multi_candidate", "config": [1, 2, 1], "roots": "target"}
    laws = [decoder_law(pair, speculative(drafter, "traversal"), 3, settings) for drafter in (rooted, PAIRS)]
    assert laws[0] == laws[1]


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_several_target_roots_are_lossy_and_marked(temperature):
    rooted = {"kind": "multi_candidate", "config": [2, 1], "roots": "target"}
    settings = SamplingSettings(temperature)
    pair = ModelPair(TableModel(3, seed=3), TableModel(3, seed=4))
    config = speculative(rooted, "rrs_without_replacement", lossy=True)
    law = decoder_law(pair, config, 2, settings)
    assert sum(law.values()) == pytest.approx(1)
    assert total_variation(law, target_law(pair.target, PROMPT, 2, settings)) > 0.05
    assert build_decoder(pair, config).generate(PROMPT, max_new_tokens=5).lossy
    with pytest.raises(ValueError, match="2 roots from the target change the output's distribution.*lossy=True"):
        build_decoder(pair, speculative(rooted, "rrs_without_replacement"))


def test_more_roots_are_further_from_the_target():
    """Exact total variation of two emitted tokens over pairs of toy models."""
    settings, distances = SamplingSettings(1.0), {1: [], 2: [], 3: []}
    for seed in range(2):
        pair = ModelPair(TableModel(3, seed=20 + seed), TableModel(3, seed=40 + seed))
        expected = target_law(pair.target, PROMPT, 2, settings)
        for roots, found in distances.items():
            rooted = {"kind": "multi_candidate", "config": [roots, 1], "roots": "target"}
            law = decoder_law(pair, speculative(rooted, "rrs_without_replacement", lossy=roots > 1), 2, settings)
            found.append(total_variation(law, expected))
    means = {roots: sum(found) / len(found) for roots, found in distances.items()}
    assert max(distances[1]) < 1e-9 and 0.05 < means[2] < means[3], means


def test_the_papers_target_initialised_tree_decodes():
    pair = ModelPair(tiny_llama(seed=1), tiny_llama(seed=2))
    drafter = {"kind": "multi_candidate", "config": [2, 4, 3, 1, 1], "roots": "target"}
    decoder = build_decoder(pair, speculative(drafter, "rrs_without_replacement", lossy=True))
    out = decoder.generate([1, 2, 3], max_new_tokens=30, temperature=1.0, randomness=Randomness(0))
    assert len(out.tokens) == 30 and out.rounds[0].emitted == 0 and out.rounds[1].drafted == 80
    settings = SamplingSettings(0.5, top_p=0.3)
    options = {"max_new_tokens": 30, "temperature": settings.temperature, "top_p": settings.top_p}
    out = decoder.generate([1, 2, 3], **options, randomness=Randomness(1))
    assert all(record.accepted <= record.levels <= record.drafted for record in out.rounds)
    steps = list(decoder.stream([1, 2, 3], **options, randomness=Randomness(1)))
    assert [token for step in steps for token in step.tokens] == out.tokens
    text = [1, 2, 3]
    for token in out.tokens:  # lossy, but never a token that the target itself could not emit
        assert processed_law(LlamaLogits(pair.target.model).logits(text), settings)[token] > 0
        text.append(token)
