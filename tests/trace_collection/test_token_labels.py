"""Labels of chains' tokens have the distribution of the tokens that a real decoder tests, and of their fates."""

import dataclasses
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from predictors.replay.acceptance import reached
from predictors.sampling import SamplingSettings
from predictors.stopping import StopSpec
from predictors.training.labelling import LabelConfig, label_tokens
from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.enumeration import enumerate_outcomes, total_variation
from runtime.audit.tables import TableModel
from tests.trace_collection.collecting import kept_shares, middle
from trace_collection import drafts
from trace_collection.text_tracer import TextTracer

PROMPT, BUDGET = [0, 1], 4
SETTINGS = [SamplingSettings(0.0), SamplingSettings(0.7, top_k=2), SamplingSettings(1.0)]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))


def options(settings, chance):
    return {"max_new_tokens": BUDGET, "randomness": chance, **dataclasses.asdict(settings)}


def decoded_tokens(pair, settings):
    """By what came before it in the text: every drafted token that the decoder tests, and whether it was accepted."""
    chain = {"kind": "chain", "gamma": 2}
    decoder = build_decoder(pair, {"method": "speculative", "drafter": chain, "verifier": "tokenwise"})

    def run(chance):
        text, seen = [], []
        for step in decoder.stream(PROMPT, observe=True, **options(settings, chance)):
            if step.evidence is not None:
                drafted = step.evidence.tree.token_list
                for position, token in enumerate(drafted[: step.record.accepted + 1]):
                    seen.append((*text, *drafted[:position], token, position < step.record.accepted))
            text += step.tokens
        return seen

    return conditional((one, probability) for seen, probability in enumerate_outcomes(run) for one in seen)


def labelled(pair, settings):
    """Labels of every text that the target may write: what came before, the token and its fate; their probability; the label."""
    plain = build_decoder(pair, {"method": "autoregressive"})
    spec = StopSpec((), 0, 2)
    tracer = TextTracer(pair, 2, BUDGET, 1, layers=(), spec=spec, state_slots=1, verifier="tokenwise")

    def run(chance):
        text = plain.generate(PROMPT, **options(settings, chance)).tokens
        count = len(text) - 1
        some = tracer.trace(PROMPT, text, settings, Randomness(0), np.full((2, count), 0.5))
        limits = [kept_shares(reached(some["ratio"], some["probability"], "tokenwise"))]
        kept_N = [middle(limits, place, chance) for place in range(count)]
        columns = tracer.trace(PROMPT, text, settings, chance, np.array([kept_N, kept_N]))
        made = label_tokens(Table(columns), LabelConfig()).table.to_pylist()
        drawn = [int(columns["tokens"][one["row"], one["slot"]]) for one in made]
        return [
            ((*text[: one["row"] + one["slot"] + 1], token, one["accepted"]), one)
            for one, token in zip(made, drawn, strict=True)
        ]

    return [(*found, probability) for made, probability in enumerate_outcomes(run) for found in made]


def weighted(labels, column=None):
    return ((key, probability * one.get(column, 1.0)) for key, one, probability in labels)


class Table:
    """Rows of one text as labels read them."""

    def __init__(self, columns):
        self.columns, self.manifest = columns, SimpleNamespace(content_hash="h", gamma_max=2)
        self.end_N = np.full(len(self), len(self) - 1)

    def __len__(self):
        return len(self.columns["ratio"])

    def column(self, name):
        return self.columns[name]


def summed(weights):
    law = defaultdict(float)
    for key, weight in weights:
        law[key] += weight
    return law


def conditional(weights):
    """Given what came before, as which positions come to a test depends on the decoder."""
    law, total = summed(weights), defaultdict(float)
    for key, weight in law.items():
        total[key[:-2]] += weight
    return {key: weight / total[key[:-2]] for key, weight in law.items()}


def distance(pair, settings):
    """Total variation between what the decoder tests and what labels say, mean over what came before."""
    decoded, found = decoded_tokens(pair, settings), conditional(weighted(labelled(pair, settings)))
    prefixes = {key[:-2] for key in decoded}
    assert len(prefixes) > (2 if settings.greedy else 5) - 1 and prefixes <= {key[:-2] for key in found}
    known = {key: weight for key, weight in found.items() if key[:-2] in prefixes}
    return total_variation(decoded, known) / len(prefixes)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_labels_have_the_distribution_of_tested_tokens(pair, settings):
    assert distance(pair, settings) < 1e-6


def test_soft_labels_are_chances_of_acceptance(pair):
    """min(1, p/q) of a token, Σ min(p, q) of a position: the share of hard ones."""
    labels = labelled(pair, SETTINGS[1])
    for of, column in ((slice(-1), "acceptance"), (slice(-2), "overlap")):
        hard, soft = (
            summed((key[of], value) for key, value in weighted(labels, name)) for name in ("accepted", column)
        )
        assert len(soft) > 5 and dict(hard) == pytest.approx(dict(soft), abs=1e-6)


def any_token(q_RV, p_RV, y_R, weight_R, verifier):
    return q_RV


@pytest.mark.parametrize("wrong", [("rejected_law", any_token), ("reached", lambda ratios, *_: np.ones_like(ratios))])
def test_other_tokens_are_noticed(pair, monkeypatch, wrong):
    """Deliberately wrong twins: any drafted token is called rejected, and every token is the text's."""
    monkeypatch.setattr(drafts, *wrong)
    assert distance(pair, SETTINGS[1]) > 1e-2
