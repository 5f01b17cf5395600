"""Exact block efficiency of every rule on the same trees, at matched roots.

    roots        every r tokens of a continuation that the target alone decodes under the setting; the same for all shapes
    trees        one round of the real loop with the shape's drafter, the same draws of chance for all shapes at a root
    expected     1 + E[tau | tree] of each rule on that very tree: no verification noise, differences are paired

Averaged over roots this is the block efficiency E[tau] + 1. Its roots are spread evenly over the text, while decoding starts its
rounds where earlier ones ended: the two need not agree to the last digit.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

import torch

from pipelines.measuring.harness import seed_of
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.verifiers.shapes import Shape
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, Randomness, build_decoder
from runtime.decoding.base import Evidence, Step
from runtime.verification import VERIFIERS


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
        self.pair = pair
        self.spacing = spacing
        self.per_prompt = per_prompt
        self.depth = depth
        self.seed = seed
        self._plain = build_decoder(pair, {"method": "autoregressive"})
        draft_limit = self._plain.context_limit if pair.draft is None else pair.draft.context_limit
        self._limit = min(self._plain.context_limit, draft_limit)

    def roots(self, prompt: Prompt, settings: SamplingSettings) -> Iterator[Root]:
        """Roots of a prompt, as far as the text goes on and the deepest shape fits the context."""
        key = f"{self.seed}/{prompt.id}/{settings.name}"
        text = self._continuation(prompt.tokens, settings, seed_of(key))
        for index in range(self.per_prompt):
            length = index * self.spacing
            fits = len(prompt.tokens) + length + self.depth + 2 <= self._limit
            if length <= len(text) and fits:
                yield Root(prompt, settings, index, prompt.tokens + text[:length], seed_of(f"{key}/{index}"))

    def _continuation(self, tokens: list[int], settings: SamplingSettings, seed: int) -> list[int]:
        length = (self.per_prompt - 1) * self.spacing
        length = min(length, self._limit - len(tokens) - 1)
        if length < 1:
            return []
        options = {"max_new_tokens": length, "randomness": Randomness(seed), **asdict(settings)}
        text = self._plain.generate(tokens, **options).tokens
        ended = text[-1] in self.pair.target.eos_tokens
        return text[:-1] if ended else text


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
