"""Family ``head``: H-RAD's classes or the explicit length, from texts to a bundle.

rows     roots that the policy's decodes meet, with the round before; the policy at first drafts the best static length, then
         what was chosen before (`heads.served`): as often as ``iterations`` say, or until the rows are the same
network  one for all captured sampling settings, on training texts (`heads.training`)
rules    calibration, static lengths and rules of every setting by itself, on validation texts (`heads.rules`)
quality  on test texts (`heads.quality`)
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger

from predictors.config import Count, one_of
from predictors.head import FEATURE_SETS, LENGTH_CHOICES, Calibration, DecisionRule, HeadSetting, LengthRule
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import undisturbed
from predictors.replay.acceptance import acceptance_of
from predictors.schema import SPLITS, TEST, TRAIN, VALIDATION
from predictors.training.calibration import fit_calibration
from predictors.training.head_roots import CLASS, TARGETS, RootRows, Roots
from predictors.training.head_rules import (
    Chosen,
    RuleCandidates,
    choose_rules,
    fit_baselines,
    measured_metrics,
    measured_policies,
    measured_quality,
    sentence,
    static_pair,
    tracked,
)
from predictors.training.head_served import (
    Answered,
    Choice,
    Decoding,
    Served,
    at_k_max,
    balanced,
    best_k_max,
    served_texts,
)
from predictors.training.head_training import HeadTrainConfig, TrainedHead, train
from predictors.training.labelling import CHAINS
from predictors.training.predictor import Fitted, Materials, Trust, card_of

KINDS = {False: "hrad", True: "length"}  # controllers, by whether classes are lengths
Place = tuple[str, int]  # a split, and the number of a setting


@dataclass(frozen=True)
class HeadPredictor(Trust):
    """Predictor of family ``head``: a head for a ``target`` and a ``decoding``.

    ``rule``: given instead of chosen (the paper's: ``{epsilon: 0.2}``), or, of lengths, its ``choice``. ``prior_correction``:
    give back what balancing took.
    """

    target: Annotated[str, one_of(*TARGETS)] = CLASS
    feature_set: Annotated[str, one_of(*FEATURE_SETS)] = "extended"
    decoding: Decoding = field(default_factory=Decoding)
    training: HeadTrainConfig = field(default_factory=HeadTrainConfig)
    candidates: RuleCandidates = field(default_factory=RuleCandidates)
    rule: DecisionRule | None = None
    choice: Annotated[str, one_of(*LENGTH_CHOICES)] | None = None
    iterations: Count = 2
    prior_correction: bool = True
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
    """Result of an iteration: a network, the ``rows`` by split that it was made from, and what is ``chosen`` at every setting; as
    it is ``served`` by split and setting."""

    head: TrainedHead
    rows: Mapping[str, RootRows]
    served: Mapping[Place, Served]
    chosen: Mapping[int, Chosen]


class HeadFit:
    """Fit of one head: ``config`` and what it is made of."""

    def __init__(self, config: HeadPredictor, materials: Materials) -> None:
        self.config, self.profile = config, materials.profile
        table = materials.text_table
        labels = materials.labels_of(CHAINS, table.manifest)
        self.manifest, self.settings, self.context = table.manifest, table.settings, table.median_context
        decoding = config.decoding
        if "gamma" in decoding.open:
            prices = RoundPrices(self.profile, not all(made.read_off for made in self.settings))
            shortest, longest = int(labels.facts["gamma"]), table.manifest.gamma_max - 1  # candidates follow a block
            decoding = replace(decoding, gamma=balanced(decoding, prices, shortest, longest, self.context))
        require_served(decoding, labels.facts)
        self.roots = Roots.of(table, labels, config.feature_set, config.target)
        features = self.roots.spec.state_size + len(self.roots.spec.scalars)
        query = undisturbed(self.profile).latency("predictor", features=features).seconds
        self.unsaid = served_texts(table, self.roots, query, decoding, self.profile)
        if "k_max" in decoding.open:
            learned = [one for (split, _), one in self.unsaid.items() if split != TEST]
            k_max = best_k_max(learned, table.manifest.candidates, static_pair)
            decoding = replace(decoding, k_max=k_max)
            self.unsaid = {where: at_k_max(one, k_max) for where, one in self.unsaid.items()}
        self.decoding, self.places = decoding, range(len(self.settings))

    def fitted(self, logger: Logger | None) -> Fitted:
        """Iterate rows, network and rules; then measure on test texts."""
        changes: list[float] = []
        served: Mapping[Place, Served] = self.unsaid
        statics = {place: static_pair([served[split, place] for split in SPLITS[:2]]) for place in self.places}
        rows, pasts = self.rows(served, statics, {})
        for _ in range(self.config.iterations):
            made, trained = self.made(rows, statics, logger), rows
            policies = {place: one.policy for place, one in made.chosen.items()}
            following, pasts = self.rows(made.served, policies, pasts)
            changes.append(changed(rows[TRAIN], following[TRAIN]))
            if not changes[-1]:
                break
            rows = following
        met_on_test = {TEST: rows[TEST]}  # by what is served
        return self.exported(made, {**trained, **met_on_test}, changes)

    def rows(
        self,
        served: Mapping[Place, Served],
        policies: Mapping[int, tuple[Choice, Choice]],
        pasts: Mapping[Place, np.ndarray],
    ) -> tuple[dict[str, RootRows], dict[Place, np.ndarray]]:
        """Label the roots by split that the policies' decodes meet; also return the pasts that they give to every start."""
        found: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
        given = {}
        for (split, place), one in served.items():
            past_XS = pasts.get((split, place), np.zeros_like(one.row_XS))
            for retains in (False, True) if one.branches is not None else (False,):
                drafts = one.drafts(policies[place][retains], retains)
                pairs_2P, given[split, place] = one.met(drafts, past_XS)
                found[split].append(pairs_2P[:, self.roots.known_R[pairs_2P[0]]])
        unique = {split: np.unique(np.concatenate(some, axis=1), axis=1) for split, some in found.items()}
        return {split: RootRows(self.roots, *pairs_2P) for split, pairs_2P in unique.items()}, given

    def made(self, rows: Mapping[str, RootRows], statics: Mapping[int, tuple[int, int]], logger: Logger | None) -> Made:
        rows = {split: some.distinct for split, some in rows.items()}
        head = train(rows[TRAIN], rows[VALIDATION], self.config.training, logger)
        said = Answered.of(head.network, self.roots)
        limit, served = self.config.largest(said.of_rows(rows[VALIDATION])[1]), {}
        calibrations = [self.calibration(head, said, rows, place) for place in self.places]
        for (split, place), one in self.unsaid.items():
            calibrated = replace(one, said=said, calibration=calibrations[place])
            served[split, place] = replace(calibrated, max_distance=limit, static=statics[place])
        chosen = {place: self.chosen(served[VALIDATION, place], place) for place in statics}
        return Made(head, rows, served, chosen)

    def calibration(self, head: TrainedHead, said: Answered, rows: Mapping[str, RootRows], place: int) -> Calibration:
        """Calibrate the head at a setting: the bias from its class shares among training rows (zero without
        ``prior_correction``), then the temperature on validation rows that goes with it."""
        count, held, labels = len(self.roots.target.classes), rows[VALIDATION].at(place), rows[TRAIN].at(place).label_P
        natural = ((np.bincount(labels, minlength=count) + 1) / (len(labels) + count)).tolist()
        training = head.training_shares if self.config.prior_correction else natural
        return fit_calibration(said.of_rows(held)[0], torch.from_numpy(held.label_P), natural, training)

    def chosen(self, validation: Served, place: int) -> Chosen:
        """Choose what is served at a setting, by a rule that is given or the best; a drafted token's cost is that midway through
        the texts."""
        config, sampled = self.config, not self.settings[place].read_off
        cost = RoundPrices(self.profile, sampled).draft_cost(self.roots.spec.gamma, self.context)
        rule = config.rule if config.choice is None else LengthRule(config.choice, cost)
        if rule is not None:
            epsilon = getattr(rule, "epsilon", config.candidates.epsilons[0])
            return Chosen(validation.static, (rule, rule), (rule, rule), epsilon, None)
        return choose_rules(validation, config.candidates.rules(self.roots.target, cost), config.candidates)

    def exported(self, made: Made, rows: Mapping[str, RootRows], changes: Sequence[float]) -> Fitted:
        spec, target, head = self.roots.spec, self.roots.target, made.head
        kind = KINDS[target.ordered]
        counted = {**made.rows, TEST: rows[TEST]}
        settings, parts = [], {}
        for place, setting in enumerate(self.settings):
            one, test = made.chosen[place], made.served[TEST, place]
            settings.append(asdict(HeadSetting(setting, test.calibration, *one.static, *one.rules, *one.tried)))
            parts[setting.name] = self.part(one, test, {key: some.at(place) for key, some in rows.items()})
        any_setting = made.served[TEST, 0]
        quality = {
            "kind": kind,
            "target": target.name,
            "classes": list(target.classes),
            "gamma": spec.gamma,
            "feature_set": spec.feature_set,
            "decoding": asdict(self.decoding),
            "rows": {split: len(some) for split, some in counted.items()},
            "documents": {split: len(np.unique(some.document_P)) for split, some in counted.items()},
            "class_shares": {"natural": head.natural_shares, "training": head.training_shares},
            "history": head.history,
            "best_epoch": head.best_epoch,
            "balance": head.balance,
            "changed": changes,
            "prices": {"query": any_setting.query},
            "max_distance": any_setting.max_distance,
            "settings": settings,
            "parts": parts,
        }
        card = card_of(kind, self.manifest, self.decoding.decoder) | {
            "feature_spec": asdict(spec),
            "settings": settings,
            "max_distance": any_setting.max_distance,
            "prices": {"profile_hash": self.profile.profile_hash},
            "measured_quality": measured_quality(quality),
        }
        return Fitted(card, head.network.state_dict(), quality, tracked(quality), sentence(quality))

    def part(self, chosen: Chosen, test: Served, rows: Mapping[str, RootRows]) -> dict[str, Any]:
        """Report figures of what is served at a setting on test texts, and how its rule was chosen."""
        baselines = fit_baselines(rows[TRAIN])
        return {
            "static_length": chosen.static[0],
            "confidence": chosen.epsilon,
            "choice": None if chosen.choice is None else {"gain": chosen.choice.gain, "pays": chosen.choice.pays},
            "metrics": measured_metrics(rows[TEST], test, baselines, self.config.bootstrap_replicates),
            "policies": measured_policies(test, chosen),
        }


def require_served(decoding: Decoding, facts: Mapping[str, Any]) -> None:
    """Raise `ValueError` where labels are about more tokens than are drafted, or of another acceptance than serves."""
    gamma, verifier = int(facts["gamma"]), str(facts["verifier"])
    if decoding.gamma < gamma:
        raise ValueError(
            f"decoding.gamma={decoding.gamma} is shorter than the {gamma} tokens that labels speak of, and no bundle of it "
            f"could be loaded. Use decoding.gamma >= {gamma}, or lower labels.chains.gamma."
        )
    if acceptance_of(decoding.verifier) != acceptance_of(verifier):
        raise ValueError(
            f"labels are of verifier {verifier!r} and decoding.verifier is {decoding.verifier!r}, which accepts other tokens. "
            f"Set traces.texts.verifier to {decoding.verifier!r}, or decoding.verifier to {verifier!r}."
        )


def changed(before: RootRows, after: RootRows) -> float:
    """Compute the share of rows met after that were not met before, with that past."""
    known = set(zip(before.row_P.tolist(), before.past_P.tolist(), strict=True))
    return float(np.mean([pair not in known for pair in zip(after.row_P.tolist(), after.past_P.tolist(), strict=True)]))
