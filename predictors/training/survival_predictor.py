"""Family ``survival``: a small network of whether drafted tokens are accepted, and the rate that draws the line.

Trained on training texts of all sampling settings at once; calibrated on them and on validation texts; given a rate on validation
texts, for the verifier, settings and prices that it will serve, and for a grid of other prices; scored once on test texts.

    chosen      argmax over ρ and least lengths, by replayed tokens per second on validation texts (`training.predictor`)
    policies    static, the model's, forced, asked for nothing, and the oracle's

Shape suffixes: V rounds, G positions of a chain.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Annotated, Any

import numpy as np
from lightning.pytorch.loggers import Logger

from predictors.config import Count, Positive, not_empty
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.replay.grid import Columns, Totals
from predictors.schema import SPLITS, TEST, TRAIN, VALIDATION
from predictors.survival import SCALARS, Answering, Priced, RatioPrices, SurvivalNetwork, SurvivalRule, SurvivalSetting
from predictors.training.predictor import (
    Fitted,
    Materials,
    RuleChoice,
    Trust,
    best_of,
    card_of,
    scored,
    static_length,
    static_totals,
    told,
    tracked_name,
)
from predictors.training.survival_model import (
    SourceChoice,
    SurvivalGrid,
    SurvivalTrainConfig,
    calibrated,
    follows,
    log_loss,
    quality,
    token_rows,
)
from predictors.training.tables import TextTable
from predictors.training.trainer import Trained, trained


@dataclass(frozen=True)
class ChainPolicies:
    """Replay of a model on texts at one sampling setting, as ``made`` there."""

    grid: SurvivalGrid
    served: Answering
    max_distance: float
    made: SurvivalSetting

    def asked(self, rule: SurvivalRule, question: float | None = None) -> Totals:
        """Decode by ``rule``, whether it pays or not; ``question``: seconds of a query of the model, if not as measured."""
        return replace(self, made=replace(self.made, rule=rule, pays=True)).decoded(question=question)

    def static(self) -> Totals:
        return static_totals(self.grid.starts, self.made.static_length)

    def decoded(self, source: SourceChoice | None = None, question: float | None = None) -> Totals:
        """Decode by what serves at the setting, where no ``source`` takes over."""
        return self.grid.totals(
            self.grid.path(self.chain, source), self.grid.question if question is None else question
        )

    def chain(self, *rounds: np.ndarray) -> Columns:
        """Draft submitted tokens and queries of rounds [V], as `predictors.controllers.survival` decides."""
        made = self.made
        if not made.pays:
            return self.grid.chains(made.static_length)(*rounds)
        starts, depth = self.grid.starts, self.grid.starts.depth
        said = self.served(self.grid.features(*rounds))
        now_VG, following_VG = made.chances(said)
        stop_VG = made.stops(np.cumprod(now_VG, axis=1), following_VG, np.arange(1, depth + 1))
        far_VG = said.distance > self.max_distance
        far_VG[:, -1] = False  # the network is not run on the last token
        cap_V = starts.cap_XS[rounds[0], rounds[1]]
        submitted_V = np.minimum(stop_VG.argmax(axis=1) + 1, cap_V)
        known_V = np.minimum(submitted_V, depth - 1)
        asked_V = np.where(known_V >= made.rule.least, known_V, 0)
        far_V = np.where(far_VG.any(axis=1), np.maximum(far_VG.argmax(axis=1) + 1, made.rule.least), depth + 1)
        aside_V = far_V <= asked_V
        submitted_V = np.where(aside_V, np.minimum(np.maximum(far_V, made.static_length), cap_V), submitted_V)
        return submitted_V, np.where(aside_V, far_V, asked_V)


@dataclass(frozen=True)
class SurvivalModel:
    """A trained model on the texts of ``table``, with its rule at every sampling setting and how that was chosen; ``grids``
    by split, one per setting; squared distances up to ``limit`` are trusted."""

    table: TextTable
    profile: LatencyProfile
    grids: dict[str, list[SurvivalGrid]]
    trained: Trained[SurvivalNetwork]
    served: Answering
    limit: float
    settings: Sequence[SurvivalSetting] = ()
    choices: Sequence[RuleChoice] = ()

    def played(self, grid: SurvivalGrid, made: SurvivalSetting) -> ChainPolicies:
        return ChainPolicies(grid, self.served, self.limit, made)


@dataclass(frozen=True)
class SurvivalPredictor(Trust):
    """Predictor of family ``survival``: a network for chains of at most ``gamma`` tokens that ``verifier`` verifies, drafted with
    a lookup of ``lookup`` tokens at hand.

    Products of ``calibrated_tokens`` chances are calibrated. Rates are tried at ``shares`` of the best static chain's, after at
    ``least`` so many tokens, and judged on ``folds`` of documents; also on machines of other ``cost_ratios``.
    """

    training: SurvivalTrainConfig = field(default_factory=SurvivalTrainConfig)
    gamma: Count = 8
    lookup: Count = 8
    verifier: str = "block"
    calibrated_tokens: Count = 6
    shares: Annotated[tuple[Positive, ...], not_empty] = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.45, 1.6, 1.8, 2.0)
    least: Annotated[tuple[Count, ...], not_empty] = (1, 2, 3)
    folds: Count = 5
    cost_ratios: tuple[Positive, ...] = (4.0, 6.0, 10.0, 16.0)
    seed: int = 0

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        return self.exported(self.model(materials, logger))

    def model(self, materials: Materials, logger: Logger | None = None) -> SurvivalModel:
        table, profile = materials.text_table, materials.profile
        grids: dict[str, list[SurvivalGrid]] = {split: [] for split in SPLITS}
        for split in SPLITS:
            texts = table.rows(split)
            for settings in table.settings:
                prices = RoundPrices.at(profile, settings)
                starts, _ = texts.starts(settings, self.gamma, self.verifier, prices)
                grids[split].append(SurvivalGrid.of(starts))
        make = partial(SurvivalNetwork, self.training.hidden)
        # the rows are large, and not kept
        fit = trained(make, self.training, log_loss, token_rows(grids[TRAIN]), token_rows(grids[VALIDATION]), logger)
        served, distances = Answering(fit.network), []
        for grid in grids[VALIDATION]:  # of all tokens of the longest chains
            places, _, cap_V1 = grid.static(self.gamma)
            distances.append(served(grid.features(*places)[np.arange(self.gamma) < cap_V1]).distance)
        model = SurvivalModel(table, profile, grids, fit, served, self.largest(np.concatenate(distances)))
        made, choices = zip(*(self._setting(model, number) for number in range(len(table.settings))), strict=True)
        return replace(model, settings=made, choices=choices)

    def exported(self, model: SurvivalModel) -> Fitted:
        parts, known = {}, {}
        for made, test in zip(model.settings, model.grids[TEST], strict=True):
            parts[made.settings.name] = _scored(model.played(test, made))
            known[made.settings.name] = quality(
                test, model.served, made.calibration, min(self.calibrated_tokens, self.gamma)
            )
        settings = [asdict(made) for made in model.settings]
        measured = {
            "known": known,
            "parts": parts,
            "settings": settings,
            "choices": [asdict(choice) for choice in model.choices],
            "history": model.trained.history,
            "best_epoch": model.trained.best_epoch,
            "documents": len(set(model.table.rows(TEST).column("document"))),
        }
        context, manifest = model.table.median_context, model.table.manifest
        chain = {"kind": "chain", "gamma": self.gamma, "lookup": {"length": self.lookup}}
        error = max(one["tokens"]["ece"] for one in known.values())
        prices = RatioPrices(model.profile.cost_ratio(context), context, model.profile.profile_hash)
        decoder = {"method": "speculative", "drafter": chain, "verifier": self.verifier}
        card = card_of("survival", manifest, decoder) | {
            "scalars": list(SCALARS),
            "prices": asdict(prices),
            "settings": settings,
            "max_distance": model.limit,
            "measured_quality": {"split": TEST, "parts": parts, "tokens": {"ece": error}},
        }
        return Fitted(card, model.trained.network.state_dict(), measured, _metrics(measured), sentence(measured))

    def _setting(self, model: SurvivalModel, number: int) -> tuple[SurvivalSetting, RuleChoice]:
        """Choose what is served at a setting, here and at other prices; return how its rule was chosen, too."""
        grids = [model.grids[split][number] for split in (TRAIN, VALIDATION)]
        calibration = calibrated(grids, model.served, min(self.calibrated_tokens, self.gamma))
        unpriced = SurvivalRule(1.0, follows=follows(grids[0]))
        draft = SurvivalSetting(model.table.settings[number], unpriced, False, 1, (1.0,), calibration)
        here, choice = self._priced(model, model.profile, number, draft)
        context, elsewhere = model.table.median_context, []
        for ratio in self.cost_ratios:
            one, _ = self._priced(model, model.profile.at_cost_ratio(ratio, context), number, draft)
            elsewhere.append(Priced(ratio, one.rule, one.static_length))
        return replace(here, elsewhere=tuple(elsewhere)), choice

    def _priced(
        self, model: SurvivalModel, profile: LatencyProfile, number: int, draft: SurvivalSetting
    ) -> tuple[SurvivalSetting, RuleChoice]:
        """Fit a setting to the machine of ``profile``."""
        context, prices = model.table.median_context, RoundPrices.at(profile, draft.settings)
        train, validation = (model.grids[split][number].at(prices) for split in (TRAIN, VALIDATION))
        length = static_length([train.starts, validation.starts])
        costs = prices.chain_costs(self.gamma, context, validation.question)
        played = model.played(validation, replace(draft, static_length=length, costs=costs))
        always = played.static()
        rate = always.rate * prices.chain(0, round(context))
        tried = product(self.shares, self.least)
        rules = [SurvivalRule(rate * share, least, draft.rule.follows) for share, least in tried]
        document_X = validation.starts.document_X
        choice = best_of(rules, played.asked, always, document_X, self.folds, self.seed)
        return replace(played.made, rule=choice.rule, pays=choice.pays), choice


def _scored(test: ChainPolicies) -> dict[str, Any]:
    """Score every policy's tokens per second on texts that chose nothing."""
    made, always = test.made, test.static()
    asked = test.asked(made.rule)
    policies = {
        "static": always,
        "model": asked if made.pays else always,
        "asked": asked,
        "asked for nothing": test.asked(made.rule, question=0.0),
    }
    return {
        "static_length": made.static_length,
        "asks": made.pays,
        "queries": float(asked.asked_X.sum() / asked.rounds_X.sum()),
        "policies": scored(policies, test.grid.starts),
    }


def sentence(measured: dict[str, Any]) -> str:
    """Summarise in a sentence how well the model predicts and what its rule gains on held-out documents."""
    said = []
    for name, part in measured["parts"].items():
        asked, tried = part["asks"], part["policies"]["asked"]["gain"]["value"]
        how = "" if asked else f" (left off, as it did not surely pay on validation; forced {tried:+.1%})"
        area = measured["known"][name]["tokens"]["auroc"]
        said.append(
            f"{name}: {told(part['policies']['model']['gain'])} replayed tokens/s over {part['static_length']} tokens "
            f"always{how}, AUROC {'unknown' if area is None else format(area, '.3f')}, "
            f"perfect {part['policies']['perfect']['gain']['value']:+.1%}"
        )
    return "; ".join(said)


def _metrics(measured: dict[str, Any]) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {}
    for name, part in measured["parts"].items():
        tracked = tracked_name(name)
        metrics |= {f"test_gain_{tracked}": part["policies"]["model"]["gain"]["value"]}
        metrics |= {f"test_auroc_{tracked}": measured["known"][name]["tokens"]["auroc"]}
    return metrics
