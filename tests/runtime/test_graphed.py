"""Graphed passes, draws and verdicts equal plain calls; a stand-in for CUDA graphs freezes what the host said."""

import gc
from random import Random

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import Randomness
from runtime.causal_model import CausalLanguageModel
from runtime.compact import graphed
from runtime.drafting.sampler import GraphedSampler, PlainSampler, sampler_for
from runtime.graphs import MOST_PROGRAMS, PlainCalls, Programs
from runtime.laws import processed_law
from runtime.tree import EMPTY_TREE, chain_tree
from runtime.verification import VERIFIERS, draw_verdict
from runtime.verification.graphed import GraphedVerdicts
from tests.runtime.graphing import Traced
from tests.runtime.test_compact import CONFIGS, random_model
from tests.runtime.walks import walk
from tests.toys import Forking

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
def test_passes_equal_plain_ones(name):
    states = both(name, layers=(0, 1, 3))
    assert_same(states, [5, 9, 11], last=1)  # a prompt of one graphed shape
    keep(states, range(3))
    assert_same(states, [2])
    assert_same(states, [3])  # behind a scratch node
    assert_same(states, [4, 5, 6], parents=[0, 0, 2])  # a tree
    assert_same(states, [7], parents=[3])
    keep(states, [0, 2, 4])
    assert_same(states, [8, 9])
    keep(states, [0, 1], pending=1)
    assert_same(states, [10])


def test_prompts_longer_than_any_recorded_pass_and_rows_that_grow():
    states = both("llama")
    capacity = states[0].memory.capacity
    prompt = [(7 * place) % 60 for place in range(graphed.MOST_NODES + 5)]
    assert_same(states, prompt, last=2)
    keep(states, range(len(prompt)))
    chunk = [(11 * place) % 60 for place in range(100)]
    for _ in range(4):  # over the end of the memory, and to the next number of rows
        assert_same(states, chunk, last=3)
        keep(states, range(len(chunk)))
    assert states[0].memory.capacity > capacity
    assert_same(states, [1, 2, 3], parents=[-1, -1, 0])


@pytest.mark.parametrize("seed", range(6))
def test_random_walks_equal_plain_ones(seed):
    walk(both("llama"), Random(seed), vocabulary=64)


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


def test_what_the_caller_holds_is_its_own():
    """Results of a pass outlive the next one."""
    state, plain = both("llama", layers=(1,))
    outs, expected = [], []
    for token in (3, 4, 5):
        outs.append(state.forward([token]))
        expected.append(plain.forward([token]))
    for out, reference in zip(outs, expected, strict=True):
        torch.testing.assert_close(out.logits, reference.logits, atol=TOLERANCE, rtol=TOLERANCE)
        torch.testing.assert_close(out.hidden_NKD, reference.hidden_NKD, atol=TOLERANCE, rtol=TOLERANCE)


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


def test_chance_without_numbers_of_its_own_is_asked_plainly():
    assert type(sampler_for(SETTINGS[1], Forking([]), Programs(PlainCalls()))) is PlainSampler
    assert type(sampler_for(SETTINGS[1], Randomness(0), None)) is PlainSampler


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


def test_programs_that_nobody_asks_for_give_way():
    programs = Programs(PlainCalls())
    built = []
    for number in range(MOST_PROGRAMS + 1):
        programs.get(0, lambda maker: built.append(0) or 0)
        programs.get(number, lambda maker, number=number: built.append(number) or number)
    assert built == list(range(MOST_PROGRAMS + 1))
    programs.get(0, lambda maker: built.append("again"))
    programs.get(1, lambda maker: built.append("again"))
    assert built[-1] == "again" and built.count("again") == 1


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


def test_memory_that_grew_serves_the_next_request_and_other_layers():
    model = random_model(CONFIGS["llama"])
    over_programs, plain = traced(model), CausalLanguageModel(model, "compact")
    chunk = [(11 * place) % 60 for place in range(100)]
    for layers in ((), (1,), (0, 3), ()):
        states = [some.open(16, layers) for some in (over_programs, plain)]
        for token in (1, 2):
            assert_same(states, [token])
        assert_same(states, [3, 4])
        keep(states, range(4))
        for _ in range(4):
            assert_same(states, chunk)
            keep(states, range(len(chunk)))
        del states
        gc.collect()


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
