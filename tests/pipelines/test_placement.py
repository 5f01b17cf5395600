"""Where a pair's models lie and how its target is quantised: said once in its block, and done by every stage."""

import json
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM

from pipelines.commands import generate
from pipelines.measuring.bench import open_bench
from pipelines.places import FACTS, read_facts, read_pair
from pipelines.stages import traces
from pipelines.stages.pair import Models
from runtime.latency import LatencyConfig
from tests.pipelines.toy_bench import toy_bench

pytest.importorskip("accelerate")
PLACEMENT = {"device_map": {"": "cpu"}, "draft_device": "meta", "quantization": {"load_in_4bit": True}}


@pytest.fixture
def loaded(monkeypatch):
    """What Hugging Face is asked for, by model; quantisation is noted and left out, as its libraries are not here."""
    asked, load = {}, AutoModelForCausalLM.from_pretrained

    def noted(path, quantization_config=None, **options):
        asked[str(path).rpartition("/")[2]] = (options["device_map"], quantization_config)
        return load(path, **options)

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", noted)
    return asked


@pytest.fixture
def args(tmp_path):
    args = toy_bench(tmp_path, "latency", {})
    path = args.pair_folder / FACTS
    path.write_text(json.dumps(json.loads(path.read_text()) | {"placement": PLACEMENT}))
    return args


def test_the_pair_stage_records_what_the_block_says_and_nothing_else(run_pair, save_model):
    models = {"target": str(save_model()), "draft": str(save_model())}
    plain = run_pair(models)
    assert "placement" not in read_facts(plain) and read_pair(plain).placement == {}
    placed = run_pair({**models, "device_map": "auto", "quantization": {"load_in_8bit": True}})
    assert read_pair(placed).placement == {"device_map": "auto", "quantization": {"load_in_8bit": True}}
    assert {name: value for name, value in read_facts(placed).items() if name != "placement"} == read_facts(plain)


WRONG = [
    *[{"device_map": one} for one in ("autoo", [0, 1], {"model": "cdua"}, 1.5)],
    *({"draft_device": "cdua:1"}, {"quantization": {"load_in_4bits": True}}, {"target": ""}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_places_that_are_none_are_refused_by_name(wrong):
    """Before anything is fetched; what lies in the file may be a machine's other than this one."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must"):
        Models(**{"target": "org/model", **wrong})
    Models(target="org/model", device_map={"": 0, "lm_head": "cuda:3"}, draft_device="cuda:7")


def by_generate(args):
    names = {"target": None, "draft": None, "device": "auto", "dtype": "float32"}
    with pytest.raises(ValueError, match="no tokenizer files"):
        generate._load_pair(SimpleNamespace(pair_folder=args.pair_folder, **names))


def by_traces(args):
    args.of, args.out = "guesses", args.output
    sections = {"max_gigabytes": 1.0, "guesses": {"prompts": 1, "threads": 1, "ways": [{"method": "lookahead"}]}}
    args.params.write_text(json.dumps({"pairs": {"p": {"traces": sections}}}))
    traces.run(args)


def by_a_bench(args):
    config = LatencyConfig(threads=1)
    assert open_bench(args, config, {}).pair.draft.device.type == "meta"


@pytest.mark.parametrize("stage", [by_generate, by_traces, by_a_bench])
def test_stages_place_the_models_as_the_pair_s_folder_says(args, loaded, monkeypatch, stage):
    monkeypatch.setattr(traces, "collect", lambda *inputs: {"shards": 0, "kept": 0, "rows": 0})
    stage(args)
    assert loaded == {"target": ({"": "cpu"}, {"load_in_4bit": True}), "draft": (None, None)}
