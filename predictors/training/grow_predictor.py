"""Family ``grow``: a small network of which candidate of a level is right, and the rule that grows chains with leaves by it.

Trained on training texts of all settings at which tokens are read off; given ρ and η on validation texts, and scored once on test
texts. Rows are the levels of the chain from every position of a text, as far as its tokens are the text's.

    loss        cross-entropy of the rank of the text's token among the candidates, or of "none of them"; settings count alike
    chosen      argmax over ρ and η, by replayed tokens per second on validation texts (`training.predictor`)
    static      the best chain with leaves of those that hold the most frequently right candidates, on training and validation
    policies    the best static chain, the static one with leaves, the model's, forced, asked for nothing, and the chains' oracle

Where a coin decides about tokens it serves the best static chain; invariant sampling is served there instead, if on validation
texts that is faster. Shape suffixes: X texts, S starts, G levels, K candidates, N rows, F features.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Annotated, Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from predictors.config import Count, NotNegative, Positive, Whole, not_empty
from predictors.grow import (
    CANDIDATES,
    GAMMA,
    SCALARS,
    GrowCosts,
    Growing,
    GrowNetwork,
    GrowRule,
    GrowSetting,
    features_of,
    logs_of,
    values_of,
)
from predictors.latency.prices import RoundPrices
from predictors.replay.acceptance import BeyondRecordError
from predictors.replay.grid import Drafts, Starts, Totals, decoded, first_of
from predictors.schema import SPLITS, TEST, TRAIN, VALIDATION
from predictors.survival import RatioPrices
from predictors.training.calibration import binary
from predictors.training.predictor import (
    Fitted,
    Materials,
    RuleChoice,
    Trust,
    best_of,
    card_of,
    rate_of,
    scored,
    static_length,
    static_totals,
    told,
    tracked_name,
)
from predictors.training.trainer import Batches, TrainConfig, trained


@dataclass(frozen=True)
class GrowTrainConfig(TrainConfig):
    """Training of the network of ``grow``, of ``hidden`` units."""

    hidden: Count = 16
    learning_rate: Positive = 5e-3
    weight_decay: NotNegative = 0.1
    epochs: Count = 40
    batch_size: Count = 512
    stop_patience: Count = 4


@dataclass(frozen=True)
class GrowGrid:
    """Grid of ``starts`` at one sampling setting at which tokens are read off."""

    starts: Starts

    @cached_property
    def features_XSGF(self) -> np.ndarray:
        tops_XSGT = self.starts.column("tops").astype(np.float64)
        if tops_XSGT.shape[-1] < CANDIDATES:
            raise BeyondRecordError(
                f"grow reads the {CANDIDATES} most likely tokens, and {tops_XSGT.shape[-1]} were recorded. Raise "
                "traces.texts.top and collect again."
            )
        logs_XSGK = logs_of(tops_XSGT)
        return features_of(logs_XSGK, self.starts.texts[0].settings.invariant)

    @cached_property
    def rank_XSG(self) -> np.ndarray:
        """Rank of the text's token among the candidates of a level, up to the first that is not 0."""
        return self.starts.column("rank")

    @cached_property
    def tested_XSG(self) -> np.ndarray:
        """Mark levels of chains whose tokens so far are the text's, and that may be drafted."""
        level_G = np.arange(self.starts.depth)
        most_XS = np.minimum(self.starts.would_XS + 1, np.minimum(self.starts.cap_XS, self.starts.left_XS))
        return np.asarray(level_G < most_XS[..., None])

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Collect features [N, F] of tested levels, and which candidate is right [N], K: none."""
        return self.features_XSGF[self.tested_XSG], np.minimum(self.rank_XSG[self.tested_XSG], CANDIDATES)

    def totals(self, widths_XSG: np.ndarray, **drafted_XS: np.ndarray | float) -> Totals:
        """Decode by drafts that submit the first ``widths_XSG`` candidates of each level; ``drafted_XS``: passes and queries,
        and the seconds of one."""
        question = float(drafted_XS.pop("question", 0.0))
        kept_XSG = np.cumprod(widths_XSG > 0, axis=-1) > 0
        submitted_XS, nodes_XS = kept_XSG.sum(axis=-1), np.where(kept_XSG, widths_XSG, 0).sum(axis=-1)
        would_XS = self.starts.would_XS
        failing = np.minimum(would_XS, self.starts.depth - 1)[..., None]
        rank_XS, width_XS = (np.take_along_axis(one, failing, -1)[..., 0] for one in (self.rank_XSG, widths_XSG))
        hit_XS = (would_XS < submitted_XS) & (rank_XS > 0) & (rank_XS < width_XS)
        columns = {name: np.asarray(values)[..., None] for name, values in drafted_XS.items()}
        drafts = Drafts.of(submitted_XS[..., None], nodes=nodes_XS[..., None], **columns)
        return decoded(self.starts.accepting(would_XS + hit_XS), drafts, question)

    def static(self, length: int, leaves: Sequence[int]) -> Totals:
        """Decode by the same chain with leaves in every round."""
        return self.totals(self.static_widths(length, leaves))

    def static_widths(self, length: int, leaves: Sequence[int]) -> np.ndarray:
        level_G = np.arange(self.starts.depth)
        width_G = 1 + np.array((*leaves, *[0] * len(level_G))[: len(level_G)])
        return np.where(level_G < np.minimum(self.starts.cap_XS, length)[..., None], width_G, 0)


@dataclass(frozen=True)
class Grown:
    """Replay of a network's ``growing`` on a ``grid``, as ``made`` there; squared distances up to ``limit`` are trusted, and a
    query takes ``question`` seconds."""

    grid: GrowGrid
    growing: Growing
    limit: float
    made: GrowSetting
    question: float

    @cached_property
    def _said(self) -> tuple[np.ndarray, np.ndarray]:
        return self.growing(self.grid.features_XSGF)

    def asked(self, rule: GrowRule, question: float | None = None) -> Totals:
        """Decode by ``rule``, whether it pays or not; ``question``: seconds of a query, if not as measured."""
        return self._decoded(replace(self.made, rule=rule), self.question if question is None else question)

    def served(self) -> Totals:
        """Decode by what serves at the setting."""
        return self.asked(self.made.rule) if self.made.pays else self.static()

    def static(self) -> Totals:
        return self.grid.static(self.made.static_length, self.made.static_leaves)

    def _decoded(self, made: GrowSetting, question: float) -> Totals:
        """Decode as `predictors.controllers.grow` decides."""
        (chances_XSGK, distance_XSG), starts = self._said, self.grid.starts
        stops_XSG = ~made.goes_on(np.cumprod(chances_XSGK[..., 0], axis=-1))
        levels_XS = np.minimum(first_of(stops_XSG) + 1, starts.cap_XS)
        far_XS = first_of(distance_XSG > self.limit)
        aside_XS, level_G = far_XS < levels_XS, np.arange(starts.depth)
        values_XSGK = np.where((level_G < levels_XS[..., None])[..., None], values_of(chances_XSGK), -np.inf)
        asked_XS = np.where(aside_XS, far_XS + 1, levels_XS)
        levels_XS = np.where(aside_XS, np.minimum(np.maximum(far_XS + 1, made.static_length), starts.cap_XS), levels_XS)
        least_XSG = self.grid.static_widths(starts.depth, made.static_leaves)
        static_XSG = np.where(level_G < levels_XS[..., None], least_XSG, 0)
        widths_XSG = np.where(aside_XS[..., None], static_XSG, made.widths(values_XSGK))
        return self.grid.totals(widths_XSG, passes=levels_XS, asked=asked_XS, question=question)


@dataclass(frozen=True)
class GrowPredictor(Trust):
    """Predictor of family ``grow``: a network for chains of at most ``gamma`` levels with up to ``leaves`` leaves beside each,
    ``nodes`` in all. ρ is tried at ``shares`` of the best static rate, η at ``worths``, judged on ``folds`` of documents;
    ``verifier``: of the chains where a coin decides."""

    training: GrowTrainConfig = field(default_factory=GrowTrainConfig)
    gamma: Count = 8
    nodes: Count = 24
    verifier: str = "block"
    shares: Annotated[tuple[Positive, ...], not_empty] = (0.55, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5)
    worths: Annotated[tuple[Positive, ...], not_empty] = (0.15, 0.25, 0.35, 0.5, 0.7, 1.0)
    static_leaves: Whole = 9
    folds: Count = 5
    seed: int = 0

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        table, profile = materials.text_table, materials.profile
        starts = {
            (split, settings): table.rows(split).starts(
                settings, self.gamma, self.verifier, RoundPrices(profile, not settings.read_off)
            )[0]
            for split, settings in product(SPLITS, table.settings)
        }
        grids = {place: GrowGrid(one) for place, one in starts.items() if place[1].read_off}
        rows = {split: _rows([one for place, one in grids.items() if place[0] == split]) for split in SPLITS}
        make = partial(GrowNetwork, self.training.hidden)
        fit = trained(make, self.training, loss, rows[TRAIN], rows[VALIDATION], logger)
        growing = Growing(fit.network)
        limit = self.largest(growing(rows[VALIDATION].columns[0].double().numpy())[1])
        prices = RoundPrices(profile, sampled=False)
        question = prices.profile.latency("grow", levels=GAMMA).seconds / GAMMA
        context, made, parts, known = table.median_context, [], {}, {}
        choices: list[RuleChoice] = []
        rates: dict[Any, float] = {}
        for settings in table.settings:
            some = [starts[split, settings] for split in (TRAIN, VALIDATION)]
            length = static_length(some)
            if not settings.read_off:
                made.append(GrowSetting(settings, GrowRule(0.0, 0.0), False, length))
                rates[settings] = static_totals(some[1], length).rate
                continue
            level, nodes = prices.grow_costs(self.nodes, context, question)
            draft = GrowSetting(settings, GrowRule(0.0, 0.0), False, length, costs=GrowCosts(level, nodes))
            tried = [Grown(grids[split, settings], growing, limit, draft, question) for split in SPLITS]
            chosen, choice = self._chosen(tried[:2], context)
            _, validation, test = (replace(one, made=chosen) for one in tried)
            rates[settings] = validation.served().rate
            made.append(chosen)
            choices.append(choice)
            parts[settings.name] = _scored(test, static_totals(starts[TEST, settings], length))
            known[settings.name] = _quality(test)
        sampled = [one for one in rates if not one.read_off]
        invariant = any(rates.get(replace(one, invariant=True), 0.0) > rates[one] for one in sampled)
        measured = {
            "known": known,
            "parts": parts,
            "settings": [asdict(one) for one in made],
            "choices": [asdict(one) for one in choices],
            "validation_rates": {one.name: rate for one, rate in rates.items()},
            "invariant": invariant,
            "history": fit.history,
            "best_epoch": fit.best_epoch,
            "documents": len(set(table.rows(TEST).column("document"))),
        }
        leaves = [CANDIDATES - 1] * self.gamma
        drafter = {"kind": "chain", "gamma": self.gamma, "leaves": leaves}
        decoder: dict[str, Any] = {"method": "speculative", "drafter": drafter}
        decoder |= {"invariant": True} if invariant else {"verifier": self.verifier}
        error = max(one["tokens"]["ece"] for one in known.values())
        card = card_of("grow", table.manifest, decoder) | {
            "scalars": list(SCALARS),
            "prices": asdict(RatioPrices(profile.cost_ratio(context), context, profile.profile_hash)),
            "settings": measured["settings"],
            "max_distance": limit,
            "measured_quality": {"split": TEST, "parts": parts, "tokens": {"ece": error}},
        }
        metrics = {
            f"test_gain_{tracked_name(one)}": part["policies"]["model"]["gain"]["value"] for one, part in parts.items()
        }
        return Fitted(card, fit.network.state_dict(), measured, metrics, sentence(measured))

    def _chosen(self, tried: Sequence[Grown], context: float) -> tuple[GrowSetting, RuleChoice]:
        """Choose the static chain with leaves on all grids, and the rule on the last one."""
        grids, validation = [one.grid for one in tried], tried[-1]
        length, leaves = max(self._shapes(grids), key=lambda shape: rate_of(one.static(*shape) for one in grids))
        played = replace(validation, made=replace(validation.made, static_length=length, static_leaves=leaves))
        always, starts = played.static(), validation.grid.starts
        rate = always.rate * starts.prices.chain(0, context)
        rules = [GrowRule(rate * share, worth) for share, worth in product(self.shares, self.worths)]
        choice = best_of(rules, played.asked, always, starts.document_X, self.folds, self.seed)
        return replace(played.made, rule=choice.rule, pays=choice.pays), choice

    def _shapes(self, grids: Sequence[GrowGrid]) -> list[tuple[int, tuple[int, ...]]]:
        """List static chains of every length, with so many leaves as are most often right."""
        counts_GK = np.zeros((self.gamma, CANDIDATES), int)
        for grid in grids:
            seen = grid.tested_XSG & (grid.rank_XSG < CANDIDATES)
            np.add.at(counts_GK, (np.nonzero(seen)[-1], grid.rank_XSG[seen]), 1)
        counts_GK = np.minimum.accumulate(counts_GK[:, 1:], axis=1)
        shapes = [(0, ())]
        for length in range(1, self.gamma + 1):
            flat = np.argsort(-counts_GK[:length].ravel(), kind="stable")
            for leaves in range(self.static_leaves + 1):
                kept = flat[:leaves] // (CANDIDATES - 1)
                shapes.append((length, tuple(np.bincount(kept, minlength=length).tolist())))
        return list(dict.fromkeys(shapes))


def _rows(grids: Sequence[GrowGrid]) -> Batches:
    """Collect features, classes and weights of tested levels; settings count alike."""
    columns = [grid.rows() for grid in grids]
    total = np.mean([len(classes) for _, classes in columns])
    weighted = [(*column, np.full(len(column[1]), total / max(len(column[1]), 1))) for column in columns]
    features, classes, weights = (np.concatenate(column) for column in zip(*weighted, strict=True))
    return Batches(
        torch.from_numpy(features).float(), torch.from_numpy(classes).long(), torch.from_numpy(weights).float()
    )


def loss(network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Compute the weighted cross-entropy of a batch of rows."""
    features_NF, class_N, weight_N = batch
    loss_N = cross_entropy(network(features_NF), class_N, reduction="none")
    return (loss_N * weight_N).sum() / weight_N.sum()


