"""`ModelState` over Hugging Face's forward with an explicit attention mask and positions."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from runtime.adapter import Forward
from runtime.hugging_face.cache import ScratchLayer
from runtime.hugging_face.taps import tapped
from runtime.scratch import Scratch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HuggingFaceState:
    """One request's state; ``capacity`` rows are held at once and grow where they do not suffice."""

    def __init__(self, model: "PreTrainedModel", capacity: int, layers: tuple[int, ...]) -> None:
        self._model = model
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
        with tapped(self._model, self._layers) as states:
            logits = self._model(**call).logits[0]
        return Forward(logits, torch.stack(states, dim=1) if states else None)

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
        if self._model.config._attn_implementation == "sdpa":
            return allowed[None, None]
        open_mask = torch.zeros(allowed.shape, dtype=self._model.dtype, device=allowed.device)
        return open_mask.masked_fill_(~allowed, torch.finfo(self._model.dtype).min)[None, None]
