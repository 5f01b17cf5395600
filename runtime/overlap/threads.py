"""How the cores are shared by the two models of a pair that run at the same time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def default_threads(cores: int) -> tuple[int, int]:
    """Torch threads of the target and of the draft: a quarter of ``cores`` drafts, the target has the rest, each at least one.

    Examples
    --------
    >>> default_threads(8)
    (6, 2)
    """
    assert cores >= 1, cores
    draft = max(1, cores // 4)
    return max(1, cores - draft), draft


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """``count`` threads within the block."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
