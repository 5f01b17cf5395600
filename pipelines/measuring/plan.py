"""Which arms a test prompt times: some always, the others in balanced incomplete blocks.

Every slice goes through the rotating arms by itself, in laps: a lap is a fresh shuffle of all of them, and prompts take the next
``group`` arms. After k laps every arm was timed k times, one that is named t times t k times, and shuffled laps bring any two
together about equally often.
Source: cyclic incomplete block designs (John and Williams, Cyclic and Computer Generated Designs, 1995), with random laps.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from pipelines.prompt_table import Prompt


def rotation(prompts: Sequence[Prompt], arms: Sequence[str], group: int, seed: int) -> list[tuple[str, ...]]:
    """The rotating ``arms`` of each prompt: ``group`` different ones (all, where there are no more). Which they are follows from
    the seed, the arms' names and the order of a slice's prompts: more prompts change nothing about the earlier ones."""
    if group >= len(set(arms)):
        return [tuple(dict.fromkeys(arms))] * len(prompts)
    laps: dict[str, Iterator[tuple[str, ...]]] = {}
    for prompt in prompts:
        laps.setdefault(prompt.slice, _groups(sorted(arms), group, random.Random(f"{seed}/{prompt.slice}")))
    return [next(laps[prompt.slice]) for prompt in prompts]


def _groups(arms: list[str], group: int, chance: random.Random) -> Iterator[tuple[str, ...]]:
    """Groups of different arms, each arm in its turns of a lap; what a group has already waits for the next one."""
    waiting: list[str] = []
    while True:
        taken: list[str] = []
        while len(taken) < group:
            fresh = [arm for arm in dict.fromkeys(waiting) if arm not in taken]
            if not fresh:
                waiting += chance.sample(arms, len(arms))
                continue
            for arm in islice(fresh, group - len(taken)):
                taken.append(arm)
                waiting.remove(arm)
        yield tuple(taken)
