"""Family ``survival``: a small network of whether drafted tokens are accepted, and the rate that draws the line.

Trained on training texts of all sampling settings at once; calibrated on them and on validation texts; given a rate on validation
texts, for the verifier, settings and prices that it will serve, and for a grid of other prices; scored once on test texts. Edits
are left out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Annotated, Any

import numpy as np
from lightning.pytorch.loggers import Logger

from predictors.config import Count, Positive, not_empty
from predictors.latency.actions import undisturbed
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import chain_costs
from predictors.replay.decode import Reading
from predictors.replay.grid import Starts
from predictors.replay.prices import Prices
from predictors.sampling import SamplingSettings
from predictors.schema import SPLITS, TEST, TRAIN, VALIDATION
from predictors.survival.features import SCALARS
from predictors.survival.network import SurvivalArrays, SurvivalNetwork
from predictors.survival.rule import Priced, SurvivalRule, SurvivalSetting
from predictors.training.predictor import Fitted, Materials, Trust, told, tracked_name
from predictors.training.rule_choice import RuleChoice, best_of, static_length
from predictors.training.survival.grid import SurvivalGrid
from predictors.training.survival.rules import Played, calibrated, quality, scored
from predictors.training.survival.training import SurvivalTrainConfig, fit_survival, follows
from predictors.training.text_table import TextTable
from predictors.training.trainer import Trained

Grids = dict[str, list[SurvivalGrid]]  # by split, one per sampling setting


@dataclass(frozen=True)
class SurvivalModel:
    """A trained model on the texts of ``table``, with what is done at every sampling setting and how that was chosen; squared
    distances up to ``limit`` are trusted."""

    table: TextTable
    profile: LatencyProfile
    grids: Grids
    trained: Trained[SurvivalNetwork]
    served: SurvivalArrays
    limit: float
    settings: Sequence[SurvivalSetting] = ()
    choices: Sequence[RuleChoice] = ()

    def at(self, profile: LatencyProfile) -> "SurvivalModel":
        """The same model on a machine of other latencies."""
        grids = {
            split: [
                grid.at(Prices(profile, not settings.greedy))
                for grid, settings in zip(of_split, self.table.settings, strict=True)
            ]
            for split, of_split in self.grids.items()
        }
        return replace(self, profile=profile, grids=grids)


@dataclass(frozen=True)
class SurvivalPredictor(Trust):
    """How the model is trained and served: in chains of at most ``gamma`` tokens that ``verifier`` verifies, beside a lookup of
    ``lookup`` tokens.

    Products of ``calibrated_tokens`` chances are calibrated. Rates are tried at ``shares`` of the best static chain's, after at
    ``least`` so many tokens, and judged on ``folds`` of documents; also on machines of other ``cost_ratios``. ``repeats``: of
    chance on texts that are sampled.
    """

    training: SurvivalTrainConfig = field(default_factory=SurvivalTrainConfig)
    gamma: Count = 12
    lookup: Count = 12
    verifier: str = "block"
    calibrated_tokens: Count = 6
    shares: Annotated[tuple[Positive, ...], not_empty] = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.45, 1.6, 1.8, 2.0)
    least: Annotated[tuple[Count, ...], not_empty] = (1, 2, 3)
    folds: Count = 5
    cost_ratios: tuple[Positive, ...] = (4.0, 6.0, 10.0, 16.0)
    repeats: Count = 4
    seed: int = 0

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        return self.exported(self.model(materials, logger))

    def model(self, materials: Materials, logger: Logger | None = None) -> SurvivalModel:
        """Trained, and given rules."""
        table, profile = materials.text_table, materials.profile
        grids: Grids = {split: self._grids(table.rows(split), table.settings, profile) for split in SPLITS}
        trained = fit_survival(grids[TRAIN], grids[VALIDATION], self.training, logger)
        served = SurvivalArrays(trained.network)
        limit = self.largest(self._distances(grids[VALIDATION], served))
        model = SurvivalModel(table, profile, grids, trained, served, limit)
        settings, choices = zip(*(self._setting(model, number) for number in range(len(table.settings))), strict=True)
        return replace(model, settings=settings, choices=choices)

    def exported(self, model: SurvivalModel) -> Fitted:
        """Scored, as a bundle."""
        table, profile = model.table, model.profile
        parts, known = {}, {}
        for made, test in zip(model.settings, model.grids[TEST], strict=True):
            parts[made.settings.name] = scored(self.played(test, model, made), made, profile)
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
            "documents": len(set(table.rows(TEST).column("document"))),
        }
        card = self._card(table, profile, measured) | {"settings": settings, "max_distance": model.limit}
        return Fitted(card, model.trained.network.state_dict(), measured, _metrics(measured), sentence(measured))

    def played(self, grid: SurvivalGrid, model: SurvivalModel, made: SurvivalSetting) -> Played:
        """What is served at one setting, on some texts."""
        question, served = _question(model.profile), model.served
        return Played(grid, served, made.calibration, made.costs, question, model.limit, made.static_length)

    def _grids(self, table: TextTable, known: list[SamplingSettings], profile: LatencyProfile) -> list[SurvivalGrid]:
        texts = list(table.texts())
        made = []
        for settings in known:
            repeats = range(1 if settings.greedy else self.repeats)
            readings = [
                Reading.of(text, self.seed + repeat)
                for text in texts
                for repeat in repeats
                if text.settings == settings
            ]
            prices = Prices(profile, not settings.greedy)
            made.append(SurvivalGrid.of(Starts.of(readings, self.gamma, self.verifier, prices)))
        return made

    def _distances(self, grids: list[SurvivalGrid], served: SurvivalArrays) -> np.ndarray:
        """Squared distances of all tokens of the longest chains."""
        found = []
        for grid in grids:
            walk = grid.static(self.gamma)
            features_VGF = grid.features(walk.reading_V, walk.start_V, walk.rejected_V, walk.luck_V)
            known_VG = np.arange(self.gamma) < grid.would(walk)[1][:, None]
            found.append(served(features_VGF[known_VG])[1])
        return np.concatenate(found)

    def _setting(self, model: SurvivalModel, number: int) -> tuple[SurvivalSetting, RuleChoice]:
        """What is served at a setting, here and at other prices, and how its rule was chosen."""
        settings = model.table.settings[number]
        grids = [model.grids[split][number] for split in (TRAIN, VALIDATION)]
        calibration = calibrated(grids, model.served, min(self.calibrated_tokens, self.gamma))
        unpriced = SurvivalRule(1.0, follows=follows(model.grids[TRAIN][number]))
        draft = SurvivalSetting(settings, unpriced, False, 1, (1.0,), calibration)
        here, choice = self._priced(model, number, draft)
        context, elsewhere = model.table.median_context, []
        for ratio in self.cost_ratios:
            one, _ = self._priced(model.at(model.profile.at_cost_ratio(ratio, context)), number, draft)
            elsewhere.append(Priced(ratio, one.rule, one.static_length))
        return replace(here, elsewhere=tuple(elsewhere)), choice

    def _priced(self, model: SurvivalModel, number: int, draft: SurvivalSetting) -> tuple[SurvivalSetting, RuleChoice]:
        """A setting at the prices of ``model``."""
        profile, context, sampled = model.profile, model.table.median_context, not draft.settings.greedy
        train, validation = (model.grids[split][number] for split in (TRAIN, VALIDATION))
        length = static_length([train.starts, validation.starts])
        costs = chain_costs(undisturbed(profile), self.gamma, context, sampled, _question(profile))
        made = replace(draft, static_length=length, costs=costs)
        played = self.played(validation, model, made)
        always = played.static(length)
        rate = always.rate * Prices(profile, sampled).chain(0, round(context))
        follows, tried = draft.rule.follows, product(self.shares, self.least)
        rules = [SurvivalRule(rate * share, least, follows) for share, least in tried]
        document_X = validation.starts.document_X
        rule, choice = best_of(rules, played.stopped, always, document_X, self.folds, self.seed)
        return replace(made, rule=rule, pays=choice.pays), choice

    def _card(self, table: TextTable, profile: LatencyProfile, measured: dict[str, Any]) -> dict[str, Any]:
        """The bundle's card (`predictors.controllers.survival`) but for what was chosen."""
        context, manifest = table.median_context, table.manifest
        error = max(known["tokens"]["ece"] for known in measured["known"].values())
        chain = {"kind": "chain", "gamma": self.gamma, "lookup": {"length": self.lookup}}
        ratio = profile.cost_ratio(context)
        return {
            "kind": "survival",
            "contract": manifest.contract,
            "scalars": list(SCALARS),
            "prices": {"cost_ratio": ratio, "context": context, "profile_hash": profile.profile_hash},
            "decoder": {"method": "speculative", "drafter": chain, "verifier": self.verifier},
            "measured_quality": {"split": TEST, "parts": measured["parts"], "tokens": {"ece": error}},
            "lineage": {"traces_sha256": manifest.content_hash},
        }


def _question(profile: LatencyProfile) -> float:
    return undisturbed(profile).latency("survival", positions=1).seconds


def sentence(measured: dict[str, Any]) -> str:
    """What the model knows and its rule is worth on held-out documents."""
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
