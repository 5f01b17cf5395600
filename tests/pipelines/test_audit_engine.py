"""``draftwright audit`` of an engine: scores that are exact, honest samples that pass, wrong ones that are found, servers."""

import json
import threading
from argparse import ArgumentParser
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper

from pipelines.audit import engine
from pipelines.audit.engine import prompts_of, table
from pipelines.audit.samples import Sample, Server, read_samples
from pipelines.audit.scores import NO_GUESS, SCORES, filtered_law, scored
from pipelines.audit.verdict import LOSSLESS, NOT_LOSSLESS, UNDECIDED, judged
from pipelines.cli import main
from pipelines.commands.audit import add_arguments
from pipelines.measuring.arms import decoder_arm, hugging_face_arm
from pipelines.prompt_table import FILE, write_prompts
from pipelines.shares import Document
from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder
from tests.eagle3 import random_drafter
from tests.pipelines.toy_bench import toy_prompts
from tests.toys import near, tiny_llama

PLAIN = SamplingSettings(1.0)
SETTINGS = [
    (PLAIN, 0.0),
    (SamplingSettings(0.7), 0.0),
    (SamplingSettings(1.0, 3), 0.0),
    (SamplingSettings(1.3, 0, 0.8), 0.0),
    (PLAIN, 0.2),
    (SamplingSettings(0.8, 4, 0.9), 0.1),
]


class Toy:
    """Vectorised chance: logits [N, V] of many prefixes at once, and draws."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def logits(self, count: int, size: int = 32) -> torch.Tensor:
        return (1 + 4 * self.uniform(count, 1)) * self.normal(count, size)

    def draw(self, law: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(law, 1, generator=self.generator).squeeze(1)

    def table(self, logits, tokens, settings=PLAIN, min_p=0.0, draft=None, length=50):
        columns = scored(
            logits, tokens, torch.full_like(tokens, NO_GUESS), self.uniform(len(tokens)), settings, min_p, draft
        )
        ids = np.arange(len(tokens))
        return columns | {"answer": ids // length, "place": ids % length, "position": np.full(len(ids), -1)}


def every_token(logits, settings, min_p, uniform=0.5, **options):
    """Columns for each token of the vocabulary in turn, and the distribution [N, V]."""
    count, size = logits.shape
    rows = [
        scored(
            logits,
            torch.full((count,), token),
            torch.arange(count),
            torch.full((count,), uniform),
            settings,
            min_p,
            **options,
        )
        for token in range(size)
    ]
    return rows, filtered_law(logits, settings, min_p).numpy()


@pytest.mark.parametrize(("settings", "min_p"), SETTINGS)
def test_scores_have_mean_zero_and_the_moments_that_they_say(settings, min_p):
    toy = Toy(1)
    logits, draft = toy.logits(6, 7), toy.logits(6, 7)
    rows, law = every_token(logits, settings, min_p, draft_NV=draft)
    for name in SCORES:
        scores = np.stack([row[name] for row in rows], -1)  # [3, N, V]
        for power, said in ((1, np.zeros(6)), (2, scores[1].max(-1)), (3, None)):
            mean = (law * scores[0] ** power).sum(-1)
            expected = scores[2][np.arange(6), law.argmax(-1)] if said is None else said
            assert np.allclose(mean, expected, atol=1e-12), (name, power)
        assert scores[1].max() > 1e-3, name
    kept = np.stack([row["known"] for row in rows], -1)
    assert (kept == (law > 0)).all() and (
        (~kept).any() or (settings.unfiltered and not min_p) or settings.temperature == 0.7
    )


def test_min_p_keeps_what_hugging_face_keeps_and_comes_before_the_other_filters():
    logits = Toy(2).logits(50, 40)
    theirs = MinPLogitsWarper(0.1)(None, logits / 0.8) > -torch.inf
    assert ((filtered_law(logits, SamplingSettings(0.8), 0.1) > 0) == theirs).all()
    both = filtered_law(logits, SamplingSettings(0.8, 0, 0.9), 0.1)
    first = (logits / 0.8).masked_fill(~theirs, -torch.inf)
    assert torch.allclose(both, filtered_law(first, SamplingSettings(1.0, 0, 0.9), 0.0))


@pytest.mark.parametrize(("settings", "min_p"), SETTINGS)
def test_the_transform_is_uniform(settings, min_p):
    """Whatever the token, it spreads evenly over an interval; those of a distribution tile the unit, ties together."""
    logits = Toy(3).logits(5, 6)
    logits[:, 3] = logits[:, 1]  # a tie
    rows, law = every_token(logits, settings, min_p, 0.0)
    ends, _ = every_token(logits, settings, min_p, 1.0)
    low, high = (np.stack([one["transform"] for one in some], -1) for some in (rows, ends))
    for x in np.linspace(0, 1, 41):
        below = np.clip((x - low) / np.maximum(high - low, 1e-300), 0, 1)
        assert np.allclose((law * below).sum(-1), x, atol=1e-12)


def test_honest_samples_pass_and_say_what_they_would_show():
    toy, verdicts = Toy(4), []
    for _ in range(200):
        logits = toy.logits(500)
        verdicts.append(judged(toy.table(logits, toy.draw(filtered_law(logits, PLAIN, 0.0)), draft=toy.logits(500))))
    assert sum(one["verdict"] == NOT_LOSSLESS for one in verdicts) <= 5, "1 % and not more by far"
    assert {one["verdict"] for one in verdicts} <= {LOSSLESS, NOT_LOSSLESS, UNDECIDED}
    logits = toy.logits(2000)
    power = judged(toy.table(logits, toy.draw(filtered_law(logits, PLAIN, 0.0))))["detectable"]
    found = []
    for _ in range(30):  # of so many tokens that are made the likeliest, nine in ten tests find it
        made = torch.where(
            toy.uniform(2000) < power["share"], logits.argmax(-1), toy.draw(filtered_law(logits, PLAIN, 0.0))
        )
        found.append(judged(toy.table(logits, made))["verdict"] == NOT_LOSSLESS)
    assert 0.02 < power["share"] < 0.15 and sum(found) >= 24
    few = toy.logits(40)
    assert judged(toy.table(few, toy.draw(filtered_law(few, PLAIN, 0.0))))["verdict"] == UNDECIDED


def speculated(toy, logits, kind, noise=1.0):
    """Tokens of one round of drafting each, by rules of which one is right, and the draft's logits."""
    draft = logits + noise * toy.normal(*logits.shape)
    p, q = filtered_law(logits, PLAIN, 0.0), filtered_law(draft, PLAIN, 0.0)
    tokens = q.argmax(-1) if kind in ("greedy draft", "one guess") else toy.draw(q)
    own, theirs = (law.gather(-1, tokens[:, None]).squeeze(-1) for law in (p, q))
    limit = {"one guess": own, "lenient": 1.5 * own / theirs}.get(kind, own / theirs)
    residual = (p - q).clamp(min=0)
    residual /= residual.sum(-1, keepdim=True)
    other = toy.draw(p if kind in ("residual", "one guess") else residual)
    return torch.where(toy.uniform(len(tokens)) < limit, tokens, other), draft


