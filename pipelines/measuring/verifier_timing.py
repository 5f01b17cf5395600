"""Decoding with every (drafter, rule), interleaved and paired by prompt, as the benchmark times its arms."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any

from tqdm import tqdm

from pipelines.measuring.arms import Run
from pipelines.measuring.measurement import seed_of
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.measurement_table import measured
from pipelines.measuring.names import PLAIN
from pipelines.measuring.verifier_shapes import Shape, setting_name
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, Randomness, build_decoder

Arm = tuple[str, str]  # shape's name, rule; plain decoding is (PLAIN, PLAIN)
PLAIN_ARM: Arm = (PLAIN, PLAIN)
LISTS = ("output", "accepted_histogram")


def decoders_of(pair: ModelPair, shapes: Sequence[Shape]) -> dict[Arm, Decoder]:
    """A decoder for every shape and rule, and plain decoding."""
    decoders = {PLAIN_ARM: build_decoder(pair, {"method": "autoregressive"})}
    for shape in shapes:
        for verifier in shape.verifiers:
            config = {"method": "speculative", "drafter": shape.drafter, "verifier": verifier}
            decoders[shape.name, verifier] = build_decoder(pair, config)
    return decoders


class VerifierTiming:
    """Times arms on prompts; ``families`` names each shape's family."""

    def __init__(
        self, decoders: Mapping[Arm, Decoder], families: Mapping[str, str], max_new_tokens: int, seed: int, bar: tqdm
    ) -> None:
        self.decoders = decoders
        self.families = families
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.bar = bar

    def block(self, split: str, prompt: Prompt, settings: SamplingSettings, arms: Sequence[Arm]) -> Rows:
        """Every arm on one prompt, in an order drawn from the seed."""
        key = f"{self.seed}/{split}/{prompt.id}/{setting_name(settings)}"
        rows = []
        for order, arm in enumerate(random.Random(key).sample(arms, len(arms))):
            self.bar.set_postfix_str(f"{split}, {setting_name(settings)}, {' '.join(dict.fromkeys(arm))}")
            place = {"split": split, "setting": setting_name(settings), "order": order}
            who = {"prompt": prompt.id, "document": prompt.document, "slice": prompt.slice}
            names = {"family": self.families.get(arm[0], PLAIN), "drafter": arm[0], "verifier": arm[1]}
            rows.append({**place, **who, **names, **self.decode(arm, prompt.tokens, settings, key)})
            self.bar.update()
        return rows

    def decode(self, arm: Arm, prompt: list[int], settings: SamplingSettings, key: str) -> dict[str, Any]:
        """What one decode took and did."""
        randomness = Randomness(seed_of(f"{key}/{'/'.join(arm)}"))
        options = {"max_new_tokens": self.max_new_tokens, "randomness": randomness, **asdict(settings)}
        start = perf_counter()
        out = self.decoders[arm].generate(prompt, **options)
        row = measured(Run(out.tokens, out.rounds), perf_counter() - start)
        return {name: value for name, value in row.items() if name not in LISTS}
