"""Cells of the models' passes.

    draft            rows, context    a level of ``rows`` siblings (one: a chain step) behind ``context`` committed tokens
    target           tokens, context  a chain of ``tokens`` nodes: the newest token and the drafted ones
    draft_prefill    tokens           open a state, one pass over a prompt, commit it
    target_prefill   tokens
    draft_hugging_face, target_hugging_face    the first two over bare Hugging Face: its own forward over a `DynamicCache`

A pass drops its nodes again, which is timed with it: states of one context serve all its cells. In decoding the two models
alternate and evict each other from the caches: before each call, untimed, the other model runs over one token. Before a draft
pass the draft then takes one step, untimed too: of the steps of a round only the first meets cold caches, and levels of several
rows never do. (Cold steps put a round of 8 at 4 % too much, warm ones every round at 1 % too little.)

Bare Hugging Face makes mask and positions itself, so every pass is a chain, and one of n nodes stands for a level of n siblings.
That favours Hugging Face by a few percent, as siblings need a mask of ours. (`HuggingFaceState` is no such reference: its cache,
positions and masks are ours.)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor
from transformers import DynamicCache

from runtime.adapter import LanguageModel
from runtime.causal_model import CausalLanguageModel
from runtime.latency.cells import Cell, timed

CONTINUATION = 64  # tokens a prefilled state has room for beyond its prompt


class Passes(Protocol):
    """Passes of one model on ``device`` behind committed tokens, each of which leaves the state as it was: a ``chain`` of nodes,
    each the next one's parent, or a ``level`` of siblings. Tokens are drawn at random."""

    device: torch.device

    def chain(self, count: int) -> None: ...

    def level(self, rows: int) -> None: ...


class CommittedState:
    """`Passes` of ``model`` by its adapter, behind ``context`` tokens."""

    def __init__(self, model: LanguageModel, context: int, most_nodes: int, generator: torch.Generator) -> None:
        self.device = model.device
        self._state = model.open(context + most_nodes)
        self._state.forward(random_tokens(model, context, generator), last=1)
        self._state.keep(range(context))
        self._tokens = random_tokens(model, most_nodes, generator)

    def chain(self, count: int) -> None:
        """Given as a host list: that is how the target gets it."""
        self._run(self._tokens[:count].tolist(), None)

    def level(self, rows: int) -> None:
        """Given as a tensor: that is how drafts feed what they drew."""
        self._run(self._tokens[:rows], None if rows == 1 else [-1] * rows)

    def _run(self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None) -> None:
        self._state.forward(tokens, parents)
        self._state.keep([])


class BareState:
    """`Passes` of bare Hugging Face: model(input_ids, past_key_values=cache, use_cache=True), then cache.crop(-tokens)."""

    @torch.inference_mode()
    def __init__(self, model: CausalLanguageModel, context: int, most_nodes: int, generator: torch.Generator) -> None:
        self.device = model.device
        self._model = model.model
        self._cache = DynamicCache()
        tokens_1N = random_tokens(model, context + most_nodes, generator).to(self.device).unsqueeze(0)
        self._run(tokens_1N[:, :context])
        self._tokens_1N = tokens_1N[:, context:]

    @torch.inference_mode()
    def chain(self, count: int) -> None:
        self._run(self._tokens_1N[:, :count])
        self._cache.crop(-count)

    level = chain

    def _run(self, tokens_1N: Tensor) -> None:
        self._model(input_ids=tokens_1N, past_key_values=self._cache, use_cache=True)


def pass_cells(
    target: Any,
    draft: Any,
    tokens: Sequence[int],
    rows: Sequence[int],
    contexts: Sequence[int],
    generator: torch.Generator,
    state: Callable[[Any, int, int, torch.Generator], Passes] = CommittedState,
    suffix: str = "",
) -> list[Cell]:
    """Cells of the tables ``draft`` and ``target``, whose names end in ``suffix``: of two models' passes in a ``state``."""
    cells = []
    for context in contexts:
        targets = state(target, context, max((1, *tokens)), generator)
        drafts = state(draft, context, max((1, *rows)), generator)
        for count in rows:
            measure = timed(partial(drafts.level, count), drafts.device)
            at = {"rows": count, "context": context}
            cells.append(Cell((f"draft{suffix}",), at, measure, partial(begin_round, targets, drafts)))
        for count in tokens:
            measure = timed(partial(targets.chain, count), targets.device)
            at = {"tokens": count, "context": context}
            cells.append(Cell((f"target{suffix}",), at, measure, partial(drafts.level, 1)))
    return cells


def reference_cells(
    target: LanguageModel,
    draft: LanguageModel,
    tokens: Sequence[int],
    rows: Sequence[int],
    contexts: Sequence[int],
    generator: torch.Generator,
) -> list[Cell]:
    """The cells of bare Hugging Face: none of a table whose grid is empty, none at all unless both models run by the compact
    forward, which they are compared with."""
    if not (_is_compact(target) and _is_compact(draft)):
        return []
    return pass_cells(target, draft, tokens, rows, contexts, generator, BareState, "_hugging_face")


def _is_compact(model: LanguageModel) -> TypeGuard[CausalLanguageModel]:
    return isinstance(model, CausalLanguageModel) and model.forward != "hugging_face"


def begin_round(target: Passes, draft: Passes) -> None:
    """What comes before the draft steps of a round but its first."""
    target.chain(1)
    draft.level(1)


def prefill_cells(
    target: LanguageModel, draft: LanguageModel, tokens: Sequence[int], generator: torch.Generator
) -> list[Cell]:
    """Cells of the tables ``draft_prefill`` and ``target_prefill``."""
    cells = []
    for name, model, other in (("draft_prefill", draft, target), ("target_prefill", target, draft)):
        before = partial(CommittedState(other, 1, 1, generator).chain, 1)
        device = model.device
        for count in tokens:
            prompt = random_tokens(model, count, generator).tolist()
            cells.append(Cell((name,), {"tokens": count}, timed(partial(prefill, model, prompt), device), before))
    return cells


def prefill(model: LanguageModel, prompt: Sequence[int]) -> None:
    """What a request starts with."""
    state = model.open(len(prompt) + CONTINUATION)
    state.forward(prompt, last=1)
    state.keep(range(len(prompt)))


def random_tokens(model: LanguageModel, count: int, generator: torch.Generator) -> Tensor:
    """Token ids [count] of the model's vocabulary."""
    return torch.randint(model.vocabulary_size, (count,), generator=generator)
