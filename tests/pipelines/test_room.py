"""Stage `pair` asks the plan before it fetches anything."""

import re

import pytest
import torch
import yaml
from transformers import AutoConfig, LlamaConfig

from pipelines import plan
from pipelines.cli import main
from pipelines.meta_pair import meta_pair
from runtime.memory import unloaded_pair, weight_bytes

SIZES = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 96, "vocab_size": 300}
MODELS = {"target": "org/target", "draft": "org/draft", "dtype": "bfloat16"}
PROMPTS = {"sources": [{"name": "mine", "kind": "file", "path": "prompts.txt"}], "longest": 40, "max_tokens": 40}
PROMPTS |= {"train": 3, "validation": 1, "test": 1}


class FetchedError(ValueError):
    pass


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Run stage `pair` where so many bytes are free; the hub answers `FetchedError`."""

    def fetched(*_, **__):
        raise FetchedError("fetched")

    def run(free, models=(), **sections):
        monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
        monkeypatch.setattr(plan, "available_memory", lambda device: free)
        config = {"config": {"target": SIZES, "draft": SIZES | {"num_hidden_layers": 1}}}
        params = tmp_path / "params.yaml"
        params.write_text(yaml.safe_dump({"pairs": {"p": {"models": MODELS | dict(models)} | config | sections}}))
        with pytest.raises(SystemExit) as ended:
            main(["pair", "--pair", "p", str(tmp_path / "pair"), "--params", str(params)])
        return str(ended.value)

    return run


def needed(params, device: str) -> int:
    pair = meta_pair("p", params)
    made, _ = plan.collectors(pair, "p", params)
    return max(phase.columns[-1] for phase in plan.phases(pair, made, {}, device))


def test_what_does_not_fit_is_refused_by_a_byte_before_anything_is_fetched(stage, tmp_path):
    here = "cuda" if torch.cuda.is_available() else "cpu"
    sections = {"prompts": PROMPTS, "traces": {name: {"prompts": [3, 1, 1]} for name in ("texts", "trees")}}
    sections["traces"]["guesses"] = {"prompts": 1, "ways": [{"method": "lookahead"}]}
    stage(10**12, **sections)
    most = needed(tmp_path / "params.yaml", here)
    refused = stage(most - 1, **sections)
    assert "models.check_memory" in refused and "fetched" not in refused
    assert re.findall(r"which has ([\d.]+):", refused) == [f"{(most - 1) / 1e9:.2f}"]
    assert "fetched" in stage(most, **sections)
    assert "fetched" in stage(0, {"check_memory": False}, **sections)


def test_a_block_without_prompts_must_have_room_for_its_weights(stage):
    refused = stage(1000)
    assert "\ndecoding: " in refused and "traces" not in refused


def test_devices_count_together_only_where_the_block_spreads_the_pair(stage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    whole = weight_bytes(unloaded_pair(torch.bfloat16, LlamaConfig(**SIZES)).target)
    monkeypatch.setattr(plan, "too_large", lambda found, devices, memory: [f"{devices} * {memory}"])
    assert f"1 * {whole}" in stage(whole)
    for placed in ({"device_map": "auto"}, {"draft_device": "cuda:1"}):
        assert f"3 * {whole}" in stage(whole, placed)


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [({"load_in_4bit": True}, 4), ({"load_in_8bit": True}, 8), ({"quant_method": "gptq", "bits": 3}, 3)],
)
@pytest.mark.parametrize("where", ["block", "configuration"])
def test_a_quantised_target_is_planned_by_its_bits(tmp_path, quantization, bits, where):
    """Its blocks' matrices; embedding, head, norms and the draft stay as they are."""
    models = MODELS | ({"quantization": quantization} if where == "block" else {})
    LlamaConfig(**SIZES, **({} if where == "block" else {"quantization_config": quantization})).save_pretrained(
        tmp_path / "target"
    )
    LlamaConfig(**SIZES).save_pretrained(tmp_path / "draft")
    folders = {name: str(tmp_path / name) for name in ("target", "draft")}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"models": models | folders}}}))
    pair = meta_pair("p", tmp_path / "params.yaml")
    matrices = 3 * (4 * 64 * 64 + 3 * 64 * 96)
    assert weight_bytes(pair.draft) - weight_bytes(pair.target) == matrices * 2 - matrices * bits // 8
    assert pair.target.forward == "hugging_face" and pair.target.dtype is torch.bfloat16


def test_a_configuration_that_is_nowhere_here_is_fetched_alone(stage, monkeypatch):
    asked, known = [], AutoConfig.for_model(**SIZES)

    def from_pretrained(name, local_files_only):
        asked.append((name, local_files_only))
        return known

    monkeypatch.setattr("pipelines.meta_pair.AutoConfig.from_pretrained", from_pretrained)
    assert "models.check_memory" in stage(1000, config={})
    assert asked == [("org/target", False), ("org/draft", False)]


def test_a_pair_that_nobody_knows_is_fetched(stage, monkeypatch):
    def offline(*_, **__):
        raise OSError("offline")

    monkeypatch.setattr("pipelines.meta_pair.AutoConfig.from_pretrained", offline)
    assert "fetched" in stage(0, config={})
