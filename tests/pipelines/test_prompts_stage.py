"""Prompts of files, windows and chats by rule: how the stage draws, encodes and deals them out."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from pipelines.chat_prompts import chat_documents, paragraphs, without
from pipelines.documents import Source, load_documents
from pipelines.prompt_table import SPLITS, read_prompts, write_prompts
from pipelines.shares import Document, Shares, share_documents
from pipelines.stages.prompts import Mix, PromptParameters, draw_prompts, run
from tests.pipelines.conftest import TEXT
from tests.pipelines.test_pair_stage import rewrite

SLICES = ("code", "prose", "tables")
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
CHAT_SHARES = Shares(drafter=0.5, train=0.2, validation=0.1, test=0.15, reserve=0.05)
COUNTS = {
    "windows": {"train": 30, "validation": 9, "test": 12, "reserve": 3},
    "chat": {"drafter": 24, "train": 12, "validation": 8, "test": 8, "reserve": 4},
}


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"question {i}?", "chat": [{"role": "user", "content": f"hi {i}"}]} for i in range(40)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def chat_tokenizer(tokenizer):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "chat_template", CHAT_TEMPLATE)
        yield tokenizer


def parameters(*sources: Source, **changes) -> PromptParameters:
    return PromptParameters(sources=sources, **{"train": 5, "validation": 2, "test": 3, "reserve": 1} | changes)


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    """Parameters that cut windows from documents of three slices."""
    path = tmp_path_factory.mktemp("windows") / "rows.jsonl"
    texts = [TEXT[start : start + 300] for start in range(0, 18_000, 300)]
    path.write_text("\n".join(json.dumps({"text": one, "of": SLICES[n % 3]}) for n, one in enumerate(texts)))
    source = Source(kind="file", name="s", path=str(path), cut="window", slice_column="of")
    return parameters(source, **COUNTS["windows"], min_tokens=8, max_tokens=16, room=8)


CHAT = PromptParameters((Source(kind="chat", name="chat"),), longest=4096, shares=CHAT_SHARES, **COUNTS["chat"])


@pytest.fixture(scope="module")
def drawn(windows, chat_tokenizer):
    """Prompts by kind of source."""
    return {name: draw_prompts(made, chat_tokenizer) for name, made in (("windows", windows), ("chat", CHAT))}


@pytest.mark.parametrize("name", COUNTS)
def test_splits_have_their_numbers_and_balanced_slices_and_no_document_is_in_two(drawn, tmp_path, name):
    prompts, slices = drawn[name], SLICES if name == "windows" else ("code", "prose", "math", "chat")
    assert Counter(prompt.split for prompt in prompts) == COUNTS[name]
    splits = {}
    for prompt in prompts:
        assert splits.setdefault(prompt.document, prompt.split) == prompt.split
    for split in COUNTS[name]:
        chosen = [prompt.slice for prompt in prompts if prompt.split == split]
        for n in range(1, len(chosen) + 1):
            counts = [chosen[:n].count(one) for one in slices]
            assert max(counts) - min(counts) <= 1, "any prefix alternates slices"
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.text for prompt in prompts}) > 0.95 * len(prompts)
    write_prompts(tmp_path / "prompts.parquet", prompts)
    assert read_prompts(tmp_path, "train") == [prompt for prompt in prompts if prompt.split == "train"]


def test_windows_are_seeded_have_the_asked_lengths_and_are_in_their_documents(drawn, windows, tokenizer):
    assert draw_prompts(windows, tokenizer) == drawn["windows"] != draw_prompts(replace(windows, seed=1), tokenizer)
    texts = {document.id: document.text for document in load_documents(windows.sources[0])}
    for prompt in drawn["windows"]:
        assert 8 <= len(prompt.tokens) <= 16
        assert prompt.text == tokenizer.decode(prompt.tokens)
        assert prompt.text in texts[prompt.document]


def test_documents_are_split_by_hash(jsonl, tokenizer):
    source = Source(kind="file", name="s", path=jsonl)
    prompts = draw_prompts(parameters(source, train=99, validation=99, test=99, reserve=99), tokenizer)
    assert Counter(prompt.split for prompt in prompts) == {"train": 18, "validation": 8, "test": 10, "reserve": 4}
    assert len({prompt.document for prompt in prompts}) == 40
    assert {prompt.text for prompt in prompts} == {f"question {i}?" for i in range(40)}


PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endfor %}"


def test_chat_templates_are_applied_also_where_they_read_parts_alone(jsonl, chat_tokenizer, monkeypatch):
    spelt = Source(kind="file", name="s", path=jsonl, template="hi {text}", chat=True)
    prompts = draw_prompts(parameters(spelt), chat_tokenizer)
    assert all(prompt.text.startswith("<user>hi question") and prompt.text.endswith("<bot>") for prompt in prompts)
    source = Source(kind="file", name="s", path=jsonl, messages="chat")
    plain = [one.text.removesuffix("<bot>") for one in draw_prompts(parameters(source), chat_tokenizer)]
    assert all(text.startswith("<user>hi") for text in plain)
    monkeypatch.setattr(chat_tokenizer, "chat_template", PARTS)
    assert [one.text for one in draw_prompts(parameters(source), chat_tokenizer)] == plain
    for template, reason in {"<user>": "leaves out", "{{ 'n' + messages|length }}": "can only"}.items():
        monkeypatch.setattr(chat_tokenizer, "chat_template", template)
        with pytest.raises(ValueError, match=f"source 's': the chat template refuses its messages: .*{reason}"):
            draw_prompts(parameters(source), chat_tokenizer)


def test_stage_writes_what_read_prompts_reads(run_pair, save_model, jsonl, tmp_path):
    folder = run_pair({"target": str(save_model()), "draft": str(save_model())})
    section = {"sources": [{"kind": "file", "name": "s", "path": jsonl}], "train": 5, "validation": 2, "test": 3}
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump({"pairs": {"p": {"prompts": section | {"reserve": 2}, "mix": {}}}}))
    contents = []
    for name in ("one", "two"):
        run(SimpleNamespace(pair="p", pair_folder=folder, output=tmp_path / name, params=params))
        contents.append((tmp_path / name / "prompts.parquet").read_bytes())
    assert contents[0] == contents[1]
    assert [len(read_prompts(tmp_path / "one", split)) for split in SPLITS] == [0, 5, 2, 3, 2]
    assert read_prompts(tmp_path / "one", "train", limit=2) == read_prompts(tmp_path / "one", "train")[:2]
    rewrite(folder, vocabulary={"target": 90})
    with pytest.raises(ValueError, match=r"the tokenizer has .*vocabulary ends at 90"):
        run(SimpleNamespace(pair="p", pair_folder=folder, output=tmp_path / "three", params=params))
    assert not (tmp_path / "three").exists()
    with pytest.raises(ValueError, match="split 'dev' is unknown"):
        read_prompts(tmp_path / "one", "dev")
    with pytest.raises(FileNotFoundError, match="run the prompts stage first"):
        read_prompts(tmp_path, "train")


def test_documents_of_other_slices_than_the_mixs_are_left_out(windows, tokenizer):
    prompts = draw_prompts(windows, tokenizer, Mix(("prose", "tables")))
    assert {prompt.slice for prompt in prompts} == {"prose", "tables"}
    with pytest.raises(ValueError, match=r"mix\.slices names chat, but documents are of code, prose, tables"):
        draw_prompts(windows, tokenizer, Mix(("chat",)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": ()}, "sources must name at least one"),
        ({"sources": CHAT.sources * 2}, "different names"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens <= max_tokens"),
    ],
)
def test_wrong_parameters_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CHAT, **changes)


def test_sources_that_yield_no_prompt_are_refused(jsonl, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match=r"'chat' uses 'chat', but the pair's tokenizer has no chat template"):
        draw_prompts(CHAT, tokenizer)
    with pytest.raises(ValueError, match="split 'drafter' yields a prompt: .*raise its share"):
        draw_prompts(replace(CHAT, shares=Shares()), tokenizer)
    with pytest.raises(ValueError, match=r"split 'train' yields a prompt: [1-9]\d* are longer than 2 tokens"):
        draw_prompts(parameters(Source(kind="file", name="s", path=jsonl), longest=2), tokenizer)
    with pytest.raises(ValueError, match="none with kind: chat"):
        Source(kind="chat", name="c", column="a")


PRINTED = "from pipelines.chat_prompts import chat_documents; print(ascii(chat_documents()))"


@pytest.fixture(scope="module")
def made():
    return chat_documents()


def test_there_are_enough_of_every_slice_and_no_two_are_equal(made):
    prompts = [message["content"] for document in made for message in document.messages]
    assert len(prompts) == len(set(prompts)) >= 2300 and len(made) == len({document.id for document in made}) >= 1100
    documents = Counter(document.slice for document in made)
    assert documents.keys() == {"code", "prose", "math", "chat"} and min(documents.values()) >= 100
    assert all(len(text.strip()) > 0 and len(text) <= 1200 and "{" not in text.split("\n")[0] for text in prompts)


def test_no_passage_stands_in_two_documents(made):
    """Of code a function's lines, of prose paragraphs. The twin, a page under another name, is found out."""

    def shared(documents):
        told = Counter()
        for document in documents:
            texts = [message["content"].partition("\n\n")[2] for message in document.messages]
            told.update(set(texts) if document.slice == "code" else {p for text in texts for p in paragraphs(text)})
        return {text for text, count in told.items() if count > 1}

    read = [document for document in made if document.slice in ("code", "prose")]
    assert shared(read) == set()
    assert shared([*read, replace(read[0], id="twin")])


