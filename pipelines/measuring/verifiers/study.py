"""The comparison of verification rules without a clock: its parameters and its order of work.

roots        validation and test prompts   exact expectations of every shape and rule; validation chooses the shape of each
acceptance   test prompts                  per-node acceptance rates of one shape by depth

Decodes of the same shapes and rules are arms of stage ``measure``, named ``SHAPE RULE``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import pandas as pd
from tqdm import tqdm

from pipelines.measuring.measurement_log import Blocks, MeasurementLog, Rows
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.tables import ACCEPTANCE, ROOTS
from pipelines.measuring.verifiers.roots import (
    MatchedRoots,
    Root,
    acceptance_rows,
    decoder_of,
    draw_trees,
    expected_rows,
)
from pipelines.measuring.verifiers.shapes import Shape, shapes_of
from pipelines.prompt_table import Prompt
from predictors.config import Checked, Count, not_empty
from predictors.sampling import SamplingSettings
from runtime import ModelPair

BY = ("setting", "family", "verifier")  # shapes compete for being chosen
# Of max_minutes, when these parts have to end.
SHARES = {(ROOTS, VALIDATION): 0.25, (ROOTS, TEST): 0.87, (ACCEPTANCE, TEST): 1.0}


@dataclass(frozen=True)
class AcceptanceConfig(Checked):
    """Shape ``k`` paths of ``depth`` tokens; ``draws`` fixed draws per node; ``lists`` sampled per node for Khisti's rate."""

    k: Count = 4
    depth: Count = 6
    draws: Count = 4
    lists: Count = 4

    def shape(self) -> Shape:
        """``k`` i.i.d. paths of ``depth`` tokens."""
        (shape,) = shapes_of([{"kind": "delayed_tree", "k": self.k, "l1": 0, "l2": self.depth}])
        return shape


@dataclass(frozen=True)
class VerifierConfig(Checked):
    """Section ``verifiers``: ``settings`` at the roots, a root every ``root_spacing`` tokens. ``drafters`` are described in
    `pipelines.measuring.verifiers.shapes`."""

    drafters: Annotated[tuple[dict, ...], not_empty]
    settings: Annotated[tuple[SamplingSettings, ...], not_empty]
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
    root_spacing: Count = 16
    roots_per_prompt: Count = 2
    trees_per_root: Count = 1
    validation_prompts: Count = 6
    test_prompts: Count = 12
    threads: Count = 2
    seed: int = 0
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes_of(self.drafters)


class VerifierStudy:
    """A comparison under way; ``blocks.capped`` says that time ran out."""

    def __init__(
        self, pair: ModelPair, config: VerifierConfig, prompts: dict[str, list[Prompt]], log: MeasurementLog
    ) -> None:
        self.config = config
        self.prompts = prompts
        self.log = log
        self.shapes = shapes_of(config.drafters)
        self.drafting = {shape.name: decoder_of(pair, shape) for shape in self.shapes}
        self.acceptance_shape = config.acceptance.shape()
        self.acceptance_decoder = decoder_of(pair, self.acceptance_shape)
        depth = max(shape.depth for shape in (*self.shapes, self.acceptance_shape))
        self.matched = MatchedRoots(pair, config.root_spacing, config.roots_per_prompt, depth, config.seed)

    def run(self) -> tuple[dict[str, Rows], list[dict[str, Any]]]:
        """Both tables by file name, and the choices."""
        steps = (len(self.prompts[VALIDATION]) + 2 * len(self.prompts[TEST])) * len(self.config.settings)
        with tqdm(total=steps, desc="verifiers", unit="step", mininterval=0.5) as bar:
            self.blocks = Blocks(self.log, bar, self.config.max_minutes)
            expected = partial(expected_rows, self.drafting, self.shapes, trees=self.config.trees_per_root)
            roots = [
                {**row, "split": split} for split in (VALIDATION, TEST) for row in self._at(ROOTS, split, expected)
            ]
            acceptance = self._at(ACCEPTANCE, TEST, self._acceptance)
        return {ROOTS: roots, ACCEPTANCE: acceptance}, choose(roots)

    def _at(self, part: str, split: str, measure: Callable[[Root], Rows]) -> Rows:
        """Rows of all roots of a split's prompts."""

        def block(prompt: Prompt, settings: SamplingSettings) -> Rows:
            return [row for root in self.matched.roots(prompt, settings) for row in measure(root)]

        share, prompts = SHARES[part, split], self.prompts[split]
        return self.blocks.of_prompts(f"{part}/{split}", prompts, self.config.settings, block, share)

    def _acceptance(self, root: Root) -> Rows:
        config = self.config.acceptance
        drawn = draw_trees(self.acceptance_decoder, root, config.depth, 1)
        return [row for evidence in drawn for row in acceptance_rows(evidence, root, config.draws, config.lists)]


def choose(roots: Rows) -> list[dict[str, Any]]:
    """The best shape of each family and rule by setting, on validation prompts, with the sweep it was chosen from."""
    expected = pd.DataFrame(roots)
    expected = expected[expected["split"] == VALIDATION]
    sweeps = expected.groupby([*BY, "drafter"])["expected"].mean()
    choices = []
    for key in dict.fromkeys(place[:3] for place in sweeps.index):
        sweep = sweeps.loc[key]
        choices.append(dict(zip(BY, key, strict=True)) | {"drafter": str(sweep.idxmax()), "sweep": sweep.to_dict()})
    return choices
