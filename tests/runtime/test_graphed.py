"""Graphed passes, draws and verdicts equal plain calls; a stand-in for CUDA graphs freezes what the host said."""

import gc
from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from random import Random

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import Randomness
from runtime.causal_model import CausalLanguageModel
from runtime.compact import state as graphed
from runtime.drafting.sampler import GraphedSampler, PlainSampler, read_rows
from runtime.graphs import Programs
from runtime.laws import processed_law
from runtime.tree import EMPTY_TREE, chain_tree
from runtime.verification import VERIFIERS, draw_verdict
from runtime.verification.graphed import GraphedVerdicts
from tests.runtime.graphing import Traced
from tests.runtime.test_compact import CONFIGS, random_model
from tests.runtime.walks import walk

TOLERANCE = 1e-5
SETTINGS = [
    SamplingSettings(0.0),
    SamplingSettings(1.0),
    SamplingSettings(0.7, top_k=5),
    SamplingSettings(1.3, top_p=0.8),
]


def traced(model):
    """The model over graphed passes."""
    adapted = CausalLanguageModel(model, "graphed")
    adapted.programs = Programs(Traced())
    return adapted


def both(name, layers=(), dtype=torch.float32):
    model = random_model(CONFIGS[name]).to(dtype)
    return traced(model).open(16, layers), CausalLanguageModel(model, "compact").open(16, layers)


def assert_same(states, tokens, parents=None, last=None):
    out, plain = (state.forward(tokens, parents, last) for state in states)
    torch.testing.assert_close(out.logits, plain.logits, atol=TOLERANCE, rtol=TOLERANCE)
    if plain.hidden_NKD is not None:
        torch.testing.assert_close(out.hidden_NKD, plain.hidden_NKD, atol=TOLERANCE, rtol=TOLERANCE)


def keep(states, path, pending=0):
    for state in states:
        state.keep(path, pending)


@pytest.mark.parametrize("name", CONFIGS)
def test_random_walks_equal_plain_ones(name):
    for seed in range(3 if name == "llama" else 1):
        walk(both(name, layers=(0, 1, 3)), Random(seed), vocabulary=64, rounds=4 if name == "llama" else 2)


def test_memory_that_grew_serves_the_next_request_and_other_layers():
    """By prompts longer than any recorded pass."""
    model = random_model(CONFIGS["llama"])
    over_programs, plain = traced(model), CausalLanguageModel(model, "compact")
    capacities = []
    for layers in ((), (1,), (0, 3), ()):
        states = [some.open(16, layers) for some in (over_programs, plain)]
        capacities.append(states[0].memory.capacity)
        walk(states, Random(1), 64, rounds=1, prompt=graphed.MOST_NODES + 5)
        walk(states, Random(2), 64, rounds=1, prompt=400)
        capacities.append(states[0].memory.capacity)
        del states
        gc.collect()
    assert capacities[1] > capacities[0] and capacities[-2] == capacities[-1]


def test_a_shape_is_recorded_once_and_memory_serves_the_next_request():
    model = traced(random_model(CONFIGS["llama"]))
    maker = model.programs.maker
    state = model.open(16)
    memory = state.memory
    for _ in range(5):
        state.forward([1])
        state.keep([0])
    assert len(maker._results) == 1 and maker.runs == 5
    beside = model.open(16)
    assert beside.memory is not memory, "two requests at once share no rows"
    del state
    gc.collect()
    again = model.open(16)
    assert again.memory is memory
    again.forward([1])
    assert len(maker._results) == 1, "the shape is known"
    del again
    gc.collect()
    assert model.open(2000).memory is not memory, "a longer request needs more rows"


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_recorded_draws_equal_plain_ones(setting):
    generator = torch.Generator().manual_seed(1)
    plain = PlainSampler(setting, Randomness(3))
    sampler = GraphedSampler(setting, Randomness(3), Programs(Traced()))
    laws = []
    for shape in [(7,), (7,), (3, 7), (7,), (3, 7)]:
        logits = torch.randn(shape, generator=generator)
        laws.append((sampler.law(logits), plain.law(logits)))
        if len(laws) % 3:  # a law whose token nobody asks for
            assert torch.equal(sampler.token(laws[-1][0]), plain.token(laws[-1][1]))
    some = [law[:2] for law in laws[2]]  # rows that are left of a level
    assert torch.equal(sampler.token(some[0]), plain.token(some[1]))
    for law, expected in laws:
        assert torch.equal(law, expected)