def test_only_paragraphs_that_were_seen_are_left_out():
    text = "Short.\n\nA paragraph that is long enough to be told\nfrom others.\n\nThe end."
    seen = paragraphs("A paragraph that is long enough\nto be told from others.\n\nShort.")
    assert seen == {"A paragraph that is long enough to be told from others."}
    assert without(text, seen) == "Short.\n\nThe end."


def test_they_follow_from_the_seed_alone(made):
    """And not from the order of sets and dictionaries: another process with other hashes makes the same."""
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    printed = subprocess.check_output([sys.executable, "-c", PRINTED], env=environment, text=True)
    assert printed.strip() == ascii(made)
    other = chat_documents(1)
    assert {document.id for document in other} == {document.id for document in made} and other != made


def test_prompts_are_conversations_to_answer_without_further_special_tokens(drawn, made, chat_tokenizer):
    texts = {f"<user>{message['content']}<bot>" for document in made for message in document.messages}
    for prompt in drawn["chat"]:
        assert prompt.text in texts
        assert prompt.tokens == chat_tokenizer(prompt.text, add_special_tokens=False)["input_ids"]


DEALT = {"train": 0.5, "validation": 0.2, "test": 0.2, "reserve": 0.1, "none": 0.0}


def numbered(count: int) -> list[Document]:
    return [Document(str(index), str(index), "s") for index in range(count)]


