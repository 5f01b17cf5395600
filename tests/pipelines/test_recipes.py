"""Recipes on rows of each set's true schema, and what a source may change of them."""

import functools
import http.server
import json
import re
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from pipelines.documents import Source, load_documents
from pipelines.recipes import _registry
from pipelines.stages.prompts import PromptParameters, draw_prompts
from predictors.config import parse_config
from tests.pipelines.conftest import END
from tests.pipelines.test_prompts_stage import CHAT_TEMPLATE

RECIPES = _registry()["recipes"]
ANSWER = {"aliases": ["Sunset Blvd"], "matched_wiki_entity_name": "", "value": "Sunset Boulevard"}
SOLVE = "\nPlease reason step by step, and put your final answer within \\boxed{}."
ROWS = {  # a row's columns that are read and one that is not, and the text or messages that come of it
    "humaneval": ({"task_id": "HumanEval/0", "prompt": "def f():\n"}, "Complete this function.\ndef f():\n"),
    "gsm8k": ({"question": "How many?", "answer": "2\n#### 2"}, "How many?"),
    "cnn_dailymail": ({"article": "(CNN) It rained.", "id": "42c0"}, "Summarize: (CNN) It rained.\nTL;DR:"),
    "spec_bench": ({"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]}, ["Write."]),
    "mt_bench": ({"category": "math", "prompt": ["Area?", "Circle?"], "reference": ["Area is 3", "5pi"]}, ["Area?"]),
    "trivia_qa": ({"question": "Which musical?", "entity_pages": [], "answer": ANSWER}, "Which musical?"),
    "alpaca": ({"instruction": "Give three tips.", "input": "", "output": "1. 2. 3."}, "Give three tips."),
    "mbpp": (
        {"task_id": 11, "text": "Remove it.", "test_list": ["assert a", "assert b", "assert c"]},
        "You are an expert Python programmer, and here is your task: Remove it. Your code should pass these tests:\n\n"
        "assert a\nassert b\nassert c",
    ),
    "math_500": ({"problem": r"Find $\frac{1}{2}$.", "solution": "s"}, r"Find $\frac{1}{2}$." + SOLVE),
    "olympiad_bench": ({"question": "Find {x}.", "context": None}, "Find {x}." + SOLVE),
    "live_code_bench": (
        {"question_title": "A. Cards", "question_content": "There are cards.", "starter_code": "class Solution:"},
        "Write a correct Python program that matches the specification and passes all tests.\n\n### Question\n"
        "There are cards.\n\n### Starter code, if any\nclass Solution:\n\n### Answer",
    ),
    "opus_100": ({"translation": {"en": "Hi.", "fr": "Salut."}}, "Translate English to French.\nEnglish: Hi.\nFrench:"),
    "instruct_coder": ({"instruction": "Rename x.", "input": "x = 1", "output": "y = 1"}, "Rename x.\n\nx = 1"),
}


def written(path: Path, *rows: dict) -> dict:
    """A source's fields that name a file of these rows, which has the suffix's format."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return {"kind": "file", "path": str(path)}


def source(recipe: str, **values) -> Source:
    return parse_config(Source, {"recipe": recipe, **values}, "sources[0]")


def said(document) -> list[str]:
    return [message["content"] for message in document.messages]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_row_of_the_sets_own_schema_becomes_its_prompt(tmp_path, recipe, suffix):
    row, expected = ROWS[recipe]
    made = source(recipe, **written(tmp_path / f"rows{suffix}", row))
    (document,) = load_documents(made)
    assert (said(document) if made.turns else document.text) == expected
    assert document.slice == ("mt_bench" if recipe == "spec_bench" else recipe) and made.name == recipe
    assert made.converses and made.cut == "whole"


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_the_hub_is_asked_for(monkeypatch, recipe):
    asked, entry = {}, RECIPES[recipe]
    if entry["kind"] == "file":
        assert re.match("https://.*/[0-9a-f]{40}/", source(recipe).path)
        return
    rows = Dataset.from_list([ROWS[recipe][0]])
    monkeypatch.setattr("datasets.load_dataset", lambda *args, **kwargs: asked.update(args=args, **kwargs) or rows)
    assert len(load_documents(source(recipe, revision="abc"))) == 1
    assert asked == {"args": (entry["path"], entry.get("config")), "split": entry["split"], "revision": "abc"}


def test_spec_bench_is_read_over_http_with_its_uneven_references(tmp_path):
    """The set's references are texts, lists or nothing, in which `datasets` finds no one type."""
    rows = [
        {"question_id": 81, "category": "coding", "turns": ["a", "b"]},
        {"question_id": 161, "category": "rag", "turns": ["c"], "reference": ["r"]},
        {"question_id": 241, "category": "qa", "turns": ["d"], "reference": [["r", "s"]]},
    ]
    written(tmp_path / "question.jsonl", *rows)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        documents = load_documents(source("spec_bench", path=f"{url}/question.jsonl"))
        assert [document.id for document in documents] == [f"spec_bench/question.jsonl:{n}" for n in range(3)]
        assert [(d.slice, *said(d)) for d in documents] == [("mt_bench", "a"), ("rag", "c"), ("qa", "d")]
        rag = load_documents(source("spec_bench", path=f"{url}/question.jsonl", where={"category": ["rag"]}))
        assert [said(document) for document in rag] == [["c"]]
        with pytest.raises(ValueError, match=r"no\.jsonl could not be read"):
            load_documents(source("spec_bench", path=f"{url}/no.jsonl"))
        server.shutdown()


def test_what_a_source_gives_replaces_the_recipes():
    given = {"name": "mine", "template": "Q: {question}", "chat": False, "split": "test", "limit": 7}
    changed = source("gsm8k", **given)
    assert vars(changed).items() >= (given | {"column": None, "path": "openai/gsm8k", "config": "main"}).items()
    assert source("opus_100", config="de-en").path == "Helsinki-NLP/opus-100"
    assert source("gsm8k", path="somewhere").config is None
    renamed = source("spec_bench", slice="all", template="{turns[0]}", chat=True)
    assert (renamed.slice_column, renamed.slices, renamed.turns) == (None, {}, None)


ONE, BOTH = ["<user>one<bot>"], ["<user>one<bot>", "<user>one<assistant>A<user>two<bot>"]


@pytest.mark.parametrize(
    ("answers", "conversations"), [(["A", "unread"], BOTH), (["A", ""], BOTH), ([""], ONE), (None, ONE)]
)
def test_a_second_turn_is_a_prompt_of_the_same_document_where_the_first_is_answered(
    tmp_path, tokenizer, monkeypatch, answers, conversations
):
    """And vicuna's template is FastChat's: an answer ends with the end of sequence, and no space stands after that."""
    monkeypatch.setattr(tokenizer, "chat_template", CHAT_TEMPLATE)
    row = {"prompt": ["one", "two"], "category": "math", "reply": answers}
    given = {"turns": "prompt", "answers": "reply", "shares": ["test"], **written(tmp_path / "r.jsonl", row)}
    prompts = draw_prompts(counts(source("mt_bench", **given), test=9), tokenizer)
    assert [prompt.text for prompt in prompts] == conversations
    assert {prompt.document for prompt in prompts} == {"mt_bench/r.jsonl:0"}
    vicuna = draw_prompts(counts(source("mt_bench", **given, system="S.", chat_template="vicuna"), test=9), tokenizer)
    assert [prompt.text for prompt in vicuna][1:] == [
        f"{END}S. USER: one ASSISTANT: A{END}USER: two ASSISTANT:" for _ in conversations[1:]
    ]


def counts(*sources: Source, **splits: int) -> PromptParameters:
    return PromptParameters(sources=sources, **{"train": 0, "validation": 0, "test": 0, "reserve": 0} | splits)


def questions(path: Path, count: int) -> dict:
    return written(path, *({"question": f"{path.stem} {index}?", "answer": ""} for index in range(count)))


def test_a_source_is_kept_to_the_splits_it_names(tmp_path, tokenizer):
    """Transfer: what is learnt from one source is scored on another."""
    learnt = source("gsm8k", chat=False, shares=["validation", "train"], **questions(tmp_path / "learnt.jsonl", 26))
    scored = source("trivia_qa", chat=False, shares=["test"], **questions(tmp_path / "scored.jsonl", 10))
    shared = Source(kind="file", name="shared", path=learnt.path, column="question")
    drawn = {"train": 99, "validation": 99, "test": 99, "reserve": 99}
    prompts = draw_prompts(counts(learnt, scored, shared, **drawn), tokenizer)
    numbers = {}
    for prompt in prompts:
        numbers.setdefault(prompt.source, {}).setdefault(prompt.split, set()).add(prompt.document)
    by_source = {name: {split: len(some) for split, some in splits.items()} for name, splits in numbers.items()}
    assert by_source["gsm8k"] == {"train": 18, "validation": 8} and by_source["trivia_qa"] == {"test": 10}
    assert by_source["shared"].keys() == drawn.keys() and sum(by_source["shared"].values()) == 26
    with pytest.raises(ValueError, match=r"split 'reserve' yields a prompt: .*'shares'"):
        draw_prompts(counts(learnt, scored, **drawn), tokenizer)


def test_named_chat_templates_and_system_messages(tmp_path, tokenizer):
    file = questions(tmp_path / "q.jsonl", 1)

    def text(**values) -> str:
        made = source("gsm8k", shares=["test"], **file, **values)
        return draw_prompts(counts(made, test=1), tokenizer)[0].text

    start = (
        "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions. "
    )
    assert text(chat_template="vicuna") == f"{END}{start}USER: q 0? ASSISTANT:"
    assert text(chat_template="vicuna", system="Be brief.") == f"{END}Be brief. USER: q 0? ASSISTANT:"
    assert text(chat_template="plain", system="Be brief.") == f"{END}Be brief.\nq 0?"
    assert text(chat_template=CHAT_TEMPLATE, system="Be brief.") == "<system>Be brief.<user>q 0?<bot>"
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    with pytest.raises(ValueError, match=r"'gsm8k': the chat template refuses its messages: no system"):
        text(chat_template=refusing, system="Be brief.")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recipe": "gsm9k"}, rf"sources\[0\]: there is no recipe 'gsm9k'\. Recipes: {', '.join(RECIPES)}"),
        ({"recipe": "gsm8k", "chat_template": "vicunia"}, "no chat template 'vicunia'. Give one of vicuna, plain"),
        ({"recipe": "gsm8k", "chat": False, "system": "a"}, "belong to conversations"),
        ({"recipe": "gsm8k", "where": {"question": "a"}}, r"where\[question\] must be a list of values, got 'a'"),
        ({"recipe": "gsm8k", "shares": ["dev"]}, "must be one of drafter, train, validation, test, reserve, got 'dev'"),
        ({"recipe": "gsm8k", "cut": "window"}, "windows cannot be cut from conversations"),
    ],
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        parse_config(Source, values, "sources[0]")


@pytest.mark.parametrize(
    ("recipe", "row", "message"),
    [
        ("mbpp", {"text": "a", "test_list": ["b"]}, "does not fit the template"),
        ("spec_bench", {"category": "qa", "turns": "a"}, "expected a list of texts, got 'a'"),
        ("spec_bench", {"category": "qa", "turns": []}, "no documents but 1 empty ones"),
        ("alpaca", {"instruction": "a", "input": "given"}, "no documents"),
    ],
)
def test_rows_that_do_not_fit_are_named(tmp_path, recipe, row, message):
    made = source(recipe, **written(tmp_path / "r.jsonl", row))
    with pytest.raises(ValueError, match=message):
        load_documents(made)
