"""The traces stage: what it hands to the collection."""

import argparse

import pytest
import torch
import yaml

from pipelines.places import PairLocation
from pipelines.prompt_table import Prompt, write_prompts
from pipelines.stages import traces
from runtime import ModelPair
from tests.toys import tiny_llama

SECTIONS = {
    "machine": {"threads": 1, "seed": 3},
    "traces": {
        "max_gigabytes": 0.25,
        "texts": {"prompts": [2, 1, 1]},
        "trees": {"prompts": [1, 0, 1]},
        "guesses": {"prompts": 1, "ways": [{"method": "lookahead"}]},
    },
}
CHOSEN = {
    "texts": ["train0", "train1", "validation0", "test0"],
    "trees": ["train0", "test0"],
    "guesses": ["validation0"],
}


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("of", CHOSEN)
def test_a_trace_has_its_section_its_prompts_and_the_pair_in_its_own_format(
    of, monkeypatch, tmp_path, restored_threads
):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"toys": SECTIONS}}))
    prompts = [
        Prompt(f"{split}{n}", f"{split}{n}", "s", "code", split, "", [1, 2, 3])
        for split in ("train", "validation", "test", "reserve")
        for n in range(3)
    ]
    write_prompts(tmp_path / "prompts.parquet", prompts)
    seen = []

    def load(*where, **options):
        seen.append(options["dtype"])
        return ModelPair(tiny_llama(layers=3), tiny_llama(layers=1))

    monkeypatch.setattr(traces, "read_pair", lambda folder: PairLocation("target", "draft", "target", "float16"))
    monkeypatch.setattr(traces, "most_workers", lambda args, threads: 1)
    monkeypatch.setattr(traces.ModelPair, "load", load)

    def collect(over, *inputs):
        ((_, collector),) = over(lambda made, task: made, [None])
        seen.append((collector, *inputs))
        return {"shards": 0, "kept": 0, "rows": 0}

    monkeypatch.setattr(traces, "collect", collect)
    parser = argparse.ArgumentParser()
    traces.add_arguments(parser)
    given = ["--pair", "toys", "--params", tmp_path / "params.yaml", "--of", of, tmp_path, tmp_path, tmp_path / "out"]
    traces.run(parser.parse_args([str(one) for one in given]))
    dtype, (collector, out, _, gigabytes, code) = seen
    assert dtype == "float16" and out == tmp_path / "out" and gigabytes == 0.25
    assert collector.name == of and (collector.config.threads, collector.config.seed) == (1, 3)
    settings = collector.config.settings
    assert [prompt.id for _, prompt in collector.jobs] == [one for one in CHOSEN[of] for _ in settings]
    assert [one for one, _ in collector.jobs] == list(settings) * len(CHOSEN[of])
    assert {collector.pair.target.forward} == {"packed"} and (
        of == "guesses" or collector.pair.draft.forward == "packed"
    )
    assert len(code) == 64 and torch.get_num_threads() == 1
