"""What every part of the GPU benchmark measures with: the device, the trained pair, and runs interleaved and paired by prompt."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from pipelines.gpu.ceilings import Ceilings
from pipelines.gpu.pairs import Trained
from pipelines.gpu.shapes import Sized
from pipelines.measuring.arms import Arm, Run
from pipelines.measuring.names import ROUND_LISTS
from predictors.sampling import SamplingSettings
from predictors.training.bootstrap import DocumentBootstrap, interval
from runtime import Decoder, ModelPair, Randomness
from runtime.latency.cells import synchronise
from runtime.recorder import CudaGraphs

REPLICATES = 1000
RETRIES = 3
Result = dict[str, Any]  # JSON


@dataclass(frozen=True)
class Bench:
    """``prompts`` of the trained pair are decoded to ``new_tokens`` more each, at every one of ``temperatures``."""

    device: torch.device
    dtype: torch.dtype
    trained: Trained
    ceilings: Ceilings
    prompts: int
    new_tokens: int
    temperatures: tuple[float, ...] = (0.0, 1.0)

    @contextmanager
    def pair(self, target: Sized, draft: Sized | None) -> Iterator[ModelPair]:
        """Both models on the device, for one part."""
        release(self.device)
        yield self.trained.pair(target, draft, self.device, self.dtype)

    @property
    def overlap(self) -> str:
        """How a branch stage's jobs run: at once, or one after the other on a virtual clock."""
        return "streams" if self.device.type == "cuda" else "none"

    def arm(self, decoder: Decoder) -> Arm:
        """One of our decoders as an arm; no end-of-sequence token ends a text, so that all have one length."""

        def decode(prompt: list[int], settings: SamplingSettings, seed: int) -> Run:
            options = {"max_new_tokens": self.new_tokens, "temperature": settings.temperature, "eos_token_id": []}
            out = decoder.generate(prompt, randomness=Randomness(seed), **options)
            return Run(out.tokens, out.rounds)

        return decode

    def race(self, arms: Mapping[str, Arm], temperatures: Sequence[float] | None = None) -> list[Result]:
        """Rows of all arms: every prompt is decoded by all of them, one after the other, in an order that turns; the first one
        twice, as the first time records programs."""
        rows = []
        names = list(arms)
        for temperature in self.temperatures if temperatures is None else temperatures:
            settings = SamplingSettings(temperature)
            for number in range(-1, self.prompts):
                prompt = self.trained.prompts[max(number, 0)]
                for name in (*names[number % len(names) :], *names[: number % len(names)]):
                    row = self._timed(arms[name], prompt, settings, number)
                    if number >= 0:
                        rows.append({"arm": name, "document": self.trained.documents[number], **row})
        return rows

    def _timed(self, arm: Arm, prompt: list[int], settings: SamplingSettings, seed: int) -> Result:
        """A row; a run that recorded programs is run again, up to `RETRIES` times, and says how many it recorded at last."""
        for _ in range(1 + RETRIES):
            made = CudaGraphs.made
            synchronise(self.device)
            start = perf_counter()
            run = arm(prompt, settings, seed + 1)
            synchronise(self.device)
            seconds = perf_counter() - start
            if CudaGraphs.made == made:
                break
        assert len(run.tokens) == self.new_tokens, f"an arm gave {len(run.tokens)} tokens, not {self.new_tokens}"
        return _row(run, seconds, settings, len(prompt)) | {"recorded": CudaGraphs.made - made}


def release(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _row(run: Run, seconds: float, settings: SamplingSettings, prompt_tokens: int) -> Result:
    row: Result = {
        "temperature": settings.temperature,
        "prompt_tokens": prompt_tokens,
        "tokens": len(run.tokens),
        "seconds": seconds,
    }
    if run.rounds is not None:
        overlapped = sum(record.overlapped for record in run.rounds)  # on a virtual clock
        row |= {"seconds": seconds - overlapped, "virtual": overlapped > 0}
        row |= {f"round_{name}": [int(getattr(record, name)) for record in run.rounds[1:]] for name in ROUND_LISTS}
    return row


def speeds(rows: Sequence[Result], base: str, seed: int = 0) -> list[Result]:
    """By arm and temperature: tokens per second, and as a multiple of arm ``base`` on the same prompts with its interval over
    documents."""
    found = []
    for temperature in sorted({row["temperature"] for row in rows}):
        some = [row for row in rows if row["temperature"] == temperature]
        plain = [row for row in some if row["arm"] == base]
        bootstrap = DocumentBootstrap(np.array([row["document"] for row in plain]), REPLICATES, seed)
        base_seconds, base_tokens = _columns(plain)
        for name in dict.fromkeys(row["arm"] for row in some):
            seconds, tokens = _columns([row for row in some if row["arm"] == name])
            value = (tokens.sum() / seconds.sum()) / (base_tokens.sum() / base_seconds.sum())
            sums = bootstrap.sums(np.stack([tokens, seconds, base_tokens, base_seconds], axis=1)).T
            ratio = interval(float(value), (sums[0] / sums[1]) / (sums[2] / sums[3]))
            speed = {"arm": name, "temperature": temperature, "tokens_per_second": float(tokens.sum() / seconds.sum())}
            found.append(speed | {"of_plain": ratio})
    return found


def _columns(rows: Sequence[Result]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([row["seconds"] for row in rows]), np.array([float(row["tokens"]) for row in rows])


def repeated(decode: Callable[[], Run], seconds: float) -> int:
    """Decode again and again for so many ``seconds``; how many tokens that gave."""
    start, tokens = perf_counter(), 0
    while perf_counter() - start < seconds:
        tokens += len(decode().tokens)
    return tokens
