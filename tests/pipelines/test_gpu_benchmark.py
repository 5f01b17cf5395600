"""The GPU benchmark end to end on small shapes, and its arithmetic."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from tqdm import tqdm

from pipelines import cli
from pipelines.builtin.builtin_pair import BuiltinParameters
from pipelines.builtin.inflation import InflatedShape
from pipelines.gpu import __main__ as command
from pipelines.gpu import ceilings, parts, picture
from pipelines.gpu.bench import COMPILED, OTHERS, THEIRS, Bench, static_rows
from pipelines.gpu.ceilings import Ceilings
from pipelines.gpu.figures import part_of, plain_figures, read_rows, speeds, write_tables
from pipelines.gpu.pairs import DRAFT_WIDTH, SHAPES, Sized, draft_shape, inflated
from pipelines.measuring import exactness
from pipelines.measuring.arm_rows import expanded
from pipelines.measuring.arms import Run, TimedArm
from pipelines.measuring.harness import BY_ROUND
from pipelines.measuring.tables import read_decodes, read_rounds
from predictors.rounds import RoundRecord, Span
from runtime import ModelPair
from tests.pipelines.toy_bench import toy_prompts
from tests.toys import tiny_llama

SMALL = Sized(InflatedShape(hidden=4, layers=1, heads=1, kv_heads=1, head_dim=4, feed_forward=8), 10)


@pytest.mark.parametrize(("name", "billions"), [("1b", 1.24), ("7b", 6.61), ("13b", 12.85)])
def test_shapes_have_the_sizes_of_their_names(name, billions):
    assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize("ratio", [4, 8, 12, 20])
def test_a_draft_costs_the_share_that_was_asked_for(ratio):
    draft = draft_shape(SHAPES["7b"], ratio, DRAFT_WIDTH, 2)
    assert SHAPES["7b"].parameters / draft.parameters == pytest.approx(ratio, rel=0.15)


def test_the_benchmark_starts_with_what_a_gpu_image_has():
    absent = "psutil pandas pyarrow scipy sklearn matplotlib lightning datasets imblearn mlflow dvc"
    code = f"import sys\nsys.modules |= dict.fromkeys({absent!r}.split())\nimport pipelines.gpu.__main__"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_shape_comes_back_from_its_record():
    assert Sized.from_record(json.loads(json.dumps(SHAPES["7b"].to_record()))) == SHAPES["7b"]


def test_numbers_and_operations_of_a_pass():
    """A model of 1 layer, 1 head of 4, hidden size 4, 8 inner numbers and 10 tokens."""
    weights = 4 * 16 + 3 * 32 + 40  # attention, feed-forward, the head
    slow_memory, slow_units = Ceilings(100.0, 1e9, 2), Ceilings(1e9, 10.0, 2)
    assert slow_memory.pass_seconds(SMALL, 1, 5) == pytest.approx(2 * (weights + 2 * 5 * 4) / 100)
    assert slow_units.pass_seconds(SMALL, 3, 5) == pytest.approx(3 * (2 * weights + 4 * 4 * 8) / 10)


def test_a_shape_has_the_numbers_of_its_model():
    sizes = {"intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4}
    model = tiny_llama(10, hidden=4, layers=1, **sizes)
    matrices = [weight.numel() for weight in model.model.layers.parameters() if weight.dim() == 2]
    assert SMALL.parameters == sum(matrices) + model.lm_head.weight.numel()


def test_floors_of_branch_stages_take_the_longer_job(monkeypatch):
    target, draft = SMALL, SHAPES["tiny"]

    def seconds(_, model, tokens, context):
        return (5 if model is target else 2) * tokens + context / 100

    monkeypatch.setattr(Ceilings, "pass_seconds", seconds)
    rounds = [{"submitted": 9, "levels": 9, "idle_levels": 9, "context": 0}]  # the prefill, which has no part in it
    rounds += [{"submitted": 2, "levels": 4, "idle_levels": 1, "context": 7}]
    rounds += [{"submitted": 1, "levels": 9, "idle_levels": 0, "context": 8}]
    limits = Ceilings(1.0, 1.0, 1)
    first = 2.07 + max(15.07, 3 * 2.07)
    beside = limits.rounds_seconds(target, draft, {"arm": "pearl-4", BY_ROUND: rounds})
    assert beside == pytest.approx(first + 9 * 2.08)
    in_turn = limits.rounds_seconds(target, draft, {"arm": "chain-4", BY_ROUND: rounds})
    assert in_turn == pytest.approx((4 * 2.07 + 15.07) + (9 * 2.08 + 10.08))


def test_a_copy_counts_what_it_reads_and_what_it_writes(monkeypatch):
    monkeypatch.setattr(ceilings, "median_seconds", lambda work, device, repeats: 1.0)
    monkeypatch.setattr(ceilings, "COPY_BYTES", {"cpu": 200})
    assert ceilings.measured_ceilings(torch.device("cpu"), torch.bfloat16).bandwidth == 400


def bench(folder, new_tokens=2, device="cpu"):
    kept = SimpleNamespace(prompts=toy_prompts(2))
    return Bench(torch.device(device), torch.float32, kept, new_tokens, folder, "f", tqdm(disable=True))


def fake_arm(name, family="chain", tokens=(1, 2)):
    return TimedArm(name, family, lambda *_: Run(list(tokens), None))


def test_a_race_is_kept_and_not_timed_again(tmp_path):
    made = bench(tmp_path)
    rows = made.race("methods", "7b-c10", {"a": fake_arm("a")})
    assert sorted({(row["temperature"], row["prompt"]) for row in rows}) == [
        (temperature, prompt.id) for temperature in (0.0, 1.0) for prompt in made.trained.prompts
    ]
    calls = []
    again = TimedArm("a", "chain", lambda *_: calls.append(0) or Run([1, 2], None))
    assert made.race("methods", "7b-c10", {"a": again}) == rows
    assert len(calls) == 1, "to warm up"
    found = read_rows(tmp_path, {"fingerprint": "f", "parts": {"methods/7b-c10": {}}})
    assert len(found) == 4 and {row["pair"] for row in found} == {"7b-c10"}
    assert part_of(found, "methods", "7b-c10") == found and not part_of(found, "plain")


def test_decodes_of_other_code_or_settings_are_left_out_and_missed(tmp_path):
    bench(tmp_path).race("plain", "7b", {"a": fake_arm("a")})
    assert read_rows(tmp_path, {"fingerprint": "other", "parts": {"picture": {}}}) == []
    with pytest.raises(ValueError, match="holds no decodes of part plain/7b"):
        read_rows(tmp_path, {"fingerprint": "other", "parts": {"plain/7b": {}}})


def test_an_arm_that_stops_early_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="a gave 2 tokens, not 3"):
        bench(tmp_path, new_tokens=3).race("methods", "p", {"a": fake_arm("a")})


def test_every_arm_has_a_name_of_its_own():
    names = [row.name for row in expanded((*static_rows("none"), *OTHERS, *THEIRS, *COMPILED), "")]
    assert names[:5] == ["autoregressive", "chain-2", "chain-4", "chain-6", "chain-8"]
    assert names[5:9] == ["pearl-4", "pearl-8", "specbranch-no-hrad-4", "specbranch-no-hrad-8"]
    pearl = expanded(static_rows("streams"), "")[5]
    assert pearl.decoder == {"preset": "pearl", "gamma": 4, "overlap": "streams"}


def test_energy_is_that_of_plain_decoding_and_of_the_fastest_of_each_kind(tmp_path, monkeypatch):
    counter = iter([0, 1000, 1000 + 50, 2000, 2000 + 80, 3000, 3000 + 20, 4000, 4000 + 10])
    monkeypatch.setattr(parts, "_millijoules", lambda device: next(counter))
    monkeypatch.setattr(parts, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(parts, "ENERGY_SECONDS", 0.0)
    kinds = {"autoregressive": "plain", "chain-2": "chain", "chain-4": "chain", "pearl-4": "pearl"}
    kinds["specbranch-no-hrad-4"] = "specbranch-no-hrad"
    seconds = {"chain-2": 2.0, "chain-4": 1.0}
    rows = [
        {"arm": name, "temperature": 0.0, "prompt": "p", "tokens": 2, "seconds": seconds.get(name, 3.0)}
        for name in kinds
    ]
    found = parts.joules_per_token(bench(tmp_path), {n: fake_arm(n, f) for n, f in kinds.items()}, rows)
    expected = {"autoregressive": 0.025, "chain-4": 0.04, "pearl-4": 0.01, "specbranch-no-hrad-4": 0.005}
    assert found == pytest.approx(expected)


def test_no_energy_where_nothing_counts_it(tmp_path):
    assert parts.joules_per_token(bench(tmp_path), {}, []) == {}


def test_a_branch_stage_and_its_jobs_are_read_off_the_timeline():
    spans = [("draft", "draft", 0, 2), ("target", "wait", 0, 2), ("target", "target", 2, 4), ("target", "verify", 4, 5)]
    spans += [("draft", "draft", 2, 5.5), ("draft", "controller", 5.5, 6), ("target", "wait", 5, 6)]
    record = RoundRecord(timeline=[Span(*span) for span in spans])
    assert picture._jobs(record) == (3, 4)
    assert picture._stage(record) == 4


def row(arm, prompt, seconds, block="", **more):
    where = {"temperature": 0.0, "document": prompt, "prompt": prompt, "block": f"{block}/{prompt}"}
    return {"arm": arm, **where, "tokens": 10, "seconds": seconds, **more}


def test_speeds_are_paired_with_plain_decoding_of_the_same_blocks():
    """Of arm b: twice as fast on both prompts, and not four times, as plain decoding of the other blocks would have it."""
    rows = [row("b", "x", 0.5), row("autoregressive", "x", 1.0), row("autoregressive", "y", 3.0), row("b", "y", 1.5)]
    rows += [row("autoregressive", "x", 9.0, "other"), row("autoregressive", "y", 9.0, "other")]
    base, fast = speeds(rows)
    assert base["arm"] == "autoregressive" and base["of_plain"]["value"] == 1
    assert fast["tokens_per_second"] == 10 and fast["of_plain"] == pytest.approx(
        {"value": 2.0, "low": 2.0, "high": 2.0}
    )


def test_a_token_of_plain_decoding_takes_what_is_left_without_the_prefill():
    phases = {f"seconds_{name}": 0.0 for name in ("draft", "target", "verify", "controller", "wait")}
    prefill = phases | {"seconds_target": 0.5, "seconds_verify": 0.25}
    runs = {"x": 1.65, "y": 2.55}
    rows = [row("autoregressive", name, seconds, **{BY_ROUND: [prefill]}) for name, seconds in runs.items()]
    part = {"target": SMALL.to_record(), "context": 5, "pass_seconds": 0.12}
    figures = plain_figures(part, rows, Ceilings(2 * (200 + 2 * 5 * 4) / 0.075, 1e9, 2))
    assert figures["token_seconds"] == pytest.approx((0.1 + 0.2) / 2)
    assert figures["share_of_bound"] == pytest.approx(0.5) and figures["outside_passes"] == pytest.approx(0.2)


def test_agreement_names_the_methods_whose_texts_are_wrong(tmp_path, monkeypatch):
    """Every text of a toy pair is Hugging Face's; of one method that puts another first token, none is."""
    kept = SimpleNamespace(prompts=toy_prompts(2), target=tiny_llama(32), draft=tiny_llama(32, seed=1))
    made = dataclasses.replace(bench(tmp_path, new_tokens=4), trained=kept)
    monkeypatch.setattr(parts, "OTHERS", ())
    model = Sized(InflatedShape(64, 2, 4, 4, 16, 64), 32)
    monkeypatch.setattr(Bench, "pair", lambda *_: ModelPair(kept.target, kept.draft))
    assert parts.agreement(made, model) == {"float32": {}, "bfloat16": {}}
    honest = exactness.decoder_arm

    def wrong(decoder, max_new_tokens):
        decode = honest(decoder, max_new_tokens)
        if getattr(decoder, "drafter", None) is None:
            return decode
        return lambda *given: Run([(decode(*given).tokens[0] + 1) % 32], None)

    monkeypatch.setattr(exactness, "decoder_arm", wrong)
    found = parts.agreement(dataclasses.replace(made, folder=tmp_path / "again"), model)
    assert found["float32"]["chain-2"] == [0, 0] and "autoregressive" not in found["float32"]


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


