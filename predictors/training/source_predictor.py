"""Family ``source``: the choice of the source that drafts a round, in front of a controller ``survival`` that is fitted with it.

    takeover    a lookup where the match is long enough: match, length and tail by replayed tokens per second
    source      what every source promises and costs (`predictors.controllers.source`), at the best rate by the same

Rules are chosen on validation texts and judged out of fold; scored once on test texts, over the best static chain, over
``survival`` alone, and ``source`` over ``takeover``, too.
"""

from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Annotated, Any

from lightning.pytorch.loggers import Logger

from predictors.bundle import OTHERWISE
from predictors.config import Checked, Count, Positive, Whole, not_empty, one_of
from predictors.controllers.takeover import TakeoverConfig
from predictors.schema import TEST, TRAIN, VALIDATION
from predictors.training.intervals import log_gain
from predictors.training.predictor import Fitted, Materials, RuleChoice, told, tracked_name, worth
from predictors.training.source_contest import Contest, Paced, distances, learned
from predictors.training.survival_predictor import SurvivalModel, SurvivalPredictor

SURVIVAL, TAKEOVER, SOURCE = "survival", "takeover", "source"


@dataclass(frozen=True)
class SourcePredictor(Checked):
    """Predictor of family ``source``: exports ``kind`` in front of a controller that is fitted as ``survival`` is configured.
    Tried are ``matches``, ``lengths`` and ``tails`` of lookups, chains at ``paces`` times their own rate, and rates of sources at
    ``shares`` of that, judged on ``folds`` of documents."""

    kind: Annotated[str, one_of(TAKEOVER, SOURCE)] = TAKEOVER
    survival: SurvivalPredictor = field(default_factory=SurvivalPredictor)
    matches: Annotated[tuple[Count, ...], not_empty] = (1, 2, 3, 4, 6)
    lengths: Annotated[tuple[Count, ...], not_empty] = (4, 6, 8)
    tails: Annotated[tuple[Whole, ...], not_empty] = (0, 2, 4)
    shares: Annotated[tuple[Positive, ...], not_empty] = (0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
    paces: Annotated[tuple[Positive, ...], not_empty] = (1.0, 1.15, 1.3)
    folds: Count = 5
    seed: int = 0

    @property
    def chains(self) -> SurvivalPredictor:
        """Predictor by which chains are fitted."""
        return replace(self.survival, seed=self.seed)

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        model = self.chains.model(materials, logger)
        best = [self._chosen(model, place) for place in range(len(model.settings))]
        served = [(made, choices[self.kind]) for made, choices in zip(model.settings, best, strict=True)]
        parts = {made.settings.name: self._scored(model, place, best[place]) for place, (made, _) in enumerate(served)}
        settings = [
            {
                "settings": asdict(made.settings),
                "rule": {key: value for key, value in asdict(choice.rule.rule).items() if key != OTHERWISE},
                "pays": choice.pays,
            }
            for made, choice in served
        ]
        # where no lookup takes over
        paced = [made.at_pace(choice.rule.pace) if choice.pays else made for made, choice in served]
        inner = self.chains.exported(replace(model, settings=paced))
        card = {
            "kind": self.kind,
            **{key: inner.card[key] for key in ("contract", "decoder", "lineage")},
            "settings": settings,
            "measured_quality": inner.card["measured_quality"] | {"parts": parts},
            OTHERWISE: inner.card,
        }
        measured = {"parts": parts, "settings": settings, "survival": inner.quality}
        measured["choices"] = [{kind: asdict(choice) for kind, choice in choices.items()} for choices in best]
        measured["documents"] = inner.quality["documents"]
        return Fitted(card, inner.tensors, measured, _metrics(parts), sentence(parts))

    def _chosen(self, model: SurvivalModel, place: int) -> dict[str, RuleChoice]:
        """Choose the best rule of each kind at the setting of index ``place``."""
        train, validation = (self._contest(model, split, place) for split in (TRAIN, VALIDATION))
        simple = [TakeoverConfig(*values) for values in product(self.matches, self.lengths, self.tails)]
        found = learned(train, model.table.median_context)
        found = replace(found, max_distance=self.survival.largest(distances(validation, found)))
        weighed = [replace(found, share=share) for share in self.shares]
        paces = self.paces if train.made.pays else (1.0,)
        best = {}
        for kind, rules in ((TAKEOVER, simple), (SOURCE, weighed)):
            paced = [Paced(rule, pace) for rule in rules for pace in paces]
            best[kind] = validation.best(paced, self.folds, self.seed)
        return best

    def _contest(self, model: SurvivalModel, split: str, place: int) -> Contest:
        return Contest.of(model, split, place, self.survival.lookup, self.tails)

    def _scored(self, model: SurvivalModel, place: int, best: dict[str, RuleChoice]) -> dict[str, Any]:
        """Score every policy's tokens per second on texts that chose nothing; a rule that does not pay is ``tried``, too."""
        test = self._contest(model, TEST, place)
        always, document_X = test.static(), test.grid.starts.document_X
        totals = {"static": always, SURVIVAL: test.decoded()}
        for kind, choice in best.items():
            tried = test.under(choice.rule)
            totals |= {kind: tried if choice.pays else totals[SURVIVAL], f"{kind} tried": tried}
        over = {
            f"{one} over {other}": log_gain(totals[one].sums_2X, totals[other].sums_2X, document_X)
            for one, other in ((TAKEOVER, SURVIVAL), (SOURCE, SURVIVAL), (SOURCE, TAKEOVER))
        }
        return {
            "kind": self.kind,
            "static_length": test.made.static_length,
            "pays": {kind: choice.pays for kind, choice in best.items()},
            "policies": {name: worth(one, always, document_X) for name, one in totals.items()},
            "over": over,
        }


def sentence(parts: dict[str, Any]) -> str:
    """Summarise in a sentence what the rule that is served gains on held-out documents."""
    said = []
    for name, part in parts.items():
        kind = part["kind"]
        over = {"static chain": part["policies"][kind]["gain"], SURVIVAL: part["over"][f"{kind} over {SURVIVAL}"]}
        if kind == SOURCE:
            over[TAKEOVER] = part["over"][f"{SOURCE} over {TAKEOVER}"]
        gains = ", ".join(f"{told(gain)} over {other}" for other, gain in over.items())
        tried = part["policies"][f"{kind} tried"]["gain"]["value"]
        how = "" if part["pays"][kind] else f" (not served, as it did not surely pay on validation; tried {tried:+.1%})"
        said.append(f"{name}: {gains}{how}")
    return "; ".join(said)


def _metrics(parts: dict[str, Any]) -> dict[str, float | None]:
    return {
        f"test_gain_{tracked_name(name)}": part["policies"][part["kind"]]["gain"]["value"]
        for name, part in parts.items()
    }
