import pytest
from transformers import AutoTokenizer

from pipelines.builtin.builtin_pair import train_tokenizer


def test_round_trip(tokenizer, few_documents):
    texts = [
        "def f(x):\n\n    return  x\t# 12345 ä€😀\r\n\n",
        "",
        "   ",
        *(document.text for document in few_documents[::7]),
    ]
    for text in texts:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_token_and_size(tokenizer):
    assert len(tokenizer) == 300
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == 0
    assert tokenizer.chat_template is None


def test_newline_and_indent_become_one_token(tokenizer):
    ids = tokenizer("x\n    y")["input_ids"]
    assert tokenizer.decode([ids[1]]) == "\n    "


def test_training_is_deterministic_and_survives_saving(tokenizer, few_documents, tmp_path):
    again = train_tokenizer((document.text for document in few_documents), vocabulary=300)
    again.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tokenizer.get_vocab()


def test_a_vocabulary_that_the_text_cannot_fill_is_refused():
    with pytest.raises(ValueError, match="use a smaller vocabulary"):
        train_tokenizer(["tiny"], vocabulary=2048)
