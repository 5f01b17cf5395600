"""Vocabularies of target and draft that differ, and special tokens that a tokenizer adds: those before a text are a prompt's,
those after it are not."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipelines.cli import main
from pipelines.documents import Source
from pipelines.stages.prompts import PromptParameters, draw_prompts
from runtime import ModelPair, build_decoder
from runtime.identity import require_shared_vocabulary
from runtime.request import encoded
from tests.runtime.test_pair_and_build import tokenizer as plain
from tests.toys import tiny_llama


class Tokenizer:
    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: id for id, token in enumerate(self.tokens)}


ABC = Tokenizer("a", "b", "c")


def test_equal_vocabularies_padding_and_a_token_that_one_side_alone_knows_are_accepted():
    """Without both tokenizers sizes must be equal."""
    for draft, sizes in (("abc", (3, 3)), ("abc", (64, 3)), (("a", "b", "c", "<tool>"), (8, 4))):
        require_shared_vocabulary(ABC, Tokenizer(*draft), *sizes)
    require_shared_vocabulary(None, ABC, 3, 3)
    with pytest.raises(ValueError, match="3 and 4"):
        require_shared_vocabulary(ABC, None, 3, 4)


@pytest.mark.parametrize(
    ("target", "draft", "size", "message"),
    [
        ("abc", "acb", 3, r"token 'b' is 1 in the target and 2 in the draft\. .*must share its target's"),
        ("abc", "abz", 3, "id 2 is 'c' in the target and 'z' in the draft"),
        ("abcd", "abc", 4, r"draft model embeds 3 tokens .* tokenizers use 4"),
    ],
)
def test_tokens_of_two_ids_ids_of_two_tokens_and_missing_rows_are_refused(target, draft, size, message):
    with pytest.raises(ValueError, match=message):
        require_shared_vocabulary(Tokenizer(*target), Tokenizer(*draft), size, 3)


SPECIAL = {
    "other names": (("a", "b", "<|im_start|>"), ("a", "b", "[unused7]")),
    "another place": (("a", "<eos>", "b"), ("a", "<pad>", "b", "<eos>")),
    "one beside a plain token": (("a", "b", "<user>"), ("a", "b", "z")),
    "no row in the target": (("a", "b", "c", "<|pad|>", "[MASK]"), ("a", "b", "c")),
}


@pytest.mark.parametrize("named", SPECIAL)
def test_special_tokens_may_differ_with_a_warning(named):
    target, draft = SPECIAL[named]
    with pytest.warns(UserWarning, match="special tokens differ"):
        require_shared_vocabulary(Tokenizer(*target), Tokenizer(*draft), 3, 4)


def test_added_tokens_are_special_whatever_they_look_like():
    added = Tokenizer("a", "b", "user")
    added.get_added_vocab = lambda: {"user": 2}
    with pytest.warns(UserWarning, match="'user'"):
        require_shared_vocabulary(added, Tokenizer("a", "b", "bot"), 3, 3)
    with pytest.raises(ValueError, match="token 'a' is 0 in the target and 1 in the draft"):
        require_shared_vocabulary(added, Tokenizer("user", "a", "b"), 3, 3)


def test_a_pair_with_other_special_tokens_decodes_the_targets_own_text():
    words = [f"w{place}" for place in range(29)]
    given = {
        "tokenizer": plain([*words, "<a>", "<b>", "<pad>"]),
        "draft_tokenizer": plain(["<x>", *words[1:], "<c>", "<d>"]),
    }
    with pytest.warns(UserWarning, match="special tokens differ"):
        pair = ModelPair(tiny_llama(31), tiny_llama(32, layers=1), **given)
    alone = build_decoder(pair, {"method": "autoregressive"}).generate([29, 30, 1], max_new_tokens=30).tokens
    assert build_decoder(pair, {"method": "speculative"}).generate([29, 30, 1], max_new_tokens=30).tokens == alone
    with pytest.raises(ValueError, match="prompt token 31 is outside"):
        build_decoder(pair, {"method": "speculative"}).generate([31])


ADDED_WORDS = ["[UNK]", "<s>", "</s>", "[CLS]", "[SEP]"]
WORDS = [*ADDED_WORDS, *(f"w{number}" for number in range(25))]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
ADDED = {  # ids before a text, by what the tokenizer adds
    "$A </s>": [],
    "[CLS] $A [SEP]": [3],
    "<s> $A </s> </s>": [1],
    "<s> <s> $A": [1, 1],
    "$A": [],
}


def adding(template: str) -> PreTrainedTokenizerFast:
    made = tokenizers.Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ids = [(word, id) for id, word in enumerate(ADDED_WORDS)]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    names = {"unk_token": "[UNK]", "bos_token": "<s>", "eos_token": "</s>", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=TEMPLATE, **names)


@pytest.mark.parametrize(("template", "before"), ADDED.items())
def test_what_stands_before_a_text_stays(template, before):
    """And what a text says itself is its own."""
    texts = {"w1 w2": [6, 7], "w1 </s> w2 </s>": [6, 2, 7, 2], "</s>": [2], "": []}
    tokenizer = adding(template)
    assert {text: encoded(tokenizer, text) for text in texts} == {text: (before, own) for text, own in texts.items()}


@pytest.mark.parametrize(("template", "before"), ADDED.items())
@pytest.mark.parametrize("how", [{"cut": "window"}, {"cut": "whole"}, {"chat": True}])
def test_no_prompt_ends_or_begins_with_what_ends_a_text(tmp_path, template, before, how):
    rows = (" ".join(WORDS[5 + (row + place) % 20] for place in range(50)) for row in range(24))
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    sizes = {"train": 4, "validation": 2, "test": 2, "reserve": 1, "min_tokens": 3, "max_tokens": 9, "room": 4}
    source = Source(kind="file", name="d", path=str(tmp_path / "d.jsonl"), **how)
    prompts = draw_prompts(PromptParameters(sources=(source,), **sizes), adding(template))
    before = [1] if "chat" in how else before  # the chat template's
    for prompt in prompts:
        assert prompt.tokens[: len(before)] == before
        assert not set(prompt.tokens[len(before) :]) & {1, 2, 3, 4}


def test_the_command_line_goes_on_after_the_prompt(tmp_path, capsys):
    tiny_llama(30).save_pretrained(tmp_path)
    told = []
    for template in ("<s> $A [SEP]", "<s> $A"):
        adding(template).save_pretrained(tmp_path)
        options = ["--prompt", "w3 w4", "--max-new-tokens", "6", "--device", "cpu", "--json"]
        main(["generate", "--target", str(tmp_path), "--method", '{"method": "autoregressive"}', *options])
        told.append(json.loads(capsys.readouterr().out)["tokens"])
    assert told[0] == told[1]
