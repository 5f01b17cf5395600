"""The GPU benchmark end to end on small shapes, and its arithmetic."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from pipelines.builtin.builtin_pair import BuiltinParameters
from pipelines.builtin.inflation import InflatedShape
from pipelines.gpu import __main__ as command
from pipelines.gpu import ceilings, picture, report
from pipelines.gpu.bench import Bench, _row, speeds
from pipelines.gpu.ceilings import Ceilings, pass_bytes, pass_operations
from pipelines.gpu.pairs import inflated
from pipelines.gpu.shapes import DRAFT_WIDTH, SHAPES, Sized, draft_shape
from pipelines.gpu.sweep import floor_seconds
from pipelines.measuring.arms import Run
from predictors.rounds import RoundRecord, Span
from predictors.sampling import SamplingSettings
from runtime import ModelPair
from runtime.recorder import CudaGraphs
from tests.toys import tiny_llama


@pytest.mark.parametrize(("name", "billions"), [("1b", 1.24), ("7b", 6.61), ("13b", 12.85)])
def test_shapes_have_the_sizes_of_their_names(name, billions):
    assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize("ratio", [4, 8, 12, 20])
def test_a_draft_costs_the_share_that_was_asked_for(ratio):
    draft = draft_shape(SHAPES["7b"], ratio, DRAFT_WIDTH, 2)
    assert SHAPES["7b"].parameters / draft.parameters == pytest.approx(ratio, rel=0.15)


def test_bytes_and_operations_of_a_pass():
    """A model of 1 layer, 1 head of 4, hidden size 4, 8 inner numbers and 10 tokens."""
    model = tiny_llama(
        10, hidden=4, layers=1, intermediate_size=8, num_attention_heads=1, num_key_value_heads=1, head_dim=4
    )
    weights = 4 * 16 + 3 * 32 + 8 + 40  # attention, feed-forward, the block's norms, the head
    assert pass_bytes(model, 5) == 4 * (weights + 2 * 5 * 4)
    assert pass_operations(model, 3, 5) == 3 * (2 * weights + 4 * 4 * 8)
    seconds = Ceilings(bandwidth=100.0, arithmetic=1e9).pass_seconds(model, 1, 5)
    assert seconds == pytest.approx(pass_bytes(model, 5) / 100)
    assert Ceilings(1e9, 10.0).pass_seconds(model, 3, 5) == pytest.approx(pass_operations(model, 3, 5) / 10)


def test_floors_of_branch_stages_take_the_longer_job():
    small = {"intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4}
    models = [tiny_llama(10, hidden=4, layers=1, **small) for _ in range(2)]

    def seconds(model, tokens, context):
        return (5 if model is models[0] else 2) * tokens + context / 100

    pair = ModelPair(*models)
    rounds = {"round_submitted": [2, 1], "round_levels": [4, 9], "round_idle_levels": [1, 0], "round_emitted": [1, 3]}
    beside = {"arm": "pearl-4", "prompt_tokens": 7, **rounds}
    first = 2.07 + max(15.07, 3 * 2.07)
    assert floor_seconds(SimpleNamespace(pass_seconds=seconds), pair, beside) == pytest.approx(first + 9 * 2.08)
    chain = beside | {"arm": "chain-4"}
    whole = (4 * 2.07 + 15.07) + (9 * 2.08 + 10.08)
    assert floor_seconds(SimpleNamespace(pass_seconds=seconds), pair, chain) == pytest.approx(whole)


def test_a_copy_counts_what_it_reads_and_what_it_writes(monkeypatch):
    monkeypatch.setattr(ceilings, "_median", lambda work, device: 1.0)
    assert ceilings._copied(100, torch.device("cpu"), torch.bfloat16) == 400


@pytest.mark.parametrize(("recordings", "runs", "left"), [([0], 1, 0), ([2, 1, 0], 3, 0), ([1] * 9, 4, 1)])
def test_runs_that_record_are_run_again(monkeypatch, recordings, runs, left):
    monkeypatch.setattr(CudaGraphs, "made", 0)
    asked = iter(recordings)
    ran = []

    def arm(prompt, settings, seed):
        ran.append(seed)
        CudaGraphs.made += next(asked)
        return Run([1, 2], None)

    bench = Bench(torch.device("cpu"), torch.float32, None, None, prompts=1, new_tokens=2)
    row = bench._timed(arm, [1], SamplingSettings(0.0), 4)
    assert (len(ran), row["recorded"], set(ran)) == (runs, left, {5})


def test_an_arm_that_stops_early_is_noticed():
    bench = Bench(torch.device("cpu"), torch.float32, None, None, prompts=1, new_tokens=3)
    with pytest.raises(AssertionError, match="gave 2 tokens, not 3"):
        bench._timed(lambda *_: Run([1, 2], None), [1], SamplingSettings(0.0), 0)


def test_a_virtual_clock_counts_both_jobs_once():
    rounds = [RoundRecord(), RoundRecord(drafted=2, overlapped=0.25)]
    row = _row(Run([1, 2], rounds), 1.0, SamplingSettings(0.0), 5)
    assert row["seconds"] == 0.75 and row["virtual"] and row["round_drafted"] == [2]


def test_a_branch_stage_and_its_jobs_are_read_off_the_timeline():
    spans = [("draft", "draft", 0, 2), ("target", "wait", 0, 2), ("target", "target", 2, 4), ("target", "verify", 4, 5)]
    spans += [("draft", "draft", 2, 5.5), ("draft", "controller", 5.5, 6), ("target", "wait", 5, 6)]
    record = RoundRecord(timeline=[Span(*span) for span in spans])
    assert picture._jobs(record) == (3, 4)
    assert picture._stage(record) == 4


def test_speeds_are_paired_with_plain_decoding():
    def row(arm, document, seconds):
        return {"arm": arm, "temperature": 0.0, "document": document, "tokens": 10, "seconds": seconds}

    rows = [row("a", "x", 1.0), row("b", "x", 0.5), row("a", "y", 3.0), row("b", "y", 1.5)]
    base, fast = speeds(rows, "a")
    assert base["of_plain"]["value"] == 1 and base["tokens_per_second"] == 5
    assert fast["of_plain"] == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_idle_and_overlap_shares_of_streams():
    work = [[7, 0.0, 4.0], [9, 1.0, 3.0], [7, 6.0, 8.0], [9, 7.0, 10.0]]
    assert picture.shares(work) == pytest.approx({"idle_share": 0.2, "overlap_share": 0.3})
    assert picture.shares([]) == {}


def test_inflation_to_another_number_format_keeps_the_function():
    small = tiny_llama(32, hidden=32, layers=2, num_key_value_heads=4)
    big = inflated(small, Sized(InflatedShape(128, 3, 8, 8, 16, 128), 64), torch.device("cpu"), torch.float32)
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(big(tokens).logits[..., :32], small(tokens).logits, atol=1e-4, rtol=1e-4)
    assert big.config.max_position_embeddings == 8192


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A whole run on small shapes over an untrained pair."""
    folder = tmp_path_factory.mktemp("gpu")
    parameters = folder / "params.yaml"
    parameters.write_text(json.dumps({"pairs": {"pystdlib": {"models": {"builtin": BUILTIN}}}}))
    lengths = ["--prompts", "2", "--prompt-tokens", "40", "--new-tokens", "10"]
    arguments = [str(folder / "out"), "--tiny", "--pair", str(folder / "pair"), "--params", str(parameters), *lengths]
    assert command.main(arguments) == 0
    (path,) = (folder / "out").glob("*.json")
    return path


