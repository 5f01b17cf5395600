"""`draftwright plan`, alongside what real models hold; stage `pair`, which asks it first; ready-made pairs' true sizes."""

import re
import shutil
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, LlamaConfig

from pipelines.cli import main
from pipelines.commands import plan
from pipelines.commands.plan import meta_pair
from pipelines.commands.ready_pairs import ready_pairs, with_pair
from pipelines.inflation import InflatedShape
from pipelines.parameters import load_parameters
from pipelines.prompt_table import Prompt
from pipelines.stages.measure import MeasureConfig
from pipelines.stages.pair import Models
from pipelines.stages.prompts import PromptParameters
from pipelines.stages.traces import CONFIGS, collector
from predictors.config import parse_config
from runtime import ModelPair, Randomness, build_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.memory import planned_memory, unloaded_pair, weight_bytes
from tests.eagle3 import random_drafter, save_drafter
from tests.held import Held
from tests.toys import tiny_llama

PARAMS = Path(__file__).parents[2] / "params.yaml"
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA |= {"intermediate_size": 96, "vocab_size": 300}
DEEP = LLAMA | {"num_hidden_layers": 7}
MODELS = {"target": "org/target", "draft": "org/draft", "dtype": "bfloat16"}
TEXTS = {"max_new_tokens": 24, "temperatures": [1.0], "prompts_per_shard": 4, "threads": 1}


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """The project's parameters with all ready-made pairs."""
    path, text = tmp_path_factory.mktemp("ready") / "params.yaml", PARAMS.read_text()
    for block in ready_pairs():
        text = with_pair(text, block.stem, block.read_text(), "")
    path.write_text(text)
    return path


@pytest.fixture
def changed(tmp_path):
    """Write pair ``p``: the project's with some sections of its own."""

    def write(**sections) -> Path:
        values = yaml.safe_load(PARAMS.read_text())["pairs"]["smollm2"]
        (tmp_path / "changed.yaml").write_text(yaml.safe_dump({"pairs": {"p": values | sections}}))
        return tmp_path / "changed.yaml"

    return write


def planned(params: Path, name: str, *options: str) -> None:
    main(["plan", "--pair", name, "--params", str(params), *options])


def test_weights_are_those_of_the_pair(save_model, changed):
    """Nothing of the plan but configurations knows the models."""
    models = {name: str(save_model(hidden=hidden)) for name, hidden in {"target": 32, "draft": 16}.items()}
    real = ModelPair.load(**models, dtype="float32")
    planned = planned_memory(meta_pair("p", changed(models=models), torch.float32), 8, 8, "cpu")
    assert all(planned[name].weights == weight_bytes(getattr(real, name)) > 0 for name in models)


def test_what_was_planned_is_held():
    """With weights that nobody trained: while a request is decoded, and texts are drawn."""
    target, draft = InflatedShape(512, 12, 8, 8, 64, 1408), InflatedShape(448, 2, 7, 7, 64, 576)
    meta = unloaded_pair(torch.float32, target=target.config(2048, 512), draft=draft.config(2048, 512))
    models = (AutoModelForCausalLM.from_config(one.model.config) for one in (meta.target, meta.draft))
    real = ModelPair(*(CausalLanguageModel(model, whole=False) for model in models))
    prompts = [Prompt(f"{n}", f"{n}", "", "", "train", "", list(range(n, n + 100))) for n in range(4)]
    config = parse_config(CONFIGS["texts"], TEXTS | {"prompts": [4, 0, 0]}, "")
    made, really = (collector("texts", pair, config, prompts) for pair in (meta, real))
    found = plan.needs(meta, {"texts": made}, {"measure": {"max_new_tokens": 24}}, "cpu")
    weights = sum(weight_bytes(model) for model in (real.target, real.draft))
    assert found["decoding"][0] == weights
    decoder = build_decoder(real, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}})
    with Held() as held:
        options = {"max_new_tokens": 24, "temperature": 1.0, "randomness": Randomness(0), "eos_token_id": []}
        decoder.generate(prompts[0].tokens, **options)
    assert sum(found["decoding"]) == pytest.approx(weights + held.peak, rel=0.05)
    with Held() as held:
        assert len(list(really.texts(really.jobs))) == 4
    assert sum(found["drawing texts"]) == pytest.approx(weights + held.peak, rel=0.05)
    assert plan.trace_bytes(made) == plan.trace_bytes(really)


def test_ready_pairs_are_planned_without_a_network(ready, monkeypatch, capsys):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a plan needs no network"))
    for name in ("llama-3-1-8b-70b", "gemma-3-270m-27b", "codellama-7b"):
        planned(ready, name)
    printed = capsys.readouterr().out
    assert "70,553,706,496" in printed and printed.count("\ndecoding: ") == 3
    assert printed.count("\ndrawing texts: ") == 2, "a target alone draws none"


