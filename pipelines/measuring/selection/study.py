"""What selectors do on held-out prompts, on the clock: parameters and order of work.

decoding   test prompts, interleaved and paired   plain decoding; for every rule its best static tree and its selector
           the first prompts of them              every single action under one rule: how long its steps take
rounds     roots of root traces                   first rounds of real decodes at fixed actions, beside the labels' expectation
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipelines.measuring.arms import Arm, decoder_arm
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import TEST
from pipelines.measuring.seeds import seed_of
from pipelines.measuring.selection.names import ACTION, DECODING, ROUNDS, SELECTOR, STATIC
from pipelines.measuring.verifiers.timing import PLAIN_ARM, ArmName, decode_rows
from pipelines.prompt_table import Prompt
from predictors.actions import Action
from predictors.config import parse_config
from predictors.controllers import DelayedTree
from predictors.sampling import SamplingSettings
from predictors.training.root_table import RootTable
from runtime import Decoder, ModelPair, Randomness, build_decoder, load_decoder
from trace_collection.roots import RootTraceConfig

# Of max_minutes, when these parts have to end.
DECODING_SHARE, ROUNDS_SHARE = 0.75, 1.0


@dataclass(frozen=True)
class SelectionConfig:
    """Section ``selection``: ``test_prompts`` for the rules' arms, of which the first ``action_prompts`` also run every action
    under ``action_rule``. ``checked_actions`` (k, l1, l2) under ``checked_rules`` decode a round at each root of
    ``checked_prompts`` prompts, ``checked_rounds`` times."""

    test_prompts: int = 24
    action_prompts: int = 4
    action_rule: str = "specinfer"
    checked_prompts: int = 24
    checked_rounds: int = 2
    checked_rules: tuple[str, ...] = ("nss", "spectr", "specinfer", "traversal")
    checked_actions: tuple[Action, ...] = (Action(1, 4, 0), Action(4, 0, 2), Action(2, 1, 4))
    max_new_tokens: int = 48
    threads: int = 2
    seed: int = 0
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        for name in (
            "test_prompts",
            "action_prompts",
            "checked_prompts",
            "checked_rounds",
            "max_new_tokens",
            "threads",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")


class SelectionStudy:
    """A measurement under way; ``capped`` says that time ran out. ``bundles``: folders of selectors by rule."""

    def __init__(
        self,
        pair: ModelPair,
        config: SelectionConfig,
        roots: RootTable,
        bundles: Mapping[str, Path],
        prompts: list[Prompt],
        log: MeasurementLog,
    ) -> None:
        self.pair = pair
        self.config = config
        self.prompts = prompts
        self.log = log
        self.capped = False
        traced = parse_config(RootTraceConfig, roots.manifest.parameters, "root traces: parameters")
        self.settings = traced.settings
        self.labels = Labels(roots.rows(TEST))
        self.selectors = {rule: load_decoder(folder, pair) for rule, folder in bundles.items()}
        self.plain = decoder_arm(build_decoder(pair, {"method": "autoregressive"}), config.max_new_tokens)
        actions = self._controller(config.action_rule).actions
        self.actions = {action.name: self._arm(self._fixed(action, config.action_rule)) for action in actions}

    def run(self) -> dict[str, Rows]:
        """Rows by file name."""
        config, settings = self.config, self.settings
        decodes = len(settings) * (
            config.test_prompts * (1 + 2 * len(self.selectors)) + config.action_prompts * len(self.actions)
        )
        with tqdm(total=decodes + len(settings) * config.checked_prompts, desc="selection", unit="step") as bar:
            self.blocks = Blocks(self.log, bar, config.max_minutes)
            self._warm_up()
            decoding = self._decoding()
            rounds = self._rounds()
        self.capped = self.blocks.capped
        return {DECODING: decoding, ROUNDS: rounds}

    def prices(self) -> dict[str, Any]:
        """By rule, the names of its actions and what their steps were thought to cost."""
        controllers = {rule: self._controller(rule) for rule in self.selectors}
        return {
            rule: {"actions": [action.name for action in made.actions], "prices": asdict(made.prices)}
            for rule, made in controllers.items()
        }

    def _controller(self, rule: str) -> DelayedTree:
        if rule not in self.selectors:
            raise ValueError(f"there is no selector for rule {rule!r}, only for {', '.join(self.selectors)}.")
        controller = self.selectors[rule].controller
        assert isinstance(controller, DelayedTree)
        return controller

    def _fixed(self, action: Action, rule: str) -> Decoder:
        drafter = {"kind": "delayed_tree", **asdict(action)}
        return build_decoder(self.pair, {"method": "speculative", "drafter": drafter, "verifier": rule})

    def _arm(self, decoder: Decoder) -> Arm:
        return decoder_arm(decoder, self.config.max_new_tokens)

    def _arms(self, settings: SamplingSettings) -> dict[ArmName, Arm]:
        """Plain decoding, and each rule's static tree at ``settings`` and its selector."""
        arms = {PLAIN_ARM: self.plain}
        for rule, decoder in self.selectors.items():
            controller = self._controller(rule)
            static = controller.actions[controller.static(settings).place]
            arms[STATIC, rule] = self._arm(self._fixed(static, rule))
            arms[SELECTOR, rule] = self._arm(decoder)
        return arms

    def _warm_up(self) -> None:
        """Every arm once, not recorded."""
        prompt, settings = self.prompts[0].tokens, self.settings[0]
        for arm in (*self._arms(settings).values(), *self.actions.values()):
            arm(prompt, settings, 0)

    def _decoding(self) -> Rows:
        config, rows = self.config, Rows()
        arms = {settings: self._arms(settings) for settings in self.settings}
        single: dict[ArmName, Arm] = {(name, config.action_rule): arm for name, arm in self.actions.items()}
        families = {STATIC: STATIC, SELECTOR: SELECTOR} | {name: ACTION for name, _ in single}
        for number, prompt in enumerate(self.blocks.within(DECODING_SHARE, self.prompts[: config.test_prompts])):
            for settings in self.settings:
                timed = arms[settings] | (single if number < config.action_prompts else {})
                measure = partial(decode_rows, timed, families, TEST, prompt, settings, config.seed, self.blocks.bar)
                rows += self.blocks.once(f"decoding/{prompt.id}/{settings.name}", len(timed), measure)
        return rows

    def _rounds(self) -> Rows:
        rows = Rows()
        for prompt in self.blocks.within(ROUNDS_SHARE, self.prompts[: self.config.checked_prompts]):
            for settings in self.settings:
                key = f"rounds/{prompt.id}/{settings.name}"
                rows += self.blocks.once(key, 1, partial(self._first_rounds, prompt, settings))
        return rows

    def _first_rounds(self, prompt: Prompt, settings: SamplingSettings) -> Rows:
        """Mean emitted tokens of a decode's first round at every root, by checked rule and action.

        A decode begins in front of the root's newest token and draws one anew: in expectation over it that is the root's label.
        """
        config, rows = self.config, Rows()
        for index, context in self.labels.contexts(prompt, settings):
            for rule in config.checked_rules:
                for action in config.checked_actions:
                    key = f"{config.seed}/{prompt.id}/{settings.name}/{index}/{rule}/{action.name}"
                    decoder, seeds = (
                        self._fixed(action, rule),
                        [f"{key}/{number}" for number in range(config.checked_rounds)],
                    )
                    rounds = [_first_round(decoder, context, action, settings, seed_of(seed)) for seed in seeds]
                    emitted = [count for count in rounds if count is not None]
                    if not emitted:
                        continue
                    place: dict[str, Any] = {"setting": settings.name, "root": index, "rule": rule}
                    who = {"prompt": prompt.id, "document": prompt.document, "action": action.name}
                    expected = self.labels.expected(prompt.id, settings, index, rule, action)
                    rows.append({**place, **who, "emitted": sum(emitted) / len(emitted), "expected": expected})
        self.blocks.bar.update()
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
                "checked_rules, checked_actions and checked_prompts against traces.roots."
            )
        return float(self._efficiency_NKA[row, self._rules.index(rule), self._actions.index(action)])


def _first_round(
    decoder: Decoder, context: list[int], action: Action, settings: SamplingSettings, seed: int
) -> int | None:
    """Tokens that the first round behind the prefill emits; ``None`` if the prefill's token ends the text."""
    options: dict[str, Any] = {"max_new_tokens": action.depth + 2, "randomness": Randomness(seed), **asdict(settings)}
    steps = decoder.stream(context, **options)
    next(steps)
    step = next(steps, None)
    return None if step is None else len(step.tokens)
