"""Hidden states by forward hooks, numbered as Hugging Face's ``hidden_states``.

0 is the embedding, i the output of block i, and the last one (i = number of blocks) is after the final norm. Hooks live only
during a pass. Shape suffixes: N nodes, D hidden size.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def tapped(model: "PreTrainedModel", layers: tuple[int, ...]) -> Iterator[list[Tensor]]:
    """The states [N, D] of ``layers``, one after the other, of a pass that is run within the block."""
    states: list[Tensor] = []

    def capture(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        state: Tensor = output[0] if isinstance(output, tuple) else output
        states.append(state[0])

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(_tapped_module(model, layer).register_forward_hook(capture))
        yield states


def require_layers(model: "PreTrainedModel", layers: tuple[int, ...]) -> None:
    """`ValueError` unless ``layers`` ascend and ``model`` has hidden states of these numbers."""
    if not layers:
        return
    if list(layers) != sorted(set(layers)):
        raise ValueError(f"tapped layers must ascend without repeats, got {layers}.")
    body = model.base_model
    if not hasattr(body, "layers") or _final_norm(body) is None:
        raise ValueError(
            f"{type(model).__name__} has no .layers and .norm to tap hidden states from; "
            "controllers that read hidden states need a Llama-shaped model (Llama, Qwen, Mistral, …)."
        )
    for layer in layers:
        if not 0 <= layer <= len(body.layers):
            raise ValueError(
                f"layer {layer} does not exist: {type(model).__name__} has hidden states 0 to {len(body.layers)}."
            )


def _tapped_module(model: "PreTrainedModel", layer: int) -> nn.Module:
    body: Any = model.base_model
    if layer == len(body.layers):
        module: nn.Module = _final_norm(body)
    else:
        module = model.get_input_embeddings() if layer == 0 else body.layers[layer - 1]
    return module


def _final_norm(body: Any) -> Any:
    """Phi's has a name of its own; ``None`` where there is none."""
    return getattr(body, "norm", None) or getattr(body, "final_layernorm", None)