def _scored(test: Grown, chain: Totals) -> dict[str, Any]:
    """Score every policy's tokens per second on texts that chose nothing, over the best static chain."""
    made, leaves = test.made, test.static()
    asked = test.asked(made.rule)
    policies = {
        "static": chain,
        "leaves": leaves,
        "model": test.served(),
        "asked": asked,
        "asked for nothing": test.asked(made.rule, question=0.0),
    }
    return {
        "static_length": made.static_length,
        "static_leaves": made.static_leaves,
        "asks": made.pays,
        "queries": float(asked.asked_X.sum() / asked.rounds_X.sum()),
        "policies": scored(policies, test.grid.starts),
    }


def _quality(test: Grown) -> dict[str, Any]:
    """Measure the chances of the chain's own tokens and of the second candidates on tested levels."""
    features_NF, class_N = test.grid.rows()
    chances_NK, _ = test.growing(features_NF)
    return {name: binary(chances_NK[:, rank], class_N == rank) for rank, name in enumerate(("tokens", "leaves"))}


def sentence(measured: dict[str, Any]) -> str:
    """Summarise in a sentence how well the model predicts and what its rule gains on held-out documents."""
    said = []
    for name, part in measured["parts"].items():
        gains = {policy: part["policies"][policy]["gain"] for policy in ("model", "leaves", "asked")}
        how = (
            ""
            if part["asks"]
            else f" (left off, as it did not surely pay on validation; forced {told(gains['asked'])})"
        )
        area = measured["known"][name]["tokens"]["auroc"]
        said.append(
            f"{name}: {told(gains['model'])} replayed tokens/s over the best static chain{how}, static leaves "
            f"{told(gains['leaves'])}, AUROC {'unknown' if area is None else format(area, '.3f')}"
        )
    return "; ".join(said)
