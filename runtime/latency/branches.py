"""Cells of what branch-parallel decoding adds to a round outside the models' passes.

    branch_candidates, branch_drawing  rows, sampled         levels of ``rows`` branches: the first one, and each one behind it
    branch_verdict                     candidates, sampled   finding the token at the branch point among as many candidates

The first two are read off a real decoder over weightless models (`runtime.latency.weightless`), from the end of one draft pass to
that of the next: the branch point's, the candidates', and so on by level. The verdict is the decoder's own function over laws of
such models. ``sampled`` is the temperature, 0 or 1; candidates are drawn as the default ``branch_verifier`` has it.

As in `runtime.latency.rounds`, a pass of the target comes before each call, untimed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw, Root
from runtime.branching.candidates import draw_at_branch_point, draw_candidates
from runtime.branching.config import BranchConfig
from runtime.build import build_decoder
from runtime.decoding.base import Decoder, Step
from runtime.drafting.sampler import PlainSampler
from runtime.latency.cells import Cell, seconds_of
from runtime.latency.rounds import ENDLESS, TEMPERATURES
from runtime.latency.weightless import WeightlessModel
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.randomness import Randomness

LEVELS = 4  # timed per round, behind the candidates


class BranchRounds:
    """Rounds of one endless request over a weightless ``pair`` that grow ``rows`` branches of `LEVELS` levels and one more."""

    def __init__(self, pair: ModelPair, rows: int, temperature: float, seed: int) -> None:
        assert isinstance(pair.draft, WeightlessModel)
        self._stamps: list[float] = []
        draft = WeightlessModel(pair.draft.logits_RV, pair.draft.programs, self._stamps)
        options: dict[str, Any] = {"temperature": temperature, "randomness": Randomness(seed), "eos_token_id": []}
        decoder = branch_decoder(ModelPair(pair.target, draft), rows)
        self._steps: Iterator[Step] = decoder.stream([0], max_new_tokens=ENDLESS, **options)
        next(self._steps)  # the prefill

    def measure(self) -> tuple[float, float]:
        """Seconds of the first level of the next round, and of each later one.

        No controller stops, and nothing is drafted with the target idle: a pass at the branch point, then one for each level.
        """
        self._stamps.clear()
        next(self._steps)
        point, candidates, *levels = self._stamps
        assert len(levels) == LEVELS, f"a round of {len(levels)} levels, not of {LEVELS}"
        return candidates - point, (levels[-1] - candidates) / LEVELS


class Verdicts:
    """Verdicts on ``count`` candidates at branch points of a weightless ``pair``."""

    def __init__(self, pair: ModelPair, count: int, temperature: float, seed: int) -> None:
        assert pair.draft is not None
        self._settings = SamplingSettings(temperature)
        self._kind = "match" if self._settings.greedy else BranchConfig.branch_verifier
        self._root = Root(1, 1, self._settings, None)
        self._models = (pair.target, pair.draft)
        self._states = [model.open(1) for model in self._models]
        self._count = count
        self._chance = Randomness(seed)

    @torch.inference_mode()
    def measure(self) -> tuple[float]:
        """Seconds of the verdict at the next branch point."""
        target_V, draft_V = (state.forward([0]).logits[0] for state in self._states)
        law_V = processed_law(target_V, self._settings)
        law = NextLaw(self._root, self._settings, 0, draft_V, processed_law(draft_V, self._settings))
        candidates = draw_candidates(self._kind, law, self._count, PlainSampler(self._settings, self._chance))
        if self._settings.greedy:  # the target's one token is there: it is looked for
            token = int(law_V.argmax())
            return (seconds_of(lambda: candidates.place(token), law_V.device),)
        return (seconds_of(lambda: draw_at_branch_point(candidates, law_V, self._chance), law_V.device),)


def branch_cells(pair: ModelPair, rows: Sequence[int], seed: int, before: Callable[[], None]) -> list[Cell]:
    """Cells of the three tables over a weightless ``pair``; ``rows`` are candidates, too."""
    _require_candidates(max(rows), min(model.vocabulary_size for model in (pair.target, pair.draft) if model))
    cells = []
    for temperature in TEMPERATURES:
        for count in rows:
            rounds = BranchRounds(pair, count, temperature, seed)
            at = {"rows": count, "sampled": temperature}
            cells.append(Cell(("branch_candidates", "branch_drawing"), at, rounds.measure, before))
            verdicts = Verdicts(pair, count, temperature, seed)
            at = {"candidates": count, "sampled": temperature}
            cells.append(Cell(("branch_verdict",), at, verdicts.measure, before))
    return cells


def branch_decoder(pair: ModelPair, rows: int) -> Decoder:
    """Branch-parallel decoding, one job after the other, with ``rows`` branches in every round and nothing that stops them."""
    options = {"gamma": LEVELS + 1, "k_max": rows, "k_rule": "const", "draft_stage": "preverify", "overlap": "none"}
    return build_decoder(pair, {"method": "branch_parallel", "controller": {"kind": "fixed"}, **options})


def _require_candidates(most: int, vocabulary_size: int) -> None:
    if most > vocabulary_size:
        raise ValueError(
            f"there are no {most} candidates among {vocabulary_size} tokens. "
            f"End latency.branch_rows at {vocabulary_size} or before."
        )
