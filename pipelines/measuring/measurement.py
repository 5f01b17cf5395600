"""Interleaved, paired timing of decoding arms.

    validation prompts   static γ and confidence ε are swept; the best of each family is chosen per temperature by tokens/s
    test prompts         every arm decodes every prompt (of static branch-parallel arms, those chosen); the choice is scored here
    replay               plain decoding and the best static γ against a bare replay of their forward passes
    exactness            greedy text of every arm of ours in float32 against Hugging Face's

A *block* is one prompt at one temperature: all arms decode it one after the other, in an order drawn anew from the seed. Repeats
draw the same text in another order; the fastest counts, because neighbours on a machine only ever add time.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.measuring.arms import Arm, timed
from pipelines.measuring.bare_replay import record, seconds_of
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.branch_arms import STATIC
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.measurement_table import measured
from pipelines.measuring.names import CHAIN, CONFIDENCE, PLAIN, REPLAY, branch_arm
from pipelines.measuring.seeds import seed_of
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Randomness
from runtime.decoding.sequential import SequentialDecoder

FAMILIES = {f"{CHAIN}-": "static", f"{CONFIDENCE}-": "confidence"}  # what is chosen on validation prompts, by prefix of the arm
VALIDATION_SHARE, TEST_SHARE, REPLAY_SHARE = 0.3, 0.9, 1.0  # of max_minutes, when these phases have to end


@dataclass(frozen=True)
class MeasurementConfig:
    """Section ``benchmark``: how much is measured.

    ``epsilons``: thresholds of the confidence rule; ``branch_gammas``: lengths of static branch-parallel arms, which are
    also tried with idle draft stages of ``draft_stage_gammas``; ``max_minutes`` ends the measurement early, after a whole prompt.
    """

    max_new_tokens: int = 48
    validation_prompts: int = 8
    test_prompts: int = 15
    repeats: int = 2
    temperatures: tuple[float, ...] = (0.0, 1.0)
    gammas: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    epsilons: tuple[float, ...] = (0.1, 0.3)
    branch_gammas: tuple[int, ...] = (4, 8)
    draft_stage_gammas: tuple[int, ...] = (4,)
    verifier: str = "block"
    threads: int = 2
    seed: int = 0
    warmup_prompts: int = 1
    replay_prompts: int = 3
    replay_repeats: int = 3
    exactness_prompts: int = 2
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "validation_prompts", "test_prompts", "repeats", "threads", "replay_prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        for name in ("temperatures", "gammas", "epsilons"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty.")


@dataclass
class Measurement:
    """A measurement under way. ``arms`` decode, ``blocks`` keeps what is finished."""

    config: MeasurementConfig
    arms: Mapping[str, Arm]
    blocks: Blocks

    def warm_up(self, prompts: Sequence[Prompt]) -> None:
        """Every arm once per prompt, not recorded."""
        for prompt in prompts[: self.config.warmup_prompts]:
            for name, arm in self.arms.items():
                self.blocks.bar.set_postfix_str(f"warm-up {name}")
                arm(prompt.tokens, SamplingSettings(max(self.config.temperatures)), 0)

    def time_split(self, split: str, prompts: Sequence[Prompt], names: Iterable[str], share: float) -> Rows:
        """Rows of ``names`` on every prompt, until ``share`` of ``max_minutes`` has passed (one prompt at least)."""
        names, rows = list(names), []
        for prompt in self.blocks.within(share, prompts):
            for repeat in range(self.config.repeats):
                for temperature in self.config.temperatures:
                    key = f"{split}/{prompt.id}/{temperature}/{repeat}"
                    measure = partial(self._block, split, prompt, temperature, repeat, names)
                    rows += self.blocks.once(key, len(names), measure)
        return rows

    def choose(self, rows: Rows) -> list[dict[str, Any]]:
        """The fastest arm of each family at each temperature on validation ``rows``, with the sweep it was chosen from."""
        choices = []
        for temperature in self.config.temperatures:
            for family in dict.fromkeys(filter(None, map(family_of, self.arms))):
                sweep = {
                    name: tokens_per_second(rows, name, temperature) for name in self.arms if family_of(name) == family
                }
                best = max(sweep, key=sweep.__getitem__)
                choices.append({"temperature": temperature, "family": family, "arm": best, "tokens_per_second": sweep})
        return choices

    def time_replay(
        self, prompts: Sequence[Prompt], decoders: Mapping[str, SequentialDecoder], best: Mapping[float, str]
    ) -> Rows:
        """Seconds in the loop and in a bare replay, interleaved, for plain decoding and the best static γ."""
        rows = []
        for prompt in self.blocks.within(REPLAY_SHARE, prompts[: self.config.replay_prompts]):
            for temperature in self.config.temperatures:
                for name in (PLAIN, best[temperature]):
                    key = f"{REPLAY}/{prompt.id}/{temperature}/{name}"
                    measure = partial(self._replay, key, prompt, temperature, name, decoders[name])
                    rows += self.blocks.once(key, 1, measure)
        return rows

    def _block(self, split: str, prompt: Prompt, temperature: float, repeat: int, names: list[str]) -> Rows:
        rows = []
        block = f"{self.config.seed}/{split}/{prompt.id}/{temperature}"
        for order, name in enumerate(random.Random(f"{block}/{repeat}").sample(names, len(names))):
            self.blocks.bar.set_postfix_str(f"{split}, T={temperature:g}, {name}")
            run, seconds = timed(
                self.arms[name], prompt.tokens, SamplingSettings(temperature), seed_of(f"{block}/{name}")
            )
            place = {"split": split, "temperature": temperature, "repeat": repeat, "arm": name, "order": order}
            who = {"prompt": prompt.id, "document": prompt.document, "slice": prompt.slice}
            size = {"prompt_tokens": len(prompt.tokens)}
            rows.append({**place, **who, **size, **measured(run, seconds)})
            self.blocks.bar.update()
        return rows

    def _replay(self, key: str, prompt: Prompt, temperature: float, name: str, decoder: SequentialDecoder) -> Rows:
        def options() -> dict[str, Any]:
            return {
                "max_new_tokens": self.config.max_new_tokens,
                "temperature": temperature,
                "randomness": Randomness(seed_of(f"{self.config.seed}/{key}")),
            }

        self.blocks.bar.set_postfix_str(f"{REPLAY}, T={temperature:g}, {name}")
        work = {
            "replay": record(decoder, prompt.tokens, **options()),
            "loop": lambda: decoder.generate(prompt.tokens, **options()),
        }
        rows, order = [], random.Random(key)
        for repeat in range(self.config.replay_repeats):
            seconds = {kind: seconds_of(work[kind]) for kind in order.sample(sorted(work), len(work))}
            who = {"prompt": prompt.id, "document": prompt.document, "temperature": temperature, "arm": name}
            rows.append({**who, "repeat": repeat, "loop": seconds["loop"], "replay": seconds["replay"]})
        self.blocks.bar.update()
        return rows


def family_of(arm: str) -> str | None:
    """The family that ``arm`` competes in on validation prompts; ``None`` for an arm that is not swept."""
    branching = branch_arm(arm)
    if branching is not None:
        return branching.family if branching.preset in STATIC and not branching.wall else None
    return next((family for prefix, family in FAMILIES.items() if arm.startswith(prefix)), None)


def tokens_per_second(rows: Rows, arm: str, temperature: float) -> float:
    """Total tokens over total seconds of an arm, at each prompt's fastest repeat."""
    fastest: dict[str, tuple[float, int]] = {}
    for row in rows:
        if row["arm"] == arm and row["temperature"] == temperature:
            run = (row["seconds"], row["tokens"])
            fastest[row["prompt"]] = min(run, fastest.get(row["prompt"], run))
    return float(sum(tokens for _, tokens in fastest.values()) / sum(seconds for seconds, _ in fastest.values()))
