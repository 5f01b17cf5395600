"""Whether real decodes say what selectors learned: their labels beside first rounds at the same roots, at fixed actions.

A decode begins in front of the root's newest token and draws one anew: in expectation over it that is the root's label.
Nothing is timed here: selectors and static trees are arms of stage ``measure``.
"""

from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from pipelines.measuring.arms import fixed_tree
from pipelines.measuring.harness import seed_of
from pipelines.measuring.measurement_log import Blocks, MeasurementLog, Rows
from pipelines.measuring.names import TEST
from pipelines.measuring.verifiers.roots import first_round
from pipelines.prompt_table import Prompt
from predictors.actions import Action
from predictors.config import Checked, Count
from predictors.sampling import SamplingSettings
from predictors.training.root_table import RootTable
from runtime import ModelPair


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


class SelectionStudy:
    """A check under way; ``blocks.capped`` says that time ran out."""

    def __init__(
        self, pair: ModelPair, config: SelectionConfig, roots: RootTable, prompts: list[Prompt], log: MeasurementLog
    ) -> None:
        self.pair = pair
        self.config = config
        self.prompts = prompts
        self.log = log
        self.settings = roots.settings
        self.labels = Labels(roots.rows(TEST))

    def run(self) -> Rows:
        """Mean emitted tokens of first rounds, with their labels, by root, rule and action."""
        with tqdm(total=len(self.settings) * len(self.prompts), desc="selection", unit="step") as bar:
            self.blocks = Blocks(self.log, bar, self.config.max_minutes)
            return self.blocks.of_prompts("rounds", self.prompts, self.settings, self._first_rounds)

    def _first_rounds(self, prompt: Prompt, settings: SamplingSettings) -> Rows:
        """Of every root of a prompt at ``settings``; roots whose every decode ends at once are left out."""
        config, rows = self.config, Rows()
        for index, context in self.labels.contexts(prompt, settings):
            for rule in config.checked_rules:
                for action in config.checked_actions:
                    key = f"{config.seed}/{prompt.id}/{settings.name}/{index}/{rule}/{action.name}"
                    decoder = fixed_tree(self.pair, action, rule)
                    seeds = [seed_of(f"{key}/{number}") for number in range(config.checked_rounds)]
                    rounds = [first_round(decoder, context, settings, action.depth, seed) for seed in seeds]
                    emitted = [len(step.tokens) for step in rounds if step is not None]
                    if not emitted:
                        continue
                    place: dict[str, Any] = {"setting": settings.name, "root": index, "rule": rule}
                    who = {"prompt": prompt.id, "document": prompt.document, "action": action.name}
                    expected = self.labels.expected(prompt.id, settings, index, rule, action)
                    rows.append({**place, **who, "emitted": sum(emitted) / len(emitted), "expected": expected})
        return rows


class Labels:
    """Expected tokens of a step by root, rule and action, as traced, and the roots' contexts."""

    def __init__(self, table: RootTable) -> None:
        columns = (table.column(name).tolist() for name in ("prompt_id", "root"))
        settings = [table.settings[place] for place in table.setting_N]
        self._rows = {key: row for row, key in enumerate(zip(*columns, settings, strict=True))}
        self._table, self._rules, self._actions = table, table.manifest.rules, table.actions
        self._efficiency_NKA = table.efficiency_NDKA.mean(axis=1)

    def contexts(self, prompt: Prompt, settings: SamplingSettings) -> list[tuple[int, list[int]]]:
        """A prompt's roots by number, each with what stands in front of its newest token."""
        rows = [
            (root, row) for (name, root, wanted), row in self._rows.items() if (name, wanted) == (prompt.id, settings)
        ]
        return [(root, [*prompt.tokens, *self._table.continuation(row)[:-1]]) for root, row in sorted(rows)]

    def expected(self, prompt: str, settings: SamplingSettings, root: int, rule: str, action: Action) -> float:
        """The label; `ValueError` if nothing of the kind was traced."""
        row = self._rows.get((prompt, root, settings))
        if row is None or rule not in self._rules or action not in self._actions:
            raise ValueError(
                f"no root trace tells of {action.name} under {rule} at root {root} of prompt {prompt}: check selection's "
                "checked_rules, checked_actions and checked_prompts against traces.trees."
            )
        return float(self._efficiency_NKA[row, self._rules.index(rule), self._actions.index(action)])