def test_what_does_not_fit_is_refused_with_both_numbers(ready):
    with pytest.raises(SystemExit) as refused:
        planned(ready, "llama-3-1-8b-70b", "--device-memory", "80")
    needed, free = re.search(r"decoding: ([\d.]+) GB, and there are ([\d.]+)", str(refused.value)).groups()
    assert float(needed) > 2 * 78.5 and float(free) == 80
    assert "or lower" not in str(refused.value), "nothing makes weights fewer"
    with pytest.raises(SystemExit, match=r"drawing texts: 15\.\d+ GB.*or lower traces\.texts\.prompts_per_shard"):
        planned(ready, "llama-2-68m-7b", "--device-memory", "14.6")


def test_prompts_and_disk_that_do_not_suffice_are_named_with_the_parameter(ready, tmp_path):
    path, text = tmp_path / "params.yaml", ready.read_text()
    path.write_text(text.replace("longest: 400", "longest: 500").replace("max_gigabytes: 12.0", "max_gigabytes: 2.0"))
    with pytest.raises(SystemExit, match=r"does not fit the pair's context of 512\. Lower .*prompts\.longest"):
        planned(path, "gemma-3-270m-27b")
    with pytest.raises(SystemExit, match=r"[\d.]+ GB, and traces\.max_gigabytes is 2: raise it"):
        planned(path, "llama-2-7b-70b")


def test_a_drafter_that_is_to_be_trained_is_counted(changed, capsys):
    """One layer, what joins three states, and a head over a part of the vocabulary."""
    models = MODELS | {"draft": {"train": "eagle3", "vocabulary": 50}}
    with pytest.raises(SystemExit, match="has 3 layers"):
        planned(changed(models=models, config={"target": LLAMA}), "p")
    params = changed(models=models, config={"target": DEEP})
    planned(params, "p")
    hidden, wide = 64, 96
    layer = 2 * hidden * 3 * hidden + hidden * hidden + 3 * hidden * wide + 4 * hidden
    assert f"draft: {layer + 3 * hidden * hidden + 50 * hidden:,} parameters in bfloat16" in capsys.readouterr().out
    pair = meta_pair("p", params)
    weights = [plan.needs(pair, {}, {}, "cuda")["decoding"][0], weight_bytes(pair.target, "cuda")]
    assert weights[0] - weights[1] == 2 * pair.draft.checkpoint.num_parameters