@pytest.mark.parametrize(
    ("kind", "with_draft", "verdict"),
    [
        ("right", True, LOSSLESS),
        ("residual", True, NOT_LOSSLESS),
        ("lenient", True, NOT_LOSSLESS),
        ("greedy draft", False, NOT_LOSSLESS),
        ("one guess", False, NOT_LOSSLESS),
    ],
)
def test_rules_that_are_wrong_are_found_in_2000_tokens(kind, with_draft, verdict):
    """A rejected draft's token drawn from p and not from the residual, drafts accepted too often, greedy drafts verified as drawn
    ones, and guesses without a residual."""
    for seed in range(5):
        toy = Toy(seed)
        logits = toy.logits(2000)
        tokens, draft = speculated(toy, logits, kind)
        assert judged(toy.table(logits, tokens, draft=draft if with_draft else None))["verdict"] == verdict


@pytest.mark.parametrize(
    ("said", "done", "statistic"),
    [
        ((PLAIN, 0.0), (SamplingSettings(0.9), 0.0), "log-probability"),
        ((SamplingSettings(1.0, 0, 0.9), 0.0), (PLAIN, 0.0), "impossible"),
        ((SamplingSettings(1.0, 5), 0.0), (SamplingSettings(1.0, 10), 0.0), "impossible"),
        ((PLAIN, 0.1), (PLAIN, 0.0), "impossible"),
        ((PLAIN, 0.0), (SamplingSettings(1.0, 40, 0.95), 0.05), ""),
        ((SamplingSettings(1.0, 0, 0.9), 0.0), (SamplingSettings(1.0, 0, 0.9), 0.0), None),
    ],
)
def test_settings_that_are_not_honoured_are_found(said, done, statistic):
    toy = Toy(6)
    logits = toy.logits(2000)
    record = judged(toy.table(logits, toy.draw(filtered_law(logits, *done)), *said))
    assert record["verdict"] == (LOSSLESS if statistic is None else NOT_LOSSLESS)
    if statistic:
        assert record["deviations"][statistic]["p"] < record["bound"]


