"""Rules judged by enumeration: examples and unseen ones are told apart, and what cannot be judged is said."""

import re

import pytest
import torch

from runtime.audit import examples
from runtime.audit.enumeration import NotReproducibleError, enumerate_outcomes, output_law
from runtime.audit.parts import cases, judged, part_of
from tests.runtime import judged_rules

RIGHT = [(examples, name) for name in ("BudgetBefore", "EntropyStop")]
WRONG = [(examples, name) for name in ("Budget", "GlobalArgmax", "Sharpened", "shared_noise")]
RIGHT += [(judged_rules, name) for name in judged_rules.LOSSLESS]
WRONG += [(judged_rules, name) for name in judged_rules.LOSSY]


def verdict(module, name):
    kind, part = part_of(name, getattr(module, name))
    return judged(f"{name}, a {kind}", part)


@pytest.mark.parametrize(("module", "name"), RIGHT, ids=lambda value: value if isinstance(value, str) else "")
def test_lossless_rules(module, name):
    lossless, lines = verdict(module, name)
    assert lossless and lines[0].startswith(f"LOSSLESS: {name}, a ") and len(lines) <= 5


@pytest.mark.parametrize(("module", "name"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_lossy_rules(module, name):
    lossless, lines = verdict(module, name)
    assert not lossless and lines[0].startswith(f"NOT LOSSLESS: {name}, a ") and len(lines) <= 5


def test_the_counterexample_is_the_shortest_and_its_numbers_are_exact():
    """That of DSpark's appendix: what is left out for being 1 is drawn once more from the target."""
    _, (first, second, third) = verdict(examples, "Budget")
    assert "under chains by verifier tokenwise at T=1" in first and "p = (.7, .3) and q = (.5, .5)" in third
    after, shares = re.findall(r"\[(.*?)\]", second), [float(share) for share in re.findall(r"with ([.\d]+)", second)]
    assert after == ["0, 0"] and shares == [0.7, 0.3, 0.85, 0.15]


def test_the_smallest_vocabulary_and_the_shortest_text_come_first():
    sizes = [(one.decoder.pair.target.vocabulary_size, one.length) for one in cases(examples.Budget())]
    assert sizes == sorted(sizes) and sizes[0] == (2, 3) and sizes[-1] == (3, 4)


@pytest.mark.parametrize("name", judged_rules.ERRATIC)
def test_chance_and_memory_of_ones_own_are_said(name):
    with pytest.raises(NotReproducibleError, match="the same draws do not give the same text again"):
        verdict(judged_rules, name)


def test_an_error_of_the_rule_is_passed_on():
    with pytest.raises(KeyError, match="no such key"):
        verdict(judged_rules, "Failing")


@pytest.mark.parametrize(
    "found",
    [3, "rule", judged_rules.ratio, judged_rules.Repeat, torch.nn.Linear(1, 1)],
    ids=lambda found: type(found).__name__,
)
def test_anything_else_is_refused(found):
    with pytest.raises(ValueError, match="Name a Controller"):
        part_of("it", found)


def test_what_needs_arguments_is_refused():
    with pytest.raises(TypeError, match="length"):
        part_of("it", judged_rules.Picky)
    assert part_of("it", judged_rules.Picky(3))[0] == "controller"


def test_what_follows_from_more_than_its_draws_is_noticed():
    """By what can be drawn, and by how often."""
    runs = iter(range(100))
    with pytest.raises(NotReproducibleError):
        output_law(lambda chance: [int(chance.categorical(torch.ones(2 + next(runs))))])
    with pytest.raises(NotReproducibleError):
        list(enumerate_outcomes(lambda chance: [chance.categorical(torch.ones(2)) for _ in range(3 - next(runs) % 3)]))
