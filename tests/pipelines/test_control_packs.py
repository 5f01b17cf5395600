"""Control packs: every engine's files from what tuning chose, what was measured in the engine and recorded texts."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from transformers.generation import GenerationConfig

from pipelines.cli import main
from pipelines.engines.from_texts import confidences, continued, errors, sglang_files
from pipelines.engines.packs import by_batch_size
from pipelines.outputs import write_json
from predictors.latency.prices import RoundPrices
from predictors.sampling import SamplingSettings
from predictors.training.calibration import sequential_temperatures
from predictors.training.tables import TextTable
from tests.eagle3 import random_drafter, save_drafter
from tests.pipelines.test_settings import options, tuned  # noqa: F401
from tests.predictors_training.synthetic_drafts import drafted_texts
from tests.predictors_training.synthetic_texts import GAMMA_MAX, write_texts
from tests.predictors_training.test_survival import PROFILE
from tests.toys import tiny_llama

SURE, UNSURE = ({"value": value, "low": value - 0.05, "high": value + 0.05} for value in (0.2, 0.01))
EAGLE, NGRAM = {"method": "eagle3", "model": "drafter"}, {"method": "ngram", "prompt_lookup_max": 4}


def choice(batch, method, length, gain=SURE):
    how = (EAGLE if method == "eagle3" else NGRAM) | {"num_speculative_tokens": length}
    return {
        "batch": batch,
        "method": method,
        "k": length,
        "speculative": how if length else None,
        "gain_over_plain": gain,
    }


CHOICES = [choice(1, "eagle3", 3), choice(2, "eagle3", 2), choice(4, "eagle3", 1, UNSURE), choice(8, "eagle3", 0)]
CHOICES += [choice(1, "ngram", 5), choice(2, "ngram", 5, UNSURE), choice(4, "ngram", 0), choice(8, "ngram", 0)]


@pytest.fixture
def recorded(tuned):  # noqa: F811
    """What tuning chose, texts with lookups, and a latency profile."""
    write_texts(tuned / "toy/traces/texts", drafted_texts(lookups="match"))
    write_json(tuned / "toy/latency/toy-1c.json", PROFILE.to_record())
    return tuned


def packed(folder, engine, *further):
    main(
        [
            "settings",
            "--pair",
            "toy",
            "--data",
            str(folder),
            "--for",
            engine,
            "--output",
            str(folder / engine),
            *further,
        ]
    )
    files = {path.name: path.read_text() for path in (folder / engine).iterdir()}
    return {name: json.loads(text) if name.endswith(".json") else text for name, text in files.items()}


def test_lengths_by_batch_size_are_those_of_the_method_that_gains_most():
    words = by_batch_size(CHOICES)
    ranges = [[1, 1, 3], [2, 3, 2], [4, 7, 0], [8, 8, 0]]
    assert words == EAGLE | {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": ranges}
    only = by_batch_size([one for one in CHOICES if one["method"] == "ngram"])
    assert only["method"] == "ngram" and only["num_speculative_tokens_per_batch_size"][0] == [1, 1, 5]
    assert by_batch_size([choice(1, "eagle3", 2, UNSURE)]) == by_batch_size([]) == {}
    assert by_batch_size([choice(4, "eagle3", 2)])["num_speculative_tokens_per_batch_size"] == [[1, 3, 0], [4, 4, 2]]


def test_packs_hold_what_an_engine_reads_and_the_evidence(tuned, capsys):  # noqa: F811
    made = packed(tuned, "vllm")
    assert made["speculative_config.json"] == json.loads(options(made["command.sh"])["--speculative-config"])
    evidence = made["evidence.json"]
    assert evidence["by_batch_size"] == [] and any("+49" in line for line in evidence["comments"])
    assert evidence["tuning"]["winner"] == "source" and evidence["cannot_express"] in capsys.readouterr().out
    assert evidence["written"]["device"]["slug"] == "toy-1c" and "0ddba11" in "".join(evidence["comments"])
    write_json(tuned / "toy/engines/vllm/toy-1c/findings.json", {"choices": CHOICES})
    made = packed(tuned, "vllm")
    assert (
        made["speculative_config.json"] == by_batch_size(CHOICES) and made["evidence.json"]["by_batch_size"] == CHOICES
    )
    made = packed(tuned, "llama.cpp")
    assert options(made["command.sh"])["--spec-draft-n-max"] == "3" and len(made) == 2
    made = packed(tuned, "transformers")
    assert "command.sh" not in made
    for name in ("generation_config.json", "draft_generation_config.json"):
        GenerationConfig.from_pretrained(tuned / "transformers", name).validate(strict=True)
    with pytest.raises(SystemExit, match=r"--setting T=9: there are T=0, T=1\."):
        packed(tuned, "vllm", "--setting", "T=9")


def test_a_drafter_that_reads_states_is_told_to_engines_that_have_it(recorded):
    facts = json.loads((recorded / "toy/pair/pair.json").read_text())
    write_json(recorded / "toy/pair/pair.json", {**facts, "drafter": "../drafter", "draft": None})
    made = packed(recorded, "vllm")
    assert made["speculative_config.json"]["method"] == "ngram", "the fastest that it can be told"
    folder = recorded / "toy/tuning/toy-1c/choices.json"
    choices = json.loads(folder.read_text())
    choices[0]["candidates"] = [one for one in choices[0]["candidates"] if one["name"] in ("chain-4", "autoregressive")]
    write_json(folder, choices)
    words = packed(recorded, "vllm")["speculative_config.json"]
    assert (words["method"], words["model"]) == ("eagle3", str(recorded / "toy/drafter"))
    told = options(packed(recorded, "sglang")["command.sh"])
    assert told["--speculative-algorithm"] == "EAGLE3" and told["--speculative-adaptive-config"].endswith(
        "/adaptive.json"
    )
    told = options(packed(recorded, "llama.cpp")["command.sh"])
    assert (told["--spec-type"], told["--spec-draft-model"]) == ("draft-eagle3", "draft.gguf")


def test_sglangs_files_have_its_keys(recorded):
    made = packed(recorded, "sglang")
    assert {"adaptive.json", "dspark_sps.json", "dspark_sts.json", "command.sh", "evidence.json"} == set(made)
    for batch, slot in made["adaptive.json"].items():  # AdaptiveSpeculativeParams
        assert batch.isdigit() and slot["candidate_steps"] == sorted(set(slot["candidate_steps"]))
        assert all(isinstance(one, int) and one >= 0 for one in slot["candidate_steps"])
    costs = made["dspark_sps.json"]  # SpsCostTable
    assert set(costs) == {"sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens"}
    tokens, rates = costs["sample_batch_tokens"], costs["sample_steps_per_sec"]
    assert tokens == sorted(set(tokens)) and len(tokens) == len(rates) and costs["max_batch_tokens"] >= tokens[-1]
    assert rates == sorted(rates, reverse=True) and rates[-1] > 0
    known = {"temperatures": float, "ece_before": float, "ece_after": float}  # DSparkStsCalibration
    assert set(made["dspark_sts.json"]) == {*known, "dataset", "num_samples"}
    for name, kind in known.items():
        values = made["dspark_sts.json"][name]
        assert len(values) == GAMMA_MAX and all(isinstance(one, kind) and one >= 0 for one in values)
    assert "adaptive" not in made["command.sh"], "no EAGLE drafter"
    assert len(made["evidence.json"]["files"]["held_out"]) == 20


def test_tiers_follow_acceptance_and_the_price_of_drafting(recorded):
    table, settings = TextTable.read(recorded / "toy/traces/texts"), SamplingSettings(0.0)
    tiers = [sglang_files(table, settings, RoundPrices(PROFILE.at_cost_ratio(one, 20), False))[0] for one in (1.05, 20)]
    dear, cheap = (one["adaptive.json"]["1"]["candidate_steps"] for one in tiers)
    assert max(dear) < max(cheap) and len(cheap) > 1


@pytest.mark.parametrize("true", [[1.0, 1.0, 1.0], [2.0, 0.5, 3.0]])
def test_temperatures_are_found_and_calibrate_other_drafts(true):
    random = np.random.default_rng(0)

    def drafts(count):
        logits_DG = random.normal(0.5, 1.5, (count, 3))
        accepted_DG = random.random((count, 3)) < expit(logits_DG / np.array(true))
        return logits_DG, np.cumprod(accepted_DG, axis=1).astype(bool)

    found = sequential_temperatures(*drafts(20_000))
    assert found == pytest.approx(true, rel=0.15)
    held = drafts(20_000)
    before, after = (np.array(errors(*held, one)) for one in ([1.0] * 3, found))
    assert after.max() < 0.03 and (true == [1.0] * 3 or (before > after + 0.01).any())


def test_confidences_are_those_of_whole_drafts(recorded):
    table = TextTable.read(recorded / "toy/traces/texts").rows("test")
    starts, _ = table.starts(SamplingSettings(0.0), GAMMA_MAX, "block", RoundPrices(PROFILE, False))
    logits_DG, survives_DG = confidences(starts)
    assert logits_DG.shape == survives_DG.shape and (np.diff(survives_DG.astype(int), axis=1) <= 0).all()
    assert len(logits_DG) < starts.valid_XS.sum() and survives_DG.any() and np.isfinite(logits_DG).all()


def test_lookups_begin_anew_after_the_newest_token(recorded):
    text = next(TextTable.read(recorded / "toy/traces/texts").texts())
    lookup = np.array([[4, 5, -1, -1, -1], [7, -1, -1, -1, -1], [-1] * 5, [1, 2, 3, 4, 5]])
    made = continued(replace(text, columns={**text.columns, "lookup": lookup})).columns["lookup"]
    assert made.tolist() == [[4, 5, 4, 5, 4], [7] * 5, [-1] * 5, [1, 2, 3, 4, 5]]


def test_the_pack_of_a_proposer_runs_as_vllm_makes_it(recorded):
    made = packed(recorded, "vllm", "--method", "lookup")
    words = {"method": "custom_class", "model": "draftwright_proposer.Lookup", "num_speculative_tokens": GAMMA_MAX}
    assert made["speculative_config.json"] == words
    assert made["command.sh"].startswith('PYTHONPATH="$(dirname "$0")" python -m') and made["command.sh"].endswith(
        '"$@"\n'
    )
    assert made["evidence.json"]["gain_over"]["plain"]["low"] > 0 and len(made["evidence.json"]["held_out"]) == 20
    program = """