@pytest.mark.parametrize("name", [name for name, rule in VERIFIERS.items() if rule.chains_only])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_recorded_verdicts_equal_plain_ones(name, setting):
    generator = torch.Generator().manual_seed(2)
    chance, verdicts = (Randomness(5), GraphedVerdicts(VERIFIERS[name], setting, Randomness(5), Programs(Traced())))
    rows = set()
    for length in (0, 3, 3, 1, 3, 0, 3, 3, 3):
        logits_MV = torch.randn(length + 1, 6, generator=generator)
        tree = EMPTY_TREE
        if length:
            laws = processed_law(torch.randn(length + 1, 6, generator=generator), setting)
            tree = chain_tree(torch.multinomial(laws[:-1], 1, generator=generator)[:, 0], laws)
        law = VERIFIERS[name](tree, processed_law(logits_MV, setting))
        row, token, law_V = verdicts.draw(tree, logits_MV)
        assert (row, token) == draw_verdict(law, chance)
        torch.testing.assert_close(law_V, law.residual(row))
        rows.add(row)
    assert len(rows) > 1


def test_a_request_that_was_not_finite_leaves_nothing_behind():
    model = traced(random_model(CONFIGS["llama"]))
    expected = model.open(16).forward([1, 2, 3]).logits
    gc.collect()
    state = model.open(16)
    with torch.inference_mode():
        for keys, values in state.memory.caches:
            keys.fill_(torch.inf)
            values.fill_(torch.nan)
    memory = state.memory
    del state
    gc.collect()
    again = model.open(16)
    assert again.memory is memory
    torch.testing.assert_close(again.forward([1, 2, 3]).logits, expected)


def test_a_request_over_weights_that_were_replaced_keeps_its_memory_to_itself():
    model = traced(random_model(CONFIGS["llama"]))
    held, idle = model.open(16), model.open(16)
    del idle
    gc.collect()
    before = held.forward([1, 2]).logits
    with torch.no_grad():
        model.model.lm_head.weight = torch.nn.Parameter(2 * model.model.lm_head.weight)
    torch.testing.assert_close(model.open(16).forward([1, 2]).logits, 2 * before)
    del held
    gc.collect()
    for state in [model.open(16), model.open(16)]:
        torch.testing.assert_close(state.forward([1, 2]).logits, 2 * before)


# ---- distinct tokens drawn by a program: their law by enumeration, and what happens where there are too few


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


def recorded(chance):
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
    made = recorded(Numbers(number for case in cases for number in case))
    rows = [tuple(read_rows(made.distinct(probs_EV, width, likeliest))[0]) for _ in cases]
    return {row: Fraction(count, len(cases)) for row, count in Counter(rows).items()}


def test_draws_follow_the_law_without_what_was_drawn():
    assert rows_of(2, 0) == {order: without_replacement(order) for order in permutations((0, 2, 3), 2)}


def test_likeliest_ones_come_first():
    assert rows_of(2, 1) == {(2, 0): Fraction(1, 3), (2, 3): Fraction(2, 3)}


@pytest.mark.parametrize("likeliest", [0, 1, 3])
def test_no_more_tokens_than_are_possible(likeliest):
    probs_EV = torch.tensor([[0.5, 0.0, 0.0, 0.5], [0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])
    for made in (recorded(Randomness(3)), PlainSampler(SamplingSettings(1.0), Randomness(3))):
        rows = read_rows(made.distinct(probs_EV, 3, likeliest))
        assert [len(row) for row in rows] == [2, 3, 1]
        assert set(rows[0]) == {0, 3} and rows[2] == [1] and len(set(rows[1])) == 3


def test_more_than_the_vocabulary_is_all_of_it():
    for made in (recorded(Randomness(3)), PlainSampler(SamplingSettings(1.0), Randomness(3))):
        (row,) = read_rows(made.distinct(torch.full((1, 4), 0.25), 6, 5))
        assert sorted(row) == [0, 1, 2, 3]
