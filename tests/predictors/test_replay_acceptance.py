"""What a verifier accepted, given the text that came out: the closed forms against enumeration of the real decoder."""

import numpy as np
import pytest

from predictors.replay.acceptance import CHAIN_RULES, acceptance_of, accepted, reached
from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder
from runtime.audit.rounds import opened
from runtime.audit.tables import TableModel
from runtime.laws import processed_law
from runtime.verification import VERIFIERS

PROMPT = [0, 1]
GAMMA = 3


def joint_law(pair, verifier, settings):
    """P(text, tokens accepted in the first round), by enumeration of that round; the rest of the text is the target's."""
    config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": GAMMA}, "verifier": verifier}
    rounds, runs = opened(build_decoder(pair, config), PROMPT, GAMMA + 2, settings)
    law = {}
    for run, mass in runs:
        for first, prefill, token_mass in rounds.after(rounds.held(run)):
            for _, step, probability in rounds.after(rounds.held(first)):
                outcome = (*prefill.tokens, *step.tokens), step.record.accepted
                law[outcome] = law.get(outcome, 0.0) + mass * token_mass * probability
    whole = {}
    for (text, count), probability in law.items():
        for tokens, share in continued(pair.target, text, settings):
            whole[*tokens, count] = whole.get((*tokens, count), 0.0) + probability * share
    return whole


def continued(target, text, settings):
    """``text`` with every continuation to GAMMA + 2 tokens, and its probability."""
    if len(text) == GAMMA + 2:
        yield text, 1.0
        return
    for token, probability in enumerate(processed_law(target.logits([*PROMPT, *text]), settings).tolist()):
        if probability:
            yield from ((tokens, probability * share) for tokens, share in continued(target, (*text, token), settings))


def text_ratios(pair, text, settings):
    """q/p and q of the tokens behind the first, at the text's own prefixes."""
    ratios, chances = [], []
    for place in range(1, len(text)):
        context = [*PROMPT, *text[:place]]
        q, p = (
            float(processed_law(model.logits(context), settings)[text[place]]) for model in (pair.draft, pair.target)
        )
        ratios.append(q / p)
        chances.append(q)
    return np.array(ratios), np.array(chances)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("verifier", [rule for rule in CHAIN_RULES if rule != "match"])
@pytest.mark.parametrize("settings", [SamplingSettings(1.0), SamplingSettings(0.7, top_k=2)], ids=str)
def test_accepted_counts_given_the_text(verifier, settings, zeros):
    pair = ModelPair(TableModel(3, seed=1, zeros=zeros), TableModel(3, seed=2, zeros=zeros))
    law = joint_law(pair, verifier, settings)
    texts = {}
    for (*text, count), probability in law.items():
        texts.setdefault(tuple(text), np.zeros(GAMMA + 1))[count] += probability
    assert len(texts) > 20
    for text, law_G in texts.items():
        at_least_G = np.cumsum((law_G / law_G.sum())[::-1])[::-1][1:]
        ratios, chances = text_ratios(pair, text, settings)
        np.testing.assert_allclose(reached(ratios[:GAMMA], chances[:GAMMA], verifier), at_least_G, atol=1e-9)


def test_match_is_nss():
    assert VERIFIERS["match"].rule is VERIFIERS["nss"].rule and acceptance_of("match") == acceptance_of("nss")


def test_the_other_rules_closed_form_is_wrong():
    settings = SamplingSettings(1.0)
    pair = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    texts = {}
    for (*text, count), probability in joint_law(pair, "block", settings).items():
        texts.setdefault(tuple(text), np.zeros(GAMMA + 1))[count] += probability
    wrong = [
        abs(
            reached(*(one[:GAMMA] for one in text_ratios(pair, text, settings)), "tokenwise")[-1]
            - law_G[-1] / law_G.sum()
        )
        for text, law_G in texts.items()
    ]
    assert max(wrong) > 0.05


def test_impossible_for_the_target_and_the_draft():
    """At temperature 0 ratios are 1, 0, or infinite where passes of other widths rounded a near-tie differently."""
    assert reached(np.array([np.inf, 1.0, 0.0, np.inf]), np.ones(4), "block").tolist() == [1, 1, 0, 0]
    assert reached(np.array([np.inf, 1.0, 0.0, np.inf]), np.ones(4), "tokenwise").tolist() == [1, 1, 0, 0]


def test_uniform_numbers_by_position_draw_the_count():
    """Each keeps its token with the probability of getting there from the token before: .9, 5/9, 1 and .2."""
    reached_G = np.array([0.9, 0.5, 0.5, 0.1])
    numbers = [(0.0, 0.0, 0.99, 0.0), (0.89, 0.55, 0.99, 0.21), (0.89, 0.56, 0.0, 0.0), (0.9, 0.0, 0.0, 0.0)]
    assert [accepted(reached_G, np.array(uniforms_G)) for uniforms_G in numbers] == [4, 3, 1, 0]
    assert accepted(np.array([1.0, 0.0, 0.0]), np.zeros(3)) == 1  # what nothing reaches is not kept by a number of 0


@pytest.mark.parametrize("verifier", ["tokenwise", "block", "nss"])
def test_counts_by_position_have_the_verifiers_distribution(verifier):
    ratios_G, probabilities_G = np.array([0.7, 1.6, 0.5, 1.0]), np.array([0.9, 0.4, 0.8, 0.6])
    reached_G = reached(ratios_G, probabilities_G, verifier)
    uniforms_NG = np.random.default_rng(0).random((20_000, 4))
    counts_N = accepted(reached_G, uniforms_NG)
    found_G = np.array([(counts_N >= count).mean() for count in range(1, 5)])
    assert np.abs(found_G - reached_G).max() < 0.012  # four deviations


def test_unknown_rule():
    with pytest.raises(ValueError, match="'rrs_without_replacement' cannot be replayed"):
        reached(np.ones(1), np.ones(1), "rrs_without_replacement")
