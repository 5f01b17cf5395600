"""Whether two models speak one vocabulary: the condition under which one may draft for the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REMEDY = (
    "A draft model must share its target's vocabulary: choose a draft of the target's own model family, or one trained on its "
    "tokenizer."
)


def require_shared_vocabulary(
    target_tokenizer: PreTrainedTokenizerBase | None,
    draft_tokenizer: PreTrainedTokenizerBase | None,
    target_size: int,
    draft_size: int,
) -> None:
    """Refuse two models whose token ids do not mean the same.

    Equal tokens must have equal ids and equal ids equal tokens; a token that only one tokenizer knows is allowed. Embeddings may
    be padded to different sizes, as long as both have a row for every token. Where a tokenizer is unknown (``None``), only equal
    sizes are accepted.

    Raises
    ------
    ValueError
        Names both sides, a token on which they differ, and the remedy.
    """
    if target_tokenizer is None or draft_tokenizer is None:
        if target_size != draft_size:
            raise ValueError(
                f"target and draft have different vocabulary sizes ({target_size} and {draft_size}), and without both "
                f"tokenizers padding cannot be told from different tokens. {REMEDY}"
            )
        return
    target, draft = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if difference := _first_difference(target, draft):
        raise ValueError(
            f"target and draft have different vocabularies ({len(target)} and {len(draft)} tokens): {difference}. {REMEDY}"
        )
    needed = max(max(target.values()), max(draft.values())) + 1
    for name, size in (("target", target_size), ("draft", draft_size)):
        if size < needed:
            raise ValueError(
                f"the {name} model embeds {size} tokens (target {target_size}, draft {draft_size}), but the tokenizers use "
                f"{needed}. {REMEDY}"
            )


def _first_difference(target: dict[str, int], draft: dict[str, int]) -> str | None:
    if target == draft:
        return None
    for token, id in sorted(target.items(), key=lambda item: item[1]):
        if draft.get(token, id) != id:
            return f"token {token!r} is {id} in the target and {draft[token]} in the draft"
    target_tokens = {id: token for token, id in target.items()}
    for token, id in sorted(draft.items(), key=lambda item: item[1]):
        if target_tokens.get(id, token) != token:
            return f"id {id} is {target_tokens[id]!r} in the target and {token!r} in the draft"
    return None
