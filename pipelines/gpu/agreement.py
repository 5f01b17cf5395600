"""Part ``agreement``: whether the text is right on this device.

float32    greedy texts of every method equal plain decoding's
bfloat16   where they part from it, the two tokens are a near-tie: with the text before them fed again in float32 (teacher
           forcing), their logits differ by less than rounding explains
"""

from collections.abc import Mapping
from typing import Any

import torch

from pipelines.gpu.bench import Bench, Result
from pipelines.gpu.methods import METHODS, branches, chain
from pipelines.gpu.pairs import inflated
from pipelines.gpu.shapes import Sized
from pipelines.measuring.names import PEARL, PLAIN, WITHOUT_HRAD
from predictors.sampling import SamplingSettings
from runtime import ModelPair, build_decoder

NEAR_TIE = 2.0**-6  # of the larger logit: two roundings of a bfloat16 number, whose relative step is 2^-8


def agreement(bench: Bench, target: Sized, draft: Sized) -> Result:
    """Texts by method that part from plain decoding's, in both number formats, and how close the parting tokens were."""
    configs = {PLAIN: {"method": "autoregressive"}, "chain-4": chain(4), **METHODS}
    configs |= {f"{preset}-4": branches(preset, 4, bench.overlap) for preset in (PEARL, WITHOUT_HRAD)}
    single, half = (_texts(bench, target, draft, configs, dtype) for dtype in (torch.float32, torch.bfloat16))
    parted = {name: _partings(texts, single[PLAIN]) for name, texts in single.items()}
    reference = inflated(bench.trained.target, target, bench.device, torch.float32)
    ties = {name: _ties(bench, reference, texts, half[PLAIN]) for name, texts in half.items()}
    return {
        "prompts": bench.prompts,
        "float32_parted": {name: len(places) for name, places in parted.items()},
        "bfloat16_partings": ties,
        "near_tie": NEAR_TIE,
    }


def _texts(
    bench: Bench, target: Sized, draft: Sized, configs: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, list[list[int]]]:
    pair = bench.trained.pair(target, draft, bench.device, dtype)
    return {name: _decoded(bench, pair, config) for name, config in configs.items()}


def _decoded(bench: Bench, pair: ModelPair, config: Mapping[str, Any]) -> list[list[int]]:
    decode = bench.arm(build_decoder(pair, config))
    return [decode(prompt, SamplingSettings(0.0), 0).tokens for prompt in bench.trained.prompts[: bench.prompts]]


def _partings(texts: list[list[int]], plain: list[list[int]]) -> list[tuple[int, int]]:
    """Prompt and place of the first token that differs, for texts that differ."""
    found = []
    for number, (text, other) in enumerate(zip(texts, plain, strict=True)):
        places = [place for place, (a, b) in enumerate(zip(text, other, strict=True)) if a != b]
        found += [(number, places[0])] if places else []
    return found


@torch.inference_mode()
def _ties(bench: Bench, reference: Any, texts: list[list[int]], plain: list[list[int]]) -> list[Result]:
    found = []
    for number, place in _partings(texts, plain):
        text = [*bench.trained.prompts[number], *plain[number][:place]]
        logits = reference(torch.tensor([text], device=bench.device)).logits[0, -1]
        ours, theirs = float(logits[texts[number][place]]), float(logits[plain[number][place]])
        gap = abs(ours - theirs) / max(abs(ours), abs(theirs))
        found.append({"prompt": number, "place": place, "gap": gap, "near_tie": gap < NEAR_TIE})
    return found
