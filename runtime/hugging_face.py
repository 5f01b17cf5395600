"""The general path: Hugging Face's own forward over a cache with scratch rows. The reference for the compact forward.

Hidden states are tapped by hooks that live only during a pass, and numbered as Hugging Face's ``hidden_states``: i is what
goes into block i, counted from 0, and the last one (i = number of blocks) comes out of the final norm.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from runtime.adapter import Forward
from runtime.scratch import Scratch

BLOCKS = ("layers", "h", "blocks")
FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f", "layer_norm")


class HuggingFaceState:
    """`ModelState` with an explicit attention mask and positions; ``capacity`` rows are held at once. ``faults``: why passes
    that need a mask are refused (`ValueError`), over chains (``True``) or over trees."""

    def __init__(
        self, model: PreTrainedModel, capacity: int, layers: tuple[int, ...], faults: Mapping[bool, str] | None = None
    ) -> None:
        self._model = model
        self._faults = faults or {}
        self._last_token = model.config.get_text_config().vocab_size - 1
        self._cache = Cache(layer_class_to_replicate=partial(ScratchLayer, capacity))  # one as a layer first writes
        self._scratch = Scratch()
        self._layers = layers

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        ids = torch.as_tensor(tokens, dtype=torch.int64, device=self._model.device)
        self._scratch.append(len(ids), parents)
        positions = torch.tensor(self._scratch.positions(len(ids)), device=self._model.device)
        ids = ids.clamp(max=self._last_token)  # padding ids a smaller vocabulary lacks
        call: dict[str, Any] = {
            "input_ids": ids.unsqueeze(0),
            "position_ids": positions.unsqueeze(0),
            "attention_mask": self._mask(len(ids)),
            "past_key_values": self._cache,
            "use_cache": True,
            "logits_to_keep": last or 0,
        }
        with _tapped(self._model, self._layers) as states:
            logits = self._model(**call).logits[0]
        return Forward(logits, torch.stack([states[one] for one in self._layers], dim=1) if self._layers else None)

    @torch.inference_mode()
    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        for layer in self._cache.layers:
            layer.keep(self._scratch.committed, path)
        self._scratch.keep(path, pending)

    def _mask(self, count: int) -> Tensor | None:
        """The scratch's mask as Hugging Face's attention takes it [1, 1, count, rows]; ``None``: the model's own causal one."""
        allowed = self._scratch.mask(count, self._model.device)
        if allowed is None:
            return None
        if fault := self._faults.get(self._scratch.is_chain):
            raise ValueError(fault)
        if self._model.config._attn_implementation == "sdpa":
            return allowed[None, None]
        open_mask = torch.zeros(allowed.shape, dtype=self._model.dtype, device=allowed.device)
        return open_mask.masked_fill_(~allowed, torch.finfo(self._model.dtype).min)[None, None]


class ScratchLayer(CacheLayerMixin):
    """One layer's keys and values [1, heads, length, head_dim]: committed tokens, then scratch nodes; ``length`` rows are in use.

    Buffers grow by doubling and are written in place. Committing a straight prefix of the scratch moves nothing.
    """

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = key_states.new_empty(*key_states.shape[:2], self.capacity, key_states.shape[3])
        self.values = value_states.new_empty(*value_states.shape[:2], self.capacity, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[2]
        if self.length > self.capacity:
            held = self.keys, self.values
            self.capacity = max(self.length, 2 * self.capacity)
            self.lazy_initialization(*held)
            for new, old in zip((self.keys, self.values), held, strict=True):
                new[:, :, :start] = old[:, :, :start]
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def keep(self, committed: int, scratch_rows: Sequence[int]) -> None:
        """Move ``scratch_rows`` (ascending, counted from ``committed``) behind the committed rows and drop the rest."""
        self.length = committed + len(scratch_rows)
        if list(scratch_rows) == list(range(len(scratch_rows))):
            return
        rows = torch.tensor(scratch_rows, device=self.keys.device) + committed
        for held in (self.keys, self.values):
            held[:, :, committed : self.length] = held[:, :, rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def require_layers(model: PreTrainedModel, layers: tuple[int, ...]) -> None:
    """`ValueError` unless ``layers`` ascend and ``model`` has hidden states of these numbers."""
    if not layers:
        return
    if list(layers) != sorted(set(layers)):
        raise ValueError(f"tapped layers must ascend without repeats, got {layers}.")
    blocks, norm = _stack(model)
    if blocks is None or norm is None:
        lacks = f"no {' or '.join(f'.{name}' for name in (BLOCKS if blocks is None else FINAL_NORMS))}"
        raise ValueError(
            f"{type(model).__name__} has {lacks} to tap hidden states from. It decodes by all methods that read none; "
            "traces and learned controllers need a model that has them (Llama, Qwen, GPT-2, …)."
        )
    for layer in layers:
        if not 0 <= layer <= len(blocks):
            raise ValueError(
                f"layer {layer} does not exist: {type(model).__name__} has hidden states 0 to {len(blocks)}."
            )


@contextmanager
def _tapped(model: PreTrainedModel, layers: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
    """The states [nodes, hidden size] by layer, of a pass that is run within the block. Hooks are the model's, so they hear
    other threads' passes, too: only this one's count."""
    states: dict[int, Tensor] = {}  # of the last call: a norm behind the blocks may stand before them, too
    own = get_ident()

    def capture(layer: int, state: Tensor) -> None:
        if get_ident() == own:
            if state.dim() != 3:
                raise ValueError(
                    f"{type(model).__name__} has several hidden states of a token, which cannot be tapped."
                )
            states[layer] = state[0]

    def before(layer: int, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        capture(layer, inputs[0] if inputs else named["hidden_states"])

    def behind(layer: int, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        capture(layer, output)

    with ExitStack() as hooks:
        if layers:
            blocks, norm = _stack(model)
            for layer in layers:
                if layer < len(blocks):
                    hooks.enter_context(
                        blocks[layer].register_forward_pre_hook(partial(before, layer), with_kwargs=True)
                    )
                else:
                    hooks.enter_context(norm.register_forward_hook(partial(behind, layer)))
        yield states


def _stack(model: PreTrainedModel) -> list[Any]:
    """A model's blocks, and the norm behind them; ``None`` for what it lacks."""
    body = model.base_model
    for inner in ("language_model", "decoder"):  # of models that see, too; OPT's
        body = getattr(body, inner, body)
    return [next(filter(None, (getattr(body, name, None) for name in names)), None) for names in (BLOCKS, FINAL_NORMS)]
