"""`draftwright plan` beside what real models hold, for pairs that nobody downloads."""

import itertools
import re
import socket
import time
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, OPTConfig

from pipelines import plan
from pipelines.cli import main
from pipelines.meta_pair import meta_pair
from pipelines.pair_folder import read_pair
from pipelines.prompt_table import Prompt
from pipelines.ready_pairs import ready_pairs, with_pair
from pipelines.traces import CONFIGS, collector
from predictors.config import parse_config
from runtime import ModelPair, Randomness, build_decoder
from runtime.memory import ModelMemory, model_memory, weight_bytes
from tests.held import Held
from tests.pipelines.conftest import BUILTIN
from tests.toys import tiny_llama

PARAMS = Path(__file__).parents[2] / "params.yaml"
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"intermediate_size": 96, "vocab_size": 300}
SETTINGS = {
    "texts": {"max_new_tokens": 24, "temperatures": [1.0], "prompts_per_shard": 4, "threads": 1},
    "trees": {
        "draws": [1, 1, 3],
        "settings": [{"temperature": 1.0}],
        "roots_per_prompt": 2,
        "prompts_per_shard": 4,
        "threads": 1,
    },
}


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    """The project's parameters with all ready-made pairs."""
    path = tmp_path_factory.mktemp("ready") / "params.yaml"
    text = PARAMS.read_text()
    for block in ready_pairs():
        text = with_pair(text, block.stem, block.read_text(), "")
    path.write_text(text)
    return path


@pytest.fixture
def changed(tmp_path):
    """Write pair ``p``: the built-in one with some sections of its own."""

    def write(**sections) -> Path:
        path = tmp_path / "changed.yaml"
        values = yaml.safe_load(PARAMS.read_text())["pairs"]["pystdlib"]
        path.write_text(yaml.safe_dump({"pairs": {"p": values | sections}}))
        return path

    return write


def planned(params: Path, name: str, *options: str) -> None:
    main(["plan", "--pair", name, "--params", str(params), *options])


def test_weights_and_caches_are_those_of_the_trained_pair(builtin_folder, changed):
    """Tiny, as the fixture trained it: nothing of the plan but the parameters knows it."""
    pair = meta_pair("p", changed(models={"builtin": BUILTIN}), "float32")
    place = read_pair(builtin_folder)
    real = ModelPair.load(place.target, place.draft, dtype="float32", tokenizer=place.tokenizer)
    for name in ("target", "draft"):
        meta, held = getattr(pair, name), getattr(real, name)
        assert weight_bytes(meta) == weight_bytes(held) > 0
        memory = held.open(20).memory
        rows = sum(part.nbytes for part in (*itertools.chain(*memory.caches), memory.cos, memory.sin))
        assert model_memory(name, meta, plan.Work(20, 4), "cpu").cache == rows


@pytest.fixture(scope="module")
def served():
    """The built-in pair's own shapes: planned, and with weights that nobody trained."""
    pair = meta_pair("pystdlib", PARAMS, "bfloat16")
    torch.manual_seed(0)
    models = [
        AutoModelForCausalLM.from_config(one.model.config, dtype=torch.bfloat16) for one in (pair.target, pair.draft)
    ]
    for model in models:
        model.generation_config.eos_token_id = None
    return pair, ModelPair(*models)


def prompts(length: int) -> list[Prompt]:
    names = [("train", 3), ("validation", 1), ("test", 1)]
    return [
        Prompt(f"{split}{n}", f"{split}{n}", "", "", split, "", list(range(n, n + length)))
        for split, count in names
        for n in range(count)
    ]


def weights(pair: ModelPair) -> int:
    return sum(weight_bytes(model) for model in (pair.target, pair.draft))


@pytest.mark.parametrize("length", [40, 200])
def test_decoding_holds_what_was_planned(served, length):
    meta, real = served
    made = {
        "texts": collector("texts", meta, parse_config(CONFIGS["texts"], SETTINGS["texts"], ""), prompts(length), [])
    }
    phase = plan.phases(meta, made, {"measure": {"max_new_tokens": 24}}, "cpu")[0]
    decoder = build_decoder(real, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}})
    with Held() as held:
        decoder.generate(list(range(length)), max_new_tokens=24, temperature=1.0, randomness=Randomness(seed=0))
    assert phase.columns[-1] == pytest.approx(weights(real) + held.peak, rel=0.05)
    assert phase.columns[0] == weights(real)


