"""Text that is printed while it grows is, put together, the text of all tokens; whatever the tokenizer and the terminal."""

import io
import random
import sys

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipelines import cli
from pipelines.terminal import GrowingText
from tests.toys import tiny_llama

TEXTS = ["naïve café, 日本語。", "👩\u200d👧 and 🇩🇪!", "it 's a test . Don 't , please ?", " \u200d\ufffd "]


def byte_level():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({character: place for place, character in enumerate(alphabet)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def byte_fallback():
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "e": 257, "日": 258}
    made = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


def word_pieces():
    words = ["it", "'", "s", "a", "test", ".", "Don", "t", ",", "please", "?", "##ing", "n't", "[UNK]", "日"]
    made = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
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
    cli.main(["generate", "--target", str(tmp_path), "--prompt", "日", "--max-new-tokens", "40", *plain])
    sys.stdout.flush()
    assert raw.getvalue().decode(encoding).count("?") > 3