def test_shares_do_not_depend_on_the_order_of_documents():
    some = numbered(50)
    shares, turned = share_documents(some, DEALT), share_documents(some[::-1], DEALT)
    assert {name: those[::-1] for name, those in turned.items()} == shares
    assert share_documents(some, dict(reversed(DEALT.items()))) != shares, "on that of the shares"


@pytest.mark.parametrize(
    ("number", "counts"),
    [
        (0, [0, 0, 0, 0]),
        (1, [1, 0, 0, 0]),
        (3, [1, 1, 1, 0]),
        (4, [1, 1, 1, 1]),
        (10, [5, 2, 2, 1]),
        (1000, [500, 200, 200, 100]),
    ],
)
def test_every_share_gets_a_document_where_there_are_enough(number, counts):
    dealt = share_documents(numbered(number), DEALT)
    assert [len(documents) for documents in dealt.values()] == [*counts, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": 0.4}, "must not be negative and must sum to 1, got"),
        ({"test": -0.1, "train": 0.5}, "must not be negative and must sum to 1, got"),
        *(({name: 0.0, "reserve": 0.2}, f"shares.{name} is 0") for name in ("train", "validation", "test")),
    ],
)
def test_shares_that_do_not_sum_to_one_or_leave_out_what_is_scored_are_refused(change, message):
    shares = {"drafter": 0.4, "train": 0.2, "validation": 0.2, "test": 0.2, "reserve": 0.0}
    Shares(**shares)
    with pytest.raises(ValueError, match=message):
        Shares(**shares | change)
