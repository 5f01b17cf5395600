"""An EAGLE-3 drafter as it is trained: over whole texts, several drafted tokens deep (training-time test).

    x^0 = W_fc [s^1; s^2; …]         the target's states;  x^i: the layer's own output at depth i - 1, at the same position
    position t at depth i reads token t + 1 + i, attends to x^0's keys up to t and to its own keys of depths 1 to i, and
    predicts token t + 2 + i

So depth i at position t is what `runtime.eagle3` computes at the (i + 1)-th token drafted behind a text of t + 2 tokens; a test
compares them. Source: Li et al. 2025, section 3.2. Shape suffixes: B texts, L positions, K tapped layers, C hidden size, U ids
of the drafter's own vocabulary, H heads, D head dimension.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")


class DrafterNetwork(nn.Module):
    """One layer of the target's shape over a part ``ids_U`` of its vocabulary; ``embedding_VC`` and ``head_VC`` are the target's.

    Parameters' names are those of the checkpoint (`runtime.eagle3.checkpoint`).
    """

    input_layernorm: nn.RMSNorm
    hidden_norm: nn.RMSNorm
    post_attention_layernorm: nn.RMSNorm
    norm: nn.RMSNorm
    ids_U: Tensor
    embedding_VC: Tensor
    target_head_UC: Tensor

    def __init__(
        self, config: "PreTrainedConfig", ids_U: Tensor, num_states: int, embedding_VC: Tensor, head_VC: Tensor
    ) -> None:
        super().__init__()
        hidden, wide = config.hidden_size, config.intermediate_size
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or hidden // self.heads
        self.epsilon, self.theta = config.rms_norm_eps, config.rope_parameters["rope_theta"]
        self.register_buffer("ids_U", ids_U, persistent=False)
        self.register_buffer("embedding_VC", embedding_VC.float(), persistent=False)
        self.register_buffer("target_head_UC", head_VC[ids_U].float(), persistent=False)
        self.fc = nn.Linear(num_states * hidden, hidden, bias=False)
        self.q_proj = nn.Linear(2 * hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * hidden, self.key_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * hidden, self.key_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(hidden, wide, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(wide, hidden, bias=False)
        self.lm_head = nn.Linear(hidden, len(ids_U), bias=False)
        self.lm_head.weight.data.copy_(head_VC[ids_U])
        for name in NORMS:
            setattr(self, name, nn.RMSNorm(hidden, eps=self.epsilon))

    def forward(self, states_BLC: Tensor, tokens_BL: Tensor, depths: int) -> list[Tensor]:
        """Logits [B, L, U] of each depth; ``states_BLC`` [B, L, K C] at positions, ``tokens_BL`` [B, L + depths] after them."""
        length = states_BLC.shape[1]
        x = self.fc(states_BLC)
        positions = torch.arange(length, device=x.device)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits = []
        for depth in range(depths):
            embedded = self.embedding_VC[tokens_BL[:, depth : depth + length]].to(x.dtype)
            read = torch.cat([self.input_layernorm(embedded), self.hidden_norm(x)], dim=-1)
            x = x + self.o_proj(self._attention(read, positions + depth, keys, values))
            normed = self.post_attention_layernorm(x)
            x = x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
            logits.append(self.lm_head(self.norm(x)))
        return logits

    def _attention(self, read: Tensor, positions_L: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Mixed values [B, L, H D]; ``keys`` and ``values`` [B, H, L, D] grow by this depth's."""
        query, key, value = (
            project(read).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = self._turned(query, positions_L), self._turned(key, positions_L)
        groups, scale = self.heads // self.key_heads, self.head_dim**-0.5
        keys.append(key.repeat_interleave(groups, dim=1))
        values.append(value.repeat_interleave(groups, dim=1))
        if len(keys) == 1:
            mixed = F.scaled_dot_product_attention(query, keys[0], values[0], is_causal=True, scale=scale)
        else:
            causal = torch.ones(len(positions_L), len(positions_L), dtype=torch.bool, device=read.device).tril()
            context = (query @ keys[0].transpose(-1, -2) * scale).masked_fill(~causal, -torch.inf)
            own = [(query * one).sum(-1, keepdim=True) * scale for one in keys[1:]]
            weights = torch.cat([context, *own], dim=-1).softmax(-1, dtype=torch.float32).to(query.dtype)
            mixed = weights[..., : len(positions_L)] @ values[0]
            for place, one in enumerate(values[1:]):
                mixed = mixed + weights[..., len(positions_L) + place, None] * one
        return mixed.transpose(1, 2).flatten(2)

    def _turned(self, heads: Tensor, positions_L: Tensor) -> Tensor:
        half = self.head_dim // 2
        frequencies = self.theta ** (-torch.arange(half, device=heads.device).float() / half)
        angles = positions_L[:, None].float() * frequencies
        cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def target_probs(self, last_NC: Tensor) -> Tensor:
        """The target's distribution over the drafter's own ids [N, U], from its last hidden states."""
        return F.linear(last_NC.float(), self.target_head_UC).softmax(-1)

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Tensors of the checkpoint, by its names."""
        part = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "midlayer.self_attn.")
        part |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "midlayer.mlp.")
        part |= dict.fromkeys(NORMS[:3], "midlayer.")
        named = {part.get(name.split(".")[0], "") + name: tensor for name, tensor in self.state_dict().items()}
        made = {name: tensor.detach().to(dtype).contiguous() for name, tensor in named.items()}
        made["d2t"] = self.ids_U - torch.arange(len(self.ids_U), device=self.ids_U.device)
        known = torch.zeros(len(self.embedding_VC), dtype=torch.bool)
        known[self.ids_U] = True
        return made | {"t2d": known}