@pytest.mark.parametrize("speculators", [False, True])
def test_a_drafters_folder_is_planned_by_its_own_shapes(changed, tmp_path, speculators):
    target = tiny_llama(300, layers=3)
    target.save_pretrained(tmp_path / "target")
    drafter = random_drafter(target, ids=range(0, 300, 2))
    folder = save_drafter(drafter, tmp_path / "drafter", speculators)
    models = {"target": str(tmp_path / "target"), "draft": str(folder), "dtype": "float32"}
    found = meta_pair("p", changed(models=models)).draft
    assert found.checkpoint.num_parameters == drafter.num_parameters and found.features == drafter.layers


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, r"pairs\.p\.config\.target is missing, and model no/such is not on this machine"),
        ({"target": LLAMA | {"model_type": "lama"}}, "no family by the model_type in .*lama"),
        ({"target": LLAMA | {"hiden_size": 3}}, r"unknown \['hiden_size'\]"),
        ({"target": {key: LLAMA[key] for key in LLAMA if key != "vocab_size"}}, r"missing \['vocab_size'\]"),
    ],
)
def test_a_configuration_that_says_too_little_is_refused_by_name(changed, config, reason):
    with pytest.raises(SystemExit, match=reason):
        planned(changed(models={"target": "no/such"}, config=config), "p")


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [({"load_in_4bit": True}, 4), ({"load_in_8bit": True}, 8), ({"quant_method": "gptq", "bits": 3}, 3)],
)
def test_a_quantised_target_is_planned_by_its_bits(changed, quantization, bits):
    """Its blocks' matrices; embedding, head, norms and the draft stay as they are."""
    config = {"target": LLAMA, "draft": LLAMA}
    pair = meta_pair("p", changed(models=MODELS | {"quantization": quantization}, config=config))
    matrices = 3 * (4 * 64 * 64 + 3 * 64 * 96)
    assert weight_bytes(pair.draft) - weight_bytes(pair.target) == matrices * 2 - matrices * bits // 8


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Run stage `pair` where so many bytes are free; the hub answers that it was asked."""

    def run(free, models=(), config=None):
        monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=ValueError("fetched")))
        monkeypatch.setattr(plan, "available_memory", lambda device: free)
        config = {"target": LLAMA, "draft": LLAMA} if config is None else config
        params = tmp_path / "params.yaml"
        params.write_text(yaml.safe_dump({"pairs": {"p": {"models": MODELS | dict(models), "config": config}}}))
        with pytest.raises(SystemExit) as ended:
            main(["pair", "--pair", "p", str(tmp_path / "pair"), "--params", str(params)])
        return str(ended.value)

    return run


def test_the_stage_refuses_by_a_byte_before_anything_is_fetched(stage, tmp_path):
    stage(10**12)
    params = tmp_path / "params.yaml"
    most = sum(plan.needs(meta_pair("p", params), {}, {}, "cuda" if torch.cuda.is_available() else "cpu")["decoding"])
    refused = stage(most - 1)
    assert "models.check_memory" in refused and "fetched" not in refused
    assert "fetched" in stage(most) and "fetched" in stage(0, {"check_memory": False})


def test_devices_count_together_only_where_the_block_spreads_the_pair(stage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(plan, "too_large", lambda found, memory: [f"{memory}"])
    assert "\n7\n" in stage(7) and "\n21\n" in stage(7, {"device_map": "auto"})


def test_a_configuration_that_is_nowhere_here_is_fetched_alone(stage, monkeypatch):
    asked = []

    def load_config(name, local_files_only):
        asked.append((name, local_files_only))
        return LlamaConfig(**LLAMA)

    monkeypatch.setattr("pipelines.commands.plan.load_config", load_config)
    assert "models.check_memory" in stage(1000, config={})
    assert asked == [("org/target", False), ("org/draft", False)]


NAMES = [path.stem for path in ready_pairs()]
PARAMETERS = {  # as the models' pages on the hub count them
    "JackFram/llama-68m": 68_030_208,
    "double7/vicuna-68m": 68_030_208,
    "huggyllama/llama-7b": 6_738_415_616,
    "lmsys/vicuna-7b-v1.3": 6_738_415_616,
    "lmsys/vicuna-13b-v1.3": 13_015_864_320,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "meta-llama/Llama-2-7b-chat-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-chat-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-chat-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "codellama/CodeLlama-7b-Instruct-hf": 6_738_546_688,
    "codellama/CodeLlama-13b-Instruct-hf": 13_016_028_160,
    "deepseek-ai/deepseek-coder-1.3b-instruct": 1_346_471_936,
    "deepseek-ai/deepseek-coder-33b-instruct": 33_342_991_360,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "google/gemma-3-270m-it": 268_098_176,
    "google/gemma-3-27b-it": 27_432_406_640,
}


@pytest.fixture
def params(tmp_path) -> Path:
    return Path(shutil.copy(PARAMS, tmp_path / "params.yaml"))


def add(params: Path, *argv: str) -> None:
    main(["pair", "add", *argv, "--params", str(params)])


@pytest.mark.parametrize("name", NAMES)
def test_a_block_is_complete_and_its_models_have_their_true_sizes(params, name):
    add(params, name)
    section = yaml.safe_load(params.read_text())["pairs"][name]
    pair = meta_pair(name, params)
    assert (pair.draft is None) == ("draft" not in section["models"])
    models = {"target": pair.target} | ({} if pair.draft is None else {"draft": pair.draft})
    for key, model in models.items():
        assert sum(p.numel() for p in model.model.parameters()) == PARAMETERS[section["models"][key]]
        assert {p.device for p in model.model.parameters()} == {torch.device("meta")} and model.dtype == torch.bfloat16
    assert len(load_parameters(PromptParameters, name, "prompts", params).sources) == 3
    assert len({repr(load_parameters(MeasureConfig, one, "measure", params)) for one in (name, "smollm2")}) == 1
    if pair.draft is not None:
        assert load_parameters(Models, name, "models", params).draft == section["models"]["draft"]


def test_a_block_stands_behind_the_last_pair_in_its_indentation():
    text = "a: &defaults {x: 1}\npairs:  # mine\n    # first\n    one: {<<: *defaults}\n"
    made = with_pair(text, "two", "# why\n<<: *defaults\ny: [2,\n   3]\n", "f")
    assert made == text + "\n    two:\n      # why\n      <<: *defaults\n      y: [2,\n         3]\n"
    assert yaml.safe_load(made)["pairs"] == {"one": {"x": 1}, "two": {"x": 1, "y": [2, 3]}}


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["lama-68m"], r"no ready-made pair 'lama-68m'\. Close to it: llama-68m-7b"),
        (["llama-68m-7b", "--as", "smollm2"], "a pair 'smollm2' already.*--as"),
        (["llama-68m-7b", "--as", "v1.3"], "letters, digits and dashes"),
        (["llama-68m-7b", "--as", "on"], "no word of YAML"),
    ],
)
def test_what_cannot_be_added_leaves_the_file_as_it_is(params, argv, reason):
    before = params.read_text()
    with pytest.raises(SystemExit, match=reason):
        add(params, *argv)
    assert params.read_text() == before
