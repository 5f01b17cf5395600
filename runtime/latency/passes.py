"""Cells of the models' passes.

    draft            rows, context    a level of ``rows`` siblings (one: a chain step) behind ``context`` committed tokens
    target           tokens, context  a chain of ``tokens`` nodes: the newest token and the drafted ones
    draft_prefill    tokens           open a state, one pass over a prompt, commit it
    target_prefill   tokens
    draft_hugging_face, target_hugging_face    the first two over bare Hugging Face: its own forward over a `DynamicCache`

A pass drops its nodes again, which is timed with it: states of one context serve all its cells. In decoding the two models
alternate and evict each other from the caches: before each call, untimed, the other model runs over one token. Before a draft
pass the draft then takes one step, untimed too, as only the first step of a round meets cold caches.

Bare Hugging Face makes mask and positions itself, so every pass is a chain, and one of n nodes stands for a level of n siblings:
a few percent in its favour.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache

from runtime.adapter import LanguageModel, cache_prompt
from runtime.causal_model import CausalLanguageModel
from runtime.latency.cells import Cell, LatencyConfig
from runtime.pair import ModelPair

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
        cache_prompt(self._state, random_tokens(model, context, generator).tolist())
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


def pass_cells(pair: ModelPair, config: LatencyConfig, generator: torch.Generator) -> list[Cell]:
    """Cells of the tables ``draft`` and ``target``, none of one whose grid is empty; and of the same over bare Hugging Face where
    both models run by the compact forward, which is compared with it."""
    target, draft = pair.target, pair.draft or pair.target
    kinds: list[tuple[str, Callable[..., Passes], Sequence[int], Sequence[int]]]
    kinds = [("", CommittedState, config.target_tokens, config.draft_rows)]
    if (config.reference_tokens or config.reference_rows) and _is_compact(target) and _is_compact(draft):
        kinds.append(("_hugging_face", BareState, config.reference_tokens, config.reference_rows))
    cells = []
    for suffix, state, tokens, rows in kinds:
        for context in config.contexts:
            targets = state(target, context, max((1, *tokens)), generator)
            drafts = state(draft, context, max((1, *rows)), generator)
            begin, step = partial(begin_round, targets, drafts), partial(drafts.level, 1)
            for count in rows:
                level, at = partial(drafts.level, count), {"rows": count, "context": context}
                cells.append(Cell.of_work(f"draft{suffix}", level, drafts.device, begin, **at))
            for count in tokens:
                chain, at = partial(targets.chain, count), {"tokens": count, "context": context}
                cells.append(Cell.of_work(f"target{suffix}", chain, targets.device, step, **at))
    return cells


def _is_compact(model: LanguageModel) -> bool:
    return isinstance(model, CausalLanguageModel) and model.forward != "hugging_face"


def begin_round(target: Passes, draft: Passes) -> None:
    """What comes before the draft steps of a round but its first."""
    target.chain(1)
    draft.level(1)


def prefill_cells(pair: ModelPair, config: LatencyConfig, generator: torch.Generator) -> list[Cell]:
    """Cells of the tables ``draft_prefill`` and ``target_prefill``."""
    target, draft = pair.target, pair.draft or pair.target
    cells = []
    for table, model, other in (("draft_prefill", draft, target), ("target_prefill", target, draft)):
        before = partial(CommittedState(other, 1, 1, generator).chain, 1)
        for count in config.prefill_tokens:
            work = partial(prefill, model, random_tokens(model, count, generator).tolist())
            cells.append(Cell.of_work(table, work, model.device, before, tokens=count))
    return cells


def prefill(model: LanguageModel, prompt: Sequence[int]) -> None:
    """What a request starts with."""
    cache_prompt(model.open(len(prompt) + CONTINUATION), prompt)


def random_tokens(model: LanguageModel, count: int, generator: torch.Generator) -> Tensor:
    """Token ids [count] of the model's vocabulary."""
    return torch.randint(model.vocabulary_size, (count,), generator=generator)