def test_a_control_absorbs_what_the_engine_rounds_and_nothing_else():
    """Quantised weights, say: another distribution, which differs from prefix to prefix."""
    toy = Toy(7)

    def tokens(kind=None, settings=PLAIN):
        logits = toy.logits(2000)
        rounded = 0.85 * logits + 0.4 * toy.normal(*logits.shape)
        drawn = toy.draw(filtered_law(rounded, settings, 0.0)) if kind is None else speculated(toy, rounded, kind)[0]
        return toy.table(logits, drawn, settings)

    assert judged(tokens())["verdict"] == NOT_LOSSLESS
    assert [judged(tokens("right"), tokens())["verdict"] for _ in range(10)] == [LOSSLESS] * 10
    assert judged(tokens("greedy draft"), tokens())["verdict"] == NOT_LOSSLESS
    filtered = SamplingSettings(1.0, 0, 0.9)
    edges = judged(tokens(settings=filtered), tokens(settings=filtered))
    assert edges["impossible"] > 0 and edges["verdict"] == LOSSLESS


def test_greedy_answers_may_differ_by_near_ties_alone():
    toy, greedy = Toy(8), SamplingSettings(0.0)
    logits = toy.logits(300)
    best = logits.argmax(-1)
    logits[7, (best[7] + 1) % 32] = logits[7, best[7]] - 5e-4
    for apart, verdict in ((None, LOSSLESS), (1, LOSSLESS), (2, NOT_LOSSLESS)):
        tokens = best.clone()
        if apart:
            tokens[7] = (best[7] + apart) % 32
        record = judged(toy.table(logits, tokens, greedy))
        assert (record["verdict"], record["at_edge"]) == (verdict, int(apart == 1)) and record["largest"] != "transform"
    assert record["largest"] == "impossible" and record["impossible"] == 1


def test_answers_of_something_else_are_no_verdict_and_garbage_after_the_first_token_is():
    toy = Toy(9)
    logits, texts = toy.logits(1000), torch.arange(1000) % 50 == 0
    unlikely = logits.argmin(-1)
    with pytest.raises(ValueError, match="not answers of this model"):
        judged(toy.table(logits, unlikely))
    record = judged(toy.table(logits, torch.where(texts, toy.draw(filtered_law(logits, PLAIN, 0.0)), unlikely)))
    assert record["verdict"] == NOT_LOSSLESS and abs(record["first_tokens_z"]) < 3
    assert json.loads(json.dumps(record)) == record


METHODS = {
    "block": {"method": "speculative", "verifier": "block", "drafter": {"kind": "chain", "gamma": 3}},
    "tree": {
        "method": "speculative",
        "verifier": "traversal",
        "drafter": {"kind": "delayed_tree", "k": 2, "l1": 1, "l2": 1},
    },
}


@pytest.mark.parametrize("who", [*METHODS, "hugging_face"])
def test_answers_of_our_runtime_and_of_hugging_face_pass(who):
    """A z by position there may be of blocks that are verified as a whole, which are lossless all the same."""
    target = tiny_llama()
    pair = ModelPair(target, near(tiny_llama()))
    run = hugging_face_arm(target, None, 16)
    run = decoder_arm(build_decoder(pair, METHODS[who]), 16) if who in METHODS else run
    settings = SamplingSettings(1.0, 0, 0.95)
    passed = 0
    for repetition in range(5):
        samples = []
        for number, prompt in enumerate(toy_prompts(8)):
            out = run(prompt.tokens, settings, 100 * repetition + number)
            emitted = out.rounds and tuple(one.emitted for one in out.rounds)
            samples.append(Sample(tuple(prompt.tokens), tuple(out.tokens), **settings.filters, emitted=emitted))
        record = judged(table(pair, samples, repetition))
        passed += record["verdict"] != NOT_LOSSLESS
        assert len(record["z_by_position"]) > 1 or who == "hugging_face"
    assert passed == 5


