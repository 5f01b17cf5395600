"""A decoding request, checked once at the door."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.adapter import LanguageModel, ModelState, features_of
from runtime.randomness import Chance, Randomness

if TYPE_CHECKING:
    from runtime.invariant import Perturbation


@dataclass(frozen=True)
class Request:
    """One checked request. ``vocabulary_size`` is the target's: all laws are on it. ``layers`` are tapped on the target,
    ``draft_layers`` on the draft; ``views`` keeps what both models said in front of the newest token, ``observe`` each round's
    evidence. With a ``perturbation`` of both models' logits decoding is greedy, by ``settings`` at temperature 0."""

    prompt: list[int]
    max_new_tokens: int
    settings: SamplingSettings
    randomness: Chance
    eos_tokens: frozenset[int]
    vocabulary_size: int
    layers: tuple[int, ...]
    observe: bool
    draft_layers: tuple[int, ...] = ()
    views: bool = False
    perturbation: "Perturbation | None" = None

    @property
    def sampling(self) -> SamplingSettings:
        """Sampling settings that the text follows."""
        return self.settings if self.perturbation is None else self.perturbation.settings

    def open(self, model: LanguageModel, layers: tuple[int, ...], temperature: float | None = None) -> ModelState:
        """Open a state of ``model`` for the request, tapping ``layers``; ``temperature``: the model's own. One that reads its
        target's states begins with the second token."""
        state = model.open(self.max_length, layers)
        if self.perturbation is None:
            return state
        return self.perturbation.of(state, self.vocabulary_size, int(bool(features_of(model))), temperature)

    @property
    def max_length(self) -> int:
        """Most tokens the request can hold, prompt and output together."""
        return len(self.prompt) + self.max_new_tokens

    def cut(self, tokens: list[int], emitted: int) -> tuple[list[int], bool]:
        """``tokens`` up to the first end-of-sequence token and the remaining budget; whether generation ends with them."""
        tokens = until_end(tokens, self.eos_tokens)[: self.max_new_tokens - emitted]
        done = emitted + len(tokens) == self.max_new_tokens or (bool(tokens) and tokens[-1] in self.eos_tokens)
        return tokens, done


def until_end(tokens: Sequence[int], eos_tokens: Collection[int]) -> list[int]:
    """``tokens`` up to and including the first end-of-sequence token."""
    ends = (place for place, token in enumerate(tokens, start=1) if token in eos_tokens)
    return list(tokens[: next(ends, len(tokens))])


def checked_prompt(
    prompt_ids: Sequence[int] | Tensor, max_new_tokens: int, vocabulary_size: int, context_limit: int, bound: str = ""
) -> list[int]:
    """The prompt as a list of ids, or a `ValueError` that names what is wrong. ``bound``: why the context ends there."""
    try:
        ids = torch.as_tensor(prompt_ids, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"prompt_ids must be one sequence of token ids, got {type(prompt_ids).__name__} ({error}). A text is encoded first: "
            "pair.tokenizer(text)['input_ids']."
        ) from error
    if ids.is_floating_point() and ids.numel():
        raise ValueError(f"prompt_ids must be token ids (whole numbers), got {ids.dtype}.")
    if ids.dim() != 1:
        raise ValueError(f"prompt_ids must be one sequence (1-D), got shape {tuple(ids.shape)}; one request at a time.")
    prompt: list[int] = [int(token) for token in ids.tolist()]
    if not prompt:
        raise ValueError("the prompt is empty: pass at least one token (for example the beginning-of-sequence token).")
    outside = [token for token in prompt if not 0 <= token < vocabulary_size]
    if outside:
        raise ValueError(f"prompt token {outside[0]} is outside the target's vocabulary of {vocabulary_size}.")
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be a whole number >= 1, got {max_new_tokens!r}.")
    if len(prompt) + max_new_tokens > context_limit:
        room = context_limit - len(prompt)
        remedy = f"pass max_new_tokens <= {room}" if room > 0 else f"it must be shorter than {context_limit} tokens"
        raise ValueError(
            f"the prompt's {len(prompt)} tokens and max_new_tokens={max_new_tokens} do not fit the pair's context of "
            f"{context_limit}{bound and f', {bound}'}. Shorten the prompt"
            f"{' or ' if room > 0 else ': '}{remedy}."
        )
    return prompt


def checked_ends(eos_token_id: int | Collection[int] | Tensor) -> frozenset[int]:
    """Tokens that end a generation; `ValueError` for what is no token id or several."""
    given = list(eos_token_id) if isinstance(eos_token_id, (set, frozenset)) else eos_token_id
    try:
        return frozenset(map(int, torch.as_tensor(given, device="cpu").reshape(-1).tolist()))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"eos_token_id must be a token id or several, got {eos_token_id!r}.") from error


def checked_chance(randomness: Any) -> Chance:
    """``randomness``, or one seeded from torch's global generator for ``None``; `ValueError` for what draws nothing."""
    if randomness is None:
        return Randomness(int(torch.randint(2**62, (), device="cpu")))
    if not (hasattr(randomness, "categorical") or hasattr(randomness, "stream")):
        raise ValueError(f"randomness must be a source of draws, got {randomness!r}: pass Randomness(seed=…).")
    return cast(Chance, randomness)


def encoded(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """What a tokenizer puts before every text, such as a token that begins one, and the ``text``'s own tokens. What it puts after
    one, as ``</s>`` or ``[SEP]``, would end a prompt and is left out."""
    own, whole = (
        list(tokenizer(text or "a", add_special_tokens=special, verbose=False)["input_ids"])
        for special in (False, True)
    )
    starts = (place for place in range(len(whole)) if whole[place : place + len(own)] == own)
    return whole[: next(starts, 0)], own if text else []


def encoded_chat(tokenizer: Any, messages: Sequence[Mapping[str, str]], template: str | None = None) -> list[int]:
    """Tokens of a conversation in a chat template, the tokenizer's own by default, up to where the answer begins; some read
    lists of parts alone. `ValueError` where one fails, or leaves out what is said last."""
    reasons = []
    for form in (str, lambda text: [{"type": "text", "text": text}]):
        given = [dict(one, content=form(one["content"])) for one in messages]
        other = [*given[:-1], dict(given[-1], content=form(messages[-1]["content"] + "."))]
        options = {"chat_template": template, "add_generation_prompt": True, "tokenize": False}
        try:
            said, said_other = (tokenizer.apply_chat_template(one, **options) for one in (given, other))
        except Exception as error:  # a template is a program
            reasons.append(" ".join(str(error).split()))
            continue
        if said != said_other:
            return list(tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"])
        reasons.append("it leaves out what is said last")
    raise ValueError(f"the chat template refuses its messages: {reasons[0]}. Use another template.")
