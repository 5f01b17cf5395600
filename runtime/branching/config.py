"""Settings of branch-parallel decoding on a machine: how both models share it."""

from dataclasses import dataclass
from typing import Annotated

from predictors.branch_settings import BranchSettings
from predictors.config import Count, NotNegative, one_of


@dataclass(frozen=True)
class BranchConfig(BranchSettings):
    """How far and how wide to draft ahead (`BranchSettings`), and where.

    Parameters
    ----------
    overlap
        ``processes``: the draft in its own process; ``streams``: in a thread, on an accelerator with its own stream; ``none``:
        in turn, with a virtual clock; ``auto``: ``streams`` on accelerators, else ``processes`` (``none`` on one core).
    target_threads, draft_threads
        Torch threads of either process with ``processes`` (else unused); ``None``: shared out of torch's own number.
    draft_temperature
        As in `ChainConfig`.
    """

    overlap: Annotated[str, one_of("auto", "streams", "processes", "none")] = "auto"
    target_threads: Count | None = None
    draft_threads: Count | None = None
    draft_temperature: NotNegative | None = None
