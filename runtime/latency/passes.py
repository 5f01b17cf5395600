"""Cells of the models' passes.

    draft            rows, context    a level of ``rows`` siblings (one: a chain step) behind ``context`` committed tokens
    target           tokens, context  a chain of ``tokens`` nodes: the newest token and the drafted ones
    draft_prefill    tokens           open a state, one pass over a prompt, commit it
    target_prefill   tokens
    draft_first      rows, context    a round's first pass, of a draft that reads its target's states: it takes ``rows`` of them
                                      and runs over as many tokens
    draft_hugging_face, target_hugging_face    the first two over bare Hugging Face: its own forward over a `DynamicCache`

A pass drops its nodes again, which is timed with it: states of one context serve all its cells. In decoding the two models
alternate and evict each other from the caches: before each call, untimed, the other model runs over one token. Before a draft
pass the draft then takes one step, untimed too, as only the first step of a round meets cold caches.

A draft that reads states is offered one in front of every token that it commits or runs over first, and goes on from its own.
Choosing and joining them is timed with its prefill and its first pass; the target taps them in all of its passes.

Bare Hugging Face makes mask and positions itself, so every pass is a chain, and one of n nodes stands for a level of n siblings:
a few percent in its favour.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from runtime.adapter import LanguageModel, ModelState, ReadingState, cache_prompt, features_of
from runtime.causal_model import CausalLanguageModel
from runtime.device import on_device
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
    """`Passes` of ``model`` by its adapter, behind ``context`` tokens; ``layers`` are tapped.

    ``hidden_1KD`` is offered in front of every token; the state's own is what it taps at the last committed one.
    """

    def __init__(
        self,
        model: LanguageModel,
        context: int,
        most_nodes: int,
        generator: torch.Generator,
        layers: tuple[int, ...] = (),
        hidden_1KD: Tensor | None = None,
    ) -> None:
        self.device = model.device
        self._state = model.open(context + most_nodes, layers)
        self._hidden_NKD = None if hidden_1KD is None else hidden_1KD.repeat(most_nodes, 1, 1)
        offer(self._state, None if hidden_1KD is None else hidden_1KD.repeat(context, 1, 1))
        tapped = cache_prompt(self._state, random_tokens(model, context, generator).tolist()).hidden_NKD
        self.hidden_1KD = None if tapped is None else tapped[-1:].clone()
        self._tokens = random_tokens(model, most_nodes, generator)

    def chain(self, count: int) -> None:
        """Given as a host list: that is how the target gets it."""
        self._run(self._tokens[:count].tolist(), None)

    def level(self, rows: int) -> None:
        """Given as a tensor: that is how drafts feed what they drew."""
        self._run(self._tokens[:rows], None if rows == 1 else [-1] * rows)

    def first(self, count: int) -> None:
        """A chain behind offered states, which a round begins with."""
        assert self._hidden_NKD is not None, "this model reads tokens alone"
        offer(self._state, self._hidden_NKD[on_device(range(count), self._hidden_NKD.device)])
        self._run(self._tokens[:count].tolist(), None, last=1)

    def _run(self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None, last: int | None = None) -> None:
        self._state.forward(tokens, parents, last)
        self._state.keep([])


def offer(state: ModelState, hidden_NKD: Tensor | None) -> None:
    """States [N, K, D] of the target for a ``state`` that reads some."""
    if hidden_NKD is not None:
        cast(ReadingState, state).offer(hidden_NKD)


def committed_states(
    pair: ModelPair, context: int, most_nodes: tuple[int, int], generator: torch.Generator
) -> tuple[CommittedState, CommittedState]:
    """Open states of target and draft (without one, of the target again) for passes over up to ``most_nodes`` of each."""
    draft = pair.draft or pair.target
    target = CommittedState(pair.target, context, most_nodes[0], generator, features_of(draft))
    return target, CommittedState(draft, context, most_nodes[1], generator, hidden_1KD=target.hidden_1KD)


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


def bare_states(
    pair: ModelPair, context: int, most_nodes: tuple[int, int], generator: torch.Generator
) -> tuple[BareState, BareState]:
    """Open states as `committed_states`, of models that are both Hugging Face's."""
    models = [cast(CausalLanguageModel, model) for model in (pair.target, pair.draft or pair.target)]
    target, draft = (BareState(model, context, most, generator) for model, most in zip(models, most_nodes, strict=True))
    return target, draft


