"""Invariant sampling: one text per seed, whatever drafts, and its distribution is the target's."""

import warnings
from dataclasses import replace
from math import isclose

import numpy as np
import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime import invariant as module
from runtime.audit.enumeration import output_law, total_variation
from runtime.audit.tables import TableModel, target_law
from runtime.drafting.chain import ChainDraft
from runtime.invariant import DrawnNoise, ExponentialNoise, Numbers
from tests.bundles import controller_bundle, grow_bundle
from tests.eagle3 import random_drafter
from tests.runtime.test_controller_contract import MODELS
from tests.toys import near, tiny_llama

PROMPT = [1, 2, 3, 4, 2, 3]
SPECULATIVE = {
    "chain": {"drafter": {"kind": "chain", "gamma": 4}},
    "hot draft": {"drafter": {"kind": "chain", "gamma": 4, "draft_temperature": 2.0}},
    "tree": {"drafter": {"kind": "multi_candidate", "config": [3, 2, 1]}},
    "fork": {"drafter": {"kind": "fork", "width": 4, "depth": 3}},
    "leaves": {"drafter": {"kind": "chain", "gamma": 4, "leaves": [3, 0, 2]}},
    "delayed": {"drafter": {"kind": "delayed_tree"}},
    "lookup": {"drafter": {"kind": "lookup", "length": 6}},
    **{
        kind: {"drafter": {"kind": "chain", "gamma": 4}, "controller": {"kind": kind}}
        for kind in ("confidence", "entropy", "roc", "ema")
    },
}
METHODS = {name: {"method": "speculative", "invariant": True, **own} for name, own in SPECULATIVE.items()}
METHODS |= {"branches": {"method": "branch_parallel", "gamma": 3, "overlap": "none"}}
METHODS |= {name: {"method": name} for name in ("lookahead", "self_draft", "progressive_tree")}
SETTINGS = [SamplingSettings(1.0), SamplingSettings(0.7, top_k=6), SamplingSettings(1.3, top_p=0.8)]


def text(pair, config, seed, settings, prompt=PROMPT, count=24, **options):
    request = {"max_new_tokens": count, "temperature": settings.temperature, "eos_token_id": (), **options}
    request |= {"top_k": settings.top_k, "top_p": settings.top_p, "invariant": True}
    return build_decoder(pair, config).generate(prompt, randomness=Randomness(seed), **request)


@pytest.fixture(scope="module")
def pair():
    target = tiny_llama(16, seed=0).double()
    return ModelPair(target, near(tiny_llama(16, seed=0).double(), 0.05))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one.name)
def test_every_method_writes_the_text_of_plain_decoding(pair, settings):
    for seed in range(4):
        plain = text(pair, {"method": "autoregressive"}, seed, settings).tokens
        for name, config in METHODS.items():
            assert text(pair, config, seed, settings).tokens == plain, name


def test_seeds_differ_and_requests_of_one_source_too(pair):
    plain = build_decoder(pair, {"method": "autoregressive", "invariant": True})
    source = Randomness(3)
    requests = {"max_new_tokens": 24, "temperature": 1.0, "eos_token_id": ()}
    texts = [plain.generate(PROMPT, randomness=source, **requests).tokens for _ in range(2)]
    texts.append(plain.generate(PROMPT, randomness=Randomness(4), **requests).tokens)
    assert len(set(map(tuple, texts))) == 3
    assert plain.generate(PROMPT, randomness=Randomness(3), **requests).tokens == texts[0]


@pytest.mark.parametrize("name", ["chain", "tree", "branches", "lookahead"])
def test_a_resumed_request_goes_on_as_if_it_had_not_stopped(pair, name, monkeypatch):
    settings = SETTINGS[0]
    whole = text(pair, METHODS["chain"], 5, settings).tokens
    parts = [text(pair, METHODS[name], 5, settings, [*PROMPT, *whole[:9]], 15).tokens for _ in range(2)]
    assert parts == [whole[9:]] * 2

    own = module.Perturbation.of  # the twin: noise by a position that counts from the prompt's end
    monkeypatch.setattr(
        module.Perturbation, "of", lambda self, state, size, ahead=0, heat=None: own(self, state, size, ahead - 15)
    )
    assert text(pair, METHODS[name], 5, settings, [*PROMPT, *whole[:9]], 15).tokens != whole[9:]


def test_a_draft_equal_to_the_target_is_always_right(pair):
    same = ModelPair(pair.target.model, tiny_llama(16, seed=0).double())
    for name in ("chain", "delayed", "branches"):
        rounds = text(same, METHODS[name], 1, SETTINGS[0]).rounds[1:-2]
        assert all(one.accepted >= one.submitted for one in rounds), name


