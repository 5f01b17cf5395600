"""A target spread over several devices, its layers hooked by accelerate: here all devices are the CPU."""

import copy

import pytest
from transformers import AutoModelForCausalLM

from runtime import ModelPair, Randomness, build_decoder
from tests.toys import tiny_llama

accelerate = pytest.importorskip("accelerate")
PARTS = ("embed_tokens", "layers.0", "layers.1", "norm", "rotary_emb")
MAP = {"lm_head": "cpu", **{f"model.{part}": "cpu" for part in PARTS}}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "config",
    [
        {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "block"},
        {"method": "speculative", "drafter": {"kind": "delayed_tree"}, "verifier": "traversal"},
        {"preset": "pearl", "gamma": 3, "overlap": "threads"},
    ],
    ids=lambda config: config.get("preset", "") or config["verifier"],
)
def test_a_spread_target_decodes_the_same_text(config, temperature):
    whole, draft = (tiny_llama(seed=seed).double() for seed in (0, 1))
    spread = accelerate.dispatch_model(copy.deepcopy(whole), device_map=MAP, main_device="cpu", force_hooks=True)
    pair = ModelPair(spread, draft)
    assert pair.target.forward == "hugging_face" and "forward" in pair.target.not_compact
    texts = [
        build_decoder(made, config)
        .generate([3, 1, 4], max_new_tokens=24, temperature=temperature, randomness=Randomness(5))
        .tokens
        for made in (ModelPair(whole, draft), pair)
    ]
    assert texts[0] == texts[1]


def test_load_spreads_the_target_and_places_the_draft(tmp_path, monkeypatch):
    asked = []
    load = AutoModelForCausalLM.from_pretrained

    def noted(path, **options):
        asked.append((path.name, options["device_map"]))
        return load(path, **options)

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", noted)
    for name in ("target", "draft"):
        tiny_llama().save_pretrained(tmp_path / name)
    folders = tmp_path / "target", tmp_path / "draft"
    pair = ModelPair.load(*folders, device_map={"": "cpu"}, draft_device="meta", dtype="float32")
    assert asked == [("target", {"": "cpu"}), ("draft", None)]
    assert pair.target.device.type == "cpu" and pair.draft.device.type == "meta"


def test_first_layers_that_lie_on_no_device_are_refused(tmp_path, monkeypatch):
    tiny_llama().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    places = {"model": "disk", "lm_head": "cpu"}
    with pytest.raises(ValueError, match="device_map keeps the first layers on no device"):
        ModelPair.load("model", device="cpu", dtype="float32", device_map=places)
