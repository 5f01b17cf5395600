"""What every part of the GPU benchmark measures with: its arms as rows of the table of arms (`pipelines.measuring.arm_rows`), the
device, the trained pair, and the harness that times decodes."""

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pipelines.gpu.pairs import Sized, Trained, inflated
from pipelines.measuring import names
from pipelines.measuring.arm_rows import ArmRow, chain, expanded
from pipelines.measuring.arms import ArmBuilder, TimedArm
from pipelines.measuring.exactness import GREEDY
from pipelines.measuring.harness import Harness
from pipelines.measuring.measurement_log import Blocks, MeasurementLog, Rows
from predictors.sampling import SamplingSettings
from runtime import ModelPair

Result = dict[str, Any]  # JSON
SETTINGS = (GREEDY, SamplingSettings(1.0))
GAMMAS, BRANCH_GAMMAS = (2, 4, 6, 8), (4, 8)
PRESETS = (names.PEARL, names.WITHOUT_HRAD)
STATIC = (names.PLAIN_FAMILY, names.CHAIN, *PRESETS)  # families that the latency model covers


def _tree(kind: str, verifier: str) -> dict[str, Any]:
    return {"method": "speculative", "drafter": {"kind": kind}, "verifier": verifier}


ALONE = ArmRow(names.PLAIN, names.PLAIN_FAMILY, {"method": "autoregressive"})
CHAINS = ArmRow("chain-{gamma}", names.CHAIN, chain("{gamma}"), each={"gamma": GAMMAS})
OTHERS = (
    ArmRow("confidence-0.4", names.RULE, chain(8, controller={"kind": "confidence", "epsilon": 0.4})),
    ArmRow("ema", names.RULE, chain(8, controller={"kind": "ema"})),
    ArmRow("delayed-3.1.3", names.DYNAMIC, _tree("delayed_tree", "traversal")),
    ArmRow("multi-candidate", names.CONFIG, _tree("multi_candidate", "nss")),
    ArmRow("lookahead", names.GIVEN, {"method": "lookahead"}),
    ArmRow("progressive_tree", names.GIVEN, {"method": "progressive_tree"}),
)
THEIRS = (
    ArmRow(names.HF_PLAIN, names.HUGGING_FACE, hugging_face="generate"),
    ArmRow(names.HF_ASSISTED, names.HUGGING_FACE, hugging_face="assisted"),
)
COMPILED = (
    ArmRow("hf_compiled", names.HUGGING_FACE, hugging_face="generate", options={"cache_implementation": "static"}),
)


def branches(preset: str, gamma: int | str, overlap: str) -> dict[str, Any]:
    """A branch-parallel preset, whose jobs run as ``overlap`` says."""
    return {"preset": preset, "gamma": gamma, "overlap": overlap}


def static_rows(overlap: str) -> tuple[ArmRow, ...]:
    """The families of `STATIC`."""
    each = {"gamma": BRANCH_GAMMAS}
    decoders = {preset: branches(preset, "{gamma}", overlap) for preset in PRESETS}
    rows = (ArmRow(f"{preset}-{{gamma}}", preset, decoder, each=each) for preset, decoder in decoders.items())
    return (ALONE, CHAINS, *rows)


@dataclass(frozen=True)
class Bench:
    """Every prompt of the trained pair is decoded to ``new_tokens`` more. ``folder`` keeps decodes, below their pair's name in a
    log for each part; those of another ``fingerprint`` give way. ``bar`` counts those of the part at hand."""

    device: torch.device
    dtype: torch.dtype
    trained: Trained
    new_tokens: int
    folder: Path
    fingerprint: str
    bar: tqdm

    def pair(self, target: Sized, draft: Sized | None, dtype: torch.dtype | None = None) -> ModelPair:
        """Both models on the device in the given shapes, over recorded passes, for one part."""
        release(self.device)
        place = self.device, dtype or self.dtype
        small = None if draft is None else inflated(self.trained.draft, draft, *place)
        return ModelPair(inflated(self.trained.target, target, *place), small, forward="graphed")

    @property
    def overlap(self) -> str:
        """How a branch stage's jobs run: at once, or one after the other on a virtual clock."""
        return "streams" if self.device.type == "cuda" else "none"

    def arms(self, pair: ModelPair, rows: Iterable[ArmRow]) -> dict[str, TimedArm]:
        """Arms by name. No end-of-sequence token ends a text (`pipelines.gpu.pairs.inflated`), so that all have one length."""
        return ArmBuilder(pair, Path(), self.new_tokens).build(expanded(rows, ""))

    def race(
        self, part: str, pair: str, arms: Mapping[str, TimedArm], settings: Sequence[SamplingSettings] = SETTINGS
    ) -> Rows:
        """A row for each decode of every prompt by every arm; what an interrupted run has left is not timed again."""
        log = MeasurementLog(self.folder / pair / f"{part}.jsonl", self.fingerprint)
        harness = Harness(Blocks(log, self.bar), settings)
        rows = harness.race(arms, self.trained.prompts)
        for row in rows:
            assert row["tokens"] == self.new_tokens, f"{row['arm']} gave {row['tokens']} tokens, not {self.new_tokens}"
        return rows


def release(device: torch.device) -> None:
    """Give back what models that are gone held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
