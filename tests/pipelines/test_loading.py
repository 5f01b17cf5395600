"""Which files are a model's, and which checkpoints are refused, by stage `pair` and `ModelPair.load` alike."""

import fnmatch
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from pipelines.places import resolve_model
from pipelines.stages.pair import Models, resolve_pair
from runtime import ModelPair
from runtime.eagle3.checkpoint import eagle3_folder
from tests.eagle3 import random_drafter, save_drafter
from tests.runtime.test_pair_and_build import WORDS, tokenizer
from tests.toys import tiny_llama
from tests.weights import changed

BLOCK = "model.layers.1."


@pytest.fixture
def save(tmp_path):
    def saved(model=None, name="target", config=None, **options) -> Path:
        (model or tiny_llama(30)).save_pretrained(tmp_path / name, **options)
        tokenizer(WORDS).save_pretrained(tmp_path / name)
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | (config or {})))
        return tmp_path / name

    return saved


def refused(tmp_path, *words: str, **models: Path | None) -> None:
    """By both, in one line that has the ``words`` in their order."""
    given = {name: None if path is None else str(path) for name, path in models.items()}
    for take in (
        lambda: resolve_pair(Models(**given), tmp_path / "pair"),
        lambda: ModelPair.load(**given, device="cpu", dtype="float32"),
    ):
        with pytest.raises(ValueError, match=".*".join(words)) as error:
            take()
        assert "\n" not in str(error.value)


def taken(tmp_path, folder: Path) -> ModelPair:
    resolve_pair(Models(target=str(folder)), tmp_path / "pair")
    return ModelPair.load(folder, device="cpu", dtype="float32", whole=True)


LACKING = [
    (lambda name, weight: None if name == "model.norm.weight" else weight, "missing: model.norm.weight"),
    (lambda name, weight: None if name.startswith(BLOCK) else weight, f"9 missing: {BLOCK}input_layernorm.weight"),
    (lambda name, weight: weight[:-1] if "0.mlp.up" in name else weight, "another shape: .*0.mlp.up_proj.weight"),
]


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(("change", "words"), LACKING)
def test_weights_that_would_be_random_are_named(save, tmp_path, role, change, words):
    models = {"target": save(), "draft": save(name="draft")}
    changed(models[role], change)
    refused(tmp_path, str(models[role]), words, "again", **models)


CONFIGS = [
    ({"vocab_size": 24}, r"another shape: lm_head.weight \(30, 32\), not \(24, 32\)"),
    ({"num_hidden_layers": 3}, "missing: model.layers.2"),
    ({"num_hidden_layers": 1}, "unread: model.layers.1"),
    ({"attention_bias": True}, "missing: model.layers.0.self_attn.k_proj.bias"),
    ({"hidden_act": "swiglu9"}, "config.json.*swiglu9"),
    ({"rope_parameters": {"rope_type": "ntk9", "rope_theta": 1e4}}, "config.json.*ntk9"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "config.json.*factor"),
    ({"num_attention_heads": 5}, "config.json.*num_attention_heads|hidden.size"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification writes no text"),
    ({"model_type": "internlm9", "auto_map": {"AutoConfig": "own.Own"}}, "code of its own, which is never run"),
]


@pytest.mark.parametrize(("config", "words"), CONFIGS)
def test_a_configuration_of_another_model_is_refused(save, tmp_path, config, words):
    refused(tmp_path, words, target=save(config=config))


SIZES = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}


def test_weights_of_another_family_and_parts_of_a_mixture_are_named(save, tmp_path):
    qwen = Qwen2ForCausalLM(Qwen2Config(vocab_size=32, hidden_size=16, **SIZES))
    refused(tmp_path, "unread", "k_proj.bias", target=save(qwen, "qwen", config={"model_type": "llama"}))
    mixture = MixtralForCausalLM(MixtralConfig(vocab_size=30, hidden_size=16, num_local_experts=4, **SIZES))
    folder = changed(save(mixture), lambda name, weight: None if "experts.2.w1" in name else weight)
    refused(tmp_path, "lack parts of model.layers.0.mlp.experts.gate_up_proj", target=folder)


