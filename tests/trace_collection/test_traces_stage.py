"""The traces stage: what it hands to the collection."""

import argparse

import pytest
import torch

from pipelines import traces
from pipelines.pair_folder import PairLocation
from trace_collection.collect import TraceConfig


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_number_formats_are_timed_by_the_threads_that_collect(monkeypatch, tmp_path, restored_threads):
    seen = []
    monkeypatch.setattr(traces, "load_parameters", lambda *where: TraceConfig(threads=2))
    monkeypatch.setattr(traces, "read_pair", lambda folder: PairLocation("target", "draft", "target"))
    monkeypatch.setattr(traces, "read_prompts", lambda *where: [])
    monkeypatch.setattr(traces.ModelPair, "load", lambda *where, **options: seen.append(torch.get_num_threads()))
    monkeypatch.setattr(traces, "collect", lambda *inputs: {"shards": 0, "kept": 0})
    torch.set_num_threads(1)
    names = {"pair": "toys", "params": tmp_path, "pair_folder": tmp_path, "prompts": tmp_path, "out": tmp_path}
    names |= {"section": "traces", "policy": None}
    traces.run(argparse.Namespace(**names))
    assert seen == [2]
