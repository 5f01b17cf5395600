"""An engine's speed, predicted from recorded texts of the target and from the seconds of the engine's own steps.

    tokens of a round   accepted along the recorded text and one more, which the text settles at temperature 0
    running(s)          requests of a block that have a round s
    seconds             read(Σ prompt tokens) + Σ_s step(running(s))         step: mean by number of requests, between them linear

A block's requests with few rounds end first, and the rest of it runs at a smaller batch size. ``read``, a line, and ``step`` are
of validation prompts, what is predicted are test prompts. Source of the n-gram rule: vLLM 0.32, v1/spec_decode/ngram_proposer.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.tables import Rows
from predictors.controllers.unlearned import Fixed
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.text import RecordedText

Arms = Mapping[str, Mapping[str, Any] | None]  # what each drafts with, as the engine has it
Prompts = Mapping[str, Sequence[int]]  # tokens by prompt


def rounds_of(speculative: Mapping[str, Any] | None, prompt: Sequence[int], text: RecordedText) -> list[int]:
    """Tokens of every round after the prefill, by vLLM's configuration of drafting."""
    if speculative is None:
        return [1] * (text.length - 1)
    length = speculative["num_speculative_tokens"]
    if speculative["method"] != "ngram":
        return [one.emitted for one in replayed(text, ChainPolicy(Fixed(length), length))]
    tokens, start, made = [*prompt, *text.tokens], len(prompt) + 1, []
    longest = speculative["prompt_lookup_max"]
    while start < len(tokens):
        draft = ngram(tokens[:start], length, speculative.get("prompt_lookup_min", longest), longest)
        right = [one == other for one, other in zip(draft, tokens[start:], strict=False)]
        made.append(min([*right, False].index(False) + 1, len(tokens) - start))
        start += made[-1]
    return made


def ngram(tokens: Sequence[int], length: int, least: int, longest: int) -> Sequence[int]:
    """At most ``length`` tokens that followed the earliest occurrence of the longest n-gram that ``tokens`` end with.

    Examples
    --------
    >>> ngram([1, 2, 3, 1, 2, 4, 1, 2], 2, least=2, longest=4)
    [3, 1]
    """
    for size in range(min(longest, len(tokens) - 1), least - 1, -1):
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + length]
    return []


def where(blocks: Rows, **only: Any) -> Rows:
    """Those of ``blocks`` that have these values."""
    return [block for block in blocks if all(block[name] == value for name, value in only.items())]


class StepSeconds:
    """Seconds of an arm's steps, learned from its ``blocks``."""

    def __init__(self, blocks: Rows, prompts: Prompts) -> None:
        self.prompts = prompts
        read_N2, first_N = zip(*((self._read(block), block["steps"][0][0]) for block in blocks), strict=True)
        self.line_2 = np.linalg.lstsq(np.array(read_N2), np.array(first_N), rcond=None)[0]
        seconds_N, running_N = np.array([step for block in blocks for step in block["steps"][1:]]).T
        self.running = np.unique(running_N)
        self.mean = [seconds_N[running_N == count].mean() for count in self.running]

    def of(self, block: Mapping[str, Any], rounds: Mapping[str, Sequence[int]]) -> float:
        """Seconds of a block with such ``rounds`` by prompt."""
        counts = [len(rounds[row["prompt"]]) for row in block["requests"]]
        running = [sum(count > step for count in counts) for step in range(max(counts))]
        return float(self.line_2 @ self._read(block) + np.interp(running, self.running, self.mean).sum())

    def _read(self, block: Mapping[str, Any]) -> list[float]:
        return [1.0, float(sum(len(self.prompts[row["prompt"]]) for row in block["requests"]))]


def predictions(
    blocks: Rows, arms: Arms, prompts: Prompts, texts: Mapping[str, RecordedText]
) -> Iterator[dict[str, Any]]:
    """By arm and batch size, on test blocks whose texts are recorded: tokens/s and tokens of a round, measured and predicted."""
    recorded = [block for block in blocks if all(row["prompt"] in texts for row in block["requests"])]
    for arm, batch in sorted({(block["arm"], block["batch"]) for block in where(recorded, split=TEST)}):
        clock, some = (
            StepSeconds(where(blocks, arm=arm, split=VALIDATION), prompts),
            where(recorded, arm=arm, split=TEST, batch=batch),
        )
        rows = [(row, texts[row["prompt"]]) for block in some for row in block["requests"]]
        rounds = {row["prompt"]: rounds_of(arms[arm], prompts[row["prompt"]], text) for row, text in rows}
        seconds, measured = sum(clock.of(block, rounds) for block in some), sum(block["seconds"] for block in some)
        tokens = sum(block["tokens"] for block in some)
        found: dict[str, Any] = {"arm": arm, "batch": batch, "predicted_over_measured": measured / seconds}
        found |= {"tokens_per_second": tokens / measured, "predicted_tokens_per_second": tokens / seconds}
        found["tokens_per_round"] = float(np.mean([count for row, _ in rows for count in row["emitted"][1:]]))
        found["predicted_tokens_per_round"] = float(
            np.mean([count for row, _ in rows for count in rounds[row["prompt"]]])
        )
        yield found | {"texts_as_recorded": float(np.mean([row["tokens"] == text.tokens for row, text in rows]))}
