"""A Hugging Face causal language model as the adapter wraps it: the compact forward where it applies, else Hugging Face's own."""

import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from runtime.adapter import SCRATCH_ROOM, ModelState
from runtime.compact.applicable import NotCompactError, signature
from runtime.compact.state import CompactState, GraphedState, Memory, Slot
from runtime.compact.weights import LET_GO, CompactWeights, is_whole, unpackable
from runtime.graphs import Programs, maker_for

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ForwardPath = Literal["auto", "compact", "packed", "graphed", "fused", "hugging_face"]
SAMPLES_PER_PARAMETER = 4


class CausalLanguageModel:
    """A Hugging Face causal language model, wrapped, in its own dtype and on its own device.

    Requests may take turns; where passes are graphed they come from one thread. `ValueError` if its attention is of a kind that
    cannot verify drafts, the compact forward is asked for and does not compute it (with the reason), or its matrices were let go.
    What else Hugging Face's own forward cannot do the first request tries (`runtime.hugging_face`).

    Parameters
    ----------
    forward
        ``auto``, the rule: the compact forward where it computes this model, on a CUDA device graphed, on a CPU packed if its
        matrices can be, else ``hugging_face``. To insist: ``compact``, as plain calls; ``packed``, as plain calls over a copy of
        the matrices in the layout that a CPU multiplies few rows fastest in; ``graphed``, as graphed passes over memory that is
        kept from request to request; ``fused``, as those, on a CUDA device, by fewer kernels (`runtime.compact.kernels`);
        ``hugging_face``, the model's own.
    priority
        Of graphed work on a CUDA device that does several things at once; the lower the number, the higher.
    whole
        ``False``: nobody else uses the model, and what is packed now is let go. Its own forward then raises an error.
    """

    def __init__(
        self, model: "PreTrainedModel", forward: ForwardPath = "auto", priority: int = 0, whole: bool = True
    ) -> None:
        if forward not in get_args(ForwardPath):
            raise ValueError(f"forward {forward!r} is unknown; use {', '.join(get_args(ForwardPath))}.")
        config = model.config.get_text_config()
        _require_plain_attention(config, model)
        if not is_whole(model):
            raise ValueError(f"{type(model).__name__} cannot be wrapped again: {LET_GO}")
        self.model = model.eval()
        self.vocabulary_size: int = config.vocab_size
        self.num_layers: int = getattr(config, "num_hidden_layers", 0)
        self.context_limit, self.context_bound = context_limit(config)
        self._wanted: ForwardPath = forward
        self._weights: CompactWeights | None = None
        self._signature: tuple[Any, ...] = ()  # of the model that they were joined from
        self._samples: tuple[float, ...] | None = None  # of a model whose matrices were let go
        self.not_compact: str | None = None  # why the compact forward does not compute this model
        self._faults: dict[bool, str] | None = None  # of Hugging Face's forward, once a request has tried it
        self._slots: list[Slot] = []  # that no request holds
        self._priority = priority
        self.programs: Programs | None = None  # where passes are graphed: other work over this model's output
        self._compact(whole)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def forward(self) -> str:
        """The forward in use: ``compact``, ``packed``, ``graphed``, ``fused`` or ``hugging_face``."""
        weights = self._compact()
        if weights is None:
            return "hugging_face"
        if weights.head.is_mkldnn:
            return "packed"
        if self.programs is None:
            return "compact"
        return "graphed" if weights.kernels is None else "fused"

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed matrices of blocks and head where the forward is ``packed``, else 0."""
        weights = self._compact()
        return 0 if weights is None else weights.packed_bytes

    @property
    def whole(self) -> bool:
        """True if the model has all its weights, so that its own forward computes it."""
        return self._samples is None

    @property
    def samples(self) -> tuple[float, ...]:
        """Weights at fixed, spread indices of every parameter, rounded to six digits; what was let go is remembered."""
        return sampled_weights(dict(self.model.named_parameters())) if self._samples is None else self._samples

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> ModelState:
        # Hugging Face's library: a model has loaded it
        from runtime.hugging_face import HuggingFaceState, faults, require_layers

        require_layers(self.model, layers)
        capacity = max_length + SCRATCH_ROOM
        weights = self._compact()
        if weights is None:
            if self._faults is None:
                self._faults = faults(self.model)
            return HuggingFaceState(self.model, capacity, layers, self._faults)
        if self.programs is None:
            return CompactState(Memory(weights, capacity), layers)
        return self._graphed(weights, capacity, layers)

    def compact_weights(self) -> CompactWeights:
        """Return the compact forward's weights; `ValueError` with the reason where it does not compute this model."""
        weights = self._compact()
        if weights is None:
            raise ValueError(
                f"only the compact forward writes many texts at once, and {self.not_compact or 'another one is used'}."
            )
        return weights

    @property
    def eos_tokens(self) -> frozenset[int]:
        """End-of-sequence tokens of the model's generation config as it is now."""
        tokens = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        if tokens is None:
            return frozenset()
        return frozenset([tokens] if isinstance(tokens, int) else tokens)

    def _compact(self, whole: bool = True) -> CompactWeights | None:
        """Return the joint weights, joined anew where the model was changed since; ``None`` for Hugging Face's own forward."""
        if self._wanted == "hugging_face":
            return None
        pack, fused = self._wanted == "packed", self._wanted == "fused"
        pack |= self._wanted == "auto" and unpackable(next(self.model.parameters())) is None
        if self._weights is None or self._signature != signature(self.model, pack):
            if self._samples is not None:
                raise ValueError(f"{type(self.model).__name__} was changed since it was loaded: {LET_GO}")
            try:
                samples = sampled_weights(dict(self.model.named_parameters())) if pack and not whole else None
                self._weights, self.not_compact = CompactWeights.of(self.model, pack, whole, fused), None
                self._signature = signature(self.model, pack)  # now that its parameters are views
                self._samples = samples
                self._slots.clear()  # and what was graphed over other weights, perhaps on another device
                if self._wanted in ("graphed", "fused") or (self._wanted == "auto" and self.device.type == "cuda"):
                    self.programs = Programs(maker_for(self.device, self._priority))
            except NotCompactError as error:
                if self._wanted != "auto":
                    raise
                self._weights, self.not_compact = None, str(error)
        return self._weights

    @torch.inference_mode()
    def _graphed(self, weights: CompactWeights, capacity: int, layers: tuple[int, ...]) -> GraphedState:
        """Open a state over memory that an earlier request left, if it is large enough."""
        assert self.programs is not None
        fitting = [slot for slot in self._slots if slot.memory.weights is weights and slot.memory.capacity >= capacity]
        if fitting:
            slot = fitting[0]
            self._slots.remove(slot)
            slot.memory.clear()
        else:
            self._slots.clear()  # too small, or of weights that were replaced
            slot = Slot(weights, capacity, self.programs.maker)
        state = GraphedState(slot, layers)
        weakref.finalize(state, self._slots.append, slot)
        return state

    @torch.inference_mode()
    def embedding(self, token: int) -> Tensor:
        # joint weights are current since the request was opened; the layer's own call takes ten times as long
        if self._weights is not None:
            return self._weights.embedding.detach()[token]
        embedding: Tensor = self.model.get_input_embeddings()(torch.tensor([token], device=self.device))
        return embedding[0]


