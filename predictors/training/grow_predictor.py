"""Family ``grow``: a small network of which candidate of a level is right, and the rule that grows chains with leaves by it.

Trained on training texts of all settings at which tokens are read off; given ρ and η on validation texts, and scored once on test
texts. Rows are the levels of the chain from every position of a text, as far as its tokens are the text's.

    loss        cross-entropy of the rank of the text's token among the candidates, or of "none of them"; settings count alike
    chosen      argmax over ρ and η, by replayed tokens per second on validation texts (`training.predictor`)
    hazard      of a lookup's tokens, by `training.source_contest`
    static      the best chain with leaves of those that hold the most frequently right candidates, on training and validation
    policies    the best static chain, the static one with leaves, the model's, forced, without lookups, asked for nothing, and
                the chains' oracle

Where a coin decides about tokens it serves the best static chain; invariant sampling is served there instead, if on validation
texts that is faster. Shape suffixes: X texts, S starts, G levels, K candidates, N rows, F features.
"""

from collections.abc import Mapping, Sequence
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
from predictors.grow import CANDIDATES, GAMMA, SCALARS, GrowCosts, Growing, GrowNetwork, GrowRule, GrowSetting
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile, undisturbed
from predictors.lookup import LookupSettings
from predictors.replay.grid import Starts
from predictors.replay.policies import GrowGrid, Grown, Lookups
from predictors.sampling import SamplingSettings
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
from predictors.training.source_contest import hazard_of
from predictors.training.tables import TextTable
from predictors.training.trainer import Batches, TrainConfig, Trained, trained


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
class GrowModel:
    """A ``trained`` network over the ``starts`` of ``table`` by split and setting, on the machine of ``profile``;
    squared distances up to ``limit`` are trusted."""

    table: TextTable
    profile: LatencyProfile
    starts: Mapping[tuple[str, SamplingSettings], Starts]
    trained: Trained[GrowNetwork]
    limit: float

    @cached_property
    def question(self) -> float:
        """Seconds of a query."""
        return undisturbed(self.profile).latency("grow", levels=GAMMA).seconds / GAMMA

    def played(self, split: str, made: GrowSetting) -> Grown:
        grid = GrowGrid(self.starts[split, made.settings])
        return Grown(grid, Growing(self.trained.network), self.limit, made, self.question)


