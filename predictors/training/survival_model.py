"""The survival network on recorded texts: features of every chain that could be drafted there, its training and its quality.

    loss             - Σ w [log-likelihood of `now` where a token is tested + that of `next` where it is accepted] / Σ w
    calibration      loss = - Σ_rounds Σ_g log P(the chain survives token g or not | Π_{i<=g} P̂_i)     one scale, one bias
    tokens           AUROC, Brier score and calibration error of `now` on tested tokens
    product_bias     mean Π P̂ along drafts (predicted) and the share of chains that survived (observed)

Rows are those that a policy meets: rounds follow from its decisions, and what it knows of past rounds from them. Learned from are
rounds of static chains of several lengths, which begin at most positions of a text, after every kind of round. Products are
calibrated under the verifier that serves: what a model misses is alike along a draft.

Shape suffixes: N tokens, X texts, S starts, V rounds, G positions of a chain, F features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from predictors.config import Count, NotNegative, Positive
from predictors.latency.prices import RoundPrices
from predictors.replay.grid import Columns, DecodePath, Drafts, Starts, Totals
from predictors.stopping import StopCalibration
from predictors.survival import FIRST_LUCK, LUCK, REJECTED, SCALARS, Answering, Course, luck_after, numbers_of
from predictors.training.calibration import along_drafts, binary, product_calibration
from predictors.training.trainer import Batches, TrainConfig

LENGTHS = (2, 3, 4, 6, 8)  # of the static chains whose rounds are learned from
# from texts, starts, and of past chains whether the last was rejected, and luck [V]: how many tokens of a chain to draft, and
# queries [V]
Chain = Callable[..., Columns]
# from the same: another source's tokens in all, those of them that were looked up, queries, and whether it takes over [V]
SourceChoice = Callable[..., Columns]


@dataclass(frozen=True)
class SurvivalGrid:
    """Grid of ``starts`` at one sampling setting, with the features of every chain from each (`predictors.survival`, the same
    lines that are served) but for those that follow from past rounds, ``known_XSGF``."""

    starts: Starts
    known_XSGF: np.ndarray

    @staticmethod
    def of(starts: Starts) -> "SurvivalGrid":
        token_XSG, lookup_XSG = starts.column("tokens"), starts.column("lookup")
        numbers = (starts.column("confidence"), starts.column("unit_probabilities"))
        match_XS = starts.by_start([one.columns["match"] for one in starts.texts])
        course = Course(match_XS, 0.0, 0.0, float(starts.texts[0].settings.read_off))
        made = np.zeros((*token_XSG.shape, len(SCALARS)), np.float32)
        for position in range(starts.depth):
            one = numbers_of(*(np.nan_to_num(values[..., position].astype(float)) for values in numbers))
            proposed_XS = lookup_XSG[..., position] == token_XSG[..., position]
            for place, values in enumerate(course.add(one, proposed_XS)):
                made[..., position, place] = values
        return SurvivalGrid(starts, made)

    def at(self, prices: RoundPrices) -> "SurvivalGrid":
        """Price the same texts by other prices."""
        return replace(self, starts=replace(self.starts, prices=prices))

    def features(
        self, text_V: np.ndarray, start_V: np.ndarray, rejected_V: np.ndarray, luck_V: np.ndarray
    ) -> np.ndarray:
        """Compute features of the chains from some roots [V, G, F]."""
        made = self.known_XSGF[text_V, start_V].astype(np.float64)
        made[..., REJECTED], made[..., LUCK] = rejected_V[:, None], luck_V[:, None]
        return made

    def path(self, chain: Chain, source: SourceChoice | None = None) -> DecodePath:
        """Follow rounds that draft a ``chain`` where no ``source`` takes over, with what is known of past chains before each."""

        def draft(*round_V: np.ndarray) -> Columns:
            chain_V, asked_V = chain(*round_V)
            if source is None:
                none_V = np.zeros_like(chain_V)
                return chain_V, none_V, asked_V, none_V > 0
            submitted_V, looked_up_V, queries_V, takes_V = source(*round_V)
            asked_V = np.where(takes_V, 0, asked_V) + queries_V
            return np.where(takes_V, submitted_V, chain_V), np.where(takes_V, looked_up_V, 0), asked_V, takes_V

        def after(places: Columns, drafted: Columns, accepted_V: np.ndarray) -> Columns:
            (*_, rejected_V, luck_V), (submitted_V, *_, takes_V) = places, drafted
            now_V = (accepted_V < submitted_V).astype(float)
            later_V = luck_after(luck_V, accepted_V, now_V)
            return np.where(takes_V, rejected_V, now_V), np.where(takes_V, luck_V, later_V)

        return DecodePath.of(self.starts, draft, after, 0.0, FIRST_LUCK)

    def static(self, length: int) -> tuple[Columns, np.ndarray, np.ndarray]:
        """Follow rounds of always ``length`` tokens: texts, starts and what is known there; tokens that would be accepted [V, 1],
        and the most that can be drafted [V, 1]."""
        places = self.path(self.chains(length)).places
        return places, self.starts.would_XS[places[:2]][:, None], self.starts.cap_XS[places[:2]][:, None]

    def chains(self, length: int) -> Chain:
        cap_XS = self.starts.cap_XS

        def chain(text_V: np.ndarray, start_V: np.ndarray, *_: np.ndarray) -> Columns:
            return np.minimum(cap_XS[text_V, start_V], length), np.zeros_like(start_V)

        return chain

    @property
    def question(self) -> float:
        """Seconds of a query of the network about a token."""
        return self.starts.prices.profile.latency("survival", positions=1).seconds

    def totals(self, path: DecodePath, question: float) -> Totals:
        submitted_V, looked_up_V, asked_V, _ = path.drafted
        drafts = Drafts.of(submitted_V, submitted_V - looked_up_V, asked=asked_V, looked_up=looked_up_V)
        return self.starts.decoded(path, drafts, question)


@dataclass(frozen=True)
class SurvivalTrainConfig(TrainConfig):
    """Training of the survival network, of ``hidden`` units."""

    hidden: Count = 16
    learning_rate: Positive = 5e-3
    weight_decay: NotNegative = 0.3
    epochs: Count = 40
    batch_size: Count = 4096
    stop_patience: Count = 4


def token_rows(grids: Sequence[SurvivalGrid]) -> Batches:
    """Collect features, whether `now` and `next` were accepted, and what either counts (0: not tested); settings count alike."""
    parts = [[_of_length(grid, length) for length in LENGTHS] for grid in grids]
    columns = [tuple(map(np.concatenate, zip(*of_grid, strict=True))) for of_grid in parts]
    total = np.mean([weight_N2.sum() for *_, weight_N2 in columns])
    columns = [(features, target, weight * total / weight.sum()) for features, target, weight in columns]
    return Batches(*(torch.from_numpy(np.concatenate(column)).float() for column in zip(*columns, strict=True)))


def _of_length(grid: SurvivalGrid, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    (places, would_V1, cap_V1), position_G = grid.static(length), np.arange(grid.starts.depth)
    tested_VG = (position_G <= would_V1) & (position_G < cap_V1)
    ahead_VG = (position_G < would_V1) & (position_G + 1 < cap_V1)
    target_VG2 = np.stack([would_V1 > position_G, would_V1 > position_G + 1], axis=-1)
    weight_VG2 = np.stack([tested_VG, ahead_VG], axis=-1)
    made = (grid.features(*places), target_VG2.astype(float), weight_VG2.astype(float))
    features_NF, target_N2, weight_N2 = (column[tested_VG] for column in made)
    return features_NF, target_N2, weight_N2


def log_loss(network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Compute the weighted binary cross-entropy of a batch of `token_rows`."""
    features_NF, target_N2, weight_N2 = batch
    loss = binary_cross_entropy_with_logits(network(features_NF), target_N2, weight_N2, reduction="sum")
    return loss / weight_N2.sum()


