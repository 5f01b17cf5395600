"""Comparison with other engines, which a script stands for that speaks their lines."""

import json
import sys
from argparse import Namespace
from io import StringIO

import numpy as np
import pytest

from pipelines import peers
from pipelines.engines import ours
from pipelines.engines.engine import Block, Engine, race
from pipelines.prompt_table import Prompt
from tests.eagle3 import random_drafter, save_drafter
from tests.toys import tiny_llama

# Logs what it is asked for. The tokens of a prompt are n, n + 1, …, from token ``parts`` on others, in passes of ``size`` tokens
# after the first one. It answers ``dies`` blocks, where that is not negative, and ends.
SCRIPT = """
import json, sys
name, parts, size, seconds, dies, log = json.loads(sys.argv[1])
print(json.dumps({"versions": {name: "1"}, "format": "bfloat16"}), flush=True)
for number, line in enumerate(sys.stdin):
    if number == dies:
        raise SystemExit("no memory is left")
    asked, decodes = json.loads(line), []
    with open(log, "a") as file:
        file.write(json.dumps([name, asked["arm"], [prompt[0] for prompt in asked["prompts"]]]) + "\\n")
    for prompt, count in zip(asked["prompts"], asked["new_tokens"], strict=True):
        emitted = [1, *[size] * ((count - 1) // size)]
        emitted += [count - sum(emitted)] if count > sum(emitted) else []
        tokens = [prompt[0] + place + (place >= parts) for place in range(count)]
        took = seconds * (1 + prompt[0] / 10)
        decodes.append({"tokens": tokens, "emitted": emitted, "first": took, "seconds": took + took * len(emitted)})
    print(json.dumps({"decodes": decodes, "counters": {"drafts": [len(decodes)]}}), flush=True)
"""
PROMPTS = [Prompt(f"p{n}", f"d{n // 2}", "", "", "test", "", [n, 0]) for n in range(5)]


@pytest.fixture
def fake(tmp_path):
    """Makes an engine, and reads what all of them were asked for."""

    def make(name, arms=("plain",), parts=99, size=1, seconds=0.1, dies=-1, patience=60.0):
        given = json.dumps([name, parts, size, seconds, dies, str(tmp_path / "log")])
        return Engine(name, list(arms), (sys.executable, "-c", SCRIPT, given), patience)

    make.asked = lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    return make


def raced(*engines, size=2, prompts=PROMPTS, new_tokens=7, **options):
    cut = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    return race(engines, [Block(some, [new_tokens] * len(some)) for some in cut], 1, **options)


def test_arms_take_turns_by_blocks_in_changing_orders(fake):
    rows, failed = raced(fake(peers.OURS, ["plain", "chain of 2"]), fake("other"), size=1)
    assert not failed and len(rows) == 3 * len(PROMPTS)
    arms = {(peers.OURS, "plain"), (peers.OURS, "chain of 2"), ("other", "plain")}
    asked = [((name, arm), numbers) for name, arm, numbers in fake.asked()]
    warm, timed = asked[:3], asked[3:]
    assert all(numbers == [0] for _, numbers in warm), "a prompt that is not recorded comes first"
    blocks = [timed[start : start + 3] for start in range(0, len(timed), 3)]
    assert [{tuple(numbers) for _, numbers in block} for block in blocks] == [{(n,)} for n in range(5)]
    assert all({arm for arm, _ in block} == arms for block in blocks)
    assert len({tuple(arm for arm, _ in block) for block in blocks}) > 1


def test_the_last_block_may_be_short_and_what_engines_count_is_summed_without_the_first_prompt(fake):
    engine = fake("other")
    rows, _ = raced(engine, size=2)
    assert [numbers for *_, numbers in fake.asked()] == [[0], [0, 1], [2, 3], [4]]
    assert [row["prompt"] for row in rows] == [prompt.id for prompt in PROMPTS] and engine.counters == {"drafts": [5]}


def test_an_engine_that_dies_is_named_and_the_others_go_on(fake):
    rows, failed = raced(fake(peers.OURS), fake("other", dies=2))
    assert failed == {"other: plain": "ended with code 1: no memory is left"}
    assert sum(row["arm"] == "other: plain" for row in rows) == 2, "what it had decoded is kept"
    assert sum(row["arm"] == peers.PLAIN for row in rows) == 5
    found = peers.compared(rows, "other: plain")
    assert len(found["parts_at"]) == 2 and found["whole_request"]["over_plain"]["value"] == pytest.approx(1)