def sampled_weights(parameters: Mapping[str, Tensor]) -> tuple[float, ...]:
    """Sample weights at fixed, spread indices of every parameter, rounded to six digits."""
    samples = []
    for index, (_, parameter) in enumerate(sorted(parameters.items())):
        rows = parameter.detach().reshape(-1, parameter.shape[-1])
        for sample in range(SAMPLES_PER_PARAMETER):
            place = (SAMPLES_PER_PARAMETER * index + sample + 1) * 2654435761 % rows.numel()
            samples.append(float(f"{float(rows[divmod(place, rows.shape[1])]):.6g}"))
    return tuple(samples)


def context_limit(config: Any) -> tuple[int, str]:
    """Return the positions that the model serves, and what bounds them if not its training: a sliding window equals full
    attention up to its width, and rotary angles that change where a text gets long are not those of the keys in the cache. Angles
    scaled for ``factor`` times the original positions (YaRN, linear) serve so many, whatever ``max_position_embeddings`` is."""
    sizes = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))  # the latter MPT's
    limits = [(int(next(filter(None, sizes), sys.maxsize)), "")]
    given = getattr(config, "rope_parameters", None) or {}
    rotaries = [given] if "rope_type" in given else [one for one in given.values() if isinstance(one, dict)]
    for rotary in rotaries:  # of every type of layers
        original, factor = rotary.get("original_max_position_embeddings"), rotary.get("factor")
        if rotary.get("rope_type") in ("yarn", "linear") and original and factor:
            limits = [max(*limits, (int(original * factor), ""))]
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    if window and "sliding_attention" in layer_types:
        limits.append((int(window), "the width of a sliding attention window"))
    for rotary in (one for one in rotaries if one.get("rope_type") == "longrope"):
        room = int(rotary["original_max_position_embeddings"]) - SCRATCH_ROOM  # drafts reach as far beyond the text
        limits.append((room, f"{SCRATCH_ROOM} short of where its rotary angles (longrope) change"))
    return min(limits)


def _require_plain_attention(config: Any, model: "PreTrainedModel") -> None:
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
