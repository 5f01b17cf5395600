"""Rules are chosen by tokens per second and judged on documents that did not choose them."""

from types import SimpleNamespace

import numpy as np
import pytest

from predictors.head import DecisionRule
from predictors.training.head_rules import RuleCandidates, choose_rules
from predictors.training.intervals import jackknife, log_gain
from predictors.training.predictor import choose, fold_of

DOCUMENTS = np.repeat([f"d{number}" for number in range(30)], 2)


def noise(seed, rules, own=0.1):
    """Rules that are worth nothing: seconds vary by document, for all rules alike and by each rule's ``own`` spread."""
    generator = np.random.default_rng(seed)
    tokens_RX = np.full((rules, len(DOCUMENTS)), 40)
    spread_RX = own * generator.normal(size=(rules, 30)) + 0.1 * generator.normal(size=30)
    table_2RX = np.stack([tokens_RX, np.exp(spread_RX.repeat(2, axis=1))])
    return table_2RX, np.stack([tokens_RX[0], np.ones(len(DOCUMENTS))])


def test_a_rule_that_is_faster_everywhere_is_served_and_pays():
    table_2RX, static_2X = noise(0, 20)
    tokens_RX, seconds_RX = table_2RX
    seconds_RX[7] = 0.9 * np.exp(np.random.default_rng(1).normal(0, 0.01, len(DOCUMENTS)))
    made = choose(table_2RX, static_2X, DOCUMENTS, folds=5, seed=0)
    assert made.rule == 7 and made.pays
    assert made.gain["low"] < made.gain["value"] < made.gain["high"]
    assert made.gain["value"] == pytest.approx(tokens_RX[7].sum() / seconds_RX[7].sum() / 40 - 1)


def test_the_luckiest_of_many_rules_does_not_pay():
    """The wrong twin judges the rule where it was chosen, and pays far too often; out of fold one in forty should."""
    pays = {True: 0, False: 0}
    for seed in range(100):
        table_2RX, static_2X = noise(seed, 50)
        pays[True] += choose(table_2RX, static_2X, DOCUMENTS, folds=5, seed=0).pays
        best = int(np.divide(*table_2RX.sum(axis=2)).argmax())
        inside = log_gain(table_2RX[:, best], static_2X, DOCUMENTS)
        pays[False] += inside["low"] > 0
    assert pays[True] <= 7 and pays[False] >= 20, pays


def branches(seconds):
    """Texts decoded by branches: ``seconds`` [rules for drafting, of retention, documents], of each the last one static."""

    def totals(draft, retention):
        places = [int(one.epsilon * 100) if isinstance(one, DecisionRule) else -1 for one in (draft, retention)]
        sums_2X = np.stack([np.full(60, 40), seconds[places[0], places[1]].repeat(2)])
        return SimpleNamespace(tokens_X=sums_2X[0], seconds_X=sums_2X[1], sums_2X=sums_2X, rate=1.0)

    return SimpleNamespace(branches=True, idle=SimpleNamespace(document_X=DOCUMENTS), static=(3, 8), totals=totals)


RULES = [DecisionRule(number / 100 + 0.001) for number in range(30)]


def test_of_branches_both_rules_are_judged_on_documents_that_chose_neither():
    """Rules for drafting that are worth nothing. The wrong twin chooses among them on all documents."""
    pays, inside = 0, 0
    for seed in range(60):
        drafting = np.exp(0.1 * np.random.default_rng(seed).normal(size=(31, 1, 30)))
        drafting[-1] = 1.0
        seconds = np.broadcast_to(drafting, (31, 31, 30))
        pays += choose_rules(branches(seconds), RULES, RuleCandidates()).choice.pays
        best = seconds[drafting[:-1].sum(axis=(1, 2)).argmin(), :1].repeat(2, axis=1)
        table_2RX, static_2X = np.stack([np.full((1, 60), 40), best]), np.stack([np.full(60, 40), np.ones(60)])
        inside += choose(table_2RX, static_2X, DOCUMENTS, folds=5, seed=0).pays
    assert pays <= 8 and inside >= 16, (pays, inside)


@pytest.mark.parametrize("pair", [(4, None), (None, 7), (4, 7)])
def test_of_branches_either_rule_may_be_static(pair):
    """Others are slower than static ones, in drafting and in retention."""
    slow = [np.full(31, 1.1), np.full(31, 1.1)]
    for made, best in zip(slow, pair, strict=True):
        made[-1] = 1.0
        if best is not None:
            made[best] = 0.9
    noise_D = np.exp(np.random.default_rng(0).normal(0, 0.01, 30))
    seconds = slow[0][:, None, None] * slow[1][None, :, None] * noise_D
    made = choose_rules(branches(seconds), RULES, RuleCandidates())
    assert made.rules == tuple(None if one is None else RULES[one] for one in pair)


def test_a_rule_is_chosen_by_all_of_its_tokens_and_seconds():
    """One text with few tokens is fast with the first rule; the ratio of sums is what is served."""
    tokens_RX = np.array([[1, 100, 100], [1, 100, 100]])
    table_2RX = np.stack([tokens_RX, [[0.001, 2.0, 2.0], [1.0, 1.5, 1.5]]])
    made = choose(table_2RX, table_2RX[:, 0], np.array(["a", "b", "c"]), folds=3, seed=0)
    assert made.rule == 1


def test_no_document_lies_in_two_folds():
    fold_X = fold_of(DOCUMENTS, 4, seed=3)
    assert all(len(set(fold_X[name == DOCUMENTS])) == 1 for name in DOCUMENTS)
    assert {7, 8} == set(np.bincount(fold_X[::2]))
    assert (fold_of(DOCUMENTS, 4, seed=3) == fold_X).all() and (fold_of(DOCUMENTS, 4, seed=4) != fold_X).any()
    for folds in (1, 31):
        with pytest.raises(ValueError, match=f"30 documents cannot be split into {folds} folds"):
            fold_of(DOCUMENTS, folds, seed=0)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    """Of equal documents; a row's neighbours of the same document are no evidence of their own."""
    values_D = np.random.default_rng(0).normal(3, 1, 30)
    columns_XV = np.stack([np.repeat(values_D, 2), np.ones(60)], axis=1)
    made = jackknife(columns_XV, DOCUMENTS, lambda sums_DV: sums_DV[:, 0] / sums_DV[:, 1])
    assert made["value"] == pytest.approx(values_D.mean())
    quantile = 2.0452296
    reach = quantile * values_D.std(ddof=1) / np.sqrt(30)
    assert (made["low"], made["high"]) == pytest.approx((values_D.mean() - reach, values_D.mean() + reach))
    alone = jackknife(columns_XV, np.full(60, "d"), lambda sums_DV: sums_DV[:, 0] / sums_DV[:, 1])
    assert alone == {"value": pytest.approx(values_D.mean()), "low": None, "high": None}
