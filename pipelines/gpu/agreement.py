"""Part ``agreement``: whether the text is right on this device.

float32    greedy texts of every method equal plain decoding's
bfloat16   where they part from it, the two tokens are a near-tie: with the text before them fed again in float32 (teacher
           forcing), their logits differ by less than rounding explains
"""

from typing import Any

import torch

from pipelines.gpu.arms import OTHERS, static_rows
from pipelines.gpu.bench import Bench, Result
from pipelines.gpu.pairs import inflated
from pipelines.gpu.shapes import Sized
from pipelines.measuring.exactness import GREEDY, first_difference, near_tie
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN

NEAR_TIE = near_tie(torch.bfloat16)  # of the larger logit


def agreement(bench: Bench, shape: str, model: Sized) -> Result:
    """Where texts part from plain decoding's in both number formats, and how close the parting tokens were in bfloat16."""
    single, half = (_partings(bench, shape, model, dtype) for dtype in (torch.float32, torch.bfloat16))
    reference = inflated(bench.trained.target, model, bench.device, torch.float32) if half else None
    prompts = {prompt.id: prompt.tokens for prompt in bench.trained.prompts}
    ties = [{"gap": _gap(reference, prompts[found["prompt"]] + found["before"], *found["tokens"])} for found in half]
    half = [found | tie | {"near_tie": tie["gap"] < NEAR_TIE} for found, tie in zip(half, ties, strict=True)]
    return {"float32": single, "bfloat16": half, "near_tie": NEAR_TIE}


def _partings(bench: Bench, shape: str, model: Sized, dtype: torch.dtype) -> list[Result]:
    pair = bench.pair(model, model, dtype)
    arms = bench.arms(pair, (*static_rows(bench.overlap), *OTHERS))
    return partings(bench.race("agreement", f"{shape}-{str(dtype).removeprefix('torch.')}", arms, [GREEDY]))


def partings(rows: Rows) -> list[Result]:
    """Texts that differ from plain decoding's of the same block: the first token that does, both tokens and the text before."""
    plain = {row["block"]: row["output"] for row in rows if row["arm"] == PLAIN}
    found = []
    for row in rows:
        ours, theirs = row["output"], plain[row["block"]]
        place = first_difference(ours, theirs)
        if place is not None:
            tokens = [ours[place], theirs[place]]
            found.append({"arm": row["arm"], "prompt": row["prompt"], "tokens": tokens, "before": theirs[:place]})
    return found


@torch.inference_mode()
def _gap(reference: Any, text: list[int], ours: int, theirs: int) -> float:
    """Between the logits of two tokens after ``text``, as a share of the larger."""
    logits = reference(torch.tensor([text], device=reference.device)).logits[0, -1]
    one, other = float(logits[ours]), float(logits[theirs])
    return abs(one - other) / max(abs(one), abs(other))