def pass_cells(pair: ModelPair, config: LatencyConfig, generator: torch.Generator) -> list[Cell]:
    """Cells of the tables ``draft`` and ``target``, none of one whose grid is empty; and of the same over bare Hugging Face where
    both models run by the compact forward, which is compared with it."""
    target, draft = pair.target, pair.draft or pair.target
    kinds: list[tuple[str, Callable[..., tuple[Passes, Passes]], Sequence[int], Sequence[int]]]
    kinds = [("", committed_states, config.target_tokens, config.draft_rows)]
    if (config.reference_tokens or config.reference_rows) and _is_compact(target) and _is_compact(draft):
        kinds.append(("_hugging_face", bare_states, config.reference_tokens, config.reference_rows))
    cells = []
    for suffix, states, tokens, rows in kinds:
        for context in config.contexts:
            targets, drafts = states(pair, context, (max((1, *tokens)), max((1, *rows))), generator)
            begin, step = partial(begin_round, targets, drafts), partial(drafts.level, 1)
            for count in rows:
                level, at = partial(drafts.level, count), {"rows": count, "context": context}
                cells.append(Cell.of_work(f"draft{suffix}", level, drafts.device, begin, **at))
                if features_of(draft):
                    first, verified = partial(cast(CommittedState, drafts).first, count), partial(targets.chain, 1)
                    cells.append(Cell.of_work("draft_first", first, drafts.device, verified, **at))
            for count in tokens:
                chain, at = partial(targets.chain, count), {"tokens": count, "context": context}
                cells.append(Cell.of_work(f"target{suffix}", chain, targets.device, step, **at))
    return cells


def _is_compact(model: LanguageModel) -> bool:
    return isinstance(model, CausalLanguageModel) and model.forward != "hugging_face"


def begin_round(target: Passes, draft: Passes) -> None:
    """Run what comes before the draft steps of a round but its first."""
    target.chain(1)
    draft.level(1)


def prefill_cells(pair: ModelPair, config: LatencyConfig, generator: torch.Generator) -> list[Cell]:
    """Cells of the tables ``draft_prefill`` and ``target_prefill``."""
    target, draft = pair.target, pair.draft or pair.target
    targets, drafts = committed_states(pair, 1, (1, 1), generator)
    cells = []
    for table, model, layers, hidden_1KD, other in (
        ("draft_prefill", draft, (), targets.hidden_1KD, targets),
        ("target_prefill", target, features_of(draft), None, drafts),
    ):
        for count in config.prefill_tokens:
            hidden_NKD = None if hidden_1KD is None else hidden_1KD.repeat(count, 1, 1)
            work = partial(prefill, model, random_tokens(model, count, generator).tolist(), layers, hidden_NKD)
            cells.append(Cell.of_work(table, work, model.device, partial(other.chain, 1), tokens=count))
    return cells


def prefill(
    model: LanguageModel, prompt: Sequence[int], layers: tuple[int, ...] = (), hidden_NKD: Tensor | None = None
) -> None:
    """Run what a request starts with; a draft that reads states has none in front of the first token."""
    state = model.open(len(prompt) + CONTINUATION, layers)
    offer(state, hidden_NKD)
    cached = prompt if hidden_NKD is None else prompt[1:]
    if cached:
        cache_prompt(state, cached)


def random_tokens(model: LanguageModel, count: int, generator: torch.Generator) -> Tensor:
    """Token ids [count] of the model's vocabulary."""
    return torch.randint(model.vocabulary_size, (count,), generator=generator)
