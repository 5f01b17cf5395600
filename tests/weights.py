"""Checkpoints whose weights someone changed."""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor


def changed(
    folder: str | Path, change: Callable[[str, Tensor], Tensor | None] = lambda name, weight: weight, **more: Tensor
):
    """A checkpoint of one file: ``change`` of every weight, without those that it drops (``None``), and some ``more``."""
    path = Path(folder) / "model.safetensors"
    weights = {name: change(name, weight) for name, weight in load_file(path).items()} | more
    save_file({name: one for name, one in weights.items() if one is not None}, path, metadata={"format": "pt"})
    return Path(folder)
