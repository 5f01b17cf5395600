"""The comparison of verification rules without a clock: exact block efficiency of every rule on the same trees, at matched roots.

    roots        every r tokens of a continuation that the target alone decodes under the setting; the same for all shapes
    trees        one round of the real loop with the shape's drafter, the same draws of chance for all shapes at a root
    expected     1 + E[tau | tree] of each rule on that very tree: no verification noise, differences are paired

Averaged over roots this is the block efficiency E[tau] + 1. Its roots are spread evenly over the text, while decoding starts its
rounds where earlier ones ended: the two need not agree to the last digit.

Along the drafted paths of one shape also acceptance rates of the per-node solvers by depth, and how far the laws are apart there:

    rate        P[the solver's output is among the node's draws], exact (`runtime.verification.acceptance`); Khisti's, whose exact
                rate is quadratic in the vocabulary, is the mean over sampled lists of draws of Σ B(list -> y) over the list
    distance    ‖p - q‖₁ of the node's target and draft law

Every drafted path counts once: a node that several rollouts run through weighs as many. ``draws``: the number of draws at the
node as it was drafted (0 in the table), and a fixed number at every depth (paper 004, Figure 1).

Expectations are those of validation prompts, which choose the shape of each rule, and of test prompts; acceptance rates of test
prompts alone. Decodes of the same shapes and rules are arms of stage ``measure``, named ``SHAPE RULE``.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipelines.measuring.harness import seed_of
from pipelines.measuring.measurement_log import Blocks, Rows
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.tables import ACCEPTANCE, AS_DRAFTED, ROOTS
from pipelines.measuring.verifiers.shapes import Shape, VerifierConfig, shapes_of
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, Randomness, build_decoder
from runtime.decoding.base import Evidence, Step
from runtime.verification import VERIFIERS
from runtime.verification.acceptance import ACCEPTANCE_RATES, acceptance_rate, branching_law

SAMPLED = "khisti"
BY = ("setting", "family", "verifier")  # shapes compete for being chosen
# Of max_minutes, when these parts have to end.
SHARES = {(ROOTS, VALIDATION): 0.25, (ROOTS, TEST): 0.87, (ACCEPTANCE, TEST): 1.0}


@dataclass(frozen=True)
class Root:
    """A context of the target's trajectory, ``index`` places after the prompt; ``seed`` fixes what is drawn there."""

    prompt: Prompt
    settings: SamplingSettings
    index: int
    context: list[int]
    seed: int

    @property
    def place(self) -> dict[str, object]:
        """Columns that say where the root lies."""
        prompt = self.prompt
        who = {"prompt": prompt.id, "document": prompt.document, "slice": prompt.slice}
        return {"setting": self.settings.name, **who, "root": self.index}


class MatchedRoots:
    """Roots along a pair's target trajectories, and trees drawn there. ``depth`` is the deepest shape's."""

    def __init__(self, pair: ModelPair, spacing: int, per_prompt: int, depth: int, seed: int) -> None:
        self.pair, self.spacing, self.per_prompt, self.depth, self.seed = pair, spacing, per_prompt, depth, seed
        self._plain = build_decoder(pair, {"method": "autoregressive"})
        draft_limit = self._plain.context_limit if pair.draft is None else pair.draft.context_limit
        self._limit = min(self._plain.context_limit, draft_limit)

    def roots(self, prompt: Prompt, settings: SamplingSettings) -> Iterator[Root]:
        """Roots of a prompt, as far as the text goes on and the deepest shape fits the context."""
        key, room = f"{self.seed}/{prompt.id}/{settings.name}", self._limit - len(prompt.tokens)
        most, text = min((self.per_prompt - 1) * self.spacing, room - 1), list[int]()
        if most >= 1:
            options = {"max_new_tokens": most, "randomness": Randomness(seed_of(key)), **asdict(settings)}
            text = self._plain.generate(prompt.tokens, **options).tokens
            text = text[:-1] if text[-1] in self.pair.target.eos_tokens else text
        for index in range(self.per_prompt):
            length = index * self.spacing
            if length <= len(text) and length + self.depth + 2 <= room:
                yield Root(prompt, settings, index, prompt.tokens + text[:length], seed_of(f"{key}/{index}"))


def decoder_of(pair: ModelPair, shape: Shape, verifier: str | None = None) -> Decoder:
    """The decoder that drafts ``shape`` and verifies with ``verifier``: where only the draft matters, any of the shape's."""
    config = {"method": "speculative", "drafter": shape.drafter, "verifier": verifier or shape.verifiers[0]}
    return build_decoder(pair, config)


def draw_trees(decoder: Decoder, root: Root, depth: int, count: int) -> list[Evidence]:
    """``count`` trees of one round each; fewer where the target's next token ends the text."""
    seeds = [seed_of(f"{root.seed}/{sample}") for sample in range(count)]
    rounds = [first_round(decoder, root.context, root.settings, depth, seed) for seed in seeds]
    return [step.evidence for step in rounds if step is not None and step.evidence is not None]


def first_round(decoder: Decoder, context: list[int], settings: SamplingSettings, depth: int, seed: int) -> Step | None:
    """The real loop's first round after the prefill, with what it saw; ``None`` if the prefill's token ends the text."""
    options = {"max_new_tokens": depth + 2, "randomness": Randomness(seed), **asdict(settings)}
    with closing(decoder.stream(context, observe=True, **options)) as steps:  # type: ignore[type-var]
        next(steps)
        return next(steps, None)