def test_a_drafter_that_reads_states_reads_the_noise_of_its_own_positions():
    target = tiny_llama(16, seed=0)
    reading = ModelPair(target, random_drafter(target))
    asked = []

    class Recorded(Randomness):
        def noise(self):
            noise, known = super().noise(), ExponentialNoise.perturbed
            noise.perturbed = lambda law_RV, positions: (asked.extend(positions), known(noise, law_RV, positions))[1]
            return noise

    decoder = build_decoder(reading, METHODS["chain"])
    out = decoder.generate(PROMPT, max_new_tokens=12, temperature=1.0, randomness=Recorded(0), eos_token_id=())
    assert out.tokens == text(reading, {"method": "autoregressive"}, 0, SETTINGS[0], count=12).tokens
    assert asked.count(len(PROMPT)) == 2, "the target's own token and, of the prompt's end, the draft's row"
    assert max(asked) <= len(PROMPT) + 12 + 4


SMALL = {  # every row of a pass forks, so that passes are of few rows
    "chain": {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}},
    "tree": {"method": "speculative", "drafter": {"kind": "multi_candidate", "config": [2]}, "verifier": "match"},
    "branches": {"method": "branch_parallel", "gamma": 1, "k_max": 1, "overlap": "none"},
}


@pytest.mark.parametrize("settings", [SamplingSettings(0.8), SamplingSettings(1.0, top_k=2)], ids=lambda one: one.name)
@pytest.mark.parametrize("name", SMALL)
def test_output_law_is_the_targets_by_enumeration(name, settings):
    tables = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    options = {"max_new_tokens": 3, "temperature": settings.temperature, "top_k": settings.top_k, "invariant": True}
    decoder = build_decoder(tables, SMALL[name])
    law = output_law(lambda chance: decoder.generate([0, 1], randomness=chance, eos_token_id=(), **options).tokens)
    assert total_variation(law, target_law(tables.target, [0, 1], 3, settings)) < 1e-9


def test_a_target_without_its_filters_is_found_inexact(monkeypatch):
    tables, settings = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2)), SamplingSettings(1.0, top_k=2)
    processed = module.processed_law
    monkeypatch.setattr(module, "processed_law", lambda logits, own: processed(logits, replace(own, top_k=0)))
    decoder = build_decoder(tables, SMALL["chain"])
    options = {"max_new_tokens": 3, "temperature": 1.0, "top_k": 2, "invariant": True, "eos_token_id": ()}
    law = output_law(lambda chance: decoder.generate([0, 1], randomness=chance, **options).tokens)
    assert total_variation(law, target_law(tables.target, [0, 1], 3, settings)) > 1e-2


# ---- the numbers

LAW = np.array([0.4, 0.3, 0.2, 0.1])
DRAFT = np.array([0.1, 0.2, 0.3, 0.4])


def numbers(position, seeds=200_000, size=4):
    """Exponential numbers [seeds, size] of a position, as `Numbers` makes them of a small vocabulary."""
    keys = np.array([module.key_of(seed, position) for seed in range(seeds)])[:, None]
    return -np.log1p(-module._uniforms(module._bits(module.OTHERS + np.arange(size), keys)))


def chi_squared(counts, law):
    expected = law * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_tokens_of_two_positions_are_independent_draws_of_the_target():
    first, second = ((numbers(position) / LAW).argmin(1) for position in (7, 8))
    joint = np.bincount(4 * first + second, minlength=16)
    assert chi_squared(joint, np.outer(LAW, LAW).ravel()) < 40  # 15 degrees of freedom: above with a chance of 4e-4
    same = np.bincount(4 * first + first, minlength=16)  # the twin: a resumed call whose noise begins anew
    assert chi_squared(same, np.outer(LAW, LAW).ravel()) > 1000


def test_noise_shared_with_a_rejection_rule_is_biased():
    shared = numbers(7)
    drafted = (shared / DRAFT).argmin(1)
    kept = np.random.default_rng(0).random(len(drafted)) < (LAW / DRAFT)[drafted]
    recovered = (shared / np.maximum(LAW - DRAFT, 1e-12)).argmin(1)
    twin = np.bincount(np.where(kept, drafted, recovered), minlength=4)
    assert chi_squared(twin, LAW) > 1000
    assert chi_squared(np.bincount((shared / LAW).argmin(1), minlength=4), LAW) < 20


def test_noise_of_a_seed_is_these_numbers():
    law_RV, made = torch.from_numpy(LAW).expand(2, -1), [numbers(position, seeds=50) for position in (7, 9)]
    for seed in range(50):
        perturbed = ExponentialNoise(seed).perturbed(law_RV, [7, 9])
        assert np.allclose(perturbed.numpy(), np.log(LAW / np.stack([of_position[seed] for of_position in made])))


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 3.0, 8.0])
def test_sparse_numbers_find_the_winner_of_all(sharpness):
    generator = torch.Generator().manual_seed(1)
    for key in range(60):
        law_RV = torch.softmax(sharpness * torch.randn(3, 20_000, generator=generator), 1)
        law_RV[1] = torch.nan
        made = [Numbers(one, 20_000) for one in (key, key, -key)]
        few_RV, every_RV = (
            module.perturbed(law_RV, made),
            torch.stack([one.all(law_V) for one, law_V in zip(made, law_RV, strict=True)]),
        )
        assert few_RV[1].isnan().all()
        for few_V, every_V in zip(few_RV[::2], every_RV[::2], strict=True):
            assert few_V.argmax() == every_V.argmax()
            known = few_V.isfinite()
            assert torch.allclose(few_V[known], every_V[known], atol=1e-5) and int(known.sum()) > 200


