"""Parameters of stage ``drafter``: ``models.draft`` of a pair that trains its drafter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from predictors.config import Checked, Count, NotNegative, Positive, at_least, one_of

FOLDER = "../drafter"  # of the trained drafter, from the pair's


@dataclass(frozen=True)
class DrafterRecipe(Checked):
    """Settings of training an EAGLE-3 drafter.

    ``prompts`` of the drafter's share are answered by the target with up to ``max_new_tokens`` tokens, and ``validation`` prompts
    at both temperatures, which it is judged on. ``vocabulary``: its most frequent tokens; ``depths`` drafted in training, each
    weighing ``decay`` of the one before; batches of ``positions``, texts with the last ``context`` tokens of their prompts;
    ``max_minutes`` ends training early, with the schedule running on whichever of the two shares, of steps or of time, is further
    on. ``long`` replaces keys where the stage is run with ``--long``.
    """

    train: Annotated[str, one_of("eagle3")]
    prompts: Count = 640
    validation: Count = 40
    max_new_tokens: Count = 96
    vocabulary: Count = 8192
    depths: Count = 3
    decay: Positive = 0.8
    epochs: Count = 4
    positions: Count = 1100
    context: Count = 96
    matrix_lr: Positive = 0.01
    matrix_weight_decay: NotNegative = 0.01
    vector_lr: Positive = 1.5e-3
    warm_up: Annotated[int, at_least(0)] = 20
    gradient_clip: Positive = 1.0
    max_minutes: Positive | None = None
    seed: int = 0
    threads: Count = 2
    long: Mapping[str, Any] = field(default_factory=dict)