@torch.inference_mode()
def expected_rows(decoders: Mapping[str, Decoder], shapes: Sequence[Shape], root: Root, trees: int) -> Rows:
    """One row per shape and rule: the exact expectation, averaged over the shape's trees at this root."""
    rows = []
    for shape in shapes:
        drawn = draw_trees(decoders[shape.name], root, shape.depth, trees)
        for name in shape.verifiers if drawn else ():
            rule = VERIFIERS[name]
            values = [1 + rule(e.tree, e.target_probs).expected_accepted_length() for e in drawn]
            assert all(1 <= value < shape.depth + 1.001 for value in values), (
                f"{name} on {shape.name}, {root.place}: {values}"
            )
            nodes = sum(evidence.tree.num_nodes for evidence in drawn) / len(drawn)
            arm = {"family": shape.family, "drafter": shape.name, "verifier": name}
            rows.append({**root.place, **arm, "expected": sum(values) / len(values), "nodes": nodes})
    return rows


@torch.inference_mode()
def acceptance_rows(evidence: Evidence, root: Root, fixed_draws: int, lists: int) -> Rows:
    """Rows of one i.i.d. tree: one per depth, solver and number of draws; ``lists`` are sampled per node where needed."""
    tree, rows = evidence.tree, []
    rollouts = Counter(chain.from_iterable(tree.child_lists))  # through every node: its draws
    for depth, level in enumerate(tree.rows_by_depth):
        inner = [row for row in level if tree.child_lists[row]]
        if not inner:
            continue
        paths = [rollouts[row - 1] if row else len(tree.child_lists[0]) for row in inner]
        weight_R = torch.tensor(paths, dtype=torch.float64)
        target_RV, draft_RV = _laws(evidence, inner)
        distance = _mean((target_RV - draft_RV).abs().sum(1).double(), weight_R)
        place = {**root.place, "depth": depth, "distance": distance, "paths": sum(paths)}
        for solver in ACCEPTANCE_RATES:
            for draws in (AS_DRAFTED, fixed_draws):
                chance = Randomness(seed_of(f"{root.seed}/{depth}/{draws}"))
                rate_R = _rates(evidence, inner, solver, draws, partial(_sampled_rates, lists=lists, chance=chance))
                rows.append({**place, "solver": solver, "draws": draws, "rate": _mean(rate_R, weight_R)})
    return rows


def _rates(evidence: Evidence, rows: Sequence[int], solver: str, draws: int, sampled: Callable[..., Tensor]) -> Tensor:
    counts = [draws or len(evidence.tree.child_lists[row]) for row in rows]
    rate_R = torch.zeros(len(rows), dtype=torch.float64)
    for count in set(counts):
        places = [place for place, own in enumerate(counts) if own == count]
        laws = _laws(evidence, [rows[place] for place in places])
        rates = sampled(*laws, count) if solver == SAMPLED and count > 1 else acceptance_rate(solver, *laws, count)
        rate_R[places] = rates.cpu()
    return rate_R


def _sampled_rates(target_RV: Tensor, draft_RV: Tensor, count: int, lists: int, chance: Randomness) -> Tensor:
    """Unbiased estimates [R] of Khisti's rate: Σ B over the distinct tokens of ``lists`` lists of ``count`` draws."""
    rate_R = torch.zeros(len(target_RV), dtype=torch.float64)
    for row, (target_V, draft_V) in enumerate(zip(target_RV, draft_RV, strict=True)):
        for tokens in chance.categorical(draft_V.expand(lists, count, -1)).tolist():
            branching_V = branching_law(SAMPLED, target_V, draft_V, tokens)
            rate_R[row] += float(branching_V[sorted(set(tokens))].sum()) / lists
    return rate_R


def _laws(evidence: Evidence, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    assert evidence.tree.draft_probs is not None
    target_RV = evidence.target_probs[list(rows)]
    return target_RV, evidence.tree.draft_probs.to(target_RV.device)[list(rows)]


def _mean(values_R: Tensor, weight_R: Tensor) -> float:
    return float((values_R.cpu() * weight_R).sum() / weight_R.sum())


def compare(
    pair: ModelPair, config: VerifierConfig, prompts: Mapping[str, Sequence[Prompt]], blocks: Blocks
) -> tuple[dict[str, Rows], list[dict[str, Any]]]:
    """Both tables by file name, and the choices, on ``prompts`` by split."""
    shapes, own = shapes_of(config.drafters), config.acceptance.shape()
    decoders = {shape.name: decoder_of(pair, shape) for shape in (*shapes, own)}
    depth = max(shape.depth for shape in (*shapes, own))
    matched = MatchedRoots(pair, config.root_spacing, config.roots_per_prompt, depth, config.seed)

    def at_roots(part: str, split: str, measure: Callable[[Root], Rows]) -> Rows:
        def block(prompt: Prompt, settings: SamplingSettings) -> Rows:
            return [row for root in matched.roots(prompt, settings) for row in measure(root)]

        return blocks.of_prompts(f"{part}/{split}", prompts[split], config.settings, block, SHARES[part, split])

    def accepted(root: Root) -> Rows:
        drawn = draw_trees(decoders[own.name], root, own.depth, 1)
        draws, lists = config.acceptance.draws, config.acceptance.lists
        return [row for evidence in drawn for row in acceptance_rows(evidence, root, draws, lists)]

    expected = partial(expected_rows, decoders, shapes, trees=config.trees_per_root)
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
