"""``draftwright generate``: text, as it grows, and statistics from any decoder; nothing imported but the runtime."""

import io
import json
import random
import shutil
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from transformers import PreTrainedTokenizerFast

from pipelines.cli import main
from pipelines.terminal import GrowingText
from runtime import ModelPair
from tests.bundles import random_bundle
from tests.runtime.test_pair_and_build import tokenizer
from tests.toys import tiny_llama

WORDS = [f"w{index}" for index in range(32)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, layers in (("target", 2), ("draft", 1)):
        tiny_llama(layers=layers).save_pretrained(folder / name)
        tokenizer(WORDS).save_pretrained(folder / name)
    return folder


def arguments(models, *more):
    options = (
        f"generate --target {models / 'target'} --draft {models / 'draft'} --prompt w1 --dtype float32 --device cpu"
    )
    return [*options.split(), "--max-new-tokens", "12", *more]


def as_json(capsys, argv):
    main([*argv, "--json"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])


PLAIN = ["--method", '{"method": "autoregressive"}']


def test_text_and_statistics(models, capsys):
    speculative, plain = as_json(capsys, arguments(models)), as_json(capsys, arguments(models, *PLAIN))
    assert speculative["tokens"] == plain["tokens"] and speculative["new_tokens"] == 12
    assert plain["block_efficiency"] == 1 and speculative["block_efficiency"] >= 1
    main(arguments(models))
    captured = capsys.readouterr()
    assert captured.out.startswith("w") and "block_efficiency" in captured.err


TEMPLATES = {
    "{{ raise_exception('say\\nmore') }}": "say more",
    "{{ 'n' + messages|length }}": "can only concatenate",
    "w3 w4": "it leaves out what is said last",
    "{% for m in messages %}{{ m.content[0].text }}{% endfor %}w3 {{ nowhere.x }}": ".*nowhere",
}


def test_a_question_is_asked_in_the_chat_template(models, tmp_path, capsys):
    """The template says all that stands around the message; without one the remedy is named."""
    shutil.copytree(models, tmp_path / "chat")
    made = tokenizer(WORDS)
    made.chat_template = "{% for one in messages %}w3 {{ one.content }} w4 {% endfor %}"
    made.save_pretrained(tmp_path / "chat" / "target")
    question = as_json(capsys, [*arguments(tmp_path / "chat"), "--chat"])
    spelt = as_json(capsys, [*arguments(models), "--prompt", "w3 w1 w4"])
    assert question["tokens"] == spelt["tokens"] != as_json(capsys, arguments(models))["tokens"]
    with pytest.raises(SystemExit, match="leave --chat out"):
        main([*arguments(models), "--chat"])
    for template, reason in TEMPLATES.items():
        made.chat_template = template
        made.save_pretrained(tmp_path / "chat" / "target")
        with pytest.raises(SystemExit, match=f"chat template refuses its messages: {reason}") as error:
            main([*arguments(tmp_path / "chat"), "--chat"])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_a_prompt_is_read_in_utf8_or_as_its_mark_says(models, monkeypatch, capsys, codec):
    expected = as_json(capsys, arguments(models))["tokens"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(("w1" + "ü" * (codec == "latin-1")).encode(codec))))
    if codec != "latin-1":
        assert as_json(capsys, [*arguments(models), "--prompt", "-"])["tokens"] == expected
        return
    for given in ("-", "w1 \udcfc"):
        with pytest.raises(SystemExit, match="the prompt: no text in UTF-8.*0xfc"):
            main([*arguments(models), "--prompt", given])


@pytest.mark.parametrize("method", ["progressive_tree", "lookahead", "self_draft"])
def test_a_target_alone(models, capsys, method):
    alone = f"generate --target {models / 'target'} --prompt w1 --dtype float32 --device cpu".split()
    plain = as_json(capsys, [*alone, *PLAIN])
    own = as_json(capsys, [*alone, "--method", json.dumps({"method": method})])
    assert own["tokens"] == plain["tokens"] and "hit_rate" in own and "hit_rate" not in plain
    with pytest.raises(SystemExit, match="needs a draft model"):
        main(alone)


