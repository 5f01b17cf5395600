"""Documents of every kind of source: what becomes a text or a conversation, and what is refused by name."""

import codecs
import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipelines.documents import Source, load_documents

ROWS = [{"text": "one", "topic": "x", "answer": 1}, {"text": "two", "topic": "y", "answer": 2}]


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    return path


def texts(**source) -> list[str]:
    return [document.text for document in load_documents(Source(name="s", **source))]


def test_rows_texts_and_folders(jsonl, tmp_path):
    documents = load_documents(Source(kind="file", name="s", path=str(jsonl), slice_column="topic"))
    made = [(document.id, document.text, document.slice) for document in documents]
    assert made == [("s/rows.jsonl:0", "one", "x"), ("s/rows.jsonl:1", "two", "y")]
    assert texts(kind="file", path=str(jsonl), column="topic") == ["x", "y"]
    template = "{topic}: {text} = {answer:02d}"
    assert texts(kind="file", path=str(jsonl), template=template) == ["x: one = 01", "y: two = 02"]
    assert texts(kind="file", path=str(jsonl), limit=1) == ["one"]
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    (tmp_path / "z.txt").write_text("three")
    (tmp_path / "ignored.csv").write_text("four")
    assert texts(kind="file", path=str(tmp_path / "rows.parquet")) == ["one", "two"]
    assert texts(kind="file", path=str(tmp_path / "z.txt")) == ["three"]
    assert texts(kind="file", path=str(tmp_path)) == ["one", "two", "three"]


def test_repeated_documents_are_read_once(tmp_path, capsys):
    """Splits are by document: the same text under two ids would stand in two of them."""
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"prompt {index % 20}"}) for index in range(200)))
    assert texts(kind="file", path=str(path)) == [f"prompt {index}" for index in range(20)]
    assert re.findall(r"\d+", capsys.readouterr().out) == ["180"]


def test_what_editors_and_systems_leave_in_a_folder_is_no_document(jsonl, tmp_path):
    for name in (".ipynb_checkpoints/old.jsonl", "._rows.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\0\5")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert texts(kind="file", path=str(tmp_path)) == ["one", "two"]
    assert texts(kind="file", path=str(tmp_path / ".ipynb_checkpoints/../rows.jsonl")) == ["one", "two"]


@pytest.mark.parametrize(("name", "row"), [("rows.jsonl", '{"text": "ü"}'), ("rows.csv", "text\nü")])
def test_local_datasets(jsonl, tmp_path, monkeypatch, name, row):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert texts(kind="datasets", path=str(tmp_path), split="train", column="text") == ["one", "two"]
    with pytest.raises(ValueError, match="cannot be loaded"):
        texts(kind="datasets", path=str(tmp_path), split="nope")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(row.encode("latin-1"))
    with pytest.raises(ValueError, match=r"'s': dataset .* cannot be loaded: .*0xfc"):
        texts(kind="datasets", path=str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("content", "source", "message"),
    [
        (ROWS, {"column": "body"}, "a row has no column 'body'"),
        (ROWS, {"messages": "text"}, "expected a list of messages"),
        (ROWS, {"column": "answer"}, "holds 1, not a text"),
        ([ROWS[0] | {"more": None}], {"template": "{text} {more}"}, "does not fit .*null"),
        (ROWS, {"where": {"topic": ["none"]}}, r"'s' has no documents where {'topic': \['none'\]}\."),
        ([{"text": " "}], {}, "'s' has no documents but 1 empty ones"),
        ([{"text": "a\ud800"}], {}, "'s/bad.jsonl:0' holds a lone surrogate"),
        (b"[" * 100_000, {}, "line 1: no valid JSON"),
        (b'{"text": "a"}\n{"text": "\xff"}', {}, "line 2: no valid JSON"),
        ([[1]], {}, "line 1: expected a JSON object"),
    ],
)
def test_bad_rows_and_wrong_columns_are_refused(tmp_path, content, source, message):
    content = content if isinstance(content, bytes) else "\n".join(map(json.dumps, content)).encode()
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        texts(kind="file", path=str(tmp_path / "bad.jsonl"), **source)


def test_empty_rows_are_left_out_and_counted(tmp_path, capsys):
    rows = ('{"text": "a"}', '{"text": " "}', '{"text": ""}', r'{"text": "b", "unread": "\ud800"}', '{"text": "c"}')
    (tmp_path / "some.jsonl").write_text("\n".join(rows))
    assert texts(kind="file", path=str(tmp_path / "some.jsonl"), limit=2) == ["a", "b"]
    assert re.fullmatch(r"s: (\d+) .*\n", capsys.readouterr().out)[1] == "2"


