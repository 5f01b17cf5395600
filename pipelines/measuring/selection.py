"""Whether real decodes say what selectors learned: their labels beside first rounds at the same roots, at fixed actions.

A decode begins in front of the root's newest token and draws one anew: in expectation over it that is the root's label.
Nothing is timed here: selectors and static trees are arms of stage ``measure``.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from pipelines.measuring.arms import fixed_tree
from pipelines.measuring.harness import seed_of
from pipelines.measuring.measurement_log import Blocks, Rows
from pipelines.measuring.names import TEST
from pipelines.prompt_table import Prompt
from predictors.actions import Action
from predictors.config import Checked, Count
from predictors.sampling import SamplingSettings
from predictors.training.root_table import RootTable
from runtime import Decoder, ModelPair, Randomness
from runtime.decoding.base import Step


@dataclass(frozen=True)
class SelectionConfig(Checked):
    """Section ``selection``: ``checked_actions`` (k, l1, l2) under ``checked_rules`` decode a round at each root of
    ``checked_prompts`` test prompts, ``checked_rounds`` times."""

    checked_prompts: Count = 24
    checked_rounds: Count = 2
    checked_rules: tuple[str, ...] = ("nss", "spectr", "specinfer", "traversal")
    checked_actions: tuple[Action, ...] = (Action(1, 4, 0), Action(4, 0, 2), Action(2, 1, 4))
    threads: Count = 2
    seed: int = 0
    max_minutes: float | None = None


def first_rounds(
    pair: ModelPair, config: SelectionConfig, roots: RootTable, prompts: Sequence[Prompt], blocks: Blocks
) -> Rows:
    """Mean emitted tokens of first rounds, with their labels, by root, rule and action; roots whose every decode ends at once are
    left out. `ValueError` for a rule or an action that was not traced."""
    table, rules = roots.rows(TEST), roots.manifest.rules
    for rule, action in product(config.checked_rules, config.checked_actions):
        if rule not in rules or action not in table.actions:
            raise ValueError(
                f"no root trace tells of {action.name} under {rule}: check selection's checked_rules and checked_actions against "
                "traces.trees."
            )
    efficiency_NKA = table.efficiency_NDKA.mean(axis=1)
    settings_N = [table.settings[place] for place in table.setting_N]
    prompt_N, root_N = (table.column(name).tolist() for name in ("prompt_id", "root"))

    def block(prompt: Prompt, settings: SamplingSettings) -> Rows:
        rows = Rows()
        here = (prompt.id, settings)
        traced = sorted(
            (root_N[row], row, [*prompt.tokens, *table.continuation(row)[:-1]])  # all in front of the newest token
            for row, key in enumerate(zip(prompt_N, settings_N, strict=True))
            if key == here
        )
        for (index, row, context), rule, action in product(traced, config.checked_rules, config.checked_actions):
            key = f"{config.seed}/{prompt.id}/{settings.name}/{index}/{rule}/{action.name}"
            decoder = fixed_tree(pair, action, rule)
            seeds = [seed_of(f"{key}/{number}") for number in range(config.checked_rounds)]
            rounds = [first_round(decoder, context, settings, action.depth, seed) for seed in seeds]
            emitted = [len(step.tokens) for step in rounds if step is not None]
            if not emitted:
                continue
            place: dict[str, Any] = {"setting": settings.name, "root": index, "rule": rule}
            who = {"prompt": prompt.id, "document": prompt.document, "action": action.name}
            expected = float(efficiency_NKA[row, rules.index(rule), table.actions.index(action)])
            rows.append({**place, **who, "emitted": sum(emitted) / len(emitted), "expected": expected})
        return rows

    return blocks.of_prompts("rounds", prompts, roots.settings, block)


def first_round(decoder: Decoder, context: list[int], settings: SamplingSettings, depth: int, seed: int) -> Step | None:
    """The real loop's first round after the prefill, with what it saw; ``None`` if the prefill's token ends the text."""
    options = {"max_new_tokens": depth + 2, "randomness": Randomness(seed), **asdict(settings)}
    with closing(decoder.stream(context, observe=True, **options)) as steps:  # type: ignore[type-var]
        next(steps)
        return next(steps, None)