def test_a_drafter_that_reads_the_target_is_read_along_and_its_guesses_are_of_the_past():
    """Whatever comes later, and for a prompt of one token, too, whose first answer it does not guess."""
    target = tiny_llama()
    pair = ModelPair(target, random_drafter(target))
    texts = [Sample(prompt, (3, 1, 4, 1, 5, last), 1.0) for prompt in ((2, 6, 5), (9,)) for last in (9, 2)]
    for one, other in (texts[:2], texts[2:]):
        first, second = (table(pair, [text], 0)["draft's share"][:, :-1] for text in (one, other))
        assert np.array_equal(first, second) and (first[1] > 0).all()
    whole, cut = (table(pair, [replace(texts[0], tokens=(3, *more))], 0) for more in ((1, 4), ()))
    assert np.allclose(whole["draft's share"][:, :1], cut["draft's share"], atol=1e-6)


@contextmanager
def serving(model, owner, change=lambda said: said, status=200):
    """An imitation of a server, whose tokens are drawn by ``model``; what it was asked for."""
    pair, asked = ModelPair(model), []
    decoder = build_decoder(pair, {"method": "autoregressive"})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.say(200, {"data": [{"id": "org/target", "owned_by": owner}]} if self.path == "/v1/models" else {})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            settings = SamplingSettings(body["temperature"], body["top_k"], body["top_p"])
            most = body["max_tokens" if owner == "vllm" else "n_predict"]
            tokens = decoder_arm(decoder, most)(body["prompt"], settings, body["seed"]).tokens
            said = {"choices": [{"token_ids": tokens, "prompt_token_ids": body["prompt"]}]}
            if owner != "vllm":
                said = {"tokens": tokens, "tokens_evaluated": len(body["prompt"])}
            self.say(status, change(said))

        def say(self, code, said):
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model's folder, and prompts beside it."""
    path = tmp_path_factory.mktemp("engine")
    tiny_llama().save_pretrained(path / "target")
    write_prompts(path / FILE, toy_prompts(6))
    return path


def audit(folder, capsys, *more):
    """Exit code, what was printed, and what was warned of."""
    fixed = (
        f"audit --target {folder / 'target'} --prompts {folder} --device cpu --dtype float32 --count 16 --new-tokens 32"
    )
    try:
        main([*fixed.split(), *more])
        code = 0
    except SystemExit as error:
        code = error.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


NAMES = {"vllm": ("/v1/completions", "max_tokens"), "llamacpp": ("/completion", "n_predict")}


@pytest.mark.parametrize("owner", NAMES)
def test_a_server_is_asked_for_all_settings_and_judged(folder, capsys, owner):
    path, most = NAMES[owner]
    options = ["--top-p", "0.9", "--seed", "5", "--together", "2"]
    with serving(tiny_llama(), owner) as (url, asked):
        code, out, err = audit(folder, capsys, "--server", f"{url}/v1/", *options, "--control", url)
    assert (code, out.splitlines()[0]) == (0, LOSSLESS) and len(out.splitlines()) == 5 and "warning" not in err
    bodies = [body for where, body in asked if where == path]
    assert sorted(body["seed"] for body in bodies) == [*range(5, 37)], "a control has seeds of its own"
    given = {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0, most: 32, "presence_penalty": 0.0}
    own = {"model": "org/target", "return_token_ids": True, "repetition_penalty": 1.0}
    own = own if owner == "vllm" else {"samplers": ["temperature", "min_p", "top_k", "top_p"], "return_tokens": True}
    assert all(body.items() >= (given | own).items() for body in bodies)