BUILTIN = {
    "seed": 0,
    "threads": 1,
    "vocabulary": 2048,
    "shares": {"pair": 0.6, "train": 0.1, "validation": 0.1, "test": 0.15, "reserve": 0.05},
    "target": {
        "shape": {"hidden": 256, "layers": 1, "heads": 4, "feed_forward": 64},
        "training": {"steps": 2, "batch": 1, "context": 64, "max_minutes": None},
    },
    "draft": {
        "shape": {"hidden": 128, "layers": 1, "heads": 2, "feed_forward": 64},
        "training": {"steps": 2, "batch": 1, "context": 64, "max_minutes": None},
    },
    "inflated": {
        "target": {"hidden": 256, "layers": 1, "heads": 4, "kv_heads": 4, "head_dim": 64, "feed_forward": 64},
        "draft": {"hidden": 128, "layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 64, "cost_ratio": 1.2},
    },
}


def test_a_whole_run_measures_every_part(measured):
    results = json.loads(measured.read_text())
    assert set(results["parts"]) == {
        "plain/tiny",
        "agreement",
        "methods",
        "hugging_face",
        "sweep/10",
        "picture",
        "growth",
    }
    assert not results["failed"] and not results["left_out"]
    assert sum(results["parts"]["agreement"]["float32_parted"].values()) == 0
    plain = results["parts"]["plain/tiny"]
    assert plain["bound_seconds"] > 0 and plain["pass_seconds"] > 0 and plain["token_seconds"] > 0
    arms = {row["arm"] for row in results["parts"]["methods"]["speeds"]}
    assert {"autoregressive", "chain-4", "pearl-4", "specbranch-no-hrad-8"} <= arms
    assert {row["arm"] for row in results["parts"]["hugging_face"]["speeds"]} == {
        "autoregressive",
        "hf_generate",
        "hf_assisted",
    }
    lengths = {row["tokens"] for name in ("methods", "hugging_face") for row in results["parts"][name]["rows"]}
    assert lengths == {10}, "no arm stops early"


def test_its_report_is_drawn_and_names_every_aim(measured, capsys):
    report.main([str(measured)])
    page = measured.with_suffix(".md").read_text()
    for words in ("75 % of the bandwidth bound", "latency model's prediction", "1.1 times the longer", "near-tie"):
        assert words in page
    for plot in measured.parent.glob("*.png"):
        assert f"({plot.name})" in page


def test_a_part_that_fails_leaves_the_others(measured, tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(command, "agreement", broken)
    folder = measured.parent.parent
    arguments = [str(tmp_path), "--tiny", "--pair", str(folder / "pair"), "--params", str(folder / "params.yaml")]
    lengths = ["--prompts", "1", "--prompt-tokens", "40", "--new-tokens", "6", "--parts", "agreement", "plain"]
    assert command.main([*arguments, *lengths]) == 1
    (path,) = tmp_path.glob("*.json")
    results = json.loads(path.read_text())
    assert set(results["parts"]) == {"plain/tiny"}
    assert results["failed"] == {"agreement": "RuntimeError: no such kernel"}


def test_large_shapes_want_a_gpu(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert command.main([str(tmp_path)]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_builtin_parameters_of_the_test_are_whole():
    from predictors.config import parse_config

    parse_config(BuiltinParameters, BUILTIN, "test")


def test_measuring_needs_the_runtimes_packages_only():
    code = "import sys, pipelines.gpu.__main__; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "torch" in loaded
    assert not loaded & TRAINING  # transformers looks for scipy by itself


TRAINING = {"pandas", "pyarrow", "sklearn", "matplotlib", "lightning", "mlflow", "dvc", "datasets"}
