import pytest

from runtime import ModelPair, build_decoder
from runtime.identity import require_shared_vocabulary
from tests.runtime.test_pair_and_build import tokenizer as plain
from tests.toys import tiny_llama


class Tokenizer:
    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: id for id, token in enumerate(self.tokens)}


ABC = Tokenizer("a", "b", "c")


@pytest.mark.parametrize(
    ("draft", "sizes"), [("abc", (3, 3)), ("abc", (64, 3)), (("a", "b", "c", "<tool>"), (8, 4))], ids=str
)
def test_equal_vocabularies_padding_and_a_token_that_one_side_alone_knows_are_accepted(draft, sizes):
    require_shared_vocabulary(ABC, Tokenizer(*draft), *sizes)


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


def test_without_a_tokenizer_sizes_must_be_equal():
    require_shared_vocabulary(None, ABC, 3, 3)
    with pytest.raises(ValueError, match="3 and 4"):
        require_shared_vocabulary(ABC, None, 3, 4)
