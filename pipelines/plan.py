"""Say what a pair needs before anything is downloaded: memory by device, disk and time, what does not fit and what makes it fit.

Models are made from their configurations where they take no memory, on torch's meta device. The runtime's and the collectors' own
code then says what they would hold. A configuration is that of a local folder, or stands in the pair's block under ``config``.
Times are those of reading both models' weights from the device's memory, pass by pass: what computes costs more.

    draftwright plan --pair my-pair --device-memory 80GB --devices 2 --bandwidth 3.35TB
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.pair_folder import DTYPES
from pipelines.parameters import add_pair_arguments, load_parameters, read_pair

if TYPE_CHECKING:
    from runtime import ModelPair
    from runtime.memory import ModelMemory, Work

UNITS = {"": 1.0, **{f"{prefix}B": 1000.0**n for n, prefix in enumerate(("", "k", "M", "G", "T"))}}
UNITS |= {f"{prefix}iB": 1024.0**n for n, prefix in enumerate(("K", "M", "G", "T"), start=1)}
DEFAULT_DTYPE = "bfloat16"
PROMPT_KNOB = "prompts.longest (prompts.max_tokens of windows)"


@dataclass(frozen=True)
class Phase:
    """Something that the pipeline does with both models at once: ``work`` by model, ``knob`` makes it smaller. ``precise``: both
    lie there once more, in float32."""

    name: str
    work: "Mapping[str, Work]"
    knob: str
    precise: bool = False


@dataclass(frozen=True)
class Passes:
    """How often a stage reads the weights of either model, at the most."""

    target: int
    draft: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="type (default: %(default)s)")
    parser.add_argument("--device-memory", type=size, metavar="SIZE", help="of one device, as 80GB or 24GiB")
    parser.add_argument("--devices", type=int, default=1, help="over which both models are spread (default: %(default)s)")
    parser.add_argument("--bandwidth", type=size, metavar="SIZE", help="of a device's memory, in a second, as 3.35TB")
    parser.add_argument("--dtype", choices=DTYPES, help=f"number format (default: models.dtype, or {DEFAULT_DTYPE})")


def run(args: argparse.Namespace) -> None:
    sections = read_pair(args.pair, args.params)
    given = sections["models"].get("dtype", "auto")
    dtype = args.dtype or (DEFAULT_DTYPE if given == "auto" else given)
    pair = meta_pair(configurations(sections, args.pair, args.params), dtype)
    wrong = []


def size(text: str) -> float:
    """Bytes.

    Examples
    --------
    >>> size("80GB"), size("1.5 KiB")
    (80000000000.0, 1536.0)
    """
    found = re.fullmatch(r"([\d.]+) ?(\w*)", text.strip())
    if found is None or found[2] not in UNITS or not re.fullmatch(r"\d+\.?\d*", found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 80GB, 24GiB or 3.35TB.")
    return float(found[1]) * UNITS[found[2]]


def configurations(sections: Mapping[str, Any], pair: str, params: Path) -> dict[str, Any]:
    """The models' Hugging Face configurations, by name.

    Raises
    ------
    ValueError
        Where one is not known here, or has a field that its family does not know.
    """
    models, where = sections["models"], f"{params}: pairs.{pair}"
    if models.get("builtin"):
        return _builtin(load_parameters(_models(), pair, "models", params).builtin)
    known = sections.get("config") or {}
    return {
        name: _configuration(models[name], known.get(name), f"{where}.config.{name}")
        for name in ("target", "draft")
        if models.get(name)
    }


def _configuration(name: str, fields: Mapping[str, Any] | None, where: str) -> Any:
    from transformers import AutoConfig

    if fields is None:
        try:
            return AutoConfig.from_pretrained(Path(name).expanduser(), local_files_only=True)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{where} is missing, and {name} is not on this machine. Put the sizes of its config.json there: model_type, "
                "hidden_size and those that follow."
            ) from error
    try:
        plain = AutoConfig.for_model(fields["model_type"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{where}.model_type is {fields.get('model_type')!r}: transformers knows no such family.") from error
    wrong = [field for field in fields if not hasattr(plain, field)]
    if wrong:
        raise ValueError(f"{where}: {fields['model_type']} has no {', '.join(wrong)}. Copy the names in its config.json.")
    return type(plain)(**{key: value for key, value in fields.items() if key != "model_type"})


def _models() -> Any:
    from pipelines.pair import Models

    return Models


def _builtin(parameters: Any) -> dict[str, Any]:
    from transformers import LlamaConfig

    from pipelines.builtin.draft_shape import InflatedDraft

    target = parameters.inflated.target
    draft = parameters.inflated.draft.shape(target, parameters.vocabulary, parameters.draft.shape.feed_forward)
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
        for name, shape in (("target", target), ("draft", draft))
    }


def meta_pair(configs: Mapping[str, Any], dtype: str) -> "ModelPair":
    """The pair on the meta device, where weights have shapes and no memory."""
    import torch
    from transformers import AutoModelForCausalLM

    from runtime import ModelPair
    from runtime.causal_model import CausalLanguageModel

    with torch.device("meta"):
        models = {
            name: CausalLanguageModel(AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)))
            for name, config in configs.items()
        }
    pair = ModelPair(models["target"])
    pair.draft = models.get("draft")  # that both share a vocabulary, only their tokenizers can say
    return pair
