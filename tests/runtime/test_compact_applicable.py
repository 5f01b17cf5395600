"""The compact forward stands aside wherever the model's own forward is another function; each case changes the logits."""

import functools
from collections.abc import MutableMapping

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.models.cohere import modeling_cohere
from transformers.models.llama import modeling_llama

from runtime.causal_model import CausalLanguageModel
from runtime.compact.applicable import NotCompactError
from tests.toys import tiny_llama

TOKENS = torch.tensor([[1, 2, 3]])


class Doubled(nn.Module):
    """What an adapter for fine-tuning does: wraps a layer and passes its weight on."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    @property
    def weight(self):
        return self.layer.weight

    @property
    def bias(self):
        return getattr(self.layer, "bias", None)

    def forward(self, x):
        return 2 * self.layer(x)


class DoubledWeight(nn.Parameter):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        return 2 * out if function is nn.functional.linear else out


def doubled(own):
    """Twice what ``own`` gives, or the first of what it gives. Wrapped as a patch wraps: by the names of what it replaced."""

    @functools.wraps(own)
    def twice(*args, **kwargs):
        made = own(*args, **kwargs)
        return (2 * made[0], *made[1:]) if isinstance(made, tuple) else 2 * made

    return twice


def doubles(module, inputs, output):
    return 2 * output


def of_transformers(module, inputs, output):
    return 2 * output


of_transformers.__module__ = "transformers.integrations.some"
homeless = eval("lambda module, inputs, output: 2 * output", {})
CHANGES = {  # of a model, by its first layer
    "wrapped embedding": lambda m, one: setattr(m.model, "embed_tokens", Doubled(m.model.embed_tokens)),
    "wrapped projection": lambda m, one: setattr(one.mlp, "up_proj", Doubled(one.mlp.up_proj)),
    "wrapped head": lambda m, one: setattr(m, "lm_head", Doubled(m.lm_head)),
    "replaced norm": lambda m, one: setattr(m.model, "norm", nn.LayerNorm(32)),
    "projection's forward": lambda m, one: setattr(one.mlp.up_proj, "forward", doubled(one.mlp.up_proj.forward)),
    "attention's forward": lambda m, one: setattr(one.self_attn, "forward", doubled(one.self_attn.forward)),
    "hook": lambda m, one: one.mlp.register_forward_hook(doubles),
    "hook before": lambda m, one: m.model.norm.register_forward_pre_hook(lambda module, inputs: (1 + inputs[0],)),
    "hook of transformers": lambda m, one: one.mlp.register_forward_hook(of_transformers),
    "hook without a module": lambda m, one: m.model.norm.register_forward_hook(homeless),
    "fewer layers": lambda m, one: setattr(m.config, "num_hidden_layers", 1),
    "epsilon of one norm": lambda m, one: setattr(m.model.norm, "variance_epsilon", 1.0),
    "tensor subclass": lambda m, one: setattr(one.mlp.up_proj, "weight", DoubledWeight(one.mlp.up_proj.weight.data)),
    "parametrized": lambda m, one: nn.utils.parametrize.register_parametrization(m.lm_head, "weight", nn.Softplus()),
    "shared by layers": lambda m, one: setattr(m.model.layers[1].mlp.up_proj, "weight", one.mlp.up_proj.weight),
    "some biases": lambda m, one: setattr(one.self_attn.v_proj, "bias", nn.Parameter(torch.ones(16))),
}


@torch.no_grad()
def own_logits(model):
    return model(TOKENS).logits[0]


@pytest.mark.parametrize("joined_before", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_the_models_own_forward_is_honoured(change, joined_before):
    model = tiny_llama()
    before = own_logits(model)
    adapter = CausalLanguageModel(model) if joined_before else None
    CHANGES[change](model, model.model.layers[0])
    adapter = adapter or CausalLanguageModel(model)
    after = own_logits(model)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(adapter.open(8).forward(TOKENS[0]).logits, after, atol=1e-5, rtol=0)
    assert adapter.forward == "hugging_face" and adapter.not_compact
    with pytest.raises(NotCompactError):
        CausalLanguageModel(model, "compact")


def test_hooks_on_all_modules_are_honoured():
    model = tiny_llama()
    adapter = CausalLanguageModel(model)
    assert adapter.forward == "packed"

    def double(module, inputs, output):
        return 2 * output if isinstance(module, nn.Linear) else output

    handle = nn.modules.module.register_module_forward_hook(double)
    try:
        expected = own_logits(model)
        torch.testing.assert_close(adapter.open(8).forward(TOKENS[0]).logits, expected, atol=1e-5, rtol=0)
        assert adapter.forward == "hugging_face" and "hooks" in adapter.not_compact
    finally:
        handle.remove()
    assert adapter.forward == "packed"


PATCHES = [
    (modeling_llama, "apply_rotary_pos_emb", doubled),
    (modeling_llama, "apply_rotary_pos_emb", lambda own: functools.partial(doubled(own))),
    (modeling_llama, "rotate_half", lambda own: modeling_cohere.rotate_half),
    (modeling_llama.LlamaMLP, "forward", doubled),
    (modeling_llama.LlamaRMSNorm, "forward", lambda own: lambda self, x: x),
    (nn.Linear, "forward", doubled),
    (modeling_llama.ALL_ATTENTION_FUNCTIONS, "sdpa", doubled),
]


@pytest.mark.parametrize(("owner", "name", "change"), PATCHES)
@pytest.mark.parametrize("joined_before", [False, True])
def test_functions_and_classes_that_were_replaced_are_honoured(owner, name, change, joined_before, monkeypatch):
    model = tiny_llama()
    adapter, before = CausalLanguageModel(model) if joined_before else None, own_logits(model)
    if isinstance(owner, MutableMapping):
        monkeypatch.setitem(owner, name, change(owner[name]))
    else:
        monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    adapter, after = adapter or CausalLanguageModel(model), own_logits(model)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(adapter.open(8).forward(TOKENS[0]).logits, after, atol=1e-5, rtol=0)
    assert adapter.forward == "hugging_face" and "replaced" in adapter.not_compact
    monkeypatch.undo()
    assert adapter.forward == "packed"


def test_the_hooks_hugging_face_leaves_behind_do_not_count():
    model = tiny_llama()
    with torch.no_grad():
        model(TOKENS, output_hidden_states=True)
    assert model.model.layers[0]._forward_hooks
    assert CausalLanguageModel(model).forward == "packed"


class Subclass(LlamaForCausalLM):
    pass


SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
DYNAMIC = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}


def altered(change):
    change(model := tiny_llama())
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Subclass(LlamaConfig(**SIZES)), "Subclass"),
        (lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=DYNAMIC)), "dynamic"),
        (lambda: altered(lambda model: model.lm_head.double()), "2 devices or dtypes"),
        (lambda: altered(lambda model: setattr(model.model.layers[0], "_hf_hook", object())), "layers.0"),
        (lambda: MistralForCausalLM(MistralConfig(**{**SIZES, "num_hidden_layers": 0})), "0 layers"),
    ],
)
def test_what_it_does_not_compute_is_named(make, reason):
    with pytest.raises(NotCompactError, match=reason):
        CausalLanguageModel(make(), "compact")


def test_fused_kernels_are_refused_where_they_cannot_run():
    with pytest.raises(NotCompactError, match=r"float32 on cpu.*CUDA"):
        CausalLanguageModel(tiny_llama(), "fused")
