"""The prompts that a trace is collected from."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from predictors.sampling import SamplingSettings
from predictors.schema import SPLITS


class Prompt(Protocol):
    """What a collection needs of a prompt (the prompts stage's rows have it)."""

    @property
    def id(self) -> str: ...
    @property
    def document(self) -> str: ...
    @property
    def slice(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...


Job = tuple[SamplingSettings, Prompt]


def first_of_splits(prompts: Sequence[Prompt], counts: Sequence[int]) -> list[Prompt]:
    """The first so many of each of `SPLITS`, whose prefixes alternate slices and documents. A stride would keep step with them:
    every third of three alternating slices is one slice."""
    by_split = ([one for one in prompts if one.split == split] for split in SPLITS)
    return [prompt for some, count in zip(by_split, counts, strict=True) for prompt in some[:count]]


def placed(job: Job, columns: dict[str, Any]) -> dict[str, Any]:
    """``columns`` of a job's rows, if there are any, with `PLACE_COLUMNS`."""
    settings, prompt = job
    place = {name: getattr(prompt, name) for name in ("document", "slice", "split")}
    place |= {"prompt_id": prompt.id, "batch_size": 1, **dataclasses.asdict(settings)}
    return place | columns if columns else {}
