"""The output law of the real decoder equals the target's, by enumeration of every random choice."""

from functools import cache

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.enumeration import enumerate_outcomes, output_law, summed, total_variation
from runtime.audit.rounds import decoded_law
from runtime.audit.tables import TableModel, target_law
from runtime.laws import processed_law
from runtime.verification import VERIFIERS, Verifier
from runtime.verification.chain import block
from runtime.verification.outcome import OutcomeLaw
from tests.ancestral import LlamaLogits
from tests.by_rounds import decodes
from tests.toys import tiny_llama

CONTROLLERS = [
    {"kind": "fixed"},
    {"kind": "fixed", "gamma": 1},
    {"kind": "confidence", "epsilon": 0.6},
    {"kind": "confidence", "epsilon": 0.6, "min_tokens": 0},
    {"kind": "entropy"},
    {"kind": "entropy", "threshold": 0.5},
    {"kind": "roc", "threshold": 0.5, "min_pairs": 0},
    {"kind": "ema", "tiers": [1, 2], "decay": 0.0},
]
PROMPT = [0, 1]


def decoder_law(pair, config, length, settings):
    return decoded_law(build_decoder(pair, config), PROMPT, length, settings)


@pytest.mark.parametrize("verifier", ["tokenwise", "block", "hsd"])
@pytest.mark.parametrize("controller", CONTROLLERS, ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_output_law_is_the_targets(verifier, controller, temperature):
    pair = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    settings = SamplingSettings(temperature)
    config = {
        "method": "speculative",
        "drafter": {"kind": "chain", "gamma": 2},
        "verifier": verifier,
        "controller": controller,
    }
    law = decoder_law(pair, config, 4, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 4, settings)) < 1e-9


@pytest.mark.parametrize("verifier", ["tokenwise", "block", "hsd"])
@pytest.mark.parametrize("gamma", [1, 3])
def test_output_law_with_impossible_tokens(verifier, gamma):
    pair = ModelPair(TableModel(3, seed=3, zeros=True), TableModel(3, seed=4, zeros=True))
    settings = SamplingSettings(1.0)
    config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": gamma}, "verifier": verifier}
    law = decoder_law(pair, config, gamma + 2, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, gamma + 2, settings)) < 1e-9


@pytest.mark.parametrize("settings", [SamplingSettings(1.0, top_k=2), SamplingSettings(0.8, top_p=0.6)], ids=str)
@pytest.mark.parametrize("draft_temperature", [None, 0.0, 2.0])
def test_output_law_with_filters_and_draft_temperature(settings, draft_temperature):
    pair = ModelPair(TableModel(4, seed=5), TableModel(4, seed=6))
    drafter = {"kind": "chain", "gamma": 2, "draft_temperature": draft_temperature}
    law = decoder_law(pair, {"method": "speculative", "drafter": drafter}, 4, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 4, settings)) < 1e-9


def test_autoregressive_law():
    pair = ModelPair(TableModel(3, seed=1))
    settings = SamplingSettings(0.9)
    law = decoder_law(pair, {"method": "autoregressive"}, 3, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 3, settings)) < 1e-9


@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
def test_output_law_of_tiny_llamas(verifier):
    target, draft = tiny_llama(4, seed=0), tiny_llama(4, seed=1)
    pair = ModelPair(target, draft)
    config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}, "verifier": verifier}
    reference = LlamaLogits(target)
    settings = SamplingSettings(1.0)
    law = decoder_law(pair, config, 4, settings)
    assert total_variation(law, target_law(reference, PROMPT, 4, settings)) < 1e-5


# ---- deliberately wrong twins: each must miss the target's law, or the tests above have no power


def _wrong_verifier(rule):
    return Verifier("wrong", rule, VERIFIERS["block"].lossless_for)


def _accept_half_as_often(tree, target_probs):
    law = VERIFIERS["tokenwise"].rule(tree, target_probs)
    if tree.num_nodes == 0:
        return law
    stop = law.stop.clone()
    stop[0], stop[1:] = stop[0] + 0.5 * stop[1:].sum(), 0.5 * stop[1:]
    return OutcomeLaw(stop, law.depths, law.residual)


def _residual_is_target(tree, target_probs):
    law = VERIFIERS["tokenwise"].rule(tree, target_probs)
    return OutcomeLaw(law.stop, law.depths, lambda row: target_probs[row])


def _uncapped_full_draft(tree, target_probs):
    """Public HSD code: the full draft is accepted with min(1, r_g) instead of r_g / max_j r_j."""
    law = block(tree, target_probs)
    if tree.num_nodes == 0:
        return law
    rows = torch.arange(tree.num_nodes)
    joint = (target_probs[rows, tree.tokens] / tree.draft_probs[rows, tree.tokens]).prod().clamp(max=1)
    rest = law.stop[:-1] / law.stop[:-1].sum() if law.stop[:-1].sum() > 0 else law.stop[:-1]
    stop = torch.cat([(1 - joint) * rest, joint.reshape(1)])
    return OutcomeLaw(stop / stop.sum(), law.depths, law.residual)