def arguments(folder, output):
    lengths = ["--prompts", "2", "--prompt-tokens", "40", "--new-tokens", "10"]
    return [str(output), "--tiny", "--pair", str(folder / "pair"), "--params", str(folder / "params.yaml"), *lengths]


@pytest.fixture(scope="module")
def measured(small_corpus, tmp_path_factory):
    """A whole run on the smallest shapes over an untrained pair, whose cells are timed once each."""
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "params.yaml").write_text(json.dumps({"pairs": {"pystdlib": {"models": {"builtin": BUILTIN}}}}))
    with pytest.MonkeyPatch.context() as patch:
        tiny = SHAPES["tiny"]
        patch.setitem(SHAPES, "tiny", Sized(dataclasses.replace(tiny.shape, layers=2), tiny.vocabulary))
        patch.setattr(parts, "GRID", dataclasses.replace(parts.GRID, visits=1, calls=1))
        patch.setattr(parts, "GROWTH", dataclasses.replace(parts.GROWTH, contexts=(128, 512, 1024), calls=1))
        patch.setattr(parts, "PASSES", 3)
        assert command.main(arguments(folder, folder / "out")) == 0
        (path,) = (folder / "out").glob("*.json")
        yield path


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
    expected = {"plain/tiny", "agreement", "methods/tiny-c10", "hugging_face/tiny-c10", "picture", "growth"}
    assert set(results["parts"]) == expected
    assert not results["failed"] and not results["left_out"]
    assert results["parts"]["agreement"] == {"float32": {}, "bfloat16": {}}
    assert results["parts"]["plain/tiny"]["pass_seconds"] > 0 and results["parts"]["methods/tiny-c10"]["cost_ratio"] > 0
    rows = read_rows(measured.with_suffix(""), results)
    arms = {row["arm"] for row in part_of(rows, "methods", "tiny-c10")}
    assert {"autoregressive", "chain-4", "ema", "lookahead", "pearl-4", "specbranch-no-hrad-8"} <= arms
    theirs = {row["arm"] for row in part_of(rows, "hugging_face", "tiny-c10")}
    assert theirs == {"autoregressive", "hf_generate", "hf_assisted"}
    assert {row["tokens"] for row in rows} == {10}, "no arm stops early"