@dataclass(frozen=True)
class GrowPredictor(Trust):
    """Predictor of family ``grow``: a network for chains of at most ``gamma`` levels with leaves beside each, ``nodes`` in all,
    and up to ``lookup`` tokens of a lookup. ρ is tried at ``shares`` of the best static rate, η at ``worths``, judged on
    ``folds`` of documents; ``verifier``: of the chains where a coin decides."""

    training: GrowTrainConfig = field(default_factory=GrowTrainConfig)
    gamma: Count = 8
    nodes: Count = 24
    lookup: Whole = 8
    verifier: str = "block"
    shares: Annotated[tuple[Positive, ...], not_empty] = (0.55, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5)
    worths: Annotated[tuple[Positive, ...], not_empty] = (0.15, 0.25, 0.35, 0.5, 0.7, 1.0)
    static_leaves: Whole = 9
    folds: Count = 5
    seed: int = 0

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        model = self._model(materials, logger)
        made, rates, choices = zip(*(self._setting(model, one) for one in model.table.settings), strict=True)
        rate_of_setting = {one.settings: rate for one, rate in zip(made, rates, strict=True)}
        drawn = [(one, rate) for one, rate in rate_of_setting.items() if not one.read_off]
        invariant = any(rate_of_setting.get(replace(one, invariant=True), 0.0) > rate for one, rate in drawn)
        tests = [model.played(TEST, one) for one in made if one.settings.read_off]
        measured: dict[str, Any] = {
            "known": {test.made.settings.name: _quality(test) for test in tests},
            "parts": {test.made.settings.name: _scored(test) for test in tests},
            "settings": [asdict(one) for one in made],
            "choices": [asdict(one) for one in choices if one is not None],
            "validation_rates": {one.name: rate for one, rate in rate_of_setting.items()},
            "invariant": invariant,
            "history": model.trained.history,
            "best_epoch": model.trained.best_epoch,
            "documents": len(set(model.table.rows(TEST).column("document"))),
        }
        drafter: dict[str, Any] = {"kind": "chain", "gamma": self.gamma, "leaves": [CANDIDATES - 1] * self.gamma}
        if any(one.hazard for one in made):
            drafter["lookup"] = {"length": self._lookup.length}
        decoder: dict[str, Any] = {"method": "speculative", "drafter": drafter}
        decoder |= {"invariant": True} if invariant else {"verifier": self.verifier}
        context, profile, parts = model.table.median_context, materials.profile, measured["parts"]
        error = max(one["tokens"]["ece"] for one in measured["known"].values())
        card = card_of("grow", model.table.manifest, decoder) | {
            "scalars": list(SCALARS),
            "prices": asdict(RatioPrices(profile.cost_ratio(context), context, profile.profile_hash)),
            "settings": measured["settings"],
            "max_distance": model.limit,
            "measured_quality": {"split": TEST, "parts": parts, "tokens": {"ece": error}},
        }
        gains = {one: part["policies"]["model"]["gain"]["value"] for one, part in parts.items()}
        metrics = {f"test_gain_{tracked_name(one)}": gain for one, gain in gains.items()}
        return Fitted(card, model.trained.network.state_dict(), measured, metrics, sentence(measured))

    def _model(self, materials: Materials, logger: Logger | None) -> GrowModel:
        table, starts = materials.text_table, {}
        for split, settings in product(SPLITS, table.settings):
            prices = RoundPrices.at(materials.profile, settings)
            one, _ = table.rows(split).starts(settings, self.gamma, self.verifier, prices)
            starts[split, settings] = replace(one, lookup=self._lookup) if settings.read_off and self.lookup else one
        read_off = [settings for settings in table.settings if settings.read_off]
        rows, held_out = (_rows([GrowGrid(starts[split, one]) for one in read_off]) for split in (TRAIN, VALIDATION))
        fit = trained(partial(GrowNetwork, self.training.hidden), self.training, loss, rows, held_out, logger)
        _, distances = Growing(fit.network)(held_out.columns[0].double().numpy())
        return GrowModel(table, materials.profile, starts, fit, self.largest(distances))

    def _setting(self, model: GrowModel, settings: SamplingSettings) -> tuple[GrowSetting, float, RuleChoice | None]:
        """Choose what is served at a setting: static drafts on training and validation texts, a rule on validation texts, where
        tokens are read off. Return its rate on these, and the choice of the rule."""
        some = [model.starts[split, settings] for split in (TRAIN, VALIDATION)]
        made = GrowSetting(settings, GrowRule(0.0, 0.0), pays=False, static_length=static_length(some))
        if not settings.read_off:
            return made, static_totals(some[1], made.static_length).rate, None
        grids, context = [GrowGrid(one) for one in some], model.table.median_context
        lookups = Lookups(model.starts[TRAIN, settings])
        hazard = hazard_of(lookups) if self.lookup and lookups.found_XS.any() else ()
        length, leaves = max(self._shapes(grids), key=lambda shape: rate_of(one.static(*shape) for one in grids))
        costs = GrowCosts(*some[1].prices.grow_costs(self.nodes + self.lookup, context, model.question))
        made = replace(made, static_length=length, static_leaves=leaves, costs=costs, hazard=hazard)
        validation = model.played(VALIDATION, made)
        always = validation.static()
        rate = always.rate * some[1].prices.chain(0, context)
        rules = [GrowRule(rate * share, worth) for share, worth in product(self.shares, self.worths)]
        choice = best_of(rules, validation.asked, always, some[1].document_X, self.folds, self.seed)
        made = replace(made, rule=choice.rule, pays=choice.pays)
        return made, model.played(VALIDATION, made).served().rate, choice

    @property
    def _lookup(self) -> LookupSettings:
        return LookupSettings(min(self.lookup, self.gamma))

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


def _scored(test: Grown) -> dict[str, Any]:
    """Score every policy's tokens per second on texts that chose nothing, over the chain that is best on them without leaves."""
    made, starts = test.made, test.grid.starts
    asked = test.asked(made.rule)
    policies = {
        "static": static_totals(starts, static_length([starts])),
        "leaves": test.static(),
        "model": test.served(),
        "asked": asked,
        "asked for nothing": test.asked(made.rule, question=0.0),
    }
    if made.hazard:
        policies["without lookups"] = replace(test, made=replace(made, hazard=())).asked(made.rule)
    return {
        "static_length": made.static_length,
        "static_leaves": made.static_leaves,
        "asks": made.pays,
        "queries": float(asked.asked_X.sum() / asked.rounds_X.sum()),
        "policies": scored(policies, starts),
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
        how = "" if part["asks"] else f" (left off: it did not surely pay on validation; forced {told(gains['asked'])})"
        area = measured["known"][name]["tokens"]["auroc"]
        said.append(
            f"{name}: {told(gains['model'])} replayed tokens/s over the best static chain{how}, static leaves "
            f"{told(gains['leaves'])}, AUROC {'unknown' if area is None else format(area, '.3f')}"
        )
    return "; ".join(said)