@pytest.mark.parametrize("rule", [_accept_half_as_often, _residual_is_target, _uncapped_full_draft])
def test_wrong_verifiers_are_noticed(rule, monkeypatch):
    monkeypatch.setitem(VERIFIERS, "block", _wrong_verifier(rule))
    pair = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    settings = SamplingSettings(1.0)
    law = decoder_law(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}, 4, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 4, settings)) > 1e-3


def test_dropping_the_drawn_token_is_noticed(monkeypatch):
    """The biased rule of the literature: throw a sampled token away when its own probability is low."""
    from runtime.drafting.chain import Chain, ChainDraft
    from runtime.drafting.drafted import DraftedTree

    honest = ChainDraft.draft

    def dropping(self, root, cap, session, clock):
        drafted = honest(self, root, cap, session, clock)
        tree, laws = drafted.tree, drafted.laws
        kept = 0
        while kept < len(laws) and laws[kept].probs_V[tree.tokens[kept]] >= 0.35:
            kept += 1
        self._scratch = {node: place for node, place in self._scratch.items() if node < kept}
        return DraftedTree(Chain(list(tree.tokens[:kept]), laws[:kept]).tree(), laws[:kept])

    monkeypatch.setattr(ChainDraft, "draft", dropping)
    pair = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    settings = SamplingSettings(1.0)
    law = decoder_law(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}, 4, settings)
    assert total_variation(law, target_law(pair.target, PROMPT, 4, settings)) > 1e-3


def competing_roots(target, draft, num_roots, length, settings, chance):
    """A wrong twin, the "target initialisation" of the paper on multi-candidate speculative decoding: ``length`` tokens; one is
    drafted after each of ``num_roots`` distinct tokens of the target's, and the root whose draft is accepted is emitted."""
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


def error_of_roots(seeds, num_roots, settings):
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
    assert error_of_roots((3, 4), 1, settings) < 1e-9 and error_of_roots((3, 4), 2, settings) > 0.05


# ---- the real source of chance: two streams that must not be one


SHARED_OR_NOT = {
    "chain": {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}, "verifier": "tokenwise"},
    "branches": {"method": "branch_parallel", "gamma": 1, "k_max": 2, "k_rule": "const", "overlap": "none"}
    | {"controller": {"kind": "fixed"}},
}


def chi_squared(config, draws, one_stream):
    """χ² of the first four tokens' counts against the target's law, by real draws; and its degrees of freedom."""
    pair = ModelPair(TableModel(3, seed=1, sharpness=0.7), TableModel(3, seed=2, sharpness=0.7))
    decoder, counts = build_decoder(pair, config), {}
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


@pytest.mark.parametrize("name", SHARED_OR_NOT)
@pytest.mark.parametrize("one_stream, draws", [(False, 1500), (True, 500)])
def test_real_draws_follow_the_target_unless_streams_are_shared(name, one_stream, draws):
    torch.manual_seed(0)
    statistic, freedom = chi_squared(SHARED_OR_NOT[name], draws, one_stream)
    deviations = (statistic - freedom) / (2 * freedom) ** 0.5
    assert deviations > 10 if one_stream else deviations < 5


SPECULATIVE = {"method": "speculative", "controller": CONTROLLERS[-1]}
BRANCHES = {"preset": "specbranch-no-hrad", "gamma": 1, "k_max": 1, "k_rule": "const", "overlap": "none"}


@pytest.mark.parametrize(
    "config",
    [
        {**SPECULATIVE, "drafter": {"kind": "chain", "gamma": 2}, "verifier": "block"},
        {**SPECULATIVE, "drafter": {"kind": "multi_candidate", "config": [2, 1]}, "verifier": "traversal"},
        {"method": "lookahead", "ngram": 3, "window": 2, "guesses": 1},
        BRANCHES,
    ],
    ids=str,
)
def test_decodes_by_rounds_are_whole_decodes(config):
    """What laws are enumerated by, against `generate` itself: tokens, and how many were accepted in each round."""
    decoder = build_decoder(ModelPair(TableModel(3, seed=1), TableModel(3, seed=2)), config)
    options = {"max_new_tokens": 3, "temperature": 1.0, "eos_token_id": ()}
    by_rounds = list(decodes(decoder, PROMPT, 3, SamplingSettings(1.0)))
    whole = [
        (tuple(out.tokens), out.rounds, share)
        for out, share in enumerate_outcomes(lambda chance: decoder.generate(PROMPT, randomness=chance, **options))
    ]
    laws = [
        summed(((tokens, *(record.accepted for record in records)), share) for tokens, records, share in made)
        for made in (by_rounds, whole)
    ]
    assert len(laws[0]) > 20 and laws[0].keys() == laws[1].keys()
    assert total_variation(*laws) < 1e-12
    texts = summed((tokens, share) for tokens, _, share in whole)
    assert total_variation(decoded_law(decoder, PROMPT, 3, SamplingSettings(1.0)), texts) < 1e-12
