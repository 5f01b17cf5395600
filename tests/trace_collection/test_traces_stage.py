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


def test_the_pair_is_loaded_in_the_number_format_of_its_traces(monkeypatch, tmp_path, restored_threads):
    seen = []
    monkeypatch.setattr(traces, "load_parameters", lambda *where: TraceConfig(threads=2))
    monkeypatch.setattr(traces, "read_pair", lambda folder: PairLocation("target", "draft", "target", "float16"))
    monkeypatch.setattr(traces, "read_prompts", lambda *where: [])
    monkeypatch.setattr(traces.ModelPair, "load", lambda *where, **options: seen.append(options["dtype"]))
    monkeypatch.setattr(traces, "collect", lambda *inputs: {"shards": 0, "kept": 0})
    names = {"pair": "toys", "params": tmp_path, "pair_folder": tmp_path, "prompts": tmp_path, "out": tmp_path}
    names |= {"section": "traces", "policy": None}
    traces.run(argparse.Namespace(**names))
    assert seen == ["float16"] and torch.get_num_threads() == 2
