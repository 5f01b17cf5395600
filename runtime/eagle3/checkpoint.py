"""Checkpoint of an EAGLE-3 drafter, read from its folder in the form of SGLang and vLLM or in that of speculators.

A variant that changes what the layer computes is honoured (`Variant`) or refused by name; so are tensors that are missing, too
many or of another shape. Source: vLLM 0.32, SGLang 0.5.23 and speculators 0.9. Shape suffixes: C hidden size, U ids of the
drafter's own vocabulary.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from runtime.compact.applicable import FIXED_ROTARY

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CONFIG = "config.json"
BODIES = ("llama", "qwen3")
ARCHITECTURES = (  # of the former form, then of speculators'
    *("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"),
    *("Eagle3Speculator", "Eagle3DraftModel"),
)
SHAPE = (
    *("model_type", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("rms_norm_eps", "rope_parameters", "hidden_act", "attention_bias"),
)
NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
IGNORED = ("verifier_", "rotary_emb", "t2d")
REMEDY = "Use a drafter that vLLM or SGLang serves by method eagle3, or decode with another draft."


@dataclass(frozen=True)
class Variant:
    """Differences of a drafter from the first EAGLE-3. ``norm_before_residual``: the state goes on after its norm;
    ``norm_before_fc``: one norm over the joined states, ``fc_norm``: one over each; ``norm_output``: the next token's pass reads
    the output after its norm; ``logit_scale`` of the logits."""

    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0


@dataclass(frozen=True)
class Checkpoint:
    """An EAGLE-3 drafter: ``config`` of its layer; ``vocabulary_size`` and ``target_hidden`` size of the target, its ``layers``
    that are read (``None``: by its depth); ``tensors`` by their names in the former form, the layer's without their prefix."""

    config: "PreTrainedConfig"
    variant: Variant
    layers: tuple[int, ...] | None
    vocabulary_size: int
    target_hidden: int
    tensors: Mapping[str, Tensor]

    @property
    def shape(self) -> dict[str, Any]:
        """The entries of the layer's configuration that change its function."""
        return {name: getattr(self.config, name, None) for name in SHAPE}

    @property
    def num_states(self) -> int:
        """Number of the target's hidden states that are joined."""
        return self.tensors["fc.weight"].shape[1] // self.target_hidden

    @property
    def num_parameters(self) -> int:
        """Number of parameters that are served."""
        named = self.tensors.items()
        return sum(one.numel() for name, one in named if one.is_floating_point() and not name.startswith(IGNORED))

    @property
    def target_ids(self) -> Tensor | None:
        """Ids [U] of the target that the drafter's own stand for; ``None`` where both are the same."""
        offsets = self.tensors.get("d2t")
        return None if offsets is None else torch.arange(len(offsets)) + offsets.long()


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Tell whether a configuration (``config.json``) is that of an EAGLE-3 drafter, or of another that only speculators knows."""
    return bool(set(config.get("architectures") or ()) & set(ARCHITECTURES)) or "speculators_model_type" in config


def eagle3_folder(path: str | Path) -> Path | None:
    """Find the folder of a drafter that is given by its own path or by a hub id; ``None`` of anything else."""
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(str(path), CONFIG)
        if found is None or not is_eagle3(json.loads(Path(found).read_text())):
            return None
        if not Path(path).is_dir():
            from huggingface_hub import snapshot_download

            for weights in ("model.safetensors", "*.safetensors", "pytorch_model.bin"):  # one copy of them
                folder = Path(snapshot_download(str(path), allow_patterns=[CONFIG, weights]))
                if any(folder.glob(weights)):
                    break
            return folder
    except (OSError, ValueError):  # loading it as a model raises what is wrong
        return None
    return Path(path)


def drafter_config(folder: str | Path) -> Mapping[str, Any] | None:
    """Return the configuration in a folder, if it is that of a drafter."""
    path = Path(folder) / CONFIG
    given: Mapping[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return given if is_eagle3(given) else None


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Read the drafter of a folder. `ValueError` naming file, value and remedy if it is none, or a variant that is not served."""
    place = Path(folder)
    made = _described(place, json.loads((place / CONFIG).read_text()))
    made = replace(made, tensors=_tensors(place))
    _require_shapes(place, made)
    return made


def unloaded_checkpoint(given: Mapping[str, Any], dtype: torch.dtype) -> Checkpoint:
    """Describe the drafter of a configuration alone: tensors are on torch's meta device. `ValueError` as `read_checkpoint`."""
    made = _described(Path(), given)
    num_ids, num_states = given.get("draft_vocab_size") or made.vocabulary_size, len(made.layers or range(3))
    tensors = {
        name: torch.empty(shape, dtype=dtype, device="meta")
        for name, shape in _shapes(made, num_ids, num_states).items()
    }
    if "d2t" in tensors:
        tensors["d2t"] = torch.zeros(num_ids, dtype=torch.int64)
    return replace(made, tensors=tensors)


def _described(place: Path, given: Mapping[str, Any]) -> Checkpoint:
    """Describe a drafter by its configuration, without tensors."""
    kind = given.get("speculators_model_type", "eagle3")
    if kind != "eagle3" or not is_eagle3(given):
        raise ValueError(f"{place}: a drafter of kind {kind!r} is not served, EAGLE-3 is. {REMEDY}")
    speculators = "transformer_layer_config" in given
    layer = dict(given["transformer_layer_config"] if speculators else given)
    own = {**(given.get("eagle_config") or {}), **{key: value for key, value in given.items() if value is not None}}
    _refuse(place, own, layer)
    config = _layer_config(place, layer)
    if speculators:
        own.setdefault("norm_before_residual", True)
    variant = Variant(**{one.name: own[one.name] for one in fields(Variant) if one.name in own})
    layers = own.get("eagle_aux_hidden_state_layer_ids")
    hidden = int(own.get("target_hidden_size") or config.hidden_size)
    return Checkpoint(config, variant, layers and tuple(layers), int(config.vocab_size), hidden, {})


