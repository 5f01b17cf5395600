"""A causal language model as the decoder sees it: a committed cache plus scratch nodes.

    state.forward(tokens, parents)   append scratch nodes (parents index scratch, -1 = the committed end); logits and taps
    state.keep(path)                 commit a path of scratch nodes and drop the rest

Prefill, a draft step, a tree and branches are all this. The newest token is never cached yet. Behind it stands Hugging Face's
own forward. Shape suffixes: N nodes of a call, V vocabulary, K tapped layers, D hidden size.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from runtime.cache import ScratchCache
from runtime.taps import HiddenStateTaps
from runtime.topology import TopologyMask

SCRATCH_ROOM = 64  # rows a fresh cache holds beyond the request's own length


@dataclass(frozen=True)
class Forward:
    """One pass: ``logits`` [rows, V] of the last rows asked for, ``hidden_NKD`` of every node (``None`` without taps)."""

    logits: Tensor
    hidden_NKD: Tensor | None = None


class ModelState(Protocol):
    """One request's state over one model."""

    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        """Append nodes and run the model over them. ``parents=None``: a chain from the newest scratch node (or the committed
        end); ``last``: logits of the last rows only."""
        ...

    def keep(self, path: Sequence[int]) -> None:
        """Commit scratch nodes ``path`` (ascending, a path from the committed end) and drop the others."""
        ...


class LanguageModel(Protocol):
    """What a pair holds; `CausalLanguageModel` wraps Hugging Face models, tests fake it in twenty lines."""

    vocabulary_size: int
    context_limit: int

    @property
    def eos_tokens(self) -> frozenset[int]:
        """Tokens that end a generation; may be empty."""
        ...

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> ModelState:
        """A fresh state for a request of ``max_length`` tokens, tapping hidden states of ``layers``."""
        ...

    def embedding(self, token: int) -> Tensor:
        """Input embedding [E] of a token."""
        ...


class CausalLanguageModel:
    """A Hugging Face causal language model, wrapped, in its own dtype and on its own device."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        _require_plain_attention(config, model)
        self.model = model.eval()
        self.vocabulary_size: int = config.vocab_size
        self.num_layers: int = getattr(config, "num_hidden_layers", 0)
        self.context_limit: int = _context_limit(config)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> "CausalState":
        return CausalState(self, ScratchCache(max_length + SCRATCH_ROOM), layers)

    @property
    def eos_tokens(self) -> frozenset[int]:
        """The model's own end-of-sequence tokens, as its generation config says now."""
        tokens = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        if tokens is None:
            return frozenset()
        return frozenset([tokens] if isinstance(tokens, int) else tokens)

    @torch.inference_mode()
    def embedding(self, token: int) -> Tensor:
        embedding: Tensor = self.model.get_input_embeddings()(torch.tensor([token], device=self.device))
        return embedding[0]


class CausalState:
    """`ModelState` over Hugging Face's forward with an explicit attention mask and positions."""

    def __init__(self, model: CausalLanguageModel, cache: ScratchCache, layers: tuple[int, ...]) -> None:
        self.model = model
        self.cache = cache
        self.taps = HiddenStateTaps(model.model, layers) if layers else None
        self.committed = 0
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._is_chain = True
        self._topology = TopologyMask()

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        ids = torch.as_tensor(tokens, dtype=torch.int64, device=self.model.device)
        self._append(len(ids), parents)
        positions = torch.tensor(self._depths[-len(ids) :], device=self.model.device) + (self.committed - 1)
        ids = ids.clamp(max=self.model.vocabulary_size - 1)  # padding ids a smaller vocabulary lacks
        call: dict[str, Any] = {
            "input_ids": ids.unsqueeze(0),
            "position_ids": positions.unsqueeze(0),
            "attention_mask": self._mask(len(ids)),
            "past_key_values": self.cache,
            "use_cache": True,
            "logits_to_keep": last or 0,
        }
        if self.taps is None:
            return Forward(self.model.model(**call).logits[0])
        with self.taps:
            logits = self.model.model(**call).logits[0]
        return Forward(logits, self.taps.stacked())

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        before = -1
        for node in path:
            assert self._parents[node] == before, f"{path} is no path of {self._parents}"
            before = node
        self.cache.keep(self.committed, path)
        self.committed += len(path)
        self._parents, self._depths, self._is_chain = [], [], True
        self._topology = TopologyMask()

    def _append(self, count: int, parents: Sequence[int] | None) -> None:
        first = len(self._parents)
        if parents is None:
            parents = range(first - 1, first + count - 1)
        for node, parent in enumerate(parents, start=first):
            assert -1 <= parent < node, f"scratch node {node} has parent {parent}"
            self._is_chain = self._is_chain and parent == node - 1
            self._parents.append(parent)
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)

    def _mask(self, count: int) -> Tensor | None:
        """Attention of the last ``count`` nodes [1, 1, count, committed + scratch]: the committed rows, ancestors and itself."""
        total = self.committed + len(self._parents)
        if self._is_chain and count in (1, total):
            return None  # one newest token, or a prefill: the model's own causal mask
        device = self.model.device
        if self._is_chain:
            allowed = torch.ones(count, total, dtype=torch.bool, device=device).tril_(total - count)
        else:
            self._topology.append(self._parents[self._topology.num_nodes :])
            committed = torch.ones(count, self.committed, dtype=torch.bool)
            allowed = torch.cat([committed, self._topology.rows(count)], dim=1).to(device)
        if self.model.model.config._attn_implementation == "sdpa":
            return allowed[None, None]
        blocked = torch.finfo(self.model.dtype).min
        return torch.zeros(allowed.shape, dtype=self.model.dtype, device=device).masked_fill_(~allowed, blocked)[
            None, None
        ]


def _context_limit(config: Any) -> int:
    """Positions the model serves with full attention: a sliding window equals it up to the window's width."""
    limit = int(getattr(config, "max_position_embeddings", None) or sys.maxsize)
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    return min(limit, int(window)) if window and "sliding_attention" in layer_types else limit


def _require_plain_attention(config: Any, model: PreTrainedModel) -> None:
    known = {"full_attention", "sliding_attention"}
    unknown = sorted(set(getattr(config, "layer_types", None) or []) - known)
    if unknown:
        raise ValueError(
            f"{type(model).__name__} has {', '.join(unknown)} layers: their state cannot drop rejected tokens. "
            f"Supported layer types: {', '.join(sorted(known))}."
        )
    implementation = model.config._attn_implementation
    if implementation not in ("sdpa", "eager"):
        raise ValueError(
            f"attention implementation {implementation!r} takes no tree mask. Load the model with attn_implementation='sdpa'."
        )
