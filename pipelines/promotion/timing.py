"""Times the arms of a trial: rows of decodes and of their rounds. Gate and trial know no more of a clock than `Measure`."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tqdm import tqdm

from pipelines.measuring.arms import Arm, decoder_arm, timed
from pipelines.measuring.blocks import Blocks
from pipelines.measuring.measurement_log import MeasurementLog, Rows
from pipelines.measuring.names import PLAIN
from pipelines.measuring.seeds import seed_of
from pipelines.promotion.names import STATIC
from pipelines.prompt_table import Prompt
from predictors.sampling import SamplingSettings
from runtime import Decoder

Measure = Callable[
    [Mapping[str, Decoder], Sequence[Prompt]], tuple[Rows, Rows]
]  # (decodes, rounds), interleaved by block


class BlockTiming:
    """A `Measure`: every prompt at every setting is a block, in which arms take turns in a fresh order. ``capped`` says that
    time ran out."""

    def __init__(
        self,
        settings: Sequence[SamplingSettings],
        max_new_tokens: int,
        log: MeasurementLog,
        repeats: int = 1,
        seed: int = 0,
        max_minutes: float | None = None,
    ) -> None:
        self.settings, self.max_new_tokens, self.log = settings, max_new_tokens, log
        self.repeats, self.seed, self.max_minutes = repeats, seed, max_minutes
        self.capped = False

    def __call__(self, decoders: Mapping[str, Decoder], prompts: Sequence[Prompt]) -> tuple[Rows, Rows]:
        arms = {name: decoder_arm(decoder, self.max_new_tokens) for name, decoder in decoders.items()}
        rows = Rows()
        if not prompts:
            return rows, Rows()
        with tqdm(
            total=len(prompts) * len(self.settings) * self.repeats * len(arms), desc="trial", unit="decode"
        ) as bar:
            blocks = Blocks(self.log, bar, self.max_minutes)
            for arm in arms.values():
                arm(prompts[0].tokens, self.settings[0], 0)
            for prompt in blocks.within(1.0, prompts):
                for settings in self.settings:
                    for repeat in range(self.repeats):
                        key = f"{prompt.split}/{prompt.id}/{settings.name}/{repeat}"
                        block = partial(self._block, key, arms, prompt, settings, repeat, bar)
                        rows += blocks.once(key, len(arms), block)
        self.capped = blocks.capped
        return rows, Rows()

    def _block(
        self, key: str, arms: Mapping[str, Arm], prompt: Prompt, settings: SamplingSettings, repeat: int, bar: tqdm
    ) -> Rows:
        where: dict[str, Any] = {
            "split": prompt.split,
            "slice": prompt.slice,
            "document": prompt.document,
            "prompt": prompt.id,
        }
        where |= {"setting": settings.name, "temperature": settings.temperature, "repeat": repeat, "block": key}
        seed = seed_of(f"{self.seed}/{prompt.id}/{settings.name}")
        rows = Rows()
        for order, name in enumerate(random.Random(f"{self.seed}/{key}").sample(list(arms), len(arms))):
            bar.set_postfix_str(f"{settings.name}, {name}")
            run, seconds = timed(arms[name], prompt.tokens, settings, seed)
            numbers = {"prompt_tokens": len(prompt.tokens), "tokens": len(run.tokens), "seconds": seconds}
            names = {"arm": name, "family": family_of(name), "order": order, "seed": seed, "led": False}
            rows.append(where | names | numbers)
            bar.update()
        return rows


def family_of(arm: str) -> str:
    """Of an arm of a trial: ``plain``, `STATIC`, or its own name."""
    if arm == PLAIN:
        return "plain"
    return STATIC if arm.startswith(f"{STATIC}-") else arm