def _refuse(place: Path, own: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """Raise `ValueError` for what would make the layer compute something else."""
    refused = {
        "use_aux_hidden_state": own.get("use_aux_hidden_state", True) is not True,
        "num_hidden_layers": layer.get("num_hidden_layers", 1) != 1,
        "quantization_config": bool(own.get("quantization_config")),
        "mlp_bias": bool(layer.get("mlp_bias")),
        "model_type": layer.get("model_type", "llama") not in BODIES,
        "pard_token": "pard_token" in own,
        "tie_word_embeddings": bool(own.get("tie_word_embeddings")),
    }
    for name in (name for name, wrong in refused.items() if wrong):
        value = own.get(name, layer.get(name))
        raise ValueError(f"{place / CONFIG}: {name}={value!r} is a variant of EAGLE-3 that is not served. {REMEDY}")


def _layer_config(place: Path, layer: Mapping[str, Any]) -> "PreTrainedConfig":
    from transformers import AutoConfig

    options = {key: value for key, value in layer.items() if key not in ("model_type", "architectures")}
    config: PreTrainedConfig = AutoConfig.for_model(layer.get("model_type", "llama"), **options)
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind not in FIXED_ROTARY:
        raise ValueError(f"{place / CONFIG}: rotary angles of kind {kind!r} are not served. {REMEDY}")
    return config


def _tensors(place: Path) -> dict[str, Tensor]:
    """Read all tensors, under the names of the table."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for path in sorted(place.glob("*.safetensors")):
        found |= load_file(path)
    older = place / "pytorch_model.bin"
    if not found and older.is_file():
        found = torch.load(older, map_location="cpu", weights_only=True)
    if not found:
        raise ValueError(f"{place} has neither *.safetensors nor {older.name}. Fetch the drafter again.")
    named = {}
    for name, tensor in found.items():
        for prefix in ("model.", "midlayer.", "layers.0."):
            name = name.removeprefix(prefix)
        named[name.removeprefix("self_attn.").removeprefix("mlp.")] = tensor
    return named


def _require_shapes(place: Path, made: Checkpoint) -> None:
    """Raise `ValueError` for a tensor that is missing, too many or of another shape."""
    config, tensors, hidden = made.config, made.tensors, made.config.hidden_size
    if "fc.weight" not in tensors or "lm_head.weight" not in tensors:
        raise ValueError(
            f"{place} has no tensors fc.weight and lm_head.weight, so it holds no EAGLE-3 drafter. {REMEDY}"
        )
    own = len(tensors["lm_head.weight"])
    expected = _shapes(made, own, made.num_states)
    optional = {"embed_tokens.weight": (made.vocabulary_size, hidden), "t2d": (made.vocabulary_size,), "d2t": (own,)}
    if config.attention_bias:
        optional["o_proj.bias"] = (hidden,)
    for name, shape in expected.items():
        if name not in tensors:
            raise ValueError(f"{place}: tensor {name} is missing. Fetch the drafter again. {REMEDY}")
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"{place}: tensor {name} has shape {tuple(tensors[name].shape)}, not {shape}. {REMEDY}")
    for name, tensor in tensors.items():
        known = name in expected or tuple(tensor.shape) == optional.get(name) or name.startswith(IGNORED)
        if not known:
            raise ValueError(f"{place}: tensor {name} {tuple(tensor.shape)} belongs to no served variant. {REMEDY}")
    ids = made.target_ids
    if ids is not None and not (int(ids.min()) >= 0 and int(ids.max()) < made.vocabulary_size):
        raise ValueError(f"{place}: d2t leads to ids outside the vocabulary of {made.vocabulary_size}. {REMEDY}")
    if ids is not None and len(ids.unique()) < len(ids):
        raise ValueError(f"{place}: d2t leads two ids of the drafter to one of the target. {REMEDY}")


def _shapes(made: Checkpoint, num_ids: int, num_states: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that a drafter over ``num_ids`` of its target's ids must have."""
    config, joined = made.config, num_states * made.target_hidden
    hidden, wide = config.hidden_size, config.intermediate_size
    head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    expected: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, joined),
        **{f"{name}.weight": (hidden,) for name in (*NORMS, "norm")},
        **{f"{name}.weight": (size, 2 * hidden) for name, size in zip(PROJECTIONS, (queries, keys, keys), strict=True)},
        "o_proj.weight": (hidden, queries),
        **{f"{name}.weight": (wide, hidden) for name in ("gate_proj", "up_proj")},
        "down_proj.weight": (hidden, wide),
        "lm_head.weight": (num_ids, hidden),
    }
    if config.attention_bias:
        expected |= {f"{name}.bias": (size,) for name, size in zip(PROJECTIONS, (queries, keys, keys), strict=True)}
    if config.model_type == "qwen3":
        expected |= {"q_norm.weight": (head,), "k_norm.weight": (head,)}
    if made.variant.norm_before_fc:
        expected["input_norm.weight"] = (joined,)
    if made.variant.fc_norm:
        expected |= {f"fc_norm.{number}.weight": (made.target_hidden,) for number in range(num_states)}
    if num_ids != made.vocabulary_size:
        expected["d2t"] = (num_ids,)
    return expected
