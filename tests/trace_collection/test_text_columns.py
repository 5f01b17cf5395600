"""Columns of text traces against the models' own distributions, and lookups against every earlier match."""

import numpy as np
import pytest
import torch

from predictors.lookup import LONGEST
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw
from predictors.stopping import StopSpec
from runtime import ModelPair, Randomness
from runtime.adapter import features_of
from runtime.audit.tables import TableModel
from runtime.laws import fit_vocabulary, processed_law
from tests.predictors.test_lookup import searched
from tests.trace_collection.test_texts import FILTERED, PROMPT, drawn, reading_pair
from trace_collection.text_tracer import TextTracer


def test_lookup_columns_are_what_followed_the_longest_match():
    pair, generator = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2)), torch.Generator().manual_seed(0)
    tracer = TextTracer(pair, 3, 30, 1, layers=(), spec=StopSpec((), 0, 2), state_slots=3, verifier="block")
    lengths = set()
    for period in (1, 2, 5, 30):
        text = (torch.randint(3, (period,), generator=generator).tolist() * 30)[:30]
        columns = tracer.trace(PROMPT, text, SamplingSettings(1.0), Randomness(0), np.full((2, 29), 0.5))
        for row in range(29):
            known = [*PROMPT, *text[: row + 1]]
            found = searched(known, 3, LONGEST)
            assert columns["match"][row] == found.length
            assert columns["lookup"][row].tolist() == ([*found.tokens] + [-1] * 3)[:3]
            assert (columns["seen"][row], columns["agreed"][row]) == (found.seen, found.agreed)
            lengths.add(found.length)
    assert lengths >= {1, 2, LONGEST}


@pytest.mark.parametrize("settings", [SamplingSettings(0.0), SamplingSettings(1.0), FILTERED], ids=str)
@pytest.mark.parametrize("verifier", ["tokenwise", "block"])
@pytest.mark.parametrize("reads", [False, True], ids=["tokens", "states"])
def test_columns_are_what_the_models_say(reads, settings, verifier):
    """Along the text and along the chain from every root, distributions are computed anew, one token at a time."""
    size, budget, pair = 3, 10, reading_pair(4) if reads else ModelPair(TableModel(4, seed=1), TableModel(4, seed=2))
    text, luck_2N = drawn(pair, settings, Randomness(1), budget), np.random.default_rng(0).random((2, budget - 1))
    tracer = TextTracer(pair, size, budget, 2, layers=(), spec=StopSpec((), 0, 3), state_slots=3, verifier=verifier)
    columns = tracer.trace(PROMPT, text, settings, Randomness(3), luck_2N)
    assert columns["newest"].tolist() == text[:-1] and columns["token"].tolist() == text[1:]
    rejected = 0
    for row in range(len(text) - 1):
        context, accepted, product, before, weight = [*PROMPT, *text[: row + 1]], 0, 1.0, 1.0, 1.0
        tokens = [token for token in columns["tokens"][row].tolist() if token >= 0]
        on_text = True
        for slot in range(size):
            if row + slot < len(text) - 1:
                token = text[row + 1 + slot]
                p_V = target_law(pair, [*context, *text[row + 1 : row + 1 + slot]], settings, token)
                q_V, unit_V = draft_laws(pair, context, text[row + 1 : row + 1 + slot], settings)
                ratio = float(q_V[token] / p_V[token])
                assert columns["ratio"][row, slot] == pytest.approx(ratio, rel=1e-4)
                assert columns["probability"][row, slot] == pytest.approx(float(q_V[token]), rel=1e-4)
                product *= ratio if verifier == "block" else min(1.0, ratio)
                after = min(before, product)
                kept = luck_2N[0, row + slot] * before < after
                if on_text:
                    assert columns["overlap"][row, slot] == pytest.approx(
                        float(torch.minimum(p_V, q_V).sum()), rel=1e-4
                    )
                    assert columns["rank"][row, slot] == int((unit_V > unit_V[token]).sum())
                    if kept:
                        assert tokens[slot] == token
                        accepted += 1
                    else:
                        other, rejected = tokens[slot], rejected + 1
                        surplus = q_V[other] - weight * p_V[other]
                        assert other != token and surplus > 0, "it could be rejected"
                        assert columns["rejected_ratio"][row] == pytest.approx(float(q_V[other] / p_V[other]), rel=1e-4)
                on_text, before = on_text and kept, after
                weight = min(1.0, weight / ratio) if ratio and verifier == "block" else 1.0
            else:
                assert columns["ratio"][row, slot] == columns["probability"][row, slot] == 0
                on_text = False
            if slot < len(tokens):
                q_V, _ = draft_laws(pair, context, tokens[:slot], settings)
                logits_V = draft_logits(pair, context, tokens[:slot])
                law = NextLaw(None, settings, 0, logits_V, q_V)
                for name in ("confidence", "entropy", "law_entropy"):
                    assert columns[name][row, slot] == pytest.approx(float(getattr(law, name)), abs=1e-5)
                assert columns["tops"][row, slot] == pytest.approx(law.likeliest(3).numpy(), abs=1e-5)
                assert columns["probabilities"][row, slot] == pytest.approx(float(q_V[tokens[slot]]), abs=1e-5)
                own = float(law.unit_probs_V[tokens[slot]])
                assert columns["unit_probabilities"][row, slot] == pytest.approx(own, abs=1e-5)
        assert columns["accepted"][row] == accepted
        assert np.isnan(columns["entropy"][row, len(tokens) :]).all()
        assert len(tokens) >= min(size, budget - 2 - row), "up to gamma_max, as far as the budget goes"
    assert rejected > 2


def target_law(pair, tokens, settings, decided):
    if settings.greedy:
        return torch.nn.functional.one_hot(torch.tensor(decided), pair.target.vocabulary_size).double()
    return processed_law(pair.target.open(64).forward(tokens).logits[-1], settings).double()


def draft_logits(pair, context, tokens):
    """Of a draft of ``tokens`` from a root after ``context``, in passes of one token."""
    state, reads = pair.draft.open(64), features_of(pair.draft)
    if reads:
        hidden_NKD = pair.target.open(64, reads).forward(context).hidden_NKD
        state.offer(hidden_NKD[: len(context) - 1])
    out = state.forward(context[1:] if reads else context)
    state.keep(range(len(context) - bool(reads)))
    for token in tokens:
        out = state.forward([token])
    return fit_vocabulary(out.logits[-1], pair.target.vocabulary_size)


def draft_laws(pair, context, tokens, settings):
    logits_V = draft_logits(pair, context, tokens)
    return processed_law(logits_V, settings).double(), processed_law(logits_V, SamplingSettings(1.0)).double()