@pytest.mark.parametrize("of", SETTINGS)
def test_collecting_holds_what_was_planned(served, of):
    meta, real = served
    config = parse_config(CONFIGS[of], SETTINGS[of], "")
    made, really = (collector(of, pair, config, prompts(100), []) for pair in served)
    _, drawing, tracing = plan.phases(meta, {of: made}, {}, "cpu")
    with Held() as held:
        rows = list(really.rows([job for job in really.jobs if job[1].split == "train"][:1] + really.jobs[-3:]))
    assert len(rows) == 4 and tracing.name == f"traces.{of}"
    most = max(drawing.columns[-1], tracing.columns[-1])
    assert most == pytest.approx(weights(real) + held.peak, rel=0.05)
    assert (plan.row_bytes(made), made.rows_per_job) == (plan.row_bytes(really), really.rows_per_job)


def test_all_ready_pairs_are_planned_in_ten_seconds_without_a_network(params, monkeypatch, capsys):
    def refused(*_, **__):
        raise AssertionError("a plan needs no network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    start = time.process_time()
    for block in ready_pairs():
        planned(params, block.stem, "--bandwidth", "3.35TB")
    assert time.process_time() - start < 10
    assert capsys.readouterr().out.count("\ndecoding ") == len(ready_pairs())


def test_seventy_billion_parameters_on_one_device_are_refused_with_the_number_that_would_do(params, capsys):
    with pytest.raises(SystemExit) as refused:
        planned(params, "llama-3-1-8b-70b", "--device-memory", "80GB")
    lines = str(refused.value).splitlines()[1:]
    assert [line.split(":")[0] for line in lines] == ["decoding", "drawing texts", "traces.texts", "traces.trees"]
    enough = [int(re.search(r"(\d+) of them", line)[1]) for line in lines]
    assert enough == [2, 3, 2, 3]
    remedies = (plan.LONGEST, plan.SHARDS, plan.TEXTS, plan.TREES)
    assert not any(remedy in line for line in lines for remedy in remedies)
    planned(params, "llama-3-1-8b-70b", "--device-memory", "80GB", "--devices", "3")
    printed = capsys.readouterr().out
    assert "70,553,706,496" in printed and "8,030,261,248" in printed


def test_what_is_too_large_only_by_its_cache_names_the_parameter(params):
    with pytest.raises(
        SystemExit, match=r"drawing texts: 15\.\d+ .*, or lower traces\.texts\.prompts_per_shard "
    ) as refused:
        planned(params, "llama-2-68m-7b", "--device-memory", "14.6GB")
    assert "\ndecoding" not in str(refused.value)
    with pytest.raises(SystemExit, match=r"decoding: .*lower prompts\.longest"):
        planned(params, "llama-2-68m-7b", "--device-memory", "14GB")


def cut_somewhere(parts: list[int], count: int) -> int:
    """The least that the fullest of ``count`` devices holds, by trying every way to cut."""
    places = itertools.combinations(range(1, len(parts)), min(count, len(parts)) - 1)
    cuts = ([0, *place, len(parts)] for place in places)
    return min(max(sum(parts[a:b]) for a, b in itertools.pairwise(cut)) for cut in cuts)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_devices_share_consecutive_parts_as_evenly_as_can_be(count):
    models = {"target": ModelPair(tiny_llama(64, layers=5)).target, "draft": ModelPair(tiny_llama(64, layers=2)).target}
    held = {name: ModelMemory(weight_bytes(model), 1000, 7) for name, model in models.items()}
    phase = plan.Phase("p", models, held, "none")
    embedding = 4 * 64 * models["target"].model.config.hidden_size
    block, rest = divmod(held["target"].weights + 1000 - 2 * embedding, 5)
    parts = [embedding + rest, *[block] * 5, embedding, held["draft"].weights + 1000]
    shares = phase.on_devices(count)
    assert max(shares) == cut_somewhere(parts, count) + 14 and len(shares) <= count
    assert sum(shares) == sum(parts) + 14 * len(shares)
    assert phase.enough(max(shares)) <= count and (count == 1 or phase.enough(max(shares) - 1) != count)


def test_what_float32_takes_is_said_and_refuses_nothing(params, capsys):
    pair = meta_pair("llama-3-2-1b-8b", params)
    made, _ = plan.collectors(pair, "llama-3-2-1b-8b", params)
    decoding = plan.phases(pair, made, {"trial": {"max_new_tokens": 8}}, "cuda")[0]
    float32 = 2 * (decoding.columns[0] + decoding.columns[1])
    assert float32 > 4 * (8_030_261_248 + 1_235_814_400)
    planned(params, "llama-3-2-1b-8b", "--device-memory", "30GB")
    assert re.search(r"float32 where ([\d.]+)", capsys.readouterr().out)[1] == f"{float32 / 1e9:.3f}"


def test_prompts_and_disk_that_do_not_suffice_are_named_with_the_parameter(params, tmp_path):
    text = params.read_text()
    assert text.count("longest: 400") == text.count("max_gigabytes: 12.0") == 1
    changed = tmp_path / "params.yaml"
    changed.write_text(
        text.replace("longest: 400", "longest: 500").replace("max_gigabytes: 12.0", "max_gigabytes: 2.0")
    )
    with pytest.raises(SystemExit, match=r"does not fit the pair's context of 512\. Lower .*prompts\.longest"):
        planned(changed, "gemma-3-270m-27b")
    with pytest.raises(SystemExit) as refused:
        planned(changed, "llama-2-7b-70b")
    taken, limit = re.search(r"([\d.]+) GB, and traces\.max_gigabytes is (\d+)", str(refused.value)).groups()
    assert float(limit) == 2 < float(taken)


def test_a_pair_without_a_draft_is_planned(params, capsys):
    planned(params, "codellama-7b", "--device-memory", "16GB", "--bandwidth", "1TB")
    named = {line.split()[0].rstrip(":") for line in capsys.readouterr().out.splitlines()}
    assert {"target", "decoding", "traces.guesses"} <= named
    assert not named & {"draft", "drawing", "traces.texts", "traces.trees", "measure", "tune", "trial"}


def test_twice_the_bandwidth_is_half_the_time(changed, capsys):
    def hours(bandwidth: str) -> list[float]:
        planned(changed(), "p", "--bandwidth", bandwidth, "--device", "cpu")
        lines = capsys.readouterr().out.splitlines()
        return [float(line.split()[-2]) for line in lines if line.endswith("hours")]

    slow, fast = hours("1MB"), hours("2MB")
    assert len(slow) == 7 and slow == pytest.approx([2 * one for one in fast], abs=0.011)


def test_a_model_folder_says_what_it_is(changed, tmp_path, capsys):
    tiny_llama(64, layers=3).save_pretrained(tmp_path / "target")
    planned(changed(models={"target": str(tmp_path / "target")}, config={"target": LLAMA}), "p", "--dtype", "float32")
    count = sum(p.numel() for p in tiny_llama(64, layers=3).parameters())
    printed = re.search(r"^target: ([\d,]+) \w+ in (\w+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert printed.groups() == (f"{count:,}", "float32")


@pytest.mark.parametrize("options", [("--bandwidth", "0GB"), ("--device-memory", "80"), ("--devices", "0")])
def test_sizes_and_counts_that_are_none_are_refused(changed, options, capsys):
    with pytest.raises(SystemExit):
        planned(changed(), "p", *options)
    assert f"argument {options[0]}: '{options[1]}' is no " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "reason"),
    [(4, "4"), ({"target": 5}, "target.* 5"), ({"tagret": "a"}, "unknown key 'tagret'"), ({}, "either 'builtin'")],
)
def test_a_section_of_models_is_checked_as_by_the_stage(changed, models, reason):
    with pytest.raises(SystemExit, match=rf"pairs\.p\.models.*{reason}"):
        planned(changed(models=models), "p")


