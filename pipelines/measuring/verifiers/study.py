"""The comparison of verification rules: its parameters, its order of work and its choices.

roots        validation and test prompts   exact expectations of every shape and rule
acceptance   test prompts                  per-node acceptance rates of one shape by depth
decoding     validation prompts            every arm; the best shape of each (family, rule) is chosen
             test prompts                  plain decoding, the chosen arms and those that are always timed
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tqdm import tqdm

from pipelines.measuring.arms import decoder_arm
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.verifiers.acceptance import acceptance_rows
from pipelines.measuring.verifiers.choices import choose
from pipelines.measuring.verifiers.names import ACCEPTANCE, DECODING, ROOTS
from pipelines.measuring.verifiers.roots import MatchedRoots, draw_trees, expected_rows
from pipelines.measuring.verifiers.shapes import Shape, shapes_of
from pipelines.measuring.verifiers.timing import PLAIN_ARM, ArmName, decode_rows, decoder_of, decoders_of
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


Block = Callable[[Prompt, SamplingSettings], Rows]


@dataclass(frozen=True)
class AcceptanceConfig:
    """Shape ``k`` paths of ``depth`` tokens; ``draws`` fixed draws per node; ``lists`` sampled per node for Khisti's rate."""

    k: int = 4
    depth: int = 6
    draws: int = 4
    lists: int = 4

    def __post_init__(self) -> None:
        require_positive(self, ("k", "depth", "draws", "lists"))

    def shape(self) -> Shape:
        """``k`` i.i.d. paths of ``depth`` tokens."""
        (shape,) = shapes_of([{"kind": "delayed_tree", "k": self.k, "l1": 0, "l2": self.depth}])
        return shape


