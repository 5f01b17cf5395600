"""Special tokens that a tokenizer adds: those before a text are a prompt's, those after it are not."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipelines.cli import main
from pipelines.documents import Source
from pipelines.stages.prompts import PromptParameters, draw_prompts
from runtime.request import encoded
from tests.toys import tiny_llama

SPECIAL = ["[UNK]", "<s>", "</s>", "[CLS]", "[SEP]"]
WORDS = [*SPECIAL, *(f"w{number}" for number in range(25))]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
ADDED = {  # ids before a text, by what the tokenizer adds
    "$A </s>": [],
    "[CLS] $A [SEP]": [3],
    "<s> $A </s> </s>": [1],
    "<s> <s> $A": [1, 1],
    "$A": [],
}


def adding(template: str) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ids = [(word, id) for id, word in enumerate(SPECIAL)]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    names = {"unk_token": "[UNK]", "bos_token": "<s>", "eos_token": "</s>", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=TEMPLATE, **names)


@pytest.mark.parametrize(("template", "before"), ADDED.items())
def test_what_stands_before_a_text_stays(template, before):
    tokenizer = adding(template)
    assert encoded(tokenizer, "w1 w2") == (before, [6, 7])
    assert encoded(tokenizer, "w1 </s> w2 </s>") == (before, [6, 2, 7, 2]), "what a text says itself is its own"
    assert encoded(tokenizer, "</s>") == (before, [2])
    assert encoded(tokenizer, "") == (before, [])


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