def test_missing_and_unreadable_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        texts(kind="file", path=str(tmp_path / "no.jsonl"))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"cut\.parquet: not a readable Parquet file .*again"):
        texts(kind="file", path=str(tmp_path / "cut.parquet"))
    (tmp_path / "cut.parquet").unlink()
    (tmp_path / "a.csv").write_text("")
    for path in (tmp_path, tmp_path / "a.csv"):
        with pytest.raises(ValueError, match=r"expected \.jsonl, \.parquet, \.txt"):
            texts(kind="file", path=str(path))


SAID = "naïve – 東京"


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_a_mark_tells_the_encoding_and_is_no_text(tmp_path, codec):
    """Of every file by itself, and of joined ones, whose second mark stands within."""
    mark = codecs.BOM_UTF16_BE if codec == "utf-16-be" else b""
    for place, folder in enumerate((tmp_path, tmp_path / "more")):
        folder.mkdir(exist_ok=True)
        (folder / "a.txt").write_bytes(mark + f"{SAID} {place}\r\nend".encode(codec))
        rows = f'{{"text": "{SAID} row {place}"}}\r\n\r\n{{"text": "{place}"}}'
        (folder / "b.jsonl").write_bytes(mark + rows.encode(codec))
    expected = [f"{SAID} 0\nend", f"{SAID} row 0", "0", f"{SAID} 1\nend", f"{SAID} row 1", "1"]
    assert texts(kind="file", path=str(tmp_path)) == expected
    (tmp_path / "joined.jsonl").write_bytes(b"".join(f'{{"text": "{n}"}}\n'.encode("utf-8-sig") for n in range(2)))
    assert texts(kind="file", path=str(tmp_path / "joined.jsonl")) == ["0", "1"]


OTHERS = [
    ("ü".encode("cp1252"), "0xfc"),
    ("日本".encode("shift-jis"), "UTF-8"),
    (b"plain".decode().encode("utf-16-le"), "NUL"),
    (codecs.BOM_UTF16_LE + b"odd", "utf-16"),
    (gzip.compress(b"text", mtime=0), "compressed"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    (b"\xff{", "UTF-8"),
    ("32 bits".encode("utf-32"), "NUL"),
]


@pytest.mark.parametrize(("content", "reason"), OTHERS)
@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
def test_other_encodings_are_refused_with_the_file_and_the_remedy(tmp_path, name, content, reason):
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{tmp_path / name}.*Save it in UTF-8") as error:
        texts(kind="file", path=str(tmp_path))
    assert "\n" not in str(error.value) and (reason in str(error.value) or name == "x.jsonl")


def test_of_a_dataset_only_what_is_read_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    features = {"text": {"dtype": "string", "_type": "Value"}, "sound": {"_type": "Audio"}}
    table = pa.table({"text": ["a"], "sound": pa.array([{"bytes": b"RIFF", "path": "a.wav"}])})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pa.parquet.write_table(table, tmp_path / "data" / "train.parquet")
    assert texts(kind="datasets", path=str(tmp_path / "data")) == ["a"]
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").write_text("")
    for path, options, reason in (("data", {"column": "sound"}, "torchcodec"), ("script", {}, "no longer supported")):
        with pytest.raises(ValueError, match=f"'s': dataset .*{path}' cannot be loaded: .*{reason}"):
            texts(kind="datasets", path=str(tmp_path / path), **options)


def said(tmp_path, *messages):
    (tmp_path / "m.jsonl").write_text(json.dumps({"talk": messages}))
    (document,) = load_documents(Source(kind="file", name="s", path=str(tmp_path / "m.jsonl"), messages="talk"))
    return document.messages


@pytest.mark.parametrize("role", ["assistant", "Assistant", "model", "gpt", "BOT"])
def test_whoever_answers_is_the_assistant(tmp_path, role):
    user, answer = {"role": "user", "content": "a"}, {"role": role, "content": "b"}
    assert said(tmp_path, user, answer) == (user,)
    more = ({"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})
    assert said(tmp_path, user, answer, {"role": "human", "content": "c"}, answer) == (user, *more)


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
    said_by = [("system", "Be brief."), ("user", "Name a city."), ("assistant", "Oslo"), ("user", "Another.")]
    assert [tuple(message.values()) for message in messages] == said_by


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
