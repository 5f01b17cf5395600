"""The comparison of verification rules: its parameters, its order of work and its choices.

roots        validation and test prompts   exact expectations of every shape and rule
acceptance   test prompts                  per-node acceptance rates of one shape by depth
decoding     validation prompts            every arm; the best shape of each (family, rule) is chosen
             test prompts                  plain decoding, the chosen arms and those that are always timed
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from tqdm import tqdm

from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.verifier_acceptance import acceptance_rows
from pipelines.measuring.verifier_choices import choose
from pipelines.measuring.verifier_names import ACCEPTANCE, DECODING, ROOTS
from pipelines.measuring.verifier_roots import MatchedRoots, draw_trees, expected_rows
from pipelines.measuring.verifier_shapes import setting_name, shapes_of
from pipelines.measuring.verifier_timing import PLAIN_ARM, Arm, VerifierTiming, decoders_of
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import ModelPair

# Of max_minutes, when these parts have to end.
SHARES = {
    "roots/validation": 0.12,
    "roots/test": 0.42,
    ACCEPTANCE: 0.48,
    "decoding/validation": 0.72,
    "decoding/test": 1,
}


@dataclass(frozen=True)
class AcceptanceConfig:
    """Shape ``k`` paths of ``depth`` tokens; ``draws`` fixed draws per node; ``lists`` sampled per node for Khisti's rate."""

    k: int = 4
    depth: int = 6
    draws: int = 4
    lists: int = 4


