import pytest

from runtime.identity import require_shared_vocabulary


class Tokenizer:
    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: id for id, token in enumerate(self.tokens)}


ABC = Tokenizer("a", "b", "c")


def test_equal_vocabularies_are_accepted():
    require_shared_vocabulary(ABC, Tokenizer("a", "b", "c"), 3, 3)


def test_padding_is_accepted():
    require_shared_vocabulary(ABC, ABC, 64, 3)


def test_a_token_that_one_side_alone_knows_is_accepted():
    require_shared_vocabulary(ABC, Tokenizer("a", "b", "c", "<tool>"), 8, 4)


def test_a_token_with_two_ids_is_refused():
    with pytest.raises(
        ValueError, match=r"token 'b' is 1 in the target and 2 in the draft\. .*must share its target's"
    ):
        require_shared_vocabulary(ABC, Tokenizer("a", "c", "b"), 3, 3)


def test_an_id_with_two_tokens_is_refused():
    with pytest.raises(ValueError, match="id 2 is 'c' in the target and 'z' in the draft"):
        require_shared_vocabulary(ABC, Tokenizer("a", "b", "z"), 3, 3)


def test_an_embedding_without_a_row_for_every_token_is_refused():
    with pytest.raises(ValueError, match=r"draft model embeds 3 tokens .* tokenizers use 4"):
        require_shared_vocabulary(Tokenizer("a", "b", "c", "d"), ABC, 4, 3)


def test_without_a_tokenizer_sizes_must_be_equal():
    require_shared_vocabulary(None, ABC, 3, 3)
    with pytest.raises(ValueError, match="3 and 4"):
        require_shared_vocabulary(ABC, None, 3, 4)
