"""Cells of the passes of bare Hugging Face: the model's own forward over a `DynamicCache`, without a line of ours between.

    draft_hugging_face, target_hugging_face   at the places of the tables draft and target (`runtime.latency.passes`)

    model(input_ids, past_key_values=cache, use_cache=True), then cache.crop(-tokens)

The model makes mask and positions itself, so every pass is a chain, and one of n nodes stands for a level of n siblings. That
favours Hugging Face a little, as siblings need a mask of ours. (On two cores a draft pass over 4 siblings took 0.63 ms by the
compact forward, over a chain of 4 0.58; by `HuggingFaceState` the difference was the same.) What comes before a call is as in the
tables compared with, both models bare. `HuggingFaceState` is no such reference: its cache, positions and masks are ours.
"""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor
from transformers import DynamicCache

from runtime.adapter import LanguageModel
from runtime.causal_model import CausalLanguageModel
from runtime.latency.cells import Cell
from runtime.latency.passes import pass_cells, random_tokens


class BareState:
    """A cache behind ``context`` committed tokens, which every pass leaves as it was. Tokens are drawn at random."""

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
        """A pass over ``count`` nodes, each the next one's parent."""
        self._run(self._tokens_1N[:, :count])
        self._cache.crop(-count)

    def level(self, rows: int) -> None:
        """The chain that stands for ``rows`` siblings."""
        self.chain(rows)

    def _run(self, tokens_1N: Tensor) -> None:
        self._model(input_ids=tokens_1N, past_key_values=self._cache, use_cache=True)


def reference_cells(
    target: LanguageModel,
    draft: LanguageModel,
    tokens: Sequence[int],
    rows: Sequence[int],
    contexts: Sequence[int],
    generator: torch.Generator,
) -> list[Cell]:
    """Cells of the tables ``draft_hugging_face`` and ``target_hugging_face``: none of a table whose grid is empty, none at all
    unless both models run by the compact forward."""
    if not (_is_compact(target) and _is_compact(draft)):
        return []
    return pass_cells(target, draft, tokens, rows, contexts, generator, BareState, "_hugging_face")


def _is_compact(model: LanguageModel) -> TypeGuard[CausalLanguageModel]:
    return isinstance(model, CausalLanguageModel) and model.forward != "hugging_face"
