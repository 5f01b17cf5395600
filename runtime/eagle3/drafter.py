"""A draft of one layer that reads the target's hidden states (EAGLE-3).

    f_t = W_fc [s_t^1; s_t^2; …]                          the target's states at position t
    x_t = f_t; of a drafted token, the layer's own output at the token before it
    h_t = x_t + W_o attention([norm(e(t + 1)); norm(x_t)]);   h_t ← h_t + W_down (act(gate) · up)
    logits = W_head norm(h_t), of the token at t + 2

So a row of the cache is a token together with the state in front of it, and the first token of a text has none. Keys and values
of a row depend on its token and its state alone: once the target has run over a drafted token that stays, its row is written anew
from the target's state. Logits are given on the target's vocabulary; ids that the drafter lacks are impossible.

Source: Li et al. 2025 (EAGLE-3); vLLM 0.32. Shape suffixes: N nodes, C hidden size, K tapped layers, D the target's hidden size,
V the target's vocabulary, U the drafter's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.adapter import SCRATCH_ROOM, Forward
from runtime.causal_model import CausalLanguageModel, context_limit
from runtime.compact.forward import LayerCache, Pass, added_norm, block, embedded, norm, per_head, write_heads
from runtime.compact.state import CompactState, Memory
from runtime.compact.weights import CompactWeights, LayerWeights, Rotary, linear, packed
from runtime.device import on_device
from runtime.eagle3.checkpoint import PROJECTIONS, REMEDY, Checkpoint, Variant

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Eagle3Weights:
    """Weights of an EAGLE-3 drafter. ``body``: embedding, layer, last norm, head; ``join`` [C, K D]; ``state_norm`` [C];
    ``join_norms`` of the joined states or of each; ``ids`` [U] of the target (``None``: its own)."""

    body: CompactWeights
    join: Tensor
    state_norm: Tensor
    join_norms: tuple[Tensor, ...]
    ids: Tensor | None
    variant: Variant

    @classmethod
    def of(cls, checkpoint: Checkpoint, embedding: Tensor, pack: bool) -> "Eagle3Weights":
        """Put a checkpoint's tensors in number format and on the device of the target's ``embedding``; ``pack``: matrices in the
        layout of `runtime.compact.weights.packed`."""
        held = {
            name: tensor.to(embedding.device, embedding.dtype)
            if tensor.is_floating_point()
            else tensor.to(embedding.device)
            for name, tensor in checkpoint.tensors.items()
        }
        layout = packed if pack else Tensor.contiguous

        def joint(names: Sequence[str], part: str) -> Tensor | None:
            found = [held[f"{name}.{part}"] for name in names if f"{name}.{part}" in held]
            return torch.cat(found) if found else None

        def matrix(*names: str) -> Tensor:
            weight = joint(names, "weight")
            assert weight is not None
            return layout(weight)

        config = checkpoint.config
        layer = LayerWeights(
            attention_norm=held["input_layernorm.weight"],
            qkv=matrix(*PROJECTIONS),
            qkv_bias=joint(PROJECTIONS, "bias"),
            query_norm=held.get("q_norm.weight"),
            key_norm=held.get("k_norm.weight"),
            output=matrix("o_proj"),
            output_bias=held.get("o_proj.bias"),
            feed_forward_norm=held["post_attention_layernorm.weight"],
            gate_up=matrix("gate_proj", "up_proj"),
            gate_up_bias=None,
            down=matrix("down_proj"),
            down_bias=None,
        )
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        body = CompactWeights(
            embedding=held.get("embed_tokens.weight", embedding),
            layers=(layer,),
            norm=held["norm.weight"],
            head=matrix("lm_head"),
            head_bias=None,
            heads=heads,
            key_heads=config.num_key_value_heads,
            head_dim=head_dim,
            epsilon=config.rms_norm_eps,
            scale=head_dim**-0.5,
            activation=_activation(config.hidden_act),
            rotary=_rotary(config, embedding.device),
        )
        names = ["input_norm"] if checkpoint.variant.norm_before_fc else []
        if checkpoint.variant.fc_norm:
            names += [f"fc_norm.{number}" for number in range(checkpoint.num_states)]
        norms = tuple(held[f"{name}.weight"] for name in names)
        ids = None if checkpoint.target_ids is None else checkpoint.target_ids.to(embedding.device)
        return cls(body, matrix("fc"), held["hidden_norm.weight"], norms, ids, checkpoint.variant)

    @property
    def num_ids(self) -> int:
        """Number of ids in the drafter's own vocabulary."""
        return len(self.body.head)

    def joined(self, hidden_NKD: Tensor) -> Tensor:
        """Join the target's states in one [N, C]."""
        states, norms = hidden_NKD.to(self.body.embedding.dtype).flatten(1), list(self.join_norms)
        if self.variant.norm_before_fc:
            states = norm(states, norms.pop(0), self.body.epsilon)
        if norms:
            parts = states.chunk(len(norms), dim=1)
            states = torch.cat([norm(one, by, self.body.epsilon) for one, by in zip(parts, norms, strict=True)], dim=1)
        return linear(states.contiguous(), self.join, None)

    def read(self, tokens_N: Tensor, x_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states [N, C] that the layer adds to, and what its attention reads [N, 2 C]."""
        body = self.body
        normed = norm(x_NC, self.state_norm, body.epsilon)
        tokens = norm(embedded(body, tokens_N), body.layers[0].attention_norm, body.epsilon)
        return normed if self.variant.norm_before_residual else x_NC, torch.cat([tokens, normed], dim=1)

    def logits(self, normed_NC: Tensor, size: int) -> Tensor:
        """Compute logits [N, V] on the target's vocabulary of ``size`` ids."""
        own_NU = linear(normed_NC, self.body.head, None) if len(normed_NC) else normed_NC.new_empty(0, self.num_ids)
        own_NU = own_NU if self.variant.logit_scale == 1 else own_NU * self.variant.logit_scale
        if self.ids is None:
            return own_NU
        return own_NU.new_full((len(own_NU), size), -torch.inf).index_copy_(1, self.ids, own_NU)


class Eagle3Drafter:
    """EAGLE-3 drafter of a `Checkpoint` for its target, as a `LanguageModel`. ``features``: the target's layers that it reads.

    Tapped layers: 0, the state that goes into the layer, and 1, what comes out of the last norm. Passes are not graphed.

    Raises
    ------
    ValueError
        If it is a drafter of another target: names the size, both values and the remedy.
    """

    programs = None
    eos_tokens: frozenset[int] = frozenset()
    num_layers = 1

    def __init__(self, checkpoint: Checkpoint, target: CausalLanguageModel) -> None:
        depth = target.num_layers
        self.checkpoint, self._target = checkpoint, target
        self.features: tuple[int, ...] = checkpoint.layers or (2, depth // 2, depth - 3)
        self.vocabulary_size = checkpoint.vocabulary_size
        self.context_limit, self.context_bound = context_limit(checkpoint.config)
        self._weights: Eagle3Weights | None = None
        self._of: Tensor | None = None  # the target's embedding, when they were made
        self._require_target(depth)
        self._current()

    def _require_target(self, depth: int) -> None:
        made, config = self.checkpoint, self._target.model.config.get_text_config()
        pairs = {
            "vocabulary": (made.vocabulary_size, self._target.vocabulary_size),
            "target_hidden_size": (made.target_hidden, config.hidden_size),
        }
        if "embed_tokens.weight" not in made.tensors:
            pairs["hidden_size"] = (made.config.hidden_size, config.hidden_size)
        for name, (own, found) in pairs.items():
            if own != found:
                kind = type(self._target.model).__name__
                raise ValueError(
                    f"this EAGLE-3 drafter was made for another target: its {name} is {own}, and {kind} has {found}. {REMEDY}"
                )
        if sorted(set(self.features)) != list(self.features) or not 0 <= self.features[0] <= self.features[-1] <= depth:
            raise ValueError(
                f"this EAGLE-3 drafter reads layers {self.features}, and the target has 0 to {depth}. {REMEDY}"
            )
        if made.num_states != len(self.features):
            raise ValueError(
                f"this EAGLE-3 drafter joins {made.num_states} hidden states and names {len(self.features)} layers "
                f"{self.features}. {REMEDY}"
            )

    @property
    def device(self) -> torch.device:
        return self._target.device

    @property
    def dtype(self) -> torch.dtype:
        return self._target.dtype

    @property
    def forward(self) -> str:
        """The forward in use: ``packed`` where the target's is, else ``compact``."""
        return "packed" if self._current().body.head.is_mkldnn else "compact"

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a pass over few drafted tokens reads: nothing is joined, and an embedding is looked up."""
        left = (self.checkpoint.tensors.get(f"{name}.weight") for name in ("fc", "embed_tokens"))
        return (
            self.checkpoint.num_parameters - sum(one.numel() for one in left if one is not None)
        ) * self.dtype.itemsize

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> "Eagle3State":
        for layer in layers:
            if layer not in (0, 1):
                raise ValueError(f"layer {layer} does not exist: an EAGLE-3 drafter has hidden states 0 and 1.")
        return Eagle3State(self._current(), max_length + SCRATCH_ROOM, layers, self.vocabulary_size)

    def embedding(self, token: int) -> Tensor:
        return self._current().body.embedding[token].detach()

    @torch.inference_mode()
    def _current(self) -> Eagle3Weights:
        """Return the weights for the target's embedding as it is now."""
        embedding = self._target.model.get_input_embeddings().weight.detach()
        if self._weights is None or self._of is None or not _same(self._of, embedding):
            self._of = embedding
            self._weights = Eagle3Weights.of(self.checkpoint, embedding, self._target.forward == "packed")
        return self._weights


def _same(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.dtype, one.device) == (other.data_ptr(), other.dtype, other.device)


@dataclass(frozen=True)
class DraftedNode:
    """A scratch row: its ``token`` [1], the layer's output there [C], and whether the state it read was the drafter's ``own``."""

    token: Tensor
    output_C: Tensor
    own: bool


class Eagle3State(CompactState):
    """State of one request. Offered states belong to the next tokens that are fed or, of drafted ones that stay, committed."""

    def __init__(self, weights: Eagle3Weights, capacity: int, layers: tuple[int, ...], size: int) -> None:
        super().__init__(Memory(weights.body, capacity), layers)
        self._weights, self._size = weights, size
        self._offered_NC = weights.body.norm.new_empty(0, len(weights.body.norm))
        self._nodes: list[DraftedNode] = []
        self._end_C: Tensor | None = None  # the layer's output at the last committed row

    @property
    def _cache(self) -> LayerCache:
        return self.memory.caches[0]

    @torch.inference_mode()
    def offer(self, hidden_NKD: Tensor) -> None:
        """Take the target's states [N, K, D] in front of the next N tokens that are fed or committed."""
        self._offered_NC = torch.cat([self._offered_NC, self._weights.joined(hidden_NKD.to(self.memory.rows.device))])

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        ids_N = on_device(tokens, self.memory.rows.device)
        first, count = len(self._nodes), len(ids_N)
        parents = list(range(first - 1, first + count - 1) if parents is None else parents)
        skipped = count - (last or count)  # rows without logits
        passes, start = [], 0
        while start < count:
            offered = min(count, len(self._offered_NC))
            if offered:
                end, x_NC = offered, self._offered_NC[:offered]
            else:  # as far as all parents have been run over
                end = next((at for at in range(start, count) if parents[at] >= first + start), count)
                x_NC = torch.stack([self._behind(parent) for parent in parents[start:end]])
            wanted = max(end - max(start, skipped), 0)
            passes.append(self._run(ids_N[start:end], parents[start:end], x_NC, wanted, not offered))
            self._offered_NC, start = self._offered_NC[offered:], end  # a pass that found no memory took none
        logits = torch.cat([one.logits for one in passes])
        states = [one.hidden_NKD for one in passes if one.hidden_NKD is not None]
        return Forward(logits, torch.cat(states) if states else None)

    def _behind(self, parent: int) -> Tensor:
        state_C = self._nodes[parent].output_C if parent >= 0 else self._end_C
        assert state_C is not None, "a token is drafted behind a text whose states were never offered"
        return state_C

    def _run(self, ids_N: Tensor, parents: Sequence[int], x_NC: Tensor, wanted: int, own: bool) -> Forward:
        """Run one pass; return logits of the ``wanted`` last rows."""
        self._append(len(ids_N), parents)
        weights, body = self._weights, self._weights.body
        state_NC, read = weights.read(ids_N, x_NC)
        both = block(body, body.layers[0], self._cache, per_head(body, self._pass(ids_N)), state_NC, read)
        out_NC, normed_NC = added_norm(body, *both, body.norm)
        behind_NC = normed_NC if weights.variant.norm_output else out_NC
        self._nodes += [DraftedNode(ids_N[row : row + 1], behind_NC[row], own) for row in range(len(ids_N))]
        taps = [{0: x_NC, 1: normed_NC}[layer] for layer in self._layers]
        logits = weights.logits(normed_NC[len(ids_N) - wanted :], self._size)
        return Forward(logits, torch.stack(taps, dim=1) if taps else None)

    @torch.inference_mode()
    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        """Commit a path as `ModelState.keep`; committed drafted tokens are written anew from the states offered for them."""
        nodes, committed, start = [self._nodes[node] for node in path], len(path) - pending, self.scratch.committed
        super().keep(path, pending)
        own = [place for place, node in enumerate(nodes[:committed]) if node.own][: len(self._offered_NC)]
        if own:
            ids_N = torch.cat([nodes[place].token for place in own])
            rows_N = on_device([start + place for place in own], self.memory.rows.device)
            call = Pass(ids_N, rows_N, self.memory.cos[rows_N], self.memory.sin[rows_N], 0, None)
            body, (_, read) = self._weights.body, self._weights.read(ids_N, self._offered_NC[: len(own)])
            write_heads(body, body.layers[0], self._cache, call, read)
            self._offered_NC = self._offered_NC[len(own) :]
        if committed:
            self._end_C = nodes[committed - 1].output_C
        self._nodes = nodes[committed:]


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    found: Callable[[Tensor], Tensor] = F.silu if name == "silu" else ACT2FN[name]
    return found


def _rotary(config: "PreTrainedConfig", device: torch.device) -> Rotary:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    made = LlamaRotaryEmbedding(config).to(device)
    return Rotary(made.inv_freq, made.attention_scaling)