def test_its_report_is_drawn_and_names_every_aim(measured, capsys):
    cli.main(["gpu.report", str(measured)])
    page = measured.with_suffix(".md").read_text()
    for words in (
        "75 % of the bandwidth bound",
        "latency model's prediction",
        "1.1 times the longer",
        "near-tie",
        "at most 3 % of plain",
        "at most 1 % of a round",
        "at most 0.5 % of it",
        "float32 equal",
        "hf_assisted",
    ):
        assert words in page
    for plot in measured.parent.glob("*.png"):
        assert f"({plot.name})" in page


def test_its_decodes_become_the_tables_of_the_measure_stage(measured):
    rows = read_rows(measured.with_suffix(""), json.loads(measured.read_text()))
    write_tables(measured.with_suffix(""), rows)
    folder, own = measured.with_suffix("") / "tiny-c10", [row for row in rows if row["pair"] == "tiny-c10"]
    decodes, rounds = read_decodes(folder / "decodes.parquet"), read_rounds(folder / "rounds.parquet")
    assert [(row["block"], row["arm"]) for row in decodes] == [(row["block"], row["arm"]) for row in own]
    assert {row["pair"] for row in decodes} == {"tiny-c10"}
    greedy = [row for row in decodes if row["temperature"] == 0]
    assert all(row["equals_plain"] == (row["output"] == _plain(row, decodes)) for row in greedy)
    emitted = Counter()
    for one in rounds:
        emitted[one["block"], one["arm"]] += one["emitted"]
    assert set(emitted.values()) == {10}
    assert {row["arm"] for row in decodes} - {row["arm"] for row in rounds} == {"hf_generate", "hf_assisted"}