import sys; sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace as some
import numpy as np
from draftwright_proposer import Lookup
made = Lookup(some(speculative_config=some(num_speculative_tokens=4), model_config=some(max_model_len=99)))
made.load_model(None)
print(made.propose([[1], []], np.array([30, 30]), np.tile([1, 2, 3], (2, 10)), slot_mappings=None))
assert not {name.partition(".")[0] for name in sys.modules} & {"torch", "pipelines", "predictors", "scipy"}
"""
    run = [sys.executable, "-I", "-c", program, str(recorded / "vllm")]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "[[1, 2, 3, 1], []]\n"
    with pytest.raises(SystemExit, match="--method lookup is a pack for vLLM"):
        main(["settings", "--pair", "toy", "--data", str(recorded), "--for", "vllm", "--method", "lookup"])


VLLM = Path(".venv-peers/bin/python")
PARSED = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
given = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(sys.argv[1:])
found = EngineArgs.from_cli_args(given).create_engine_config().speculative_config
by_batch = found.num_speculative_tokens_per_batch_size
lengths = by_batch and build_dynamic_sd_schedule_lookup(by_batch, 10, found.num_speculative_tokens)
print(json.dumps([found.method, found.num_speculative_tokens, lengths]))
"""


@pytest.mark.peers
def test_vllm_parses_its_packs(recorded):
    """By the parser and the configuration of its own release; ``make peers`` runs it, in whose environment that is."""
    model, drafter = recorded / "target", recorded / "drafter"
    tiny_llama().save_pretrained(model)
    save_drafter(random_drafter(tiny_llama()), drafter)

    def parsed(command):
        words = shlex.split(command.replace('"$(dirname "$0")"', str(recorded / "vllm")))
        path, words = (words[0].split("=")[1], words[1:]) if "=" in words[0] else ("", words)
        assert words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"] and words[-1] == "$@"
        given = [
            str(VLLM),
            "-c",
            PARSED,
            *words[3:-1],
            "--model",
            str(model),
            "--skip-tokenizer-init",
            "--dtype",
            "float32",
        ]
        run = subprocess.run(given, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
        assert run.returncode == 0, run.stderr[-2000:]
        return json.loads(run.stdout.splitlines()[-1])

    assert parsed(packed(recorded, "vllm")["command.sh"]) == ["ngram", 8, None]
    assert parsed(packed(recorded, "vllm", "--method", "lookup")["command.sh"]) == ["custom_class", GAMMA_MAX, None]
    eagle = [
        one | {"speculative": {**EAGLE, "model": str(drafter), "num_speculative_tokens": one["k"]}} for one in CHOICES
    ]
    for choices, method, lengths in (
        (eagle, "eagle3", [0, 3, 2, 2, 0, 0, 0, 0, 0, 0, 0]),
        (CHOICES[4:], "ngram", [0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ):
        write_json(recorded / "toy/engines/vllm/toy-1c/findings.json", {"choices": choices})
        assert parsed(packed(recorded, "vllm")["command.sh"]) == [method, max(lengths), lengths]
