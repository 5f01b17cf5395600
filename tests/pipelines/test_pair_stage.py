"""Stage `pair`: what it resolves and records, where its models are placed, and what it refuses."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipelines.commands import generate
from pipelines.measuring.bench import open_bench
from pipelines.places import FACTS, read_facts, read_pair
from pipelines.stages import pair, traces
from pipelines.stages.pair import Models
from runtime import ModelPair
from runtime.latency import LatencyConfig
from tests.eagle3 import random_drafter, save_drafter
from tests.pipelines.toy_bench import toy_bench
from tests.weights import changed


def rewrite(folder, **changes):
    facts = read_facts(folder)
    (folder / "pair.json").write_text(json.dumps(facts | changes))


def test_a_real_pair_keeps_its_number_format_on_every_machine(run_pair, save_model, monkeypatch):
    models = {"target": str(save_model()), "draft": str(save_model())}
    monkeypatch.setattr(pair, "native_dtype", lambda device: torch.bfloat16)
    folder = run_pair(models)
    assert read_pair(folder).dtype == "bfloat16"
    monkeypatch.setattr(pair, "native_dtype", lambda device: torch.float32)
    assert read_pair(run_pair(models, folder)).dtype == "bfloat16"
    changed(models["draft"], lambda name, weight: weight + 1)  # other weights are another pair
    assert read_pair(run_pair(models, folder)).dtype == "float32"


def test_a_local_pair_is_resolved_and_hashed(run_pair, save_model):
    target, draft = save_model(), save_model()
    folder = run_pair({"target": str(target), "draft": str(draft)})
    facts = read_facts(folder)
    assert facts["revisions"] == {"target": None, "draft": None}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= facts["sha256"]["target"].keys()
    location = read_pair(folder)
    assert (location.target, location.draft, location.tokenizer) == (str(target), str(draft), str(target))


def test_a_refused_pair_leaves_the_earlier_one(run_pair, save_model):
    folder = run_pair({"target": str(save_model()), "draft": str(save_model())})
    before = read_facts(folder)
    with pytest.raises(ValueError, match="without both tokenizers"):
        run_pair({"target": str(save_model(320)), "draft": str(save_model(300, False))}, folder)
    assert read_facts(folder) == before


@pytest.mark.parametrize("speculators", [False, True])
def test_a_drafter_of_either_form_is_resolved(run_pair, save_model, tmp_path, speculators):
    target = save_model()
    model = AutoModelForCausalLM.from_pretrained(target)
    layers = (0, 1, model.config.num_hidden_layers)[: model.config.num_hidden_layers + 1]
    drafter = random_drafter(model, layers=layers, num_states=len(layers))
    folder = run_pair({"target": str(target), "draft": str(save_drafter(drafter, tmp_path / "drafter", speculators))})
    assert read_facts(folder)["vocabulary"] == {"target": 300, "draft": 300}
    assert ModelPair.load(**read_pair(folder).models).draft.features == layers


def test_a_target_without_tokenizer_borrows_the_drafts_and_one_alone_is_a_pair_without_a_draft(run_pair, save_model):
    folder = run_pair({"target": str(save_model(300, False)), "draft": str(draft := save_model())})
    assert read_pair(folder).tokenizer == str(draft)
    folder = run_pair({"target": str(target := save_model())})
    assert read_facts(folder).keys().isdisjoint({"draft"}) and read_facts(folder)["vocabulary"] == {"target": 300}
    assert read_pair(folder).models == {"target": str(target), "draft": None, "tokenizer": str(target)}


def test_folders_that_hold_no_model_are_refused(run_pair, save_model, tmp_path):
    target = str(save_model())
    with pytest.raises(FileNotFoundError, match="no/such/model does not exist"):
        run_pair({"target": target, "draft": "no/such/model"})
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        run_pair({"target": target, "draft": str(tmp_path)})
    weightless = save_model()
    (weightless / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="save_pretrained"):
        run_pair({"target": target, "draft": str(weightless)})


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_truncated_files_are_named(run_pair, save_model, role, file):
    models = {"target": str(save_model()), "draft": str(save_model())}
    path = Path(models[role]) / file
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"{models[role]}.*again"):
        run_pair(models)
    if file == "model.safetensors":
        with pytest.raises(ValueError, match=f"cannot load a model from {models[role]}"):
            ModelPair.load(**models)
    else:  # sizes of vocabularies are left to compare
        with pytest.warns(UserWarning, match=f"a tokenizer from {models[role]}: .*unknown"):
            ModelPair.load(**models)


RECORD = {"target": "a", "draft": None, "tokenizer": "a", "revisions": {"target": None, "draft": None}}


@pytest.mark.parametrize(
    "record",
    [
        *(
            [],
            None,
            {"pair": "p"},
            {"target": "a", "tokenizer": "a"},
            {"target": "a", "tokenizer": "a", "revisions": {}},
        ),
        *(RECORD | {"dtype": dtype} for dtype in (None, "auto", 32)),
    ],
)
def test_a_record_that_names_no_models_or_no_number_format_is_refused_with_the_remedy(tmp_path, record):
    (tmp_path / "pair.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"pair\.json: .*Run the pair stage"):
        read_pair(tmp_path)


def test_a_hub_pair_is_pinned_to_its_commits(run_pair, save_model, tmp_path, monkeypatch):
    asked = []

    def snapshot_download(name, revision, allow_patterns):
        asked.append((name, revision))
        snapshot = tmp_path / name.replace("/", "--") / "c0ffee"
        if not snapshot.exists():
            shutil.copytree(save_model(), snapshot)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    folder = run_pair({"target": "org/target", "draft": "org/draft", "target_revision": "v1"})
    assert asked == [("org/target", "v1"), ("org/draft", None)]
    assert read_facts(folder)["revisions"] == {"target": "c0ffee", "draft": "c0ffee"}
    assert read_pair(folder).draft == str(tmp_path / "org--draft" / "c0ffee")
    assert sorted(asked[2:]) == [("org/draft", "c0ffee"), ("org/target", "c0ffee")]


def test_a_model_that_cannot_be_fetched_is_named(run_pair, save_model, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=OSError("offline\nand a long story")))
    with pytest.raises(ValueError, match=r"'org/draft' is no local folder and cannot be fetched .*: offline\. [^\n]*$"):
        run_pair({"target": str(save_model()), "draft": "org/draft"})


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
    assert (run_pair(models) / "pair.json").read_bytes() == (plain / "pair.json").read_bytes()
    assert "placement" not in read_facts(plain) and read_pair(plain).placement == {}
    placed = run_pair({**models, "device_map": "auto", "quantization": {"load_in_8bit": True}})
    assert read_pair(placed).placement == {"device_map": "auto", "quantization": {"load_in_8bit": True}}
    assert {name: value for name, value in read_facts(placed).items() if name != "placement"} == read_facts(plain)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"device_map": one} for one in ("autoo", [0, 1], {"model": "cdua"}, 1.5)),
        *({"draft_device": "cdua:1"}, {"quantization": {"load_in_4bits": True}}, {"target": ""}),
    ],
    ids=str,
)
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
    assert open_bench(args, LatencyConfig(threads=1), {}).pair.draft.device.type == "meta"


@pytest.mark.parametrize("stage", [by_generate, by_traces, by_a_bench])
def test_stages_place_the_models_as_the_pair_s_folder_says(args, loaded, monkeypatch, stage):
    monkeypatch.setattr(traces, "collect", lambda *inputs: {"shards": 0, "kept": 0, "rows": 0})
    stage(args)
    assert loaded == {"target": ({"": "cpu"}, {"load_in_4bit": True}), "draft": (None, None)}