def test_engines_that_are_not_there_or_say_nothing_something_else_or_too_little_are_named(fake, tmp_path):
    absent = Engine("absent", ["plain"], (str(tmp_path / "python"), "-c", ""))
    mute = Engine("mute", ["plain"], (sys.executable, "-c", "import time; time.sleep(60)"), patience=0.2)
    chatty = Engine("chatty", ["plain"], (sys.executable, "-c", "print('Welcome')"))
    python, option, script, given = fake("short").command
    fewer = script.replace("        emitted = [1", "        count -= 1\n        emitted = [1")
    short = Engine("short", ["plain"], (python, option, fewer, given))
    rows, failed = raced(absent, mute, chatty, short, fake(peers.OURS))
    assert len(rows) == 5
    assert failed == {
        "short: plain": "gave 6 tokens and counted 6, not 7",
        "absent: plain": "not installed: python: No such file or directory",
        "mute: plain": "ended with code -9: no message",
        "chatty: plain": "said 'Welcome', no answer",
    }


def test_speeds_are_paired_by_prompt_and_the_first_pass_is_the_prefill(fake):
    """Prompts differ in seconds, pairs do not; where they do, the interval covers it."""
    rows, _ = raced(fake(peers.OURS, seconds=0.1), fake("other", size=3, seconds=0.2, parts=4))
    found, plain = peers.compared(rows, "other: plain"), peers.compared(rows, peers.PLAIN)
    took = sum(1 + n / 10 for n in range(5))  # of every pass, in units of an engine's own
    assert plain["after_prefill"]["tokens_per_second"] == pytest.approx(5 * 6 / (0.1 * 7 * took))
    assert plain["after_prefill"]["over_plain"] == {"value": 1, "low": 1, "high": 1}
    assert found["whole_request"]["tokens_per_second"] == pytest.approx(5 * 7 / (0.2 * 4 * took))
    assert found["after_prefill"]["over_plain"] == pytest.approx(dict.fromkeys(("value", "low", "high"), 7 / 6))
    assert found["parts_at"] == {prompt.id: 4 for prompt in PROMPTS}
    assert set(plain["parts_at"].values()) == {None}
    for row in rows:
        row["seconds"] *= 1 + (row["arm"] != peers.PLAIN) * int(row["prompt"][1])
    over = peers.compared(rows, "other: plain")["whole_request"]["over_plain"]
    assert over["low"] < over["value"] < over["high"]


def decoded(arm, emitted, tokens, prompt="p0"):
    return {"arm": arm, "prompt": prompt, "document": prompt, "emitted": emitted, "tokens": tokens}


def test_acceptance_is_counted_in_rounds_that_lie_before_texts_part():
    text = list(range(10))
    rows = [
        decoded("a", [1, 3, 1, 2, 3], text),
        decoded("b", [1, 1, 2, 3, 1, 1, 1], [*text[:8], 0, 0]),
        decoded("a", [1, 3, 3, 3], text, "p1"),
        decoded("b", [1, 3, 3, 3], text, "p1"),
    ]
    found = peers.accepted(rows, ("a", "b"), 2)
    # Texts of p0 share 8 tokens: rounds that begin at 1, 4 and 5 of "a"; at 1, 2 and 4 of "b", as that at 7 could reach 9.
    assert found["a"]["rounds"] == found["b"]["rounds"] == 6
    assert found["a"]["shares"] == [5 / 6, 4 / 6]
    assert found["b"]["shares"] == [5 / 6, 4 / 6]
    assert all(error > 0 for error in found["a"]["standard_errors"])
    assert peers.accepted(rows[:1], ("a", "b"), 2) == {}


def test_standard_errors_are_those_of_independent_prompts():
    random = np.random.default_rng(0)
    accepted = random.random((400, 3)) < 0.4
    rows = [
        decoded(arm, [1, *(1 + some)], list(range(1 + int((1 + some).sum()))), f"p{n}")
        for n, some in enumerate(accepted)
        for arm in "ab"
    ]
    found = peers.accepted(rows, ("a", "b"), 1)["a"]
    expected = np.sqrt(found["shares"][0] * (1 - found["shares"][0]) / found["rounds"])
    assert found["standard_errors"][0] == pytest.approx(expected, rel=0.15)