def test_models_without_hidden_states_to_store_are_refused_before_anything_is_fetched(changed, tmp_path):
    config = OPTConfig(
        **{key: LLAMA[key] for key in LLAMA.keys() - {"model_type", "intermediate_size"}}, do_layer_norm_before=False
    )
    config.num_hidden_layers = 4  # as many hidden states as are stored
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "opt")
    with pytest.raises(SystemExit, match="OPTForCausalLM has no .norm or"):
        planned(changed(models=dict.fromkeys(("target", "draft"), str(tmp_path / "opt"))), "p")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, r"pairs\.p\.config\.target is missing, and model no/such is not on this machine"),
        ({"target": {}}, "no family by the model_type in {}"),
        ({"target": LLAMA | {"model_type": "lama"}}, "no family by the model_type in .*lama"),
        ({"target": LLAMA | {"hiden_size": 3}}, r"llama has no hiden_size\."),
        ({"target": {"model_type": "gemma3", "text_config": {"heads": 3}}}, r"gemma3 has no text_config\.heads\."),
        ({"target": {key: LLAMA[key] for key in LLAMA if key != "vocab_size"}}, r"config\.target lacks vocab_size\."),
    ],
)
def test_a_configuration_that_says_too_little_is_refused_by_name(changed, config, reason):
    with pytest.raises(SystemExit, match=reason):
        planned(changed(models={"target": "no/such"}, config=config), "p")


def test_number_formats_that_are_none_are_refused(changed):
    with pytest.raises(SystemExit, match="dtype must be one of auto, .*, got 'int8'"):
        planned(changed(models={"target": "no/such", "dtype": "int8"}), "p")


def test_sizes_have_units():
    assert [plan.size(text) for text in ("80GB", "24 GiB", "3.35TB", "5kB")] == [80e9, 24 * 2**30, 3.35e12, 5e3]
    for wrong in ("80", "80 gb", "-1GB", "1.GB", "GB"):
        with pytest.raises(ArgumentTypeError, match="is no size"):
            plan.size(wrong)
