import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from pipelines.documents import Source, load_documents
from pipelines.prompt_table import read_prompts
from pipelines.stages import prompts as stage
from pipelines.stages.prompts import Mix, PromptParameters, draw_prompts, run
from tests.pipelines.conftest import TEXT
from tests.pipelines.test_pair_stage import rewrite

SLICES = ("code", "prose", "tables")
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"question {i}?", "chat": [{"role": "user", "content": f"hi {i}"}]} for i in range(40)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.fixture
def chat_tokenizer(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", CHAT_TEMPLATE)
    return tokenizer


def parameters(*sources: Source, **changes) -> PromptParameters:
    return PromptParameters(sources=sources, **{"train": 5, "validation": 2, "test": 3, "reserve": 1} | changes)


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    """Parameters that cut windows from documents of three slices."""
    path = tmp_path_factory.mktemp("windows") / "rows.jsonl"
    texts = [TEXT[start : start + 300] for start in range(0, 18_000, 300)]
    path.write_text("\n".join(json.dumps({"text": one, "of": SLICES[n % 3]}) for n, one in enumerate(texts)))
    source = Source(kind="file", name="s", path=str(path), cut="window", slice_column="of")
    return parameters(source, train=30, validation=9, test=12, reserve=3, min_tokens=8, max_tokens=16, room=8)


@pytest.fixture(scope="module")
def drawn(windows, tokenizer):
    return draw_prompts(windows, tokenizer)


def test_numbers_of_prompts_and_balance_of_slices(drawn):
    for split, count in (("train", 30), ("validation", 9), ("test", 12)):
        chosen = [prompt for prompt in drawn if prompt.split == split]
        assert len(chosen) == count
        for n in range(1, count + 1):
            slices = [prompt.slice for prompt in chosen[:n]]
            counts = [slices.count(name) for name in SLICES]
            assert max(counts) - min(counts) <= 1, "any prefix alternates slices"


def test_no_document_is_in_two_splits(drawn):
    splits: dict[str, set[str]] = {}
    for prompt in drawn:
        splits.setdefault(prompt.document, set()).add(prompt.split)
    assert all(len(names) == 1 for names in splits.values())
    assert set.union(*splits.values()) == set(stage.SPLITS) - {"drafter"}


def test_windows_have_the_asked_lengths_and_are_in_their_documents(drawn, windows, tokenizer):
    texts = {document.id: document.text for document in load_documents(windows.sources[0])}
    for prompt in drawn:
        assert 8 <= len(prompt.tokens) <= 16
        assert prompt.text == tokenizer.decode(prompt.tokens)
        assert prompt.text in texts[prompt.document]
    assert len({tuple(prompt.tokens) for prompt in drawn}) > 0.95 * len(drawn)
    assert len({prompt.id for prompt in drawn}) == len(drawn)


def test_prompts_are_seeded(drawn, windows, tokenizer):
    assert draw_prompts(windows, tokenizer) == drawn
    assert draw_prompts(replace(windows, seed=1), tokenizer) != drawn


def test_documents_are_split_by_hash(jsonl, tokenizer):
    source = Source(kind="file", name="s", path=jsonl)
    prompts = draw_prompts(parameters(source, train=99, validation=99, test=99, reserve=99), tokenizer)
    counts = {split: sum(prompt.split == split for prompt in prompts) for split in stage.SPLITS}
    assert counts == {"drafter": 0, "train": 18, "validation": 8, "test": 10, "reserve": 4}
    assert len({prompt.document for prompt in prompts}) == 40
    assert {prompt.text for prompt in prompts} == {f"question {i}?" for i in range(40)}


def test_chat_templates_are_applied(jsonl, chat_tokenizer):
    for source in (
        Source(kind="file", name="s", path=jsonl, messages="chat"),
        Source(kind="file", name="s", path=jsonl, template="hi {text}", chat=True),
    ):
        prompts = draw_prompts(parameters(source), chat_tokenizer)
        assert all(prompt.text.startswith("<user>hi") and prompt.text.endswith("<bot>") for prompt in prompts)


PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endfor %}"


def test_a_template_that_reads_parts_alone_is_given_parts(jsonl, chat_tokenizer, monkeypatch):
    source = Source(kind="file", name="s", path=jsonl, messages="chat")
    plain = [one.text.removesuffix("<bot>") for one in draw_prompts(parameters(source), chat_tokenizer)]
    monkeypatch.setattr(chat_tokenizer, "chat_template", PARTS)
    assert [one.text for one in draw_prompts(parameters(source), chat_tokenizer)] == plain
    for template, reason in {"<user>": "leaves out", "{{ 'n' + messages|length }}": "can only"}.items():
        monkeypatch.setattr(chat_tokenizer, "chat_template", template)
        with pytest.raises(ValueError, match=f"source 's': the chat template refuses its messages: .*{reason}"):
            draw_prompts(parameters(source), chat_tokenizer)


def test_too_long_documents_are_left_out_and_counted(jsonl, tokenizer, capsys):
    with pytest.raises(
        ValueError, match=r"no document of split 'train' yields a prompt: [1-9]\d* are longer than 2 tokens"
    ):
        draw_prompts(parameters(Source(kind="file", name="s", path=jsonl), longest=2), tokenizer)


def test_stage_writes_what_read_prompts_reads(run_pair, save_model, jsonl, tmp_path):
    folder = run_pair({"target": str(save_model()), "draft": str(save_model())})
    section = {
        "sources": [{"kind": "file", "name": "s", "path": jsonl}],
        "train": 5,
        "validation": 2,
        "test": 3,
        "reserve": 2,
    }
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump({"pairs": {"p": {"prompts": section, "mix": {}}}}))
    contents = []
    for name in ("one", "two"):
        run(SimpleNamespace(pair="p", pair_folder=folder, output=tmp_path / name, params=params))
        contents.append((tmp_path / name / "prompts.parquet").read_bytes())
    assert contents[0] == contents[1]
    assert [len(read_prompts(tmp_path / "one", split)) for split in stage.SPLITS] == [0, 5, 2, 3, 2]
    assert read_prompts(tmp_path / "one", "train", limit=2) == read_prompts(tmp_path / "one", "train")[:2]
    rewrite(folder, vocabulary={"target": 90})
    with pytest.raises(
        ValueError, match=r"the tokenizer has .*vocabulary ends at 90.*tokenizer that the model was made"
    ):
        run(SimpleNamespace(pair="p", pair_folder=folder, output=tmp_path / "three", params=params))
    assert not (tmp_path / "three").exists()
    with pytest.raises(ValueError, match=r"split 'dev' is unknown\. Splits: drafter, train, validation, test, reserve"):
        read_prompts(tmp_path / "one", "dev")


def test_documents_of_other_slices_than_the_mixs_are_left_out(windows, tokenizer):
    prompts = draw_prompts(windows, tokenizer, Mix(("prose", "tables")))
    assert {prompt.slice for prompt in prompts} == {"prose", "tables"}
    with pytest.raises(ValueError, match=r"mix\.slices names chat, but documents are of code, prose, tables"):
        draw_prompts(windows, tokenizer, Mix(("chat",)))
