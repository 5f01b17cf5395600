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


def test_jsonl(jsonl):
    documents = load_documents(Source(kind="file", name="s", path=str(jsonl), slice_column="topic"))
    assert [(d.id, d.text, d.slice) for d in documents] == [
        ("s/rows.jsonl:0", "one", "x"),
        ("s/rows.jsonl:1", "two", "y"),
    ]


def test_parquet_text_files_and_folders(jsonl, tmp_path):
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


def test_column_and_template_and_limit(jsonl):
    assert texts(kind="file", path=str(jsonl), column="topic") == ["x", "y"]
    assert texts(kind="file", path=str(jsonl), template="{topic}: {text} = {answer:02d}") == [
        "x: one = 01",
        "y: two = 02",
    ]
    assert texts(kind="file", path=str(jsonl), limit=1) == ["one"]


def test_messages_end_with_what_the_model_must_answer(tmp_path):
    path = tmp_path / "chat.jsonl"
    conversation = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    path.write_text(json.dumps({"chat": conversation}))
    (document,) = load_documents(Source(kind="file", name="s", path=str(path), messages="chat"))
    assert document.messages == ({"role": "user", "content": "hello"},)


def test_local_datasets(jsonl, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert texts(kind="datasets", path=str(tmp_path), split="train", column="text") == ["one", "two"]
    with pytest.raises(ValueError, match="cannot be loaded"):
        texts(kind="datasets", path=str(tmp_path), split="nope")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"column": "body"}, "a row has no column 'body', only text, topic, answer"),
        ({"messages": "text"}, "expected a list of messages"),
        ({"column": "answer"}, "holds 1, not a text"),
        ({"template": "{text} {more}"}, "does not fit .*null"),
        ({"where": {"topic": ["none"]}}, r"'s' has no documents where {'topic': \['none'\]}\."),
    ],
)
def test_wrong_columns_are_refused(jsonl, source, message):
    if "template" in source:
        jsonl.write_text(json.dumps(ROWS[0] | {"more": None}))
    with pytest.raises(ValueError, match=message):
        load_documents(Source(kind="file", name="s", path=str(jsonl), **source))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": " "}', "'s' has no documents but 1 empty ones"),
        (r'{"text": "a\ud800"}', r"'s/bad.jsonl:0' holds a lone surrogate, no character \(.*surrogates not allowed"),
        ("[" * 100_000, "line 1: no valid JSON"),
        (b'{"text": "a"}\n{"text": "\xff"}', "line 2: no valid JSON"),
        ("[1]", "line 1: expected a JSON object"),
    ],
)
def test_bad_rows_are_refused(tmp_path, content, message):
    (tmp_path / "bad.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        texts(kind="file", path=str(tmp_path / "bad.jsonl"))


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
CODECS = ["utf-8", "utf-8-sig", "utf-16"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_mark_tells_the_encoding_and_is_no_text(tmp_path, codec):
    for place, folder in enumerate((tmp_path, tmp_path / "more")):
        folder.mkdir(exist_ok=True)
        (folder / "a.txt").write_bytes(f"{SAID} {place}\r\nend".encode(codec))
        (folder / "b.jsonl").write_bytes(f'{{"text": "{SAID} row {place}"}}\r\n\r\n{{"text": "{place}"}}'.encode(codec))
    expected = [f"{SAID} 0\nend", f"{SAID} row 0", "0", f"{SAID} 1\nend", f"{SAID} row 1", "1"]
    assert texts(kind="file", path=str(tmp_path)) == expected


def test_big_endian_texts_and_joined_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF16_BE + SAID.encode("utf-16-be"))
    lines = [f'{{"text": "{number}"}}\n'.encode("utf-8-sig") for number in range(2)]
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines))
    assert texts(kind="file", path=str(tmp_path)) == [SAID, "0", "1"]


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


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_other_encodings_in_a_dataset_are_refused(tmp_path, name, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    row = '{"text": "ü"}' if name.endswith("jsonl") else "text\nü"
    (tmp_path / "data" / name).write_bytes(row.encode("latin-1"))
    with pytest.raises(ValueError, match=r"'s': dataset .* cannot be loaded: .*0xfc"):
        texts(kind="datasets", path=str(tmp_path / "data"))