def test_bundle_and_pair_folder(models, tmp_path, capsys):
    pair = ModelPair.load(models / "target", models / "draft", dtype="float32", device="cpu")
    bundle = random_bundle(tmp_path / "hrad", pair)
    plain = as_json(capsys, arguments(models, *PLAIN))["tokens"]
    monitored = arguments(models, "--bundle", str(bundle), "--monitor", str(tmp_path / "records"))
    assert as_json(capsys, monitored)["tokens"] == plain
    assert json.loads((tmp_path / "records").read_text())["emitted"] == 12
    place = {name: str(models / name) for name in ("target", "draft")}
    facts = {**place, "tokenizer": place["target"], "revisions": dict.fromkeys(place), "dtype": "float32"}
    (tmp_path / "pair.json").write_text(json.dumps(facts))
    given = f"generate {tmp_path} --prompt w1 --dtype float32 --max-new-tokens 12".split()
    assert as_json(capsys, given)["tokens"] == plain


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "{"], "--method is not JSON"),
        (["--method", "[]"], "must be a JSON object"),
        (["--method", '{"method": "magic"}'], "unknown method 'magic'"),
        (["--prompt", ""], "the prompt is empty"),
        (["--max-new-tokens", "9999"], "do not fit the pair's context of 256"),
        (["--monitor", "records"], "name its --bundle"),
        (["--bundle", "b", *PLAIN], "--bundle b holds a decoder, and --method names another"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--bundle", "nowhere"], "nowhere is not a controller bundle"),
    ],
)
def test_mistakes_end_with_one_line(models, more, message):
    with pytest.raises(SystemExit, match=message):
        main(arguments(models, *more))


def test_imports_nothing_but_the_runtime_and_of_it_what_runs(models):
    code = (
        "import sys, pipelines.cli\n"
        f"pipelines.cli.main({arguments(models)!r})\n"
        "banned = {'lightning', 'mlflow', 'dvc', 'imblearn', 'datasets', 'matplotlib', 'trace_collection',"
        " 'predictors.training', 'pipelines.drafter', 'pipelines.inflation'}\n"
        "assert not banned & set(sys.modules), banned & set(sys.modules)\n"
        "own = [name for name in sys.modules if name.partition('.')[0] in ('pipelines', 'predictors', 'runtime')]\n"
        "assert len(own) <= 75, sorted(own)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


TEXTS = ["naïve café, 日本語。", "👩\u200d👧 and 🇩🇪!", "it 's a test . Don 't , please ?", " \u200d\ufffd "]


def byte_level():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE({character: place for place, character in enumerate(alphabet)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def byte_fallback():
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "e": 257, "日": 258}
    made = Tokenizer(BPE(vocabulary, [], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


def word_pieces():
    words = ["it", "'", "s", "a", "test", ".", "Don", "t", ",", "please", "?", "##ing", "n't", "[UNK]", "日"]
    made = Tokenizer(WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=True)


def parts(tokenizer, tokens, capsys, chance):
    """What is printed round by round."""
    growing, shown, end = GrowingText(tokenizer), [], 0
    capsys.readouterr()
    while end < len(tokens):
        end += chance.randint(1, 4)
        growing.show(tokens[:end])
        shown.append(capsys.readouterr().out)
    growing.show(tokens, last=True)
    return [*shown, capsys.readouterr().out]


@pytest.mark.parametrize("make", [byte_level, byte_fallback, word_pieces])
def test_parts_make_the_whole(make, capsys):
    tokenizer, chance = make(), random.Random(0)
    streams = [tokenizer(text)["input_ids"] for text in TEXTS]
    streams += [[chance.randrange(len(tokenizer)) for _ in range(30)] for _ in range(40)]  # most are no text at all
    for tokens in streams:
        shown = parts(tokenizer, tokens, capsys, chance)
        assert "".join(shown) == tokenizer.decode(tokens)
    late = parts(tokenizer, streams[0], capsys, chance)
    assert sum(map(bool, late)) > 2, "and it comes as it grows"
    assert not any(part.endswith("\ufffd") for part in late)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_no_terminal_ends_the_command(encoding, tmp_path, monkeypatch):
    tokenizer = byte_level()
    for part in (tiny_llama(256), tokenizer):
        part.save_pretrained(tmp_path)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    plain = ["--method", '{"method": "autoregressive"}', "--temperature", "2", "--device", "cpu"]
    main(["generate", "--target", str(tmp_path), "--prompt", "日", "--max-new-tokens", "40", *plain])
    sys.stdout.flush()
    assert raw.getvalue().decode(encoding).count("?") > 3
