"""Family ``head``: H-RAD's classes or the explicit length, from texts to a bundle.

rows     roots that the policy's decodes meet, with the round before; the policy at first drafts the best static length, then
         what was chosen before (`heads.roots.met`): as often as ``iterations`` say, or until the rows are the same
network  one for all captured sampling settings, on training texts (`heads.training`)
rules    calibration, static lengths and rules of every setting by itself, on validation texts (`heads.rules`)
quality  on test texts (`heads.quality`)
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger

from predictors.config import Count, one_of
from predictors.decision_rule import LENGTH_CHOICES, Calibration, ClassSetting, DecisionRule, LengthRule, LengthSetting
from predictors.features import FEATURE_SETS
from predictors.latency.actions import undisturbed
from predictors.replay.acceptance import acceptance_of
from predictors.replay.prices import Prices
from predictors.schema import SPLITS
from predictors.training.calibration import fit_calibration
from predictors.training.heads.quality import (
    fit_baselines,
    measured_metrics,
    measured_policies,
    measured_quality,
    sentence,
    tracked,
)
from predictors.training.heads.roots import CLASS, TARGETS, Roots, Rows, Target, met
from predictors.training.heads.rules import Candidates, Chosen, choose_rules, fixed_rules, static_pair
from predictors.training.heads.served import Choice, Decoding, Said, Served, decodes_of
from predictors.training.heads.training import HeadTrainConfig, TrainedHead, train
from predictors.training.labelling.chains import KIND
from predictors.training.metrics import macro_auc
from predictors.training.predictor import Fitted, Materials, Trust

CONTROLLERS: dict[bool, tuple[str, Any]] = {  # and settings on its card, by whether classes are lengths
    False: ("hrad", ClassSetting),
    True: ("length", LengthSetting),
}
Policies = Mapping[int, tuple[Choice, Choice]]  # by setting, what is drafted and what is retained


@dataclass(frozen=True)
class HeadPredictor(Trust):
    """A head of a ``target``, for a ``decoding``.

    ``rule``: given instead of chosen (the paper's: ``{epsilon: 0.2}``), or, of lengths, its ``choice``. ``prior_correction``:
    give back what balancing took. ``repeats``: of chance on held-out texts that are sampled.
    """

    target: Annotated[str, one_of(*TARGETS)] = CLASS
    feature_set: Annotated[str, one_of(*FEATURE_SETS)] = "extended"
    decoding: Decoding = field(default_factory=Decoding)
    training: HeadTrainConfig = field(default_factory=HeadTrainConfig)
    candidates: Candidates = field(default_factory=Candidates)
    rule: DecisionRule | None = None
    choice: Annotated[str, one_of(*LENGTH_CHOICES)] | None = None
    iterations: Count = 2
    prior_correction: bool = True
    repeats: Count = 2
    bootstrap_replicates: Count = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule is not None and self.target != CLASS:
            raise ValueError(f"rule is of target {CLASS!r}, and target is {self.target!r}. Give its choice instead.")
        if self.choice is not None and self.target == CLASS:
            raise ValueError(f"choice is of lengths, and target is {self.target!r}. Give its rule instead.")

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        """Fit the head; curves of its last training go to ``logger``."""
        return HeadFit(self, materials).fitted(logger)


@dataclass(frozen=True)
class Made:
    """A network, the ``rows`` by split that it was made from, what it ``said`` of every row, its calibration by setting, how far
    features may lie, and what is ``chosen``; it is ``served`` by split and setting."""

    head: TrainedHead
    rows: Mapping[str, Rows]
    said: Said
    calibrations: Mapping[int, Calibration]
    max_distance: float
    chosen: Mapping[int, Chosen]
    served: Mapping[tuple[str, int], Served]


class HeadFit:
    """The fit of one head: ``config`` and what it is made of."""

    def __init__(self, config: HeadPredictor, materials: Materials) -> None:
        self.config, self.profile = config, materials.profile
        table = materials.text_table
        labels = materials.labels_of(KIND, table.manifest)
        self.manifest, self.settings, self.context = table.manifest, table.settings, table.median_context
        require_served(config.decoding, labels.facts)
        self.roots = Roots.of(table, labels, config.feature_set)
        self.target = Target(config.target, self.roots.spec.gamma)
        self.decodes = decodes_of(table, config.decoding, self.profile, config.repeats, int(labels.facts["seed"]))
        features = self.roots.spec.state_size + len(self.roots.spec.scalars)
        self.query = undisturbed(self.profile).latency("predictor", features=features).seconds

    def fitted(self, logger: Logger | None) -> Fitted:
        """Iterate rows, network and rules; then measure on test texts."""
        places, record = range(len(self.settings)), []
        served = {key: Served(one, self.roots, self.query) for key, one in self.decodes.items()}
        statics = {place: static_pair([served[split, place] for split in SPLITS[:2]]) for place in places}
        rows, pasts = self.rows(served, statics, {})
        for _ in range(self.config.iterations):
            made, trained = self.made(rows, statics, logger), rows
            policies = {place: one.policy for place, one in made.chosen.items()}
            following, pasts = self.rows(made.served, policies, pasts)
            record.append(self.iteration(made, rows["validation"], changed(rows["train"], following["train"])))
            if not record[-1]["changed"]:
                break
            rows = following
        met_on_test = {"test": rows["test"]}  # by what is served
        return self.exported(made, {**trained, **met_on_test}, record)

    def rows(
        self, served: Mapping[tuple[str, int], Served], policies: Policies, pasts: Mapping[tuple[str, int], np.ndarray]
    ) -> tuple[dict[str, Rows], dict[tuple[str, int], np.ndarray]]:
        """Labelled roots by split that the policies' decodes meet, and the pasts that they give to every start."""
        found: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
        given = {}
        for (split, place), one in served.items():
            row_XS = one.decodes.row_XS
            past_XS = pasts.get((split, place), np.zeros_like(row_XS))
            for retains in (False, True) if one.decodes.retained is not None else (False,):
                drafts = one.drafts(policies[place][retains], retains)
                pairs_2P, given[split, place] = met(one.decodes.idle, row_XS, drafts, past_XS, self.roots.spec.gamma)
                found[split].append(pairs_2P[:, self.roots.known_R[pairs_2P[0]]])
        unique = {split: np.unique(np.concatenate(some, axis=1), axis=1) for split, some in found.items()}
        return {split: Rows(self.roots, *pairs_2P) for split, pairs_2P in unique.items()}, given

    def made(self, rows: Mapping[str, Rows], statics: Mapping[int, tuple[int, int]], logger: Logger | None) -> Made:
        """Train on rows, then calibrate and choose what is served at every setting."""
        config, rows = self.config, {split: some.distinct for split, some in rows.items()}
        head = train(rows["train"], rows["validation"], self.target, config.training, logger)
        said = Said.of(head.network, self.roots)
        max_distance, calibrations, chosen, served = config.largest(said.of_rows(rows["validation"])[1]), {}, {}, {}
        for place, static in statics.items():
            calibrations[place] = self.calibration(head, said, rows, place)
            known = said, calibrations[place], max_distance, *static
            for split in SPLITS:
                served[split, place] = Served(self.decodes[split, place], self.roots, self.query, *known)
            chosen[place] = self.chosen(served["validation", place], static, place)
        return Made(head, rows, said, calibrations, max_distance, chosen, served)

    def calibration(self, head: TrainedHead, said: Said, rows: Mapping[str, Rows], place: int) -> Calibration:
        """Bias from the setting's class shares among training rows (zero without ``prior_correction``), then the temperature on
        validation rows that goes with it."""
        count, held = len(self.target.classes), rows["validation"].at(place)
        labels = rows["train"].at(place).labels(self.target)
        natural = ((np.bincount(labels, minlength=count) + 1) / (len(labels) + count)).tolist()
        training = head.training_shares if self.config.prior_correction else natural
        return fit_calibration(said.of_rows(held)[0], torch.from_numpy(held.labels(self.target)), natural, training)

    def chosen(self, validation: Served, static: tuple[int, int], place: int) -> Chosen:
        """What is served at a setting; a drafted token's cost is that midway through the texts."""
        config, sampled = self.config, not self.settings[place].greedy
        cost = Prices(self.profile, sampled).draft_cost(self.roots.spec.gamma, self.context)
        rule = config.rule if config.choice is None else LengthRule(config.choice, cost)
        if rule is not None:
            return fixed_rules(static, rule, config.candidates)
        return choose_rules(validation, static, config.candidates.rules(self.target, cost), config.candidates)

    def iteration(self, made: Made, validation: Rows, share: float) -> dict[str, Any]:
        """What an iteration came to: the share of training rows that its policy changes, and validation figures by setting."""
        found: dict[str, Any] = {"changed": share}
        for place, setting in enumerate(self.settings):
            rows = validation.at(place)
            probabilities_PL = made.calibrations[place].probabilities(made.said.of_rows(rows)[0]).numpy()
            choice = made.chosen[place].choice
            found[setting.name] = {
                "macro_auc": macro_auc(probabilities_PL, rows.labels(self.target)),
                "gain": None if choice is None else choice.gain["value"],
            }
        return found

    def exported(self, made: Made, rows: Mapping[str, Rows], record: Sequence[Mapping[str, Any]]) -> Fitted:
        """Measured on test texts, with its card."""
        config, spec = self.config, self.roots.spec
        kind, entry = CONTROLLERS[self.target.ordered]
        counted = {**made.rows, "test": rows["test"]}
        settings, parts = [], {}
        for place, setting in enumerate(self.settings):
            one = made.chosen[place]
            rules = one.rule, one.retention, *one.tried
            settings.append(asdict(entry(setting, made.calibrations[place], *one.static, *rules)))
            parts[setting.name] = self.part(place, settings[place], made, rows)
        quality = {
            "kind": kind,
            "target": self.target.name,
            "classes": list(self.target.classes),
            "gamma": spec.gamma,
            "feature_set": spec.feature_set,
            "decoding": asdict(config.decoding),
            "rows": {split: len(some) for split, some in counted.items()},
            "documents": {split: len(np.unique(some.document_P)) for split, some in counted.items()},
            "class_shares": {"natural": made.head.natural_shares, "training": made.head.training_shares},
            "history": made.head.history,
            "best_epoch": made.head.best_epoch,
            "balance": made.head.balance,
            "iterations": list(record),
            "prices": {"query": self.query},
            "max_distance": made.max_distance,
            "parts": parts,
        }
        card = {
            "kind": kind,
            "contract": self.manifest.contract,
            "feature_spec": asdict(spec),
            "settings": settings,
            "max_distance": made.max_distance,
            "prices": {"profile_hash": self.profile.profile_hash},
            "decoder": config.decoding.decoder,
            "measured_quality": measured_quality(quality),
            "lineage": {"traces_sha256": self.manifest.content_hash},
        }
        return Fitted(card, made.head.network.state_dict(), quality, tracked(quality), sentence(quality))

    def part(self, place: int, setting: dict[str, Any], made: Made, rows: Mapping[str, Rows]) -> dict[str, Any]:
        """What is served at a ``setting``, as the card has it, and what it is worth on test texts."""
        here = {split: some.at(place) for split, some in rows.items()}
        chosen, calibration = made.chosen[place], made.calibrations[place]
        baselines, replicates = fit_baselines(here["train"], self.target), self.config.bootstrap_replicates
        held = measured_metrics(here["validation"], made.said, calibration, {}, self.target, 1)["head"]
        choice = None if chosen.choice is None else {"gain": chosen.choice.gain, "pays": chosen.choice.pays}
        return {
            "calibration": setting["calibration"],
            "thresholds": {name: setting[name] for name in ("static_gamma", "retained_gamma", "rule", "retention")},
            "rules": {"head": setting["rule"], "tried": setting["tried"], "confidence": chosen.epsilon},
            "static_length": chosen.static_gamma,
            "metrics": measured_metrics(here["test"], made.said, calibration, baselines, self.target, replicates),
            "policies": measured_policies(made.served["test", place], chosen, self.profile),
            "validation": {"metrics": held, "choice": choice},
        }


def require_served(decoding: Decoding, facts: Mapping[str, Any]) -> None:
    """`ValueError` where labels speak of more tokens than are drafted, or of another acceptance than serves."""
    gamma, verifier = int(facts["gamma"]), str(facts["verifier"])
    if decoding.gamma < gamma:
        raise ValueError(
            f"decoding.gamma={decoding.gamma} is shorter than the {gamma} tokens that labels speak of, and no bundle of it "
            f"could be loaded. Use decoding.gamma >= {gamma}, or lower labels.chains.gamma."
        )
    if acceptance_of(decoding.verifier) != acceptance_of(verifier):
        raise ValueError(
            f"labels are of verifier {verifier!r} and decoding.verifier is {decoding.verifier!r}, which accepts other tokens. "
            f"Set labels.chains.verifier to {decoding.verifier!r}, or decoding.verifier to {verifier!r}."
        )


def changed(before: Rows, after: Rows) -> float:
    """The share of rows met after that were not met before, with that past."""
    known = set(zip(before.row_P.tolist(), before.past_P.tolist(), strict=True))
    return float(np.mean([pair not in known for pair in zip(after.row_P.tolist(), after.past_P.tolist(), strict=True)]))
