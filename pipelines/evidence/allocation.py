"""Which prompts to time: as many of a slice as its share of the mix, and of a small slice enough to judge it.

The error of a weighted sum is Σ_h W_h² s² / n_h: with equal numbers of prompts per slice the heaviest slice would make nearly all
of it. Numbers n_h in proportion to weights W_h are nearly the best. Source: proportional allocation (Cochran, Sampling
Techniques, 1977, section 5.5), rounded as by Webster.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pipelines.prompt_table import Prompt


def mix_of(test: Iterable[Prompt]) -> dict[str, float]:
    """Documents by slice of ``test`` prompts: what a slice weighs in the mix."""
    counts = Counter(name for _, name in {(prompt.document, prompt.slice) for prompt in test})
    return {name: float(counts[name]) for name in sorted(counts)}


def allocated(prompts: Sequence[Prompt], mix: Mapping[str, float], count: int, least: int = 0) -> list[Prompt]:
    """``count`` of ``prompts`` in turns of slices, whose own prompts keep their order; slices that ``mix`` lacks are left out.
    More prompts change nothing about earlier ones."""
    queues = {name: [prompt for prompt in prompts if prompt.slice == name] for name in sorted(mix)}
    turns = turns_of({name: len(queue) for name, queue in queues.items()}, mix, count, least)
    return [queues[name].pop(0) for name in turns]


def turns_of(sizes: Mapping[str, int], mix: Mapping[str, float], count: int, least: int = 0) -> list[str]:
    """Slices in the order of their turns, ``least`` of each first, then always the one that is farthest behind its share. A slice
    of ``sizes`` has no more turns than that.

    Examples
    --------
    >>> turns_of({"code": 9, "prose": 9}, {"code": 3, "prose": 1}, 5)
    ['code', 'code', 'prose', 'code', 'code']
    """
    taken = dict.fromkeys(sorted(mix), 0)
    turns: list[str] = []
    while len(turns) < count and (left := [name for name in taken if taken[name] < sizes.get(name, 0)]):
        turns.append(min(left, key=lambda name: (taken[name] >= least, (taken[name] + 0.5) / mix[name])))
        taken[turns[-1]] += 1
    return turns
