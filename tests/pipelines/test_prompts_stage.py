import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from pipelines.builtin.corpus import Shares, builtin_shares
from pipelines.documents import Source
from pipelines.places import read_facts
from pipelines.prompt_table import read_prompts
from pipelines.stages import prompts as stage
from pipelines.stages.prompts import Mix, PromptParameters, draw_prompts, run

BUILTIN = PromptParameters(
    sources=(Source(kind="builtin", name="stdlib"),),
    train=30,
    validation=9,
    test=12,
    reserve=3,
    min_tokens=8,
    max_tokens=16,
    room=8,
)
REAL = {"source": "models"}
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
def builtin_prompts(builtin_folder, tokenizer):
    return draw_prompts(BUILTIN, read_facts(builtin_folder), tokenizer)


def test_numbers_of_prompts_and_balance_of_slices(builtin_prompts):
    for split, count in (("train", 30), ("validation", 9), ("test", 12)):
        chosen = [prompt for prompt in builtin_prompts if prompt.split == split]
        assert len(chosen) == count
        for n in range(1, count + 1):
            slices = [prompt.slice for prompt in chosen[:n]]
            counts = [slices.count(name) for name in ("code", "prose", "tables")]
            assert max(counts) - min(counts) <= 1, "any prefix alternates slices"


def test_no_document_is_in_two_splits_and_none_trained_the_pair(builtin_prompts, builtin_folder):
    splits: dict[str, set[str]] = {}
    for prompt in builtin_prompts:
        splits.setdefault(prompt.document, set()).add(prompt.split)
    assert all(len(names) == 1 for names in splits.values())
    facts = read_facts(builtin_folder)
    shares = builtin_shares(Shares(**facts["corpus"]["shares"]))
    for split in stage.SPLITS[1:]:  # no drafter is trained for a built-in pair
        drawn = {document for document, names in splits.items() if names == {split}}
        assert drawn and drawn <= {f"stdlib/{document.id}" for document in shares[split]}
    assert facts["corpus"]["trained_on"] == [document.id for document in shares["pair"]]
    assert not splits.keys() & {f"stdlib/{id}" for id in facts["corpus"]["trained_on"]}


def test_windows_have_the_asked_lengths_and_are_in_their_documents(builtin_prompts, tokenizer, few_documents):
    texts = {f"stdlib/{document.id}": document.text for document in few_documents}
    for prompt in builtin_prompts:
        assert 8 <= len(prompt.tokens) <= 16
        assert prompt.text == tokenizer.decode(prompt.tokens)
        assert prompt.text.strip("�") in texts[prompt.document]
    assert len({tuple(prompt.tokens) for prompt in builtin_prompts}) > 0.95 * len(builtin_prompts)
    assert len({prompt.id for prompt in builtin_prompts}) == len(builtin_prompts)


def test_prompts_are_seeded(builtin_prompts, builtin_folder, tokenizer):
    assert draw_prompts(BUILTIN, read_facts(builtin_folder), tokenizer) == builtin_prompts
    other = PromptParameters(**{**vars(BUILTIN), "seed": 1})
    assert draw_prompts(other, read_facts(builtin_folder), tokenizer) != builtin_prompts


def test_another_corpus_than_the_pairs_is_refused(builtin_folder, tokenizer):
    facts = read_facts(builtin_folder)
    facts["corpus"] |= {"manifest": "0", "python": "3.9.1"}
    with pytest.raises(ValueError, match=r"pair: Python 3\.9\.1, here: .*Run the pair stage again"):
        draw_prompts(BUILTIN, facts, tokenizer)


def test_the_built_in_corpus_gives_a_named_split_what_the_pair_dealt_it(builtin_folder, builtin_prompts, tokenizer):
    source = Source(kind="builtin", name="stdlib", shares=("test",))
    changed = replace(BUILTIN, sources=(source,), train=0, validation=0, reserve=0)
    prompts = draw_prompts(changed, read_facts(builtin_folder), tokenizer)
    assert prompts == [prompt for prompt in builtin_prompts if prompt.split == "test"]


def test_a_real_pairs_documents_are_split_by_hash(jsonl, tokenizer):
    source = Source(kind="file", name="s", path=jsonl)
    prompts = draw_prompts(parameters(source, train=99, validation=99, test=99, reserve=99), REAL, tokenizer)
    counts = {split: sum(prompt.split == split for prompt in prompts) for split in stage.SPLITS}
    assert counts == {"drafter": 0, "train": 18, "validation": 8, "test": 10, "reserve": 4}
    assert len({prompt.document for prompt in prompts}) == 40
    assert {prompt.text for prompt in prompts} == {f"question {i}?" for i in range(40)}


def test_chat_templates_are_applied(jsonl, chat_tokenizer):
    for source in (
        Source(kind="file", name="s", path=jsonl, messages="chat"),
        Source(kind="file", name="s", path=jsonl, template="hi {text}", chat=True),
    ):
        prompts = draw_prompts(parameters(source), REAL, chat_tokenizer)
        assert all(prompt.text.startswith("<user>hi") and prompt.text.endswith("<bot>") for prompt in prompts)


def test_too_long_documents_are_left_out_and_counted(jsonl, tokenizer, capsys):
    with pytest.raises(
        ValueError, match=r"no document of split 'train' yields a prompt: [1-9]\d* are longer than 2 tokens"
    ):
        draw_prompts(parameters(Source(kind="file", name="s", path=jsonl), longest=2), REAL, tokenizer)


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
    with pytest.raises(ValueError, match=r"split 'dev' is unknown\. Splits: drafter, train, validation, test, reserve"):
        read_prompts(tmp_path / "one", "dev")


def test_documents_of_other_slices_than_the_mixs_are_left_out(builtin_folder, tokenizer):
    facts = read_facts(builtin_folder)
    prompts = draw_prompts(BUILTIN, facts, tokenizer, Mix(("prose", "tables")))
    assert {prompt.slice for prompt in prompts} == {"prose", "tables"}
    with pytest.raises(ValueError, match=r"mix\.slices names chat, but documents are of code, prose, tables"):
        draw_prompts(BUILTIN, facts, tokenizer, Mix(("chat",)))
