"""Predictors of the main pipeline, fitted again and again with less to learn from, and what their quality says.

Variants of features: a head with no state, with the newest token's embedding alone, single layers, the last so many; a selector
with and without states; and predictors that are each other's alternatives, as stop models are.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pipelines.studies.enough.subsets import Lessons
from predictors.features import FEATURE_SETS
from predictors.stopping import LAW
from predictors.training.predictor import Materials, Predictor
from predictors.tree_choice import SCALARS

MACRO_AUC, ECE, AUROC, BRIER, GAIN = ("macro AUC", "ECE", "AUROC", "Brier", "gain")
DOCUMENTS, FEATURES = ("documents", "features")  # what a fit has less of
SCALAR_BYTES, STATE_BYTES = 4, 2  # float32 and float16, as traces store them
Row = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """One fit to make: of ``controller`` in a ``variant`` of what is studied, with a ``seed``; ``size``: what it learns from."""

    study: str
    controller: str
    variant: str
    seed: int
    size: Mapping[str, float]
    measure: Callable[[], dict[str, float]]

    @property
    def key(self) -> str:
        return "/".join((self.study, self.controller, self.variant, str(self.seed)))

    def rows(self) -> list[Row]:
        """Fit, and give a row per metric."""
        known = {name: getattr(self, name) for name in ("study", "controller", "variant", "seed")} | dict(self.size)
        return [known | {"metric": name, "value": value} for name, value in self.measure().items()]


@dataclass(frozen=True)
class Learner:
    """`Predictor` ``name`` of a ``family`` as the main pipeline configures it, and its ``materials``."""

    name: str
    family: str
    predictor: Any
    materials: Materials

    @cached_property
    def lessons(self) -> Lessons:
        return Lessons(self.family, self.materials)

    def of_documents(self, share: float, seed: int) -> Fit:
        """A fit with a share of the training documents, which the seed draws."""
        documents = self.lessons.documents(share, seed)
        size = {"documents": len(documents), "rows": self.lessons.training_rows(documents)}
        measure = partial(self.fitted, self.predictor, seed, partial(self.lessons.of_documents, documents))
        return Fit(DOCUMENTS, self.name, f"{share:g}", seed, size, measure)

    def of_features(self, seed: int) -> Iterator[Fit]:
        """Fits with fewer features, ending with all; of a stop model only itself."""
        if self.family == "head":
            yield from self._of_states(seed)
        elif self.family == "tree":
            yield from self._of_candidates(seed)
        else:
            yield self.as_variant(self.name, seed)

    def as_variant(self, controller: str, seed: int) -> Fit:
        """A fit of it as a variant of ``controller``."""
        spec, inputs = self.lessons.table.manifest.stop_spec, self.predictor.inputs
        size = {"bytes": (SCALAR_BYTES if inputs == LAW else STATE_BYTES) * spec.size(inputs)}
        return Fit(FEATURES, controller, self.name, seed, size, partial(self.fitted, self.predictor, seed))

    def fitted(self, predictor: Any, seed: int, lessons: Callable[[Path], Materials] | None = None) -> dict[str, float]:
        """Metrics on test documents, after learning from what ``lessons`` writes into a folder, or else from all."""
        with tempfile.TemporaryDirectory() as folder:
            materials = self.materials if lessons is None else lessons(Path(folder))
            return metrics(self.family, seeded(predictor, seed).fit(self.name, materials).quality)

    def _of_states(self, seed: int) -> Iterator[Fit]:
        manifest = self.lessons.table.manifest
        scalars = len(FEATURE_SETS[self.predictor.feature_set])
        for name, layers, embedding in state_variants(manifest.feature_layers, bool(scalars)):
            state = len(layers) * manifest.hidden_size + embedding * manifest.embedding_size
            predictor, training = self.predictor, self.predictor.training
            if (training.reduced_size or 0) > max(state, 1):
                predictor = replace(predictor, training=replace(training, reduced_size=None))
            measure = partial(self.fitted, predictor, seed, partial(self.lessons.of_states, layers, embedding))
            size = {"bytes": STATE_BYTES * state + SCALAR_BYTES * scalars}
            yield Fit(FEATURES, self.name, name, seed, size, measure)

    def _of_candidates(self, seed: int) -> Iterator[Fit]:
        state = self.lessons.table.manifest.selection_spec.state_size
        for name, states in (("scalars alone", False), ("states", True)):
            kept = tuple(one for one in self.predictor.candidates if one.states == states)
            size = {"bytes": STATE_BYTES * state * states + SCALAR_BYTES * len(SCALARS)}
            measure = partial(self.fitted, replace(self.predictor, candidates=kept), seed)
            yield Fit(FEATURES, self.name, name, seed, size, measure)


def state_variants(layers: tuple[int, ...], scalars: bool) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Name, layers, and whether with the newest token's embedding: from nothing to everything.

    Examples
    --------
    >>> [name for name, _, _ in state_variants((2, 3), True)]
    ['scalars alone', 'embedding', 'layer 2', 'last layer', 'last 2 layers']
    """
    if scalars:
        yield "scalars alone", (), False
    yield "embedding", (), True
    yield from ((f"layer {layer}", (layer,), True) for layer in layers[:-1])
    for count in [*(count for count in (1, 2, 4) if count < len(layers)), len(layers)]:
        yield ("last layer" if count == 1 else f"last {count} layers"), layers[-count:], True


def seeded(predictor: Any, seed: int) -> Predictor:
    """The predictor trained from another seed."""
    trained = getattr(predictor, "training", predictor)
    moved = replace(trained, seed=trained.seed + seed)
    made: Predictor = moved if trained is predictor else replace(predictor, training=moved)
    return made


def metrics(family: str, quality: Mapping[str, Any]) -> dict[str, float]:
    """What a predictor knows and is worth on test documents.

    Raises
    ------
    ValueError
        If a metric is undefined there.
    """
    found: dict[str, float | None] = {}
    if family == "head":
        for setting, part in quality["parts"].items():
            known = part["metrics"]["head"]
            found |= {f"{MACRO_AUC} {setting}": known["macro_auc"], f"{ECE} {setting}": known["ece"]}
            found[f"{GAIN} {setting}"] = part["policies"]["head"]["gain"]["value"]
    elif family == "stop":
        known = quality["tokens"]["all"]
        gains = {f"{GAIN} {name}": part["policies"]["model"]["gain"] for name, part in quality["parts"].items()}
        found = {AUROC: known["auroc"], BRIER: known["brier"], **{name: gain["value"] for name, gain in gains.items()}}
    else:
        found[GAIN] = quality["parts"]["all"]["selector"]["gain"]["value"]
    if None in found.values():
        raise ValueError(f"a metric is undefined on the test documents ({found}). Collect more test prompts.")
    return {name: float(value) for name, value in found.items() if value is not None}
