import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipelines.places import read_facts, read_pair
from pipelines.stages import pair
from runtime import ModelPair
from tests.eagle3 import random_drafter, save_drafter
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


@pytest.mark.parametrize("dtype", [None, "auto", 32])
def test_a_pair_without_a_number_format_is_refused_with_the_remedy(run_pair, save_model, dtype):
    folder = run_pair({"target": str(save_model()), "draft": str(save_model())})
    rewrite(folder, dtype=dtype)
    with pytest.raises(ValueError, match=r"pair\.json: dtype, .*Run the pair stage again"):
        read_pair(folder)


def test_two_runs_are_byte_identical(run_pair, save_model):
    models = {"target": str(save_model()), "draft": str(save_model())}
    one, two = ((run_pair(models) / "pair.json").read_bytes() for _ in range(2))
    assert one == two


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


def test_a_draft_without_tokenizer_borrows_the_targets(run_pair, save_model):
    folder = run_pair({"target": str(save_model(300, False)), "draft": str(draft := save_model())})
    assert read_pair(folder).tokenizer == str(draft)


def test_a_target_alone_is_a_pair_without_a_draft(run_pair, save_model):
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


@pytest.mark.parametrize(
    ("file", "problem"), [("model.safetensors", "damaged weights"), ("tokenizer.json", "a tokenizer")]
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_truncated_files_are_named(run_pair, save_model, role, file, problem):
    models = {"target": str(save_model()), "draft": str(save_model())}
    path = Path(models[role]) / file
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"({models[role]}.*: {problem}|{problem} from {models[role]}).*again"):
        run_pair(models)
    if file == "model.safetensors":
        with pytest.raises(ValueError, match=f"cannot load a model from {models[role]}"):
            ModelPair.load(**models)
    else:  # sizes of vocabularies are left to compare
        with pytest.warns(UserWarning, match=f"a tokenizer from {models[role]}: .*unknown"):
            ModelPair.load(**models)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "null",
        '{"pair": "p"}',
        '{"target": "a", "tokenizer": "a"}',
        '{"target": "a", "tokenizer": "a", "revisions": {}}',
    ],
)
def test_a_record_that_names_no_models_is_refused_with_the_remedy(tmp_path, content):
    (tmp_path / "pair.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"pair\.json: (missing or damaged|lacks (revisions|draft|the revision)).*Run the pair stage"
    ):
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
    def snapshot_download(*_, **__):
        raise OSError("offline\nand a long story")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(
        ValueError, match=r"'org/draft' is no local folder and cannot be fetched .*: offline\. Name [^\n]*$"
    ):
        run_pair({"target": str(save_model()), "draft": "org/draft"})