def follows(train: SurvivalGrid) -> float:
    """Estimate how often a token is accepted after two that were."""
    would_V = np.concatenate([train.static(length)[1][:, 0] for length in LENGTHS])
    tested_V = would_V >= 2
    return float((would_V[tested_V] >= 3).mean()) if tested_V.any() else 0.0


def calibrated(grids: Sequence[SurvivalGrid], served: Answering, length: int) -> StopCalibration:
    """Calibrate the chances of `now` on rounds of a static chain of ``length`` tokens."""
    columns = zip(*(said(grid, served, length) for grid in grids), strict=True)
    logits_VG, survives_VG, known_VG = map(np.concatenate, columns)
    scale, bias, _ = product_calibration(logits_VG, survives_VG, known_VG.astype(float), rises=False)
    return StopCalibration(scale, bias)


def said(grid: SurvivalGrid, served: Answering, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run the network along rounds of a static chain of ``length`` tokens [V, G]: logits of `now`, whether the chain survives
    each token, and whether it was drafted."""
    (places, would_V1, cap_V1), position_G = grid.static(length), np.arange(length)
    return (
        served(grid.features(*places)[:, :length]).now,
        np.asarray(would_V1 > position_G),
        np.asarray(position_G < cap_V1),
    )


def quality(grid: SurvivalGrid, served: Answering, calibration: StopCalibration, length: int) -> dict[str, Any]:
    """Measure the calibrated chances along the rounds of a static chain of ``length`` tokens."""
    logits_VG, survives_VG, known_VG = said(grid, served, length)
    chances_VG = calibration.probability(logits_VG)
    tested_VG = known_VG & np.insert(survives_VG, 0, True, axis=1)[:, :-1]
    tokens = binary(chances_VG[tested_VG], survives_VG[tested_VG])
    return {"tokens": tokens, **along_drafts(chances_VG, survives_VG, np.asarray(known_VG.all(axis=1)))}
