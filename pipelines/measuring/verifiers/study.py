"""The comparison of verification rules without a clock: its parameters and its order of work.

roots        validation and test prompts   exact expectations of every shape and rule; validation chooses the shape of each
acceptance   test prompts                  per-node acceptance rates of one shape by depth

Decodes of the same shapes and rules are arms of stage ``measure``, named ``SHAPE RULE``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import pandas as pd

from pipelines.measuring.measurement_log import Blocks, Rows
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.tables import ACCEPTANCE, ROOTS
from pipelines.measuring.verifiers import roots
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


def compare(
    pair: ModelPair, config: VerifierConfig, prompts: Mapping[str, Sequence[Prompt]], blocks: Blocks
) -> tuple[dict[str, Rows], list[dict[str, Any]]]:
    """Both tables by file name, and the choices, on ``prompts`` by split."""
    shapes, own = shapes_of(config.drafters), config.acceptance.shape()
    decoders = {shape.name: roots.decoder_of(pair, shape) for shape in (*shapes, own)}
    depth = max(shape.depth for shape in (*shapes, own))
    matched = roots.MatchedRoots(pair, config.root_spacing, config.roots_per_prompt, depth, config.seed)

    def at_roots(part: str, split: str, measure: Callable[[roots.Root], Rows]) -> Rows:
        def block(prompt: Prompt, settings: SamplingSettings) -> Rows:
            return [row for root in matched.roots(prompt, settings) for row in measure(root)]

        return blocks.of_prompts(f"{part}/{split}", prompts[split], config.settings, block, SHARES[part, split])

    def accepted(root: roots.Root) -> Rows:
        drawn = roots.draw_trees(decoders[own.name], root, own.depth, 1)
        draws, lists = config.acceptance.draws, config.acceptance.lists
        return [row for evidence in drawn for row in roots.acceptance_rows(evidence, root, draws, lists)]

    expected = partial(roots.expected_rows, decoders, shapes, trees=config.trees_per_root)
    expectations = [{**row, "split": split} for split in (VALIDATION, TEST) for row in at_roots(ROOTS, split, expected)]
    return {ROOTS: expectations, ACCEPTANCE: at_roots(ACCEPTANCE, TEST, accepted)}, choose(expectations)


def choose(expectations: Rows) -> list[dict[str, Any]]:
    """The best shape of each family and rule by setting, on validation prompts, with the sweep it was chosen from."""
    expected = pd.DataFrame(expectations)
    expected = expected[expected["split"] == VALIDATION]
    sweeps = expected.groupby([*BY, "drafter"])["expected"].mean()
    choices = []
    for key in dict.fromkeys(place[:3] for place in sweeps.index):
        sweep = sweeps.loc[key]
        choices.append(dict(zip(BY, key, strict=True)) | {"drafter": str(sweep.idxmax()), "sweep": sweep.to_dict()})
    return choices
