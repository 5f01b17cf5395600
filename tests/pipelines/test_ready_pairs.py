"""Ready-made pairs: their models' true sizes, and their way into a parameter file."""

from pathlib import Path

import pytest
import torch
import yaml

from pipelines.cli import main
from pipelines.commands.plan import meta_pair
from pipelines.commands.ready_pairs import ready_pairs, with_pair
from pipelines.measuring.measurement import MeasureConfig
from pipelines.parameters import load_parameters
from pipelines.stages.pair import Models
from pipelines.stages.prompts import PromptParameters

PARAMS = Path(__file__).parents[2] / "params.yaml"
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
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS.read_text())
    return path


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
    assert load_parameters(MeasureConfig, name, "measure", params) == load_parameters(
        MeasureConfig, "smollm2", "measure", params
    )
    if pair.draft is not None:
        assert load_parameters(Models, name, "models", params).draft == section["models"]["draft"]


def test_the_file_keeps_every_line_and_all_pairs_that_it_had(params):
    before = params.read_text()
    for name in NAMES:
        add(params, name)
    after = params.read_text()
    assert after.startswith(before.rstrip("\n")) and list(yaml.safe_load(after)["pairs"]) == ["smollm2", *NAMES]
    assert yaml.safe_load(after)["pairs"]["smollm2"] == yaml.safe_load(before)["pairs"]["smollm2"]


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
