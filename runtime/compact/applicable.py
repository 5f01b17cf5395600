"""Whether the compact forward computes a model: a known family of its own plain modules, with nothing beside their weights.

Whatever could make the model's own forward another function is looked for: replaced or wrapped modules, forwards overridden on an
instance or a class, functions replaced in the family's Python module, hooks, tensor subclasses as weights, settings changed on a
module. In doubt, Hugging Face's forward it is.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = {
    f"{name}ForCausalLM": f"transformers.models.{name.lower()}.modeling_{name.lower()}"
    for name in ("Llama", "Mistral", "Qwen2", "Qwen3")
}
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")  # a position's angles do not depend on the text's length
PLAIN = (nn.Linear, nn.Embedding, nn.ModuleList)
ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")
GLOBAL_HOOKS = (torch.nn.modules.module._global_forward_hooks, torch.nn.modules.module._global_forward_pre_hooks)
SHARED = ("transformers", "torch", "typing")
OWN_HOOKS = "transformers.utils.output_capturing"  # left behind by output_hidden_states, idle outside such calls


class NotCompactError(ValueError):
    """The compact forward does not compute this model; says why."""


def require_compact(model: "PreTrainedModel") -> None:
    """`NotCompactError` with the reason unless the compact forward computes ``model``."""
    if type(model).__module__ != FAMILIES.get(type(model).__name__):
        raise NotCompactError(f"{type(model).__name__} is none of {', '.join(FAMILIES)}")
    for name, module in model.named_modules():
        fault = _fault(module, type(model).__module__)
        if fault is not None:
            raise NotCompactError(f"{name or 'the model'} {fault}")
    for reason in _reasons(model):
        raise NotCompactError(reason)


def signature(model: "PreTrainedModel", in_place: bool) -> tuple[Any, ...]:
    """What `require_compact` and the joint weights rest on; another value means that they have to be looked at again.
    ``in_place``: also how often each parameter was changed in place, which torch does not count in inference mode."""
    family = type(model).__module__
    modules = [
        (
            type(module),
            _fault(module, family),
            vars(module).get("variance_epsilon"),
            [
                (type(one), one.data_ptr(), _changes(one) if in_place else 0)
                for one in module._parameters.values()
                if one is not None
            ],
        )
        for module in model.modules()
    ]
    return modules, model.config.num_hidden_layers, any(GLOBAL_HOOKS), list(_patched(model))


def _changes(parameter: nn.Parameter) -> int:
    """How often it was changed in place; 0 where torch does not count."""
    try:
        return parameter._version
    except RuntimeError:  # it was made in inference mode, which it forgets once its data is replaced
        return 0


def _reasons(model: "PreTrainedModel") -> Iterator[str]:
    """What else than its modules stands against it."""
    if any(GLOBAL_HOOKS):
        yield "hooks on all modules are registered, which only their own forward calls"
    yield from (f"{name} was replaced, which only its own forward calls" for name in _patched(model))
    body: Any = model.model
    rope_type = getattr(body.rotary_emb, "rope_type", "default")
    if rope_type not in FIXED_ROTARY:
        yield f"its rotary angles ({rope_type}) change with the text's length"
    if not 0 < len(body.layers) == model.config.num_hidden_layers:
        yield f"it has {len(body.layers)} layers and is configured for {model.config.num_hidden_layers}"
    epsilons = {module.variance_epsilon for module in model.modules() if hasattr(module, "variance_epsilon")}
    if epsilons - {model.config.rms_norm_eps}:
        yield f"its norms have an epsilon other than the configuration's {model.config.rms_norm_eps}"
    parameters = list(model.named_parameters(remove_duplicate=False))
    kinds = {(parameter.device, parameter.dtype) for _, parameter in parameters}
    if len(kinds) != 1:
        yield f"its parameters are spread over {len(kinds)} devices or dtypes"
    yield from (f"{name} is a {type(p).__name__}" for name, p in parameters if type(p) is not nn.Parameter)
    ends = (body.embed_tokens.weight, model.lm_head.weight)
    shared = Counter(id(p) for _, p in parameters if all(p is not end for end in ends))
    yield from (f"{name} is shared by several layers" for name, p in parameters if shared[id(p)] > 1)
    for number, block in enumerate(body.layers):
        attention, feed_forward = block.self_attn, block.mlp
        for joint in (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (feed_forward.gate_proj, feed_forward.up_proj),
        ):
            if len({getattr(projection, "bias", None) is None for projection in joint}) > 1:
                yield f"layer {number} has biases on some of its projections only"


def _patched(model: "PreTrainedModel") -> Iterator[str]:
    """Functions that its family's Python module calls, and forwards of its modules' classes, that are none of the family, of what
    all families of transformers share, or of torch."""
    family: Any = sys.modules[type(model).__module__]
    functions = {name: one for name, one in vars(family).items() if callable(one) and not isinstance(one, type)}
    kinds: dict[Any, None] = dict.fromkeys(map(type, model.modules()))
    functions |= {f"{kind.__name__}.forward": kind.forward for kind in kinds}
    functions["sdpa"] = family.ALL_ATTENTION_FUNCTIONS["sdpa"]
    for name, function in functions.items():
        while function is not None:  # and what it wraps
            home = getattr(function, "__globals__", {}).get("__name__") or type(function).__module__
            shared = home.partition(".")[0] in SHARED and not home.startswith("transformers.models.")
            if home != family.__name__ and not shared:
                yield name
                break
            function = getattr(function, "__wrapped__", None)


def _fault(module: nn.Module, family: str) -> str | None:
    """What of a module stands against it; ``family`` is the Python module that defines the model's own layers."""
    origin = type(module).__module__
    if type(module) not in PLAIN and origin != family and origin not in ACTIVATIONS:
        return f"is a {type(module).__name__}, which the family does not have"
    if "forward" in vars(module) or "_hf_hook" in vars(module):  # accelerate sets both
        return "has a forward of its own"
    listeners = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    if any(getattr(listener, "__module__", None) != OWN_HOOKS for listener in listeners):
        return "has forward hooks, which only its own forward calls"
    return None
