"""Roots and distributions made by hand, as controllers see them."""

from dataclasses import replace

import torch

from predictors.sampling import SamplingSettings
from predictors.signals import BothModels, NextLaw, Root, TreeRoot
from tests.bundles import LAYERS

SETTINGS = SamplingSettings(1.0)
GAMMA, HIDDEN = 4, 32


def root(settings=SETTINGS, cap=GAMMA, seed=None, **known):
    """A root; with a ``seed`` also with states."""
    states = {}
    if seed is not None:
        random = torch.Generator().manual_seed(seed)
        states = {"hidden_KD": torch.randn(len(LAYERS), HIDDEN, generator=random)}
        states["embedding_E"] = torch.randn(HIDDEN, generator=random)
    return Root(**{"position": 10, "cap": cap, "settings": settings, "previous": None, **states, **known})


def law(probs, drafted=1, settings=SETTINGS, place=None, hidden_KD=None):
    probs_V = torch.tensor(probs, dtype=torch.float64)
    return NextLaw(place or root(settings), settings, drafted, probs_V.log(), probs_V, hidden_KD)


def tree_root(place, seed):
    """A root as a controller that taps the draft sees it."""
    random = torch.Generator().manual_seed(seed)
    laws = torch.rand(3, 5, generator=random).softmax(1)
    place = replace(place, hidden_KD=place.hidden_KD[:1])
    here = NextLaw(place, place.settings, 0, laws[0].log(), laws[0])
    models = BothModels(laws[1], laws[2], torch.randn(2, 1, HIDDEN, generator=random))
    return TreeRoot(here, lambda: models)
