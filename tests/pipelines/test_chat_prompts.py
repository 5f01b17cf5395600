"""Chat prompts by rule, and how the prompts stage deals them out and encodes them."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from pipelines.chat_prompts import chat_documents, paragraphs, without
from pipelines.documents import Source
from pipelines.prompt_table import SPLITS, read_prompts, write_prompts
from pipelines.shares import Shares
from pipelines.stages.prompts import PromptParameters, draw_prompts
from tests.pipelines.test_prompts_stage import CHAT_TEMPLATE

SHARES = Shares(drafter=0.5, train=0.2, validation=0.1, test=0.15, reserve=0.05)
COUNTS = {"drafter": 24, "train": 12, "validation": 8, "test": 8, "reserve": 4}
PARAMETERS = PromptParameters((Source(kind="chat", name="chat"),), longest=4096, shares=SHARES, **COUNTS)
PRINTED = "from pipelines.chat_prompts import chat_documents; print(ascii(chat_documents(3)))"


@pytest.fixture(scope="module")
def made():
    return chat_documents()


@pytest.fixture(scope="module")
def chat_tokenizer(tokenizer):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "chat_template", CHAT_TEMPLATE)
        yield tokenizer


@pytest.fixture(scope="module")
def drawn(chat_tokenizer):
    return draw_prompts(PARAMETERS, chat_tokenizer)


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
    assert printed.strip() == ascii(chat_documents(3))
    other = chat_documents(1)
    assert {document.id for document in other} == {document.id for document in made} and other != made


def test_no_document_is_in_two_shares_and_every_share_has_all_slices(drawn, chat_tokenizer, tmp_path):
    assert draw_prompts(PARAMETERS, chat_tokenizer) == drawn
    assert Counter(prompt.split for prompt in drawn) == COUNTS and tuple(COUNTS) == SPLITS
    write_prompts(tmp_path / "prompts.parquet", drawn)
    assert read_prompts(tmp_path, "drafter") == [prompt for prompt in drawn if prompt.split == "drafter"]
    for split in SPLITS:
        slices = Counter(prompt.slice for prompt in drawn if prompt.split == split)
        assert slices.keys() == {"code", "prose", "math", "chat"} and max(slices.values()) - min(slices.values()) <= 1
    splits = {}
    for prompt in drawn:
        assert splits.setdefault(prompt.document, prompt.split) == prompt.split
    assert len({prompt.text for prompt in drawn}) == len(drawn)


def test_prompts_are_conversations_to_answer_without_further_special_tokens(drawn, made, chat_tokenizer):
    texts = {f"<user>{message['content']}<bot>" for document in made for message in document.messages}
    for prompt in drawn:
        assert prompt.text in texts
        assert prompt.tokens == chat_tokenizer(prompt.text, add_special_tokens=False)["input_ids"]


def test_a_source_without_template_or_share_is_refused(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match=r"'chat' uses 'chat', but the pair's tokenizer has no chat template"):
        draw_prompts(PARAMETERS, tokenizer)
    with pytest.raises(ValueError, match="split 'drafter' yields a prompt: .*raise its share"):
        draw_prompts(replace(PARAMETERS, shares=Shares()), tokenizer)
    with pytest.raises(ValueError, match="none with kind: chat"):
        Source(kind="chat", name="c", column="a")


def test_only_what_trains_models_and_the_reserve_may_have_no_share():
    shares = {"drafter": 0.4, "train": 0.2, "validation": 0.2, "test": 0.2, "reserve": 0.0}
    Shares(**shares)
    for name in ("train", "validation", "test"):
        with pytest.raises(ValueError, match=f"shares.{name} is 0"):
            Shares(**shares | {name: 0.0, "reserve": 0.2})
