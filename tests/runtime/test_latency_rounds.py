"""Rounds over weightless models draft what their cells say, decisions do what they time."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from predictors.rounds import RoundRecord
from predictors.signals import Root
from runtime import ModelPair
from runtime.clock import PhaseClock
from runtime.latency import LatencyConfig, rounds
from runtime.latency.decision import SAMPLED, Laws, decision_cells, head
from runtime.latency.passes import CommittedState
from runtime.latency.rounds import chain_decoder, endless, round_cells, timed_rounds, tree_decoder
from runtime.latency.weightless import weightless_pair
from tests.toys import tiny_llama

CPU = torch.device("cpu")
GRID = LatencyConfig(drafted=(0, 2), tree_nodes=(3, 6), tree_rules=("specinfer",))
KHISTI = replace(GRID, tree_nodes=(3,), tree_rules=("khisti",))


def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def weightless():
    tiny = ModelPair(tiny_llama(64, seed=0), tiny_llama(64, seed=1, layers=1))
    return weightless_pair(tiny, 40, generator())


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_rounds_over_weightless_models_draft_what_is_asked(weightless, gamma, temperature):
    steps = endless(chain_decoder(weightless, gamma), temperature, 0)
    records = [next(steps).record for _ in range(60)]
    assert {record.drafted for record in records} == {gamma}
    accepted = sum(record.accepted for record in records)
    assert 0 < accepted < 60 * gamma if gamma else accepted == 0


@pytest.mark.parametrize("temperature", [0, 1])
def test_tree_cells_time_rounds_of_as_many_distinct_nodes_as_their_coordinate(weightless, temperature, monkeypatch):
    drafted = []
    monkeypatch.setattr(rounds, "tree_decoder", lambda *shape: note_drafted(tree_decoder(*shape), drafted))
    cells = round_cells(weightless, GRID, lambda: None)
    for cell in cells:
        if cell.tables[0] == "tree_drawing" and cell.at["sampled"] == temperature:
            for _ in range(5):
                cell.measure()
                assert drafted[-1] == cell.at["drafted"]


def test_rules_are_timed_on_sampled_trees_that_they_verify(weightless, monkeypatch):
    made = []
    monkeypatch.setattr(rounds, "tree_decoder", lambda *shape: made.append(tree_decoder(*shape)) or made[-1])
    rules = replace(GRID, tree_rules=("specinfer", "khisti"))
    cells = [cell for cell in round_cells(weightless, rules, lambda: None) if len(cell.at) == 1]
    assert [(cell.tables, cell.at) for cell in cells] == [
        ((f"verification_{rule}",), {"drafted": count}) for rule in ("specinfer", "khisti") for count in (3, 6)
    ]
    assert [decoder.verifier.name for decoder in made[-4:]] == ["specinfer", "specinfer", "khisti", "khisti"]
    assert all(cell.measure()[0] > 0 for cell in cells)


def note_drafted(decoder, drafted):
    def stream(*arguments, **options):
        for step in type(decoder).stream(decoder, *arguments, **options):
            drafted.append(step.record.drafted)
            yield step

    return SimpleNamespace(stream=stream)


def test_drawing_is_the_draft_phase_and_verification_the_rest_of_a_full_round(monkeypatch):
    records = [
        RoundRecord(drafted=n, seconds={"draft": s, "verify": 0.1}) for n, s in ((0, 0), (3, 9), (4, 0.25), (4, 0.5))
    ]
    decoder = SimpleNamespace(stream=lambda *_, **__: (SimpleNamespace(record=record) for record in records))
    times = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(rounds, "perf_counter", lambda: next(times))
    measure = timed_rounds(decoder, 4, 0, 0, [CPU])  # the first record is the prefill's, the second round is short
    assert [measure(), measure()] == [(0.25, 0.75), (0.5, 1.5)]


def test_a_round_waits_for_the_devices_of_both_models(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    pair = weightless_pair(ModelPair(*(tiny_llama(64, seed=seed) for seed in (0, 1))), 40, generator())
    pair.target.device, pair.draft.device = torch.device("cuda", 0), torch.device("cuda", 1)
    for cell in round_cells(pair, KHISTI, lambda: None):
        waited.clear()
        cell.measure()
        assert len(waited) > 4  # two devices before and after the round, and at every lap within it
        assert all({device.index for device in waited[at : at + 2]} == {0, 1} for at in range(0, len(waited), 2))
    assert not PhaseClock.waits_for


def test_a_decision_runs_the_head_over_that_many_features():
    laws = Laws(20, CPU, generator())
    likeliest, distance = head(23, laws, CPU, generator())()
    assert likeliest in (0, 1, 2)
    law = laws.behind(Root(32, 1, SAMPLED, None))
    scalars = torch.tensor([1.0, 0.0, 0.0, 0.0, float(law.confidence), float(law.entropy)])
    same = generator()
    hidden, embedding = torch.randn(4, 3, generator=same), torch.randn(5, generator=same)
    states = torch.cat([hidden.reshape(-1), embedding]).half().float()
    assert len(states) + len(scalars) == 23
    assert distance == pytest.approx(float(torch.cat([states, scalars]).square().mean()))
    pair = ModelPair(tiny_llama(20, seed=0), tiny_llama(20, seed=1))
    idle = CommittedState(pair.target, 1, 1, generator())
    cell, *_ = decision_cells(pair, replace(GRID, features=(23,)), generator(), idle, idle)
    assert (cell.tables, cell.at, len(cell.measure())) == (("predictor",), {"features": 23}, 1)
