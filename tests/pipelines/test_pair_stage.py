import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelines.builtin import builtin_pair
from pipelines.places import read_facts, read_pair
from pipelines.stages import pair
from runtime import ModelPair
from tests.eagle3 import random_drafter, save_drafter
from tests.pipelines.conftest import BUILTIN

TOKENS = torch.arange(30)[None] + 5


def weights(folder) -> dict[str, bytes]:
    return {
        name: (folder / name / "model.safetensors").read_bytes() for name in ("small", "small_draft", "target", "draft")
    }


def test_builtin_pair_loads_and_inflated_and_small_models_are_one_function(builtin_folder):
    location = read_pair(builtin_folder)
    tokenizer = AutoTokenizer.from_pretrained(location.tokenizer)
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(location.target).get_vocab()
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (location.target, builtin_folder / "small", location.draft, builtin_folder / "small_draft")
    ]
    target, small, draft, small_draft = (model(TOKENS).logits for model in models)
    torch.testing.assert_close(target, small, atol=1e-4, rtol=0)
    torch.testing.assert_close(draft, small_draft, atol=1e-4, rtol=0)
    assert (draft - target).abs().max() > 1e-2  # two functions
    assert models[2].config.hidden_size > models[3].config.hidden_size
    assert models[0].config.eos_token_id == models[0].config.bos_token_id == 0


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
    shutil.copy(save_model(hidden=24) / "model.safetensors", models["draft"])  # other weights are another pair
    assert read_pair(run_pair(models, folder)).dtype == "float32"


@pytest.mark.parametrize("dtype", [None, "auto", 32])
def test_a_pair_without_a_number_format_is_refused_with_the_remedy(run_pair, save_model, dtype):
    folder = run_pair({"target": str(save_model()), "draft": str(save_model())})
    rewrite(folder, dtype=dtype)
    with pytest.raises(ValueError, match=r"pair\.json: dtype, .*Run the pair stage again"):
        read_pair(folder)


def test_facts_are_complete_and_contain_no_seconds_and_no_path_of_this_machine(builtin_folder):
    text = (builtin_folder / "pair.json").read_text()
    facts = json.loads(text)
    assert (facts["source"], facts["target"], facts["tokenizer"]) == ("builtin", "target", "tokenizer")
    assert facts["corpus"]["shares"] == BUILTIN["shares"] | {"drafter": 0.0}
    counts = {share: sum(slices.values()) for share, slices in facts["corpus"]["documents"].items()}
    assert counts == {"pair": 30, "drafter": 0, "train": 12, "validation": 6, "test": 9, "reserve": 3}
    assert facts["corpus"]["documents"]["test"].keys() == {"code", "prose", "tables"}
    assert facts["training"]["small_draft"]["steps"] == 3
    assert facts["training"]["small_draft"]["capped"] is False
    assert len(facts["corpus"]["trained_on"]) == 30
    assert facts["training"]["small"]["held_out_loss"].keys() == {"code", "prose", "tables"}
    assert "seconds" not in text
    assert str(builtin_folder) not in text
    timings = json.loads((builtin_folder.parent / f"{builtin_folder.name}_seconds.json").read_text())
    assert timings.keys() == {"small_seconds", "small_draft_seconds"}


def test_two_runs_are_byte_identical(builtin_folder, run_pair, builtin_models):
    again = run_pair(builtin_models)
    assert weights(again) == weights(builtin_folder)
    assert (again / "pair.json").read_bytes() == (builtin_folder / "pair.json").read_bytes()


def test_an_interrupted_run_keeps_the_finished_target(builtin_folder, run_pair, builtin_models, tmp_path, monkeypatch):
    original, trained = builtin_pair.train, []

    def interrupted(model, tokens, recipe, dtype, seed, teacher=None, name=""):
        trained.append(name)
        if name == "small_draft" and trained.count("small_draft") == 1:
            raise KeyboardInterrupt
        return original(model, tokens, recipe, dtype, seed, teacher, name)

    monkeypatch.setattr(builtin_pair, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_pair(builtin_models, tmp_path / "pair")
    with pytest.raises(ValueError, match="Run the pair stage"):
        read_pair(tmp_path / "pair")
    run_pair(builtin_models, tmp_path / "pair")
    assert trained == ["small", "small_draft", "small_draft"]
    assert weights(tmp_path / "pair") == weights(builtin_folder)


def test_changed_parameters_train_again(builtin_folder, run_pair, builtin_models, tmp_path):
    shutil.copytree(builtin_folder, tmp_path / "pair")
    builtin_models["builtin"]["draft"]["training"]["steps"] = 4
    run_pair(builtin_models, tmp_path / "pair")
    after, before = weights(tmp_path / "pair"), weights(builtin_folder)
    assert after["target"] == before["target"]
    assert after["draft"] != before["draft"]
    assert read_facts(tmp_path / "pair")["training"]["small_draft"]["steps"] == 4


def test_a_local_pair_is_resolved_and_hashed(run_pair, save_model):
    target, draft = save_model(), save_model()
    folder = run_pair({"target": str(target), "draft": str(draft)})
    facts = read_facts(folder)
    assert facts["source"] == "models"
    assert facts["revisions"] == {"target": None, "draft": None}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= facts["sha256"]["target"].keys()
    location = read_pair(folder)
    assert (location.target, location.draft, location.tokenizer) == (str(target), str(draft), str(target))


def test_a_real_pair_replaces_the_built_in_models(builtin_folder, run_pair, save_model, tmp_path):
    shutil.copytree(builtin_folder, tmp_path / "pair")
    run_pair({"target": str(save_model()), "draft": str(save_model())}, tmp_path / "pair")
    assert [path.name for path in (tmp_path / "pair").iterdir()] == ["pair.json"]


def test_a_refused_pair_leaves_the_earlier_one(builtin_folder, run_pair, save_model, tmp_path):
    shutil.copytree(builtin_folder, tmp_path / "pair")
    with pytest.raises(ValueError, match="without both tokenizers"):
        run_pair({"target": str(save_model(320)), "draft": str(save_model(300, False))}, tmp_path / "pair")
    assert read_facts(tmp_path / "pair") == read_facts(builtin_folder)
    assert weights(tmp_path / "pair") == weights(builtin_folder)


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
    ("file", "problem"), [("model.safetensors", "damaged weights"), ("tokenizer.json", "its tokenizer cannot be read")]
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_truncated_files_are_named(run_pair, save_model, role, file, problem):
    models = {"target": str(save_model()), "draft": str(save_model())}
    path = Path(models[role]) / file
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"{models[role]}.*: {problem} .*again"):
        run_pair(models)
    if file == "model.safetensors":
        with pytest.raises(ValueError, match=f"cannot load a model from {models[role]}"):
            ModelPair.load(**models)
    else:  # sizes of vocabularies are left to compare
        with pytest.warns(UserWarning, match=f"{models[role]}: its tokenizer cannot be read and stays unknown"):
            ModelPair.load(**models)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "null",
        '{"source": "models"}',
        '{"source": "models", "target": "a", "tokenizer": "a"}',
        '{"source": "models", "target": "a", "tokenizer": "a", "revisions": {}}',
        '{"source": "builtin", "target": "a", "tokenizer": "a"}',
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
        assert "*.safetensors" in allow_patterns
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
    with pytest.raises(ValueError, match=r"'org/draft' is no local folder and cannot be fetched .*: offline$"):
        run_pair({"target": str(save_model()), "draft": "org/draft"})
