r"""Function-preserving inflation: a small Llama model in the shape, and at the cost, of a larger one.

The larger model's logits equal the small one's. Small sizes carry the suffix s, big ones b:

* residual stream: zero beyond ``ds``. RMSNorm divides by the mean over more coordinates, so w_b = w_s sqrt(ds / db) on the
  first ds coordinates, 0 beyond, and eps_b = eps_s ds / db;
* heads: key/value head j goes to slot j, query head h to slot (h // gs) gb + h % gs, with g = heads / kv_heads; the columns of
  ``o_proj`` of all other heads are zero;
* head dimension hb = m hs under the same rope_theta: the pair (i, i + hs/2) goes to (m i, m i + hb/2), whose frequency
  theta^(-2 m i / (m hs)) is the same; query rows are multiplied by sqrt(m) against the softmax scale 1 / sqrt(hb);
* feed-forward: the first fs slots; the other columns of ``down_proj`` are zero;
* depth: extra layers stand in front and add nothing (o_proj = down_proj = 0), so the last hidden states are real ones;
* vocabulary: coordinate ds carries a constant 1e-5 in every real token's embedding; the head turns it into a logit far below
  every other for padding rows. It overflows in float16: keep the vocabulary there.

Weights that cannot matter are random rather than zero: a machine may run faster on zeros.

The draft's feed-forward size is solved for, so that the pair costs what real pairs cost:

    cost(model) = weights + LAYER · layers                     of a pass over one token, in weights read
    cost(target) / cost(draft) = cost_ratio

A pass over one token waits for its weights, and each layer costs some twenty small operations besides. On an AMD Zen 3 in
float32 a layer's operations take as long as 1.1 million of its weights. Machines with faster weights have slower layers in this
unit, which changes c little as long as the draft has fewer layers in the proportion in which it has fewer weights: c lies
between both proportions. What it is on a machine, its latency profile says.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRotaryEmbedding

from predictors.bundle import OTHERWISE, read_bundle, write_bundle
from predictors.config import Checked, above
from runtime import ModelPair
from runtime.causal_model import CausalLanguageModel
from runtime.identity import pair_identity

MARK = 1e-5  # constant coordinate that carries the padding rows' logit
PADDING_LOGIT = -1e4
LAYER = 1.2e6  # weights that are read in the time of a layer's other work
STEP = 64  # feed-forward sizes are multiples of it


@dataclass(frozen=True)
class InflatedShape:
    """Size of the inflated model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int

    @property
    def layer_weights(self) -> int:
        """Weights of one block's matrices."""
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim * self.hidden
        return attention + 3 * self.hidden * self.feed_forward

    def config(self, vocab: int, context: int) -> LlamaConfig:
        """A Llama of this shape whose head is its embedding, for texts of ``context`` tokens."""
        return LlamaConfig(
            vocab_size=vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.feed_forward,
            max_position_embeddings=context,
            tie_word_embeddings=True,
        )


@dataclass(frozen=True)
class InflatedDraft(Checked):
    """Size of the inflated draft but for its feed-forward, which follows from ``cost_ratio``: draft steps in a target pass."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    cost_ratio: Annotated[float, above(1)]  # a draft costs less than its target

    def shape(self, target: InflatedShape, vocabulary: int, least: int) -> InflatedShape:
        """The draft's whole shape beside ``target``; ``least``: feed-forward size of the small draft, which has to fit.
        `ValueError` if the ratio is out of reach with these layers: names the largest that fits."""
        whole = cost(target, vocabulary)
        without, fitting = (cost(self._with(size), vocabulary) for size in (0, least))
        feed_forward = STEP * round((whole / self.cost_ratio - without) / (3 * self.hidden * self.layers) / STEP)
        if feed_forward < least:
            raise ValueError(
                f"cost_ratio {self.cost_ratio} needs a feed-forward of {feed_forward}, and the small draft has {least}. With "
                f"{self.layers} layers of {self.hidden} at most {whole / fitting:.1f} fits: lower it, hidden or layers."
            )
        return self._with(feed_forward)

    def _with(self, feed_forward: int) -> InflatedShape:
        return InflatedShape(self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, feed_forward)


def cost(shape: InflatedShape, vocabulary: int) -> float:
    """Cost of a pass over one token, in weights read; the head is the embedding's own matrix."""
    return shape.layers * (shape.layer_weights + LAYER) + vocabulary * shape.hidden