@dataclass(frozen=True)
class VerifierConfig:
    """Section ``verifiers``: ``settings`` at the roots, ``timed_settings`` among them for decoding; a root every ``root_spacing``
    tokens. ``drafters`` are described in `pipelines.measuring.verifier_shapes`."""

    drafters: tuple[dict, ...]
    settings: tuple[SamplingSettings, ...]
    timed_settings: tuple[SamplingSettings, ...]
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
    root_spacing: int = 16
    roots_per_prompt: int = 2
    trees_per_root: int = 1
    validation_prompts: int = 6
    test_prompts: int = 12
    timed_validation_prompts: int = 2
    timed_test_prompts: int = 6
    max_new_tokens: int = 48
    threads: int = 2
    seed: int = 0
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        counts = ("root_spacing", "roots_per_prompt", "trees_per_root", "validation_prompts", "test_prompts", "threads")
        for name in (*counts, "timed_validation_prompts", "timed_test_prompts", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        for name in ("drafters", "settings", "timed_settings"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty.")
        others = [setting_name(settings) for settings in self.timed_settings if settings not in self.settings]
        if others:
            raise ValueError(f"timed_settings {others} are not among settings; shapes are chosen there. Add them.")
        shapes_of(self.drafters)


@dataclass
class VerifierStudy:
    """A comparison under way; ``capped`` says that time ran out."""

    pair: ModelPair
    config: VerifierConfig
    prompts: dict[str, list[Prompt]]
    log: MeasurementLog
    capped: bool = False
    _started: float = field(default_factory=perf_counter)

    def run(self) -> tuple[dict[str, Rows], list[dict[str, Any]]]:
        """All tables by file name, and the choices."""
        config = self.config
        self.shapes = shapes_of(config.drafters)
        self.decoders = decoders_of(self.pair, self.shapes)
        spacing, count = config.root_spacing, config.roots_per_prompt
        self.matched = MatchedRoots(self.pair, spacing, count, max(s.depth for s in self.shapes), config.seed)
        with tqdm(total=self._total(), desc="verifiers", unit="step", mininterval=0.5) as self.bar:
            families = {shape.name: shape.family for shape in self.shapes}
            self.timing = VerifierTiming(self.decoders, families, config.max_new_tokens, config.seed, self.bar)
            roots = [row for split in (VALIDATION, TEST) for row in self._roots(split)]
            acceptance = self._acceptance()
            decoding = self._decoding(VALIDATION, {s: list(self.decoders) for s in config.timed_settings})
            choices = choose(roots, decoding)
            decoding += self._decoding(TEST, {s: self._timed_arms(choices, s) for s in config.timed_settings})
        return {ROOTS: roots, ACCEPTANCE: acceptance, DECODING: decoding}, choices

    def _timed_arms(self, choices: list[dict[str, Any]], settings: SamplingSettings) -> list[Arm]:
        chosen = {(c["drafter"], c["verifier"]) for c in choices if c["setting"] == setting_name(settings)}
        always = {(s.name, verifier) for s in self.shapes if s.always_timed for verifier in s.verifiers}
        return [arm for arm in self.decoders if arm in chosen | always | {PLAIN_ARM}]

    def _roots(self, split: str) -> Rows:
        count = {VALIDATION: self.config.validation_prompts, TEST: self.config.test_prompts}[split]
        return self._blocks(f"roots/{split}", self.prompts[split][:count], self.config.settings, self._root_block)

    def _root_block(self, part: str, prompt: Prompt, settings: SamplingSettings) -> Rows:
        self.bar.set_postfix_str(f"{part}, {setting_name(settings)}")
        first = {shape.name: self.decoders[shape.name, shape.verifiers[0]] for shape in self.shapes}
        rows = []
        for root in self.matched.roots(prompt, settings):
            rows += expected_rows(first, self.shapes, root, self.config.trees_per_root)
        self.bar.update()
        return [{**row, "split": part.partition("/")[2]} for row in rows]

    def _acceptance(self) -> Rows:
        prompts = self.prompts[TEST][: self.config.test_prompts]
        return self._blocks(ACCEPTANCE, prompts, self.config.settings, self._acceptance_block)

    def _acceptance_block(self, part: str, prompt: Prompt, settings: SamplingSettings) -> Rows:
        self.bar.set_postfix_str(f"acceptance, {setting_name(settings)}")
        config, rows = self.config.acceptance, Rows()
        (shape,) = shapes_of([{"kind": "delayed_tree", "k": config.k, "l1": 0, "l2": config.depth}])
        decoder = decoders_of(self.pair, [shape])[shape.name, shape.verifiers[0]]
        for root in self.matched.roots(prompt, settings):
            for evidence in draw_trees(decoder, root, shape.depth, 1):
                rows += acceptance_rows(evidence, root, config.draws, config.lists)
        self.bar.update()
        return rows

    def _decoding(self, split: str, arms: dict[SamplingSettings, list[Arm]]) -> Rows:
        config = self.config
        count = {VALIDATION: config.timed_validation_prompts, TEST: config.timed_test_prompts}[split]
        prompts = self.prompts[split][:count]
        if split == TEST:  # the arms are known only now
            self.bar.total = (self.bar.total or 0) + sum(map(len, arms.values())) * len(prompts)
        self._warm_up(arms)

        def block(part: str, prompt: Prompt, settings: SamplingSettings) -> Rows:
            return self.timing.block(split, prompt, settings, arms[settings])

        return self._blocks(f"decoding/{split}", prompts, config.timed_settings, block)

    def _warm_up(self, arms: dict[SamplingSettings, list[Arm]]) -> None:
        settings, names = next(iter(arms.items()))
        for arm in names[:: max(1, len(names) // 8)]:
            self.timing.decode(arm, self.prompts[VALIDATION][0].tokens, settings, "warm-up")

    def _blocks(
        self, part: str, prompts: Sequence[Prompt], settings: Sequence[SamplingSettings], block: Callable[..., Rows]
    ) -> Rows:
        """Rows of all prompts and settings, until the part's share of ``max_minutes`` has passed (one prompt at least)."""
        rows = []
        for index, prompt in enumerate(prompts):
            limit = self.config.max_minutes
            if index and limit is not None and perf_counter() - self._started > 60 * limit * SHARES[part]:
                self.capped = True
                break
            for one in settings:
                key = f"{part}/{prompt.id}/{setting_name(one)}"
                rows += self.log.once(key, partial(block, part, prompt, one))
        return rows

    def _total(self) -> int:
        config = self.config
        roots = (config.validation_prompts + 2 * config.test_prompts) * len(config.settings)
        return roots + config.timed_validation_prompts * len(config.timed_settings) * len(self.decoders)
