"""Which arms a test prompt times: some always, the others in balanced incomplete blocks.

A prompt takes those of the rotating arms that its slice has timed least, and among these those that all slices have, each over
its turns; where they are even, chance decides. So every arm is timed equally often in every slice, give or take one, about so in
all together, and any two meet about equally often. Source: cyclic incomplete block designs (John and Williams, Cyclic and
Computer Generated Designs, 1995), with chance in place of a cycle.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from pipelines.prompt_table import Prompt


def rotation(prompts: Sequence[Prompt], turns: Mapping[str, int], group: int, seed: int) -> list[tuple[str, ...]]:
    """The rotating arms of each prompt: ``group`` different ones (all, where there are no more) of those that have ``turns``.
    Which they are follows from the seed, the arms and the prompts' slices: more prompts change nothing about the earlier ones."""
    chance, timed, groups = random.Random(seed), Counter[tuple[str | None, str]](), []
    for prompt in prompts:
        order = chance.sample(sorted(turns), len(turns))
        order.sort(key=lambda arm: [timed[where, arm] / turns[arm] for where in (prompt.slice, None)])
        groups.append(tuple(order[:group]))
        timed.update((where, arm) for arm in groups[-1] for where in (prompt.slice, None))
    return groups
