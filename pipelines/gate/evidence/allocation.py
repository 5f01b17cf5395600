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
    """``count`` of ``prompts`` in turns of slices: first ``least`` of each, then always of the one that is farthest behind its
    share. A slice's prompts keep their order; slices that ``mix`` lacks are left out. More prompts change nothing about earlier
    ones."""
    queues = {name: [prompt for prompt in prompts if prompt.slice == name] for name in sorted(mix)}
    taken = dict.fromkeys(queues, 0)
    chosen: list[Prompt] = []
    while len(chosen) < count and (left := [name for name in taken if taken[name] < len(queues[name])]):
        turn = min(left, key=lambda name: (taken[name] >= least, (taken[name] + 0.5) / mix[name]))
        chosen.append(queues[turn][taken[turn]])
        taken[turn] += 1
    return chosen