def test_the_page_and_the_file_hold_every_arm_and_every_reason(fake, tmp_path, monkeypatch):
    engines = [
        fake(peers.OURS, ["plain", "chain of 2"], size=2),
        fake(peers.VLLM, ["EAGLE-3 of 2"], size=3, parts=6),
        fake(peers.LLAMA, dies=0),
    ]
    monkeypatch.setattr(peers, "engines_of", lambda args: engines)
    monkeypatch.setattr(peers, "read_prompts", lambda path, split, count: PROMPTS[:count])
    given = ["--pair", "x", "--prompts", "x", "--output", str(tmp_path), "--new-tokens", "10", "--gammas", "2"]
    peers.main([*given, "--threads", "1", "--dtype", "float32", "--count", "4"])
    ((record,), (page,)) = (list(tmp_path.glob(f"*.{kind}")) for kind in ("json", "md"))
    record, page = json.loads(record.read_text()), page.read_text()
    assert record["failed"] == {"llama.cpp: plain": "ended with code 1: no memory is left"}
    assert [one["arm"] for one in record["arms"]] == ["Draftwright: chain of 2", peers.PLAIN, "vLLM: EAGLE-3 of 2"]
    assert record["accepted"]["2"]["vLLM: EAGLE-3 of 2"]["shares"] == [1, 1]
    assert record["counters"]["vLLM: EAGLE-3 of 2"] == {"drafts": [4]}
    assert record["settings"]["dtype"] == "float32" and record["engines"]["vLLM"]["versions"] == {"vLLM": "1"}
    assert all(one in page for one in ("| vLLM: EAGLE-3 of 2 |", "0 of 4", record["failed"]["llama.cpp: plain"]))


def test_arms_are_chosen_by_parts_of_their_names():
    arms = {"Draftwright": ["plain", "lookup"], "vLLM": ["plain"], "llama.cpp": ["x"]}
    engines = [Engine(name, some, ()) for name, some in arms.items()]
    kept = peers.chosen(engines, ["vLLM"])
    assert [(engine.name, engine.arms) for engine in kept] == [("Draftwright", ["plain"]), ("vLLM", ["plain"])]


@pytest.fixture
def pair(tokenizer, run_pair, tmp_path):
    """A folder of the pair stage, with a random drafter."""
    target = tiny_llama(300, hidden=16, layers=2, max_position_embeddings=32)
    for made in (target, tokenizer):
        made.save_pretrained(tmp_path / "target")
    save_drafter(random_drafter(target), tmp_path / "drafter")
    return run_pair({"target": str(tmp_path / "target"), "draft": str(tmp_path / "drafter")})


def test_engines_are_started_with_what_the_pair_says_and_ours_decodes_with_its_arms(
    pair, tmp_path, monkeypatch, capsys
):
    args = Namespace(pair=pair, environment=tmp_path, gammas=[2], auto=None, threads=1, dtype="float32")
    engine, *others = peers.engines_of(args)
    assert [engine.arms for engine in others] == [["plain"], ["plain, eager"], ["n-gram"], ["EAGLE-3 of 2"]]
    assert all(engine.name == peers.VLLM for engine in others), "there is no GGUF file for llama.cpp"
    told = json.loads(others[-1].command[-1])["speculative"]
    assert told == {"method": "eagle3", "model": str(tmp_path / "drafter"), "num_speculative_tokens": 2}
    assert engine.arms == ["plain", "lookup", "chain of 2", "lookup or chain of 2"]
    asked = [json.dumps({"arm": arm, "prompts": [[1, 2], [3]], "new_tokens": [8, 6]}) for arm in engine.arms]
    monkeypatch.setattr(sys, "argv", ["ours", engine.command[-1]])
    monkeypatch.setattr(sys, "stdin", StringIO("\n".join(asked)))
    ours.main()
    ready, *answers = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert ready["format"] == "float32"
    texts = [[one["tokens"] for one in answer["decodes"]] for answer in answers]
    assert texts == texts[:1] * 4 and [len(text) for text in texts[0]] == [8, 6]
    for one in (one for answer in answers for one in answer["decodes"]):
        assert (
            one["emitted"][0] == 1 and sum(one["emitted"]) == len(one["tokens"]) and 0 < one["first"] < one["seconds"]
        )
