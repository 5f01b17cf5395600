"""Conversations of a source: what of them becomes a prompt, and what is refused."""

import json

import pytest

from pipelines.documents import Source, load_documents


def said(tmp_path, *messages):
    (tmp_path / "m.jsonl").write_text(json.dumps({"talk": messages}))
    (document,) = load_documents(Source(kind="file", name="s", path=str(tmp_path / "m.jsonl"), messages="talk"))
    return document.messages


@pytest.mark.parametrize("role", ["assistant", "Assistant", "model", "gpt", "BOT"])
def test_whoever_answers_is_the_assistant(tmp_path, role):
    user, answer = {"role": "user", "content": "a"}, {"role": role, "content": "b"}
    assert said(tmp_path, user, answer) == (user,)
    assert said(tmp_path, user, answer, {"role": "human", "content": "c"}, answer) == (
        user,
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    )


def part(text) -> dict:
    return {"type": "text", "text": text}


def test_parts_of_text_are_one_text(tmp_path):
    messages = said(
        tmp_path,
        {"role": "system", "content": [part("Be brief.")]},
        {"role": "user", "content": [part("Name "), {"cache": None, **part("a city.")}]},
        {"role": "assistant", "content": "Oslo", "tool_calls": [], "function_call": None},
        {"role": "user", "content": "Another.", "name": "Ada"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},  # the answer, which is left to the model
    )
    assert [tuple(message.values()) for message in messages] == [
        ("system", "Be brief."),
        ("user", "Name a city."),
        ("assistant", "Oslo"),
        ("user", "Another."),
    ]


ODD = [
    ({"content": [part("see"), {"type": "image_url", "image_url": {"url": "a.png"}}]}, "image_url"),
    ({"content": [{"type": "input_audio", "input_audio": {}}]}, "input_audio"),
    ({"content": [part(None)]}, "None"),
    ({"content": None}, "None"),
    ({"content": {"text": "a"}}, "text"),
    ({"content": 7}, "7"),
    ({"content": "a", "role": 3}, "'role': 3"),
    ({"content": "", "role": "assistant", "function_call": {"name": "find"}}, "function_call.*find"),
    ({"content": None, "role": "assistant", "tool_calls": [{"id": "1"}]}, "tool_calls"),
    ({"content": "rain", "role": "tool", "tool_call_id": "1"}, "tool_call_id"),
]


@pytest.mark.parametrize(("message", "word"), ODD)
def test_what_is_no_text_is_refused_by_name(tmp_path, message, word):
    with pytest.raises(ValueError, match=rf"'s/m\.jsonl:0': .*{word}.* Leave the document out") as error:
        said(tmp_path, {"role": "user", **message}, {"role": "user", "content": "so?"})
    assert "\n" not in str(error.value)