def test_sparse_numbers_are_exponential():
    made = np.concatenate([np.exp(-Numbers(key, 5000).all(torch.full((5000,), 1.0)).numpy()) for key in range(40)])
    assert isclose(made.mean(), 1.0, abs_tol=0.01) and isclose(np.median(made), np.log(2), abs_tol=0.01)
    smallest = np.array([Numbers(key, 5000).sparse[1][0] for key in range(2000)]) * 5000
    assert isclose(smallest.mean(), 1.0, abs_tol=0.08)
    places = np.concatenate([Numbers(key, 5000).sparse[0][:5] for key in range(2000)])
    assert len(np.unique(places)) > 4000 and isclose(places.mean(), 2499.5, rel_tol=0.03)


def test_drawn_noise_is_a_draw():
    class First:
        def categorical(self, weights):
            return (weights > 0).int().argmax()

    assert DrawnNoise(First()).perturbed(torch.tensor([[0.0, 0.5, 0.5]]), [3]).tolist() == [[-np.inf, 0.0, -np.inf]]


# ---- how it is asked for


def test_rules_of_rejection_are_refused_by_name(pair):
    decoder = build_decoder(pair, {"method": "speculative", "verifier": "block"})
    with pytest.raises(ValueError, match="verifier 'block'.*match"):
        decoder.generate(PROMPT, temperature=1.0, invariant=True)
    assert decoder.generate(PROMPT, max_new_tokens=4, invariant=True).tokens, "greedy texts have no noise"
    with pytest.raises(ValueError, match="verifier 'block'"):
        build_decoder(pair, {"method": "speculative", "verifier": "block", "invariant": True})
    with pytest.raises(ValueError, match="invariant must be true or false, got 'yes'"):
        build_decoder(pair, {"method": "speculative", "invariant": "yes"})


@pytest.mark.parametrize(("kind", "options"), [case for case in MODELS if case[0] != "grow"], ids=str)
def test_a_bundle_of_another_verifier_drafts_at_its_static_length(pair, tmp_path, kind, options):
    decoder = load_decoder(controller_bundle(kind, tmp_path / "b", pair, **options), pair)
    request = {"max_new_tokens": 20, "temperature": 1.0, "invariant": True, "eos_token_id": ()}
    with pytest.warns(UserWarning, match=f"{kind} is bypassed.*not for invariant sampling"):
        out = decoder.generate(PROMPT, randomness=Randomness(2), **request)
    plain = text(pair, {"method": "autoregressive"}, 2, SETTINGS[0], count=20).tokens
    assert out.tokens == plain and {one.asked for one in out.rounds} == {0}
    with warnings.catch_warnings(action="error"):
        assert decoder.generate(PROMPT, randomness=Randomness(2), **request).tokens == plain


def test_what_a_draft_predicts_follows_from_the_text_alone(pair, tmp_path, monkeypatch):
    """Where tokens of a chain are dropped and leaves or a lookup's go on instead, too."""
    seen, own, cut = [], ChainDraft._law, 0
    pair = ModelPair(pair.target.model, near(tiny_llama(16, seed=0).double(), 0.1))

    def recorded(draft, root, depth, row):
        seen.append((root.position, row[0].clone())) if not depth else None
        return own(draft, root, depth, row)

    monkeypatch.setattr(ChainDraft, "_law", recorded)
    for seed in range(6):
        seen.clear()
        bundle = grow_bundle(tmp_path / str(seed), pair, seed=seed, worth=30.0, gamma=5, lookup=3 - seed % 2 * 3)
        decoder = load_decoder(bundle, pair)
        out = decoder.generate([*PROMPT, seed], max_new_tokens=40, temperature=0.0, eos_token_id=())
        known = torch.tensor([[*PROMPT, seed, *out.tokens]])
        with torch.no_grad():
            logits_NV = pair.draft.model(known).logits[0]
        for position, logits_V in seen:
            assert torch.allclose(logits_V, logits_NV[position - 1], rtol=0, atol=1e-5)
        cut += sum(one.drafted > one.levels and one.passes > one.levels + 1 for one in out.rounds)
    assert cut


@pytest.mark.parametrize("lookup", [0, 3])
def test_a_bundle_made_for_it_grows(pair, tmp_path, lookup):
    shapes = set()
    for seed in range(4):
        decoder = load_decoder(grow_bundle(tmp_path / str(seed), pair, seed=seed, lookup=lookup), pair)
        for settings in (SamplingSettings(1.0), SamplingSettings(0.0)):
            request = {"max_new_tokens": 24, "temperature": settings.temperature, "eos_token_id": (), "invariant": True}
            with warnings.catch_warnings(action="error"):
                out = decoder.generate(PROMPT, randomness=Randomness(seed), **request)
            assert out.tokens == text(pair, {"method": "autoregressive"}, seed, settings).tokens
            shapes |= {(one.submitted, one.drafted - one.submitted, one.asked > 0) for one in out.rounds[1:-1]}
    assert len(shapes) > 4 and {asked for *_, asked in shapes} == ({True, False} if lookup else {True})
