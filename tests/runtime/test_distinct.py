"""Distinct tokens drawn by a graphed program: their law by enumeration, and what happens where there are too few."""

from collections import Counter
from fractions import Fraction
from itertools import permutations, product

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime.drafting.sampler import GraphedSampler, PlainSampler, read_rows
from runtime.graphs import Programs
from runtime.randomness import Randomness
from tests.runtime.graphing import Traced

LAW = (Fraction(1, 6), Fraction(0), Fraction(1, 2), Fraction(1, 3))
STEPS = 60


class Numbers:
    """Uniform numbers that were laid out."""

    def __init__(self, numbers):
        self._numbers = iter(numbers)

    def categorical(self, weights):
        raise AssertionError("a graphed program draws by its own numbers")

    def fill(self, uniform):
        uniform.fill_(next(self._numbers))


def sampler(chance):
    return GraphedSampler(SamplingSettings(1.0), chance, Programs(Traced()))


def without_replacement(order):
    probability, left = Fraction(1), Fraction(1)
    for token in order:
        probability, left = probability * LAW[token] / left, left - LAW[token]
    return probability


def rows_of(width, likeliest):
    """How often each row comes out of all numbers in the middle of sixtieths, which no boundary between tokens parts."""
    probs_EV = torch.tensor([[float(share) for share in LAW]], dtype=torch.float64)
    steps = [(place + 0.5) / STEPS for place in range(STEPS)]
    cases = list(product(steps, repeat=width - likeliest))
    made = sampler(Numbers(number for case in cases for number in case))
    rows = [tuple(read_rows(made.distinct(probs_EV, width, likeliest))[0]) for _ in cases]
    return {row: Fraction(count, len(cases)) for row, count in Counter(rows).items()}


def test_draws_follow_the_law_without_what_was_drawn():
    assert rows_of(2, 0) == {order: without_replacement(order) for order in permutations((0, 2, 3), 2)}


def test_likeliest_ones_come_first():
    assert rows_of(2, 1) == {(2, 0): Fraction(1, 3), (2, 3): Fraction(2, 3)}


@pytest.mark.parametrize("likeliest", [0, 1, 3])
def test_no_more_tokens_than_are_possible(likeliest):
    probs_EV = torch.tensor([[0.5, 0.0, 0.0, 0.5], [0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])
    for made in (sampler(Randomness(3)), PlainSampler(SamplingSettings(1.0), Randomness(3))):
        rows = read_rows(made.distinct(probs_EV, 3, likeliest))
        assert [len(row) for row in rows] == [2, 3, 1]
        assert set(rows[0]) == {0, 3} and rows[2] == [1] and len(set(rows[1])) == 3


def test_more_than_the_vocabulary_is_all_of_it():
    for made in (sampler(Randomness(3)), PlainSampler(SamplingSettings(1.0), Randomness(3))):
        (row,) = read_rows(made.distinct(torch.full((1, 4), 0.25), 6, 5))
        assert sorted(row) == [0, 1, 2, 3]