@dataclass(frozen=True)
class VerifierConfig:
    """Section ``verifiers``: ``settings`` at the roots, ``timed_settings`` among them for decoding; a root every ``root_spacing``
    tokens. ``drafters`` are described in `pipelines.measuring.verifiers.shapes`."""

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
        require_positive(self, (*counts, "timed_validation_prompts", "timed_test_prompts", "max_new_tokens"))
        for name in ("drafters", "settings", "timed_settings"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty.")
        others = [settings.name for settings in self.timed_settings if settings not in self.settings]
        if others:
            raise ValueError(f"timed_settings {others} are not among settings; shapes are chosen there. Add them.")
        shapes_of(self.drafters)


class VerifierStudy:
    """A comparison under way; ``capped`` says that time ran out."""

    def __init__(
        self, pair: ModelPair, config: VerifierConfig, prompts: dict[str, list[Prompt]], log: MeasurementLog
    ) -> None:
        self.config = config
        self.prompts = prompts
        self.capped = False
        self.log = log
        self.shapes = shapes_of(config.drafters)
        self.families = {shape.name: shape.family for shape in self.shapes}
        decoders = decoders_of(pair, self.shapes)
        self.arms = {name: decoder_arm(decoder, config.max_new_tokens) for name, decoder in decoders.items()}
        self.drafting = {shape.name: decoders[shape.name, shape.verifiers[0]] for shape in self.shapes}
        self.acceptance_shape = config.acceptance.shape()
        self.acceptance_decoder = decoder_of(pair, self.acceptance_shape, self.acceptance_shape.verifiers[0])
        depth = max(shape.depth for shape in (*self.shapes, self.acceptance_shape))
        self.matched = MatchedRoots(pair, config.root_spacing, config.roots_per_prompt, depth, config.seed)

    def run(self) -> tuple[dict[str, Rows], list[dict[str, Any]]]:
        """All tables by file name, and the choices."""
        config = self.config
        with tqdm(total=self._total(), desc="verifiers", unit="step", mininterval=0.5) as bar:
            self.blocks = Blocks(self.log, bar, config.max_minutes)
            roots = [row for split in (VALIDATION, TEST) for row in self._roots(split)]
            acceptance = self._acceptance()
            self._warm_up()
            decoding = self._decoding(VALIDATION, {s: list(self.arms) for s in config.timed_settings})
            choices = choose(roots, decoding)
            decoding += self._decoding(TEST, {s: self._timed_arms(choices, s) for s in config.timed_settings})
        self.capped = self.blocks.capped
        return {ROOTS: roots, ACCEPTANCE: acceptance, DECODING: decoding}, choices

    def _timed_arms(self, choices: list[dict[str, Any]], settings: SamplingSettings) -> list[ArmName]:
        chosen = {(c["drafter"], c["verifier"]) for c in choices if c["setting"] == settings.name}
        always = {(s.name, verifier) for s in self.shapes if s.always_timed for verifier in s.verifiers}
        return [arm for arm in self.arms if arm in chosen | always | {PLAIN_ARM}]

    def _roots(self, split: str) -> Rows:
        config, part = self.config, f"roots/{split}"
        count = {VALIDATION: config.validation_prompts, TEST: config.test_prompts}[split]

        def block(prompt: Prompt, settings: SamplingSettings) -> Rows:
            rows = []
            for root in self.matched.roots(prompt, settings):
                rows += expected_rows(self.drafting, self.shapes, root, config.trees_per_root)
            return [{**row, "split": split} for row in rows]

        return self._blocks(part, self.prompts[split][:count], config.settings, self._one_step(part, block))

    def _acceptance(self) -> Rows:
        config = self.config.acceptance

        def block(prompt: Prompt, settings: SamplingSettings) -> Rows:
            rows = Rows()
            for root in self.matched.roots(prompt, settings):
                for evidence in draw_trees(self.acceptance_decoder, root, config.depth, 1):
                    rows += acceptance_rows(evidence, root, config.draws, config.lists)
            return rows

        prompts = self.prompts[TEST][: self.config.test_prompts]
        return self._blocks(ACCEPTANCE, prompts, self.config.settings, self._one_step(ACCEPTANCE, block))

    def _warm_up(self) -> None:
        """Every arm once, not recorded."""
        for name, arm in self.arms.items():
            self.blocks.bar.set_postfix_str(f"warm-up {' '.join(dict.fromkeys(name))}")
            arm(self.prompts[VALIDATION][0].tokens, self.config.timed_settings[0], 0)

    def _decoding(self, split: str, arms: dict[SamplingSettings, list[ArmName]]) -> Rows:
        config, bar = self.config, self.blocks.bar
        count = {VALIDATION: config.timed_validation_prompts, TEST: config.timed_test_prompts}[split]
        prompts = self.prompts[split][:count]
        if split == TEST:  # the arms are known only now
            bar.total = (bar.total or 0) + sum(map(len, arms.values())) * len(prompts)

        def block(prompt: Prompt, settings: SamplingSettings) -> Rows:
            timed = {name: self.arms[name] for name in arms[settings]}
            return decode_rows(timed, self.families, split, prompt, settings, config.seed, bar)

        steps = {settings: len(names) for settings, names in arms.items()}
        return self._blocks(f"decoding/{split}", prompts, config.timed_settings, block, steps)

    def _one_step(self, part: str, block: Block) -> Block:
        """``block`` as one step of the progress bar."""

        def shown(prompt: Prompt, settings: SamplingSettings) -> Rows:
            self.blocks.bar.set_postfix_str(f"{part}, {settings.name}")
            rows = block(prompt, settings)
            self.blocks.bar.update()
            return rows

        return shown

    def _blocks(
        self,
        part: str,
        prompts: Sequence[Prompt],
        settings: Sequence[SamplingSettings],
        block: Block,
        steps: Mapping[SamplingSettings, int] | None = None,
    ) -> Rows:
        """Rows of all prompts and settings, within the part's share of the time."""
        rows = []
        for prompt in self.blocks.within(SHARES[part], prompts):
            for one in settings:
                key = f"{part}/{prompt.id}/{one.name}"
                rows += self.blocks.once(key, steps[one] if steps else 1, partial(block, prompt, one))
        return rows

    def _total(self) -> int:
        config = self.config
        roots = (config.validation_prompts + 2 * config.test_prompts) * len(config.settings)
        return roots + config.timed_validation_prompts * len(config.timed_settings) * len(self.arms)


def require_positive(config: object, names: Iterable[str]) -> None:
    """Refuse a number below one, by name."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be >= 1, got {getattr(config, name)}.")