def test_a_model_that_is_not_the_target_is_found_and_answers_are_kept(folder, capsys, tmp_path):
    """An interrupted run goes on where it stopped; the file can be judged by itself; files of other settings are refused."""
    save = tmp_path / "answers.jsonl"
    with serving(near(tiny_llama(), 0.3), "vllm") as (url, asked):
        code, out, _ = audit(folder, capsys, "--server", url, "--save", str(save))
        assert code == 1 and out.startswith(NOT_LOSSLESS) and len(asked) == 16
        lines = save.read_text().splitlines()
        save.write_text("\n".join(lines[:12]) + "\n")
        assert audit(folder, capsys, "--server", url, "--save", str(save))[:2] == (code, out)
        assert len(asked) == 20 and save.read_text().splitlines() == lines
        message = audit(folder, capsys, "--server", url, "--save", str(save), "--temperature", "0.5")[0]
        assert "other prompts" in message
    again = json.loads(audit(folder, capsys, "--samples", str(save), "--json")[1])
    assert again["verdict"] == NOT_LOSSLESS and again["tokens"] == 512
    fewer = json.loads(lines[0]) | {"temperature": 0.5}
    (tmp_path / "other.jsonl").write_text(json.dumps(fewer))
    assert (
        "same settings" in audit(folder, capsys, "--samples", str(save), "--control", str(tmp_path / "other.jsonl"))[0]
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"change": lambda said: {"choices": [{"text": "words"}]}}, "no token ids"),
        ({"change": lambda said: {"choices": [said["choices"][0] | {"prompt_token_ids": [1]}]}}, "another prompt"),
        ({"change": lambda said: {"choices": [{"token_ids": [99]}]}}, "another model"),
        ({"change": lambda said: {"error": "no memory"}, "status": 500}, "refuses (500): .*no memory"),
    ],
)
def test_what_a_server_cannot_do_is_one_line(folder, capsys, fault, message):
    with serving(tiny_llama(), "vllm", **fault) as (url, _):
        code, out, _ = audit(folder, capsys, "--server", url)
    assert "\n" not in code and not out
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        raise ValueError(code)


def test_no_server_no_source_and_no_samples(folder, capsys, tmp_path):
    for options in (
        ["--server", "http://127.0.0.1:9"],
        ["--server", "somewhere"],
        [],
        ["--samples", str(tmp_path / "no")],
    ):
        code = audit(folder, capsys, *options)[0]
        assert isinstance(code, str) and "\n" not in code
    with serving(tiny_llama(), "vllm") as (url, _), pytest.raises(ValueError, match="lists no model"):
        Server.at(f"{url}/elsewhere")


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": [1], "tokens": [2]}',
        '{"prompt": [1], "tokens": [], "temperature": 1.0}',
        '{"prompt": [1], "tokens": [-2], "temperature": 1.0}',
        '{"prompt": [1], "tokens": [2], "temperature": -1.0}',
        '{"prompt": [1], "tokens": [2], "temperature": 1.0, "min_p": 1.5}',
        '{"prompt": [1], "tokens": [2], "temperature": 1.0, "repetition_penalty": 1.2}',
        '{"prompt": [1], "tokens": [2, 3], "temperature": 1.0, "emitted": [1]}',
        "[1]",
        "no JSON",
        "",
    ],
)
def test_lines_that_are_no_samples_are_named(tmp_path, line):
    path = tmp_path / "samples.jsonl"
    path.write_text('{"prompt": [1], "tokens": [2], "temperature": 1, "emitted": null}\n' + line + "\n")
    with pytest.raises(ValueError, match="line 2"):
        read_samples(path)
    path.write_text("")
    with pytest.raises(ValueError, match="no sample"):
        read_samples(path)


def test_prompts_by_rule_are_chats_where_the_target_has_a_template(tokenizer, monkeypatch):
    documents = [Document(f"d{n}", "", "chat", ({"role": "user", "content": f"What is {n}?"},)) for n in range(9)]
    monkeypatch.setattr(engine, "chat_documents", lambda seed: documents)
    parser = ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--target", "folder", "--count", "3", "--new-tokens", "20"])
    pair = ModelPair(tiny_llama(300, max_position_embeddings=99), tokenizer=tokenizer)
    plain = prompts_of(args, pair)
    pair.tokenizer.chat_template = "{% for m in messages %}Q: {{ m['content'] }}\nA:{% endfor %}"
    try:
        chats = prompts_of(args, pair)
    finally:
        pair.tokenizer.chat_template = None
    texts = [[tokenizer.decode(one) for one in some] for some in (plain, chats)]
    assert len(plain) == 3 and texts[1] == [f"Q: {text}\nA:" for text in texts[0]]
    args.new_tokens = 3000
    with pytest.raises(ValueError, match="no prompt leaves room"):
        prompts_of(args, pair)
