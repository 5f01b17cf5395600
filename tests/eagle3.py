"""Random EAGLE-3 drafters, and what one computes written down plainly: no cache, no joint matrices, one token at a time."""

import json

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoConfig

from runtime.eagle3.checkpoint import Checkpoint, Variant

VARIANTS = [
    {},
    {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    {"fc_norm": True, "logit_scale": 0.5},
    {"own_embedding": True, "attention_bias": True},
    {"model_type": "qwen3", "num_states": 2, "full_vocabulary": True},
]


def random_drafter(model, ids=None, seed=0, layers=None, **options):
    """A `Checkpoint` for ``model``: over its token ``ids``, with options as in `VARIANTS`."""
    made, config, generator = options, model.config, torch.Generator().manual_seed(seed)
    hidden, wide, size = config.hidden_size, 2 * config.hidden_size, config.vocab_size
    num_states = made.pop("num_states", 3)
    layers = layers or (0, 1, config.num_hidden_layers)[:num_states]
    kind, bias = made.pop("model_type", "llama"), made.pop("attention_bias", False)
    own = AutoConfig.for_model(
        kind, hidden_size=hidden, intermediate_size=wide, num_attention_heads=4, num_key_value_heads=2, head_dim=hidden // 4,
        num_hidden_layers=1, vocab_size=size, attention_bias=bias, rms_norm_eps=1e-5, max_position_embeddings=256,
        rope_theta=1000.0,
    )  # fmt: skip
    if made.pop("full_vocabulary", False):
        ids = None
    elif ids is None:
        ids = [token for token in range(size) if token != 1]
    count = size if ids is None else len(ids)

    def weight(*shape):
        return torch.randn(shape, generator=generator) * 2 / shape[-1] ** 0.5

    def scales(width):
        return 1 + 0.3 * torch.randn(width, generator=generator)

    tensors = {
        "fc.weight": weight(hidden, num_states * hidden),
        **{
            f"{name}.weight": scales(hidden)
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")
        },
        "q_proj.weight": weight(hidden, 2 * hidden),
        "k_proj.weight": weight(hidden // 2, 2 * hidden),
        "v_proj.weight": weight(hidden // 2, 2 * hidden),
        "o_proj.weight": weight(hidden, hidden),
        "gate_proj.weight": weight(wide, hidden),
        "up_proj.weight": weight(wide, hidden),
        "down_proj.weight": weight(hidden, wide),
        "lm_head.weight": 2 * weight(count, hidden),
    }
    if bias:
        tensors |= {f"{name}_proj.bias": weight(len(tensors[f"{name}_proj.weight"])) for name in "qkv"}
    if kind == "qwen3":
        tensors |= {f"{name}_norm.weight": scales(hidden // 4) for name in "qk"}
    if made.pop("own_embedding", False):
        tensors["embed_tokens.weight"] = weight(size, hidden)
    if made.get("norm_before_fc"):
        tensors["input_norm.weight"] = scales(num_states * hidden)
    if made.get("fc_norm"):
        tensors |= {f"fc_norm.{number}.weight": scales(hidden) for number in range(num_states)}
    if ids is not None:
        tensors["d2t"] = torch.tensor(ids) - torch.arange(count)
    return Checkpoint(own, Variant(**made), tuple(layers), size, hidden, tensors)


def save_drafter(drafter, folder, speculators=False):
    """The folder of a drafter, in one of its two forms."""
    folder.mkdir(parents=True, exist_ok=True)
    layer = drafter.config.to_dict() | {"vocab_size": drafter.vocabulary_size}
    variant = dict(vars(drafter.variant))
    common = {
        "draft_vocab_size": len(drafter.tensors["lm_head.weight"]),
        "eagle_aux_hidden_state_layer_ids": list(drafter.layers),
    }
    if speculators:
        config = {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "transformer_layer_config": layer,
            "target_hidden_size": None, "tie_word_embeddings": False, **common, **variant,
        }  # fmt: skip
    else:
        kept = {name: value for name, value in variant.items() if value != getattr(Variant(), name)}
        config = layer | common | kept | {"architectures": ["LlamaForCausalLMEagle3"], "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    prefix = "layers.0." if speculators else "midlayer."
    ends = ("fc", "norm", "lm_head", "d2t", "embed_tokens", "input_norm")
    part = {**dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"), "self_attn."),
            **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp.")}  # fmt: skip

    def named(name):
        stem = name.split(".")[0]
        return name if stem in (*ends, "fc_norm") else f"{prefix}{part.get(stem, '')}{name}"

    save_file(
        {named(name): tensor.contiguous() for name, tensor in drafter.tensors.items()}, folder / "model.safetensors"
    )
    return folder


class Reference:
    """A drafter behind ``model``, plainly: `laws` of the tokens after a text and along what is drafted behind it."""

    def __init__(self, drafter, model):
        self.drafter, self.model, self.tensors = drafter, model, drafter.tensors
        self.config, self.variant = drafter.config, drafter.variant
        self.head = self.config.head_dim
        embedding = model.get_input_embeddings().weight.detach()
        self.embedding = self.tensors.get("embed_tokens.weight", embedding)

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config.rms_norm_eps)

    def product(self, x, name):
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    @torch.no_grad()
    def states(self, text):
        """What the layer reads of the target at every position of a text."""
        hidden = self.model(torch.tensor([text]), output_hidden_states=True).hidden_states
        parts = [hidden[layer][0] for layer in self.drafter.layers]
        if self.variant.norm_before_fc:
            width = len(parts)
            parts = self.norm(torch.cat(parts, -1), "input_norm").chunk(width, -1)
        if self.variant.fc_norm:
            parts = [self.norm(part, f"fc_norm.{number}") for number, part in enumerate(parts)]
        return list(self.product(torch.cat(list(parts), -1), "fc"))

    def turned(self, x, position):
        half = self.head // 2
        angles = position / self.config.rope_parameters["rope_theta"] ** (torch.arange(half).float() / half)
        cos, sin = angles.cos(), angles.sin()
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def row(self, token, state, position, cache):
        """Output at one token; ``cache`` grows by its key and value."""
        normed = self.norm(state, "hidden_norm")
        read = torch.cat([self.norm(self.embedding[token], "input_layernorm"), normed])
        heads = {name: self.product(read, f"{name}_proj").view(-1, self.head) for name in "qkv"}
        for name in "qk":
            if f"{name}_norm.weight" in self.tensors:
                heads[name] = self.norm(heads[name], f"{name}_norm")
            heads[name] = self.turned(heads[name], position)
        cache.append((heads["k"], heads["v"]))
        keys, values = (torch.stack(part).repeat_interleave(2, 1) for part in zip(*cache, strict=True))
        weights = (torch.einsum("hd,thd->ht", heads["q"], keys) * self.head**-0.5).softmax(-1)
        mixed = torch.einsum("ht,thd->hd", weights, values).flatten()
        x = (normed if self.variant.norm_before_residual else state) + self.product(mixed, "o_proj")
        read = self.norm(x, "post_attention_layernorm")
        return x + self.product(F.silu(self.product(read, "gate_proj")) * self.product(read, "up_proj"), "down_proj")

    @torch.no_grad()
    def laws(self, text, drafted=()):
        """Logits on the target's vocabulary after ``text`` and after each of the ``drafted`` tokens behind it."""
        cache, logits, state = [], [], None
        given = self.states(text)
        for position, token in enumerate([*text[1:], *drafted]):
            known = position < len(text) - 1
            out = self.row(token, given[position] if known else state, position, cache)
            normed = self.norm(out, "norm")
            state = normed if self.variant.norm_output else out
            if position >= len(text) - 2:
                own = self.product(normed, "lm_head") * self.variant.logit_scale
                ids = self.drafter.target_ids
                whole = own if ids is None else torch.full((self.drafter.vocabulary_size,), -torch.inf)
                if ids is not None:
                    whole[ids] = own
                logits.append(whole)
        return torch.stack(logits)