def inflate(small: LlamaForCausalLM, shape: InflatedShape, vocab: int | None = None) -> LlamaForCausalLM:
    """A plain `LlamaForCausalLM` of the given shape with the small model's function, in its dtype.

    ``small`` is any Llama model without biases or rope scaling, tied or untied, with or without grouped heads; in float32, as
    sqrt(ds / db) is not exact in bfloat16. ``vocab``: ``None`` keeps the vocabulary, a larger one adds padding rows of
    probability 0. `ValueError` where the shape cannot hold the small model.
    """
    if small.dtype == torch.float16 and vocab not in (None, small.config.vocab_size):
        raise ValueError("cannot inflate: a larger vocab overflows in float16; use bfloat16 or float32, or keep it.")
    config = _inflated_config(small.config, shape, vocab)
    with torch.device("meta"):
        big = LlamaForCausalLM(config)
    big = big.to(small.dtype).to_empty(device=small.device)
    big.tie_weights()
    big.model.rotary_emb = LlamaRotaryEmbedding(config).to(small.device)  # its buffers are undefined after to_empty
    with torch.no_grad():
        _fill(big, small)
    return big.eval()


def _inflated_config(config: LlamaConfig, shape: InflatedShape, vocab: int | None) -> LlamaConfig:
    hidden, layers, heads, kv_heads, head_dim, feed_forward = astuple(shape)
    vocab = config.vocab_size if vocab is None else vocab
    group_small = config.num_attention_heads // config.num_key_value_heads
    problems = [
        (hidden < config.hidden_size, f"hidden {hidden} is below {config.hidden_size}"),
        (layers < config.num_hidden_layers, f"layers {layers} is below {config.num_hidden_layers}"),
        (kv_heads < config.num_key_value_heads, f"kv_heads {kv_heads} is below {config.num_key_value_heads}"),
        (hidden % heads != 0, f"hidden {hidden} is no multiple of heads {heads}"),
        (heads % kv_heads != 0, f"heads {heads} is no multiple of kv_heads {kv_heads}"),
        (heads // kv_heads < group_small, f"heads / kv_heads {heads // kv_heads} is below {group_small}"),
        (head_dim % config.head_dim != 0, f"head_dim {head_dim} is no multiple of {config.head_dim}"),
        (feed_forward < config.intermediate_size, f"feed_forward {feed_forward} is below {config.intermediate_size}"),
        (vocab < config.vocab_size, f"vocab {vocab} is below {config.vocab_size}"),
        (vocab > config.vocab_size and hidden <= config.hidden_size, "a larger vocab needs a larger hidden"),
        (config.attention_bias or config.mlp_bias, "models with biases are not supported"),
        (config.rope_parameters.get("rope_type", "default") != "default", "scaled rope is not supported"),
    ]
    for wrong, message in problems:
        if wrong:
            raise ValueError(f"cannot inflate: {message}.")
    values = config.to_dict()
    for key in ("architectures", "dtype", "transformers_version", "_name_or_path"):
        values.pop(key, None)
    values |= {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": feed_forward,
        "vocab_size": vocab,
        "rms_norm_eps": config.rms_norm_eps * config.hidden_size / hidden,
    }
    return LlamaConfig(**values)


def _fill(big: LlamaForCausalLM, small: LlamaForCausalLM) -> None:
    generator = torch.Generator(big.device).manual_seed(0)
    for parameter in big.parameters():
        if parameter.ndim == 2:
            parameter.normal_(0, big.config.initializer_range, generator=generator)
    ones = torch.ones_like(small.model.norm.weight)
    extra = big.config.num_hidden_layers - small.config.num_hidden_layers
    for layer in big.model.layers[:extra]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            _fill_norm(norm.weight, ones)
    for layer, source in zip(big.model.layers[extra:], small.model.layers, strict=True):
        _fill_attention(layer.self_attn, source.self_attn, big.config, small.config)
        _fill_feed_forward(layer.mlp, source.mlp)
        for name in ("input_layernorm", "post_attention_layernorm"):
            _fill_norm(getattr(layer, name).weight, getattr(source, name).weight)
    _fill_norm(big.model.norm.weight, small.model.norm.weight)
    _fill_vocabulary(big, small)


def _fill_norm(big: Tensor, small: Tensor) -> None:
    big.zero_()
    big[: len(small)] = small * (len(small) / len(big)) ** 0.5


def _fill_attention(big: LlamaAttention, small: LlamaAttention, config: LlamaConfig, source: LlamaConfig) -> None:
    ds, hs, hb = source.hidden_size, source.head_dim, config.head_dim
    kv_small, kv_big = source.num_key_value_heads, config.num_key_value_heads
    group = source.num_attention_heads // kv_small
    m, pair = hb // hs, torch.arange(hs // 2)
    rotated = torch.cat([m * pair, m * pair + hb // 2])  # where coordinate i of a rotated head goes
    queries = big.q_proj.weight.unflatten(0, (kv_big, -1, hb))[:kv_small, :group]
    keys = big.k_proj.weight.unflatten(0, (kv_big, hb))[:kv_small]
    queries.zero_()
    keys.zero_()
    queries[:, :, rotated, :ds] = small.q_proj.weight.unflatten(0, (kv_small, group, hs)) * m**0.5
    keys[:, rotated, :ds] = small.k_proj.weight.unflatten(0, (kv_small, hs))
    values, outputs = big.v_proj.weight.unflatten(0, (kv_big, hb)), big.o_proj.weight.unflatten(1, (kv_big, -1, hb))
    values[:kv_small, :hs, :ds] = small.v_proj.weight.unflatten(0, (kv_small, hs))
    outputs.zero_()
    outputs[:ds, :kv_small, :group, :hs] = small.o_proj.weight.unflatten(1, (kv_small, group, hs))


def _fill_feed_forward(big: LlamaMLP, small: LlamaMLP) -> None:
    fs, ds = small.gate_proj.weight.shape
    big.gate_proj.weight[:fs, :ds] = small.gate_proj.weight
    big.up_proj.weight[:fs, :ds] = small.up_proj.weight
    big.down_proj.weight.zero_()
    big.down_proj.weight[:ds, :fs] = small.down_proj.weight


def _fill_vocabulary(big: LlamaForCausalLM, small: LlamaForCausalLM) -> None:
    embedding, head = big.model.embed_tokens.weight, big.lm_head.weight
    vs, ds = small.model.embed_tokens.weight.shape
    tied = big.config.tie_word_embeddings
    embedding[:, ds:] = 0
    embedding[:vs, :ds] = small.model.embed_tokens.weight
    if not tied:
        head[:vs, :ds] = small.lm_head.weight
    if len(head) > vs:
        head[:vs, ds] = 0
        embedding[:vs, ds] = MARK
        big.model.norm.weight[ds] = 1
        head[vs:] = 0
        head[vs:, ds] = PADDING_LOGIT / MARK


def inflated_to(
    small: LlamaForCausalLM, shape: InflatedShape, vocab: int, context: int, device: torch.device, dtype: torch.dtype
) -> LlamaForCausalLM:
    """``small`` inflated on ``device``, then rounded to ``dtype``, for texts of ``context`` tokens that no token ends."""
    big = inflate(small.to(device), shape, vocab)
    small.cpu()
    for parameter in big.parameters():
        parameter.data = parameter.data.to(dtype)  # one after the other: never both in full
    big.config.max_position_embeddings = context
    big.config.eos_token_id = big.generation_config.eos_token_id = None
    return big


def inflated_bundle(source: Path, folder: Path, pair: ModelPair, small: Sequence[LlamaForCausalLM]) -> Path:
    """Write the bundle at ``source``, fitted on a ``small`` target and draft, for the inflated ``pair``; gives ``folder``.

    Of a head's state the small model's coordinates keep their weights, the others get none. `ValueError` for a bundle that reads
    states otherwise.
    """
    bundle = read_bundle(source)
    card, tensors = deepcopy(bundle.card), dict(bundle.tensors)
    if unknown := {"stop_spec", "selection_spec"} & card.keys():
        raise ValueError(f"{source}: cannot inflate what reads {', '.join(unknown)}.")
    target = small[0].config
    wide = pair.target.embedding(0).numel()
    assert isinstance(pair.target, CausalLanguageModel)
    extra = pair.target.num_layers - target.num_hidden_layers
    layers = tuple(layer + extra for layer in bundle.contract.identity.layer_ids)
    if "feature_spec" in card:
        states, width = 1 + len(layers), target.hidden_size
        card["feature_spec"] |= {"layers": layers, "hidden_size": wide, "embedding_size": wide}
        count = len(tensors["reduction.mean"]) - states * width  # of scalars
        kept = torch.cat([state * wide + torch.arange(width) for state in range(states)])
        all_kept = torch.cat([kept, states * wide + torch.arange(count)])
        reduced = len(tensors["reduction.components"]) > 0
        for name, fill in (("reduction.mean", 0.0), ("reduction.scale", 1.0)):
            tensors[name] = (
                tensors[name].new_full((states * wide + count,), fill).index_copy(0, all_kept, tensors[name])
            )
        name, columns = ("reduction.components", kept) if reduced else ("head.0.weight", all_kept)
        size = states * wide + (0 if reduced else count)
        tensors[name] = tensors[name].new_zeros(len(tensors[name]), size).index_copy(1, columns, tensors[name])
    contract = replace(bundle.contract, identity=pair_identity(pair, layers)).to_json()
    for one in (card, card.get(OTHERWISE)):
        if one is not None:
            one["contract"] = contract
    write_bundle(folder, card, tensors)
    return folder