def _plain(row, decodes):
    plain = (one for one in decodes if one["arm"] == "autoregressive" and one["block"] == row["block"])
    return next(plain)["output"]


def test_a_part_that_fails_leaves_the_others_and_what_is_there_is_kept(measured, tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(command, "agreement", broken)
    shutil.copytree(measured.parent, tmp_path / "out")
    path = tmp_path / "out" / measured.name
    earlier = json.loads(path.read_text())
    rows = read_rows(path.with_suffix(""), earlier)
    assert command.main([*arguments(measured.parent.parent, path.parent), "--parts", "agreement", "hugging_face"]) == 1
    results = json.loads(path.read_text())
    assert results["failed"] == {"agreement": "RuntimeError: no such kernel"}
    assert set(results["seconds"]) == {"setup", "agreement", "hugging_face/tiny-c10"}, "the part after it was measured"
    assert set(results["parts"]) == set(earlier["parts"])
    assert read_rows(path.with_suffix(""), results) == rows, "no decode was timed again"
    assert command._earlier(path, "of other code") == {} != command._earlier(path, results["fingerprint"])


def test_large_shapes_want_a_gpu(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert command.main([str(tmp_path)]) == 2
    assert "CUDA" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "null", "{", "{}"])
def test_what_is_no_result_is_named(tmp_path, content):
    (tmp_path / "gpu.json").write_text(content)
    with pytest.raises(
        SystemExit, match=r"gpu\.json: (missing or damaged|lacks ceilings, parts, settings).* python -m pipelines.gpu"
    ):
        cli.main(["gpu.report", str(tmp_path / "gpu.json")])


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
