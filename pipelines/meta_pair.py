"""A pair from its models' configurations alone, on torch's meta device: weights have shapes there, and no memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, LlamaConfig, PretrainedConfig

from pipelines.builtin.builtin_pair import BuiltinParameters
from pipelines.pair import AUTO, Models
from pipelines.parameters import load_parameters, read_pair
from runtime import ModelPair
from runtime.memory import unloaded_pair
from runtime.pair import parse_dtype

DTYPE = "bfloat16"  # of a pair that names none
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
BITS = {"load_in_4bit": 4, "load_in_8bit": 8}  # as bitsandbytes says it


def meta_pair(pair: str, params: Path, dtype: str | None = None, fetch: bool = False) -> ModelPair:
    """The pair of that name in the parameter file, in ``dtype`` or its own, with a draft if it has one. ``fetch`` configurations
    that are not on this machine, and nothing else.

    Whether both models share a vocabulary, only their tokenizers can say, and stage ``pair`` asks them.
    `FileNotFoundError` where a model's configuration is not known. `ValueError` where it names what its family does not
    know, or the runtime does not serve it.
    """
    models = load_parameters(Models, pair, "models", params)
    number = parse_dtype(dtype or (DTYPE if models.dtype == AUTO else models.dtype))
    if models.builtin is not None:
        configs = _builtin(models.builtin)
    else:
        known, where = read_pair(pair, params).get("config") or {}, f"{params}: pairs.{pair}.config"
        names = {role: name for role in ("target", "draft") if (name := getattr(models, role))}
        configs = {
            role: _configuration(name, known.get(role), f"{where}.{role}", fetch) for role, name in names.items()
        }
    quantization = models.quantization or getattr(configs["target"], "quantization_config", None) or {}
    bits = quantization.get("bits") or next((count for name, count in BITS.items() if quantization.get(name)), None)
    return unloaded_pair(number, **configs, bits=bits)


def _configuration(name: str, fields: Mapping[str, Any] | None, where: str, fetch: bool) -> PretrainedConfig:
    """Of the model's folder, of the ``fields`` in the parameter file, or of the hub's cache; ``fetch``: or of the hub."""
    folder = Path(name).expanduser()
    if fields is None or folder.is_dir():
        try:
            return AutoConfig.from_pretrained(folder if folder.is_dir() else name, local_files_only=not fetch)
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"{where} is missing, and model {name} is not on this machine. Copy model_type and the sizes of its config.json "
                "there."
            ) from error
    try:
        plain = AutoConfig.for_model(fields["model_type"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: transformers knows no family by the model_type in {fields!r}.") from error
    wrong = [*_unknown(fields, plain)]
    if wrong:
        raise ValueError(f"{where}: {plain.model_type} has no {', '.join(wrong)}. Take the names in its config.json.")
    text = fields.get("text_config", fields)
    missing = [field for field in SIZES if not {field, plain.attribute_map.get(field)} & text.keys()]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}. Copy them from the model's config.json.")
    return type(plain)(**{field: value for field, value in fields.items() if field != "model_type"})


def _unknown(fields: Mapping[str, Any], plain: PretrainedConfig) -> Iterator[str]:
    """Names in ``fields`` that the family of ``plain`` does not know: misspelt ones would stay at its defaults."""
    for name, value in fields.items():
        inner = getattr(plain, name, None)
        if not hasattr(plain, name):
            yield name
        elif isinstance(value, Mapping) and isinstance(inner, PretrainedConfig):
            yield from (f"{name}.{one}" for one in _unknown(value, inner))


def _builtin(parameters: BuiltinParameters) -> dict[str, PretrainedConfig]:
    """Those in which a built-in pair serves."""
    target, small = parameters.inflated.target, parameters.draft.shape
    shapes = {
        "target": target,
        "draft": parameters.inflated.draft.shape(target, parameters.vocabulary, small.feed_forward),
    }
    return {
        name: LlamaConfig(
            vocab_size=parameters.vocabulary,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            intermediate_size=shape.feed_forward,
            max_position_embeddings=parameters.target.training.context,
            tie_word_embeddings=True,
        )
        for name, shape in shapes.items()
    }