@pytest.mark.parametrize("prefix", ["transformer.", ""])  # both are in use
def test_blocks_that_are_left_unread_are_named_without_a_prefix_too(save, tmp_path, prefix):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    folder = save(model, config={"n_layer": 1})
    weights = load_file(folder / "model.safetensors")
    weights = {name.replace("transformer.", prefix): weight.clone() for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(tmp_path, "unread", f"{prefix}h.1.attn.c_attn.weight", target=folder)


def test_an_adapter_is_merged_first(save, tmp_path):
    """Whether the weights of its model lie beside it or not."""
    (folder := save()).joinpath("adapter_config.json").write_text('{"peft_type": "LORA"}')
    refused(tmp_path, "adapter_config.json", "merge_and_unload", target=folder)
    (folder / "config.json").unlink()
    with pytest.raises((ValueError, OSError), match="merge_and_unload"):
        resolve_pair(Models(target=str(folder)), tmp_path / "pair")


def test_what_no_forward_needs_is_no_fault(save, tmp_path):
    model = tiny_llama(30, tie_word_embeddings=True)
    rotary = {f"model.layers.0.self_attn.rotary_emb.{name}": torch.ones(4) for name in ("inv_freq", "cos_cached")}
    more = {**rotary, "v_head.weight": torch.ones(1, 32)}
    config = {"attn_implementation": "flash_attention_2", "return_dict": False}  # it takes no tree mask
    folder = save(model, config=config)
    loaded = taken(tmp_path, changed(folder, **more)).target.model
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert loaded(torch.tensor([[1]])).logits.shape == (1, 1, 30)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_shards_are_those_of_the_index(save, tmp_path):
    folder = save(max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    taken(tmp_path, folder)
    kept = shards[-1].read_bytes()
    shards[-1].write_bytes(kept[:-7])
    refused(tmp_path, str(folder), "incomplete", "again", target=folder)
    shards[-1].unlink()
    refused(tmp_path, str(folder), shards[-1].name, "again", target=folder)
    shards[-1].write_bytes(shards[0].read_bytes())  # whole, and another's
    refused(tmp_path, "missing", target=folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ')
    refused(tmp_path, str(folder), "line 1", target=folder)


QUANTISED = [
    ({"quant_method": "gptq", "bits": 4}, "optimum"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, "gptqmodel"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors"),
]


@pytest.mark.parametrize(("quantization", "package"), QUANTISED)
def test_quantised_weights_ask_for_their_package(save, tmp_path, quantization, package):
    folder = save(config={"quantization_config": quantization})
    refused(tmp_path, str(folder), f"pip install.*{package}", target=folder)


COPIES = """pytorch_model.bin consolidated.safetensors model.fp16.safetensors tiny.Q4_0.gguf tf_model.h5
onnx/model.onnx original/model.safetensors model-00001-of-00001.fp16.safetensors adapter_model.safetensors
checkpoint-500/tokenizer.json"""
HUB = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub of one repository: give it the folder, and it lists the revisions that it was asked for."""
    asked: list[str | None] = []

    def serve(source: Path) -> list[str | None]:
        for name in COPIES.split():
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).write_bytes(b"a copy")

        def snapshot_download(name, revision=None, allow_patterns=()):
            asked.append(revision)
            for path in (one for one in source.rglob("*") if one.is_file()):
                here = str(path.relative_to(source))
                if any(fnmatch.fnmatch(here, one) for one in allow_patterns):
                    (place := tmp_path / "hub" / "c0ffee" / here).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, place)
            return str(tmp_path / "hub" / "c0ffee")

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        monkeypatch.setattr("transformers.utils.hub.cached_file", lambda name, file: source / file)
        return asked

    return serve


@pytest.mark.parametrize("sharded", [False, True])
def test_one_copy_of_a_hub_models_weights_is_fetched(save, tmp_path, hub, sharded):
    """By the index where there is one, however it names its files."""
    source = save(max_shard_size="20KB" if sharded else "1GB")
    weights = sorted(path.name for path in source.glob("*.safetensors"))
    if sharded:
        index = source / "model.safetensors.index.json"
        index.write_text(index.read_text().replace("model-0000", "part_"))
        weights = [
            path.rename(source / path.name.replace("model-0000", "part_")).name for path in source.glob("model-*")
        ]
    asked = hub(source)
    folder = resolve_model("org/model", "main")
    index = ["model.safetensors.index.json"] if sharded else []
    assert sorted(path.name for path in folder.iterdir()) == sorted([*HUB, *index, *weights])
    assert asked == ["main", "c0ffee"], "weights are of the commit that the texts are of"
    assert len(taken(tmp_path, folder).tokenizer) == len(WORDS)
    resolve_model("org/model", "main")
    assert asked == ["main", "c0ffee", "main"]


def test_one_copy_of_a_hub_drafters_weights_is_fetched(tmp_path, hub):
    target = tiny_llama(30)
    source = save_drafter(random_drafter(target, layers=(0, 1, 2)), tmp_path / "drafter", False)
    hub(Path(source))
    folder = eagle3_folder("org/drafter")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    (weights := folder / "model.safetensors").write_bytes(weights.read_bytes()[:-9])
    target.save_pretrained(tmp_path / "target")
    refused(tmp_path, str(folder), "incomplete", "again", target=tmp_path / "target", draft=folder)
