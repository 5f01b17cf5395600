"""Made-up measurements of known truth: arms timed on prompts of documents in slices, at sampling settings, in blocks.

    ln seconds of an arm on a text = text + block - ln(rate of the arm) + document + foreseen + noise

*text* is shared by all arms, *block* by the arms of one block, *document* by the challenger's prompts of one document.
*Foreseen* is what the text makes of an arm and replay knows; *noise* is the clock's. Every factor has mean 1, so that the
ratio of expected seconds is the ratio of the rates. Every text has as many tokens, as with arms led along one text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pipelines.gate.evidence.ledger import Replayed
from pipelines.gate.evidence.prices import COMPONENTS, K, PriceFit
from pipelines.measuring.bench import allocated
from pipelines.prompt_table import Prompt

CHALLENGER, PLAIN = "challenger", "autoregressive"
TOKENS = 48
FACTORS = {"draft": 1.2, "target-8": 0.9}  # that a profile of a made-up machine lacks
SPARED = {"code": 13, "prose": 4, "tables": 2}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class World:
    """What is measured, and how noisy it is.

    Parameters
    ----------
    documents, spared
        Of the test share by slice, and new ones that every further look opens.
    texts, prompts, further, least
        Of the test share, spread evenly over slices; of them timed, and timed at each further look, allocated to slices by their
        documents, with at least so many of each at the first look.
    noise
        Deviation of a pair's log ratio on one prompt by temperature, everything included.
    document_noise, foreseen
        Deviation of it by document, and the share of the remaining variance that replay foresees.
    block_noise, text_noise
        Deviations of what arms share.
    staged
        Whether a pipeline's stage took the first look: later ones have its prompts, and times of their own.
    rates
        Of the rivals, relative to the closest.
    """

    documents: Mapping[str, int] = field(default_factory=lambda: {"code": 87, "prose": 21, "tables": 11})
    spared: Mapping[str, int] = field(default_factory=lambda: SPARED)
    texts: int = 240
    prompts: int = 60
    further: int = 30
    least: int = 8
    noise: Mapping[float, float] = field(default_factory=lambda: {0.0: 0.10, 1.0: 0.16})
    document_noise: float = 0.03
    foreseen: float = 0.5
    block_noise: float = 0.1
    text_noise: float = 0.3
    staged: bool = False
    rates: Mapping[str, float] = field(
        default_factory=lambda: {
            PLAIN: 0.6,
            "chain-2": 0.9,
            "chain-3": 0.97,
            "chain-4": 1.0,
            "chain-6": 0.99,
            "chain-8": 0.94,
        }
    )

    @property
    def mix(self) -> dict[str, float]:
        """Documents by slice."""
        return {name: float(count) for name, count in self.documents.items()}


class Measurement:
    """One draw of a ``world`` whose challenger truly gains ``gain`` over the closest rival, for up to ``looks``."""

    def __init__(self, world: World, gain: float, seed: int, looks: int = 1) -> None:
        self.world, self.arms = world, [CHALLENGER, *world.rates]
        self._generator = np.random.default_rng([seed, 7])
        rates = np.array([1 + gain, *world.rates.values()])
        self._texts = [text for look in range(looks) for text in self._drawn(look)]
        self._foreseen_NTA = self._drawn_foreseen(rates)
        self._seconds_2NTA = [self._foreseen_NTA * self._drawn_clock() for _ in range(2)]

    def decodes(self, look: int = 1) -> Rows:
        """Rows of decodes of all looks up to this one."""
        return [
            {
                "arm": name,
                "family": "plain" if name == PLAIN else name.partition("-")[0],
                "split": "test",
                "slice": text["slice"],
                "document": text["document"],
                "prompt": text["prompt"],
                "prompt_tokens": 64,
                "temperature": temperature,
                "repeat": 0,
                "block": f"{text['prompt']}/{temperature:g}",
                "led": temperature > 0,
                "tokens": TOKENS,
                "seconds": float(self._seconds_NTA(look)[number, place, arm]),
            }
            for number, text in enumerate(self._texts)
            if text["timed"] and text["look"] <= look
            for place, temperature in enumerate(self.world.noise)
            for arm, name in enumerate(self.arms)
        ]

    def replayed(self, look: int = 1) -> Replayed:
        """What replay makes of the same texts, and prices fitted to the clock."""
        texts: Rows = []
        timed: Rows = []
        for number, text in enumerate(self._texts):
            for place, temperature in enumerate(self.world.noise):
                for arm, name in enumerate(self.arms):
                    if text["look"] > look:
                        continue
                    where = {"arm": name, "tokens": TOKENS, "parts": self._parts_NTAK[number, place, arm].tolist()}
                    texts.append(where | text | {"temperature": temperature})
                    if text["timed"]:
                        timed.append(where | {"block": f"{text['prompt']}/{temperature:g}"})
        return Replayed(texts, timed, self._prices(look))

    def _drawn(self, look: int) -> Rows:
        """Texts of a look's own documents; the documents of a slice take turns."""
        counts = self.world.documents if look == 0 else self.world.spared
        texts = self.world.texts if look == 0 else self.world.further
        timed, least = (self.world.prompts, self.world.least) if look == 0 else (self.world.further, 0)
        prompts = [Prompt("", "", "", name, "test", "", []) for name in counts for _ in range(texts)]
        turns = [prompt.slice for prompt in allocated(prompts, counts, timed, least)]
        return [
            {
                "look": look + 1,
                "slice": name,
                "document": f"{look}/{name}/{number % counts[name]}",
                "prompt": f"{look}/{name}/{number}",
                "timed": number < turns.count(name),
            }
            for name in counts
            for number in range(max(texts // len(counts), turns.count(name)))
        ]

    def _seconds_NTA(self, look: int) -> np.ndarray:
        """Of every decode, as this look has them."""
        return self._seconds_2NTA[int(self.world.staged and look == 1)]

    def _drawn_foreseen(self, rates_A: np.ndarray) -> np.ndarray:
        """Seconds of every decode that replay foresees."""
        world, draw, shape = self.world, self._generator, self._shape
        names = sorted({text["document"] for text in self._texts})
        document_N = np.array([names.index(text["document"]) for text in self._texts])
        own_NT = draw.standard_normal((len(names), shape[1]))[document_N]
        log = self._drawn_factor(world.foreseen) - np.log(rates_A)
        log[..., 0] += world.document_noise * own_NT - world.document_noise**2 / 2
        return np.exp(log + (world.text_noise * draw.standard_normal(shape[0]))[:, None, None])

    def _drawn_clock(self) -> np.ndarray:
        """By which a clock's seconds differ from those."""
        block_NT = self.world.block_noise * self._generator.standard_normal(self._shape[:2])
        return np.exp(self._drawn_factor(1 - self.world.foreseen) + block_NT[..., None])

    def _drawn_factor(self, share: float) -> np.ndarray:
        """Log of a factor of mean 1 that has this ``share`` of what documents leave of the noise."""
        variance_T = (
            np.maximum(np.square(list(self.world.noise.values())) - self.world.document_noise**2, 0) * share / 2
        )
        drawn = self._generator.standard_normal(self._shape) * np.sqrt(variance_T)[None, :, None]
        return drawn - (variance_T / 2)[None, :, None]

    @property
    def _shape(self) -> tuple[int, int, int]:
        return len(self._texts), len(self.world.noise), len(self.arms)

    @cached_property
    def _shares_AK(self) -> np.ndarray:
        """How an arm's time divides into components: no two arms alike."""
        shares_AK = np.zeros((len(self.arms), K))
        drafting_A = np.linspace(0.2, 0.6, len(self.arms))
        shares_AK[:, COMPONENTS.index("draft")] = drafting_A
        shares_AK[:, COMPONENTS.index("target-8")] = 1 - drafting_A
        return shares_AK

    @cached_property
    def _parts_NTAK(self) -> np.ndarray:
        """What the profile says: right but for `FACTORS`."""
        factors_K = np.array([FACTORS.get(name, 1.0) for name in COMPONENTS])
        return self._foreseen_NTA[..., None] * self._shares_AK / factors_K

    def _prices(self, look: int) -> PriceFit:
        timed = [number for number, text in enumerate(self._texts) if text["timed"] and text["look"] <= look]
        measured = (self._seconds_NTA(look)[timed][..., None] * self._shares_AK).sum(axis=2)
        profiled = self._parts_NTAK[timed].sum(axis=2)
        documents = np.repeat([self._texts[number]["document"] for number in timed], len(self.world.noise))
        flat = (-1, K)
        return PriceFit(documents, measured.reshape(flat), profiled.reshape(flat), (measured > 0).reshape(flat) * 10.0)
