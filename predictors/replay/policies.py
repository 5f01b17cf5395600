"""What policies draft at every start of recorded texts (`predictors.replay.grid`), as the sessions of `predictors.controllers` do.

    static        n tokens
    confidence    draft while max_x q(x) >= ε                                   (`controllers.confidence`)
    stopping      a model of the draft's states, by a `StopRule`                (`controllers.early_stop`)
    heads         a model of the target's state, by a class or a length         (`controllers.hrad`, `controllers.length`)

A rule that stops in front of a token has paid for the pass whose distribution it read.

Shape suffixes: X readings, S starts, G positions of a chain, M states of memory, L classes.
"""

import numpy as np

from predictors.replay.grid import Drafts, Starts


def static(starts: Starts, length: int) -> Drafts:
    """Always ``length`` tokens."""
    return _drafts(np.minimum(starts.cap_XS, length)[..., None])


def confidence(starts: Starts, largest_XSG: np.ndarray, epsilon: float, min_tokens: int = 1) -> Drafts:
    """Draft while ``largest_XSG`` >= ``epsilon``, but at least ``min_tokens``."""
    low_XSG = largest_XSG < epsilon
    low_XSG[..., :min_tokens] = False
    submitted_XS = np.minimum(_first(low_XSG), starts.cap_XS)
    passes_XS = np.minimum(submitted_XS + 1, starts.cap_XS)
    read_XS = np.maximum(passes_XS - min_tokens, 0)
    return _drafts(submitted_XS[..., None], passes_XS[..., None], confidences_XSM=read_XS[..., None])


def _first(stops_XSG: np.ndarray) -> np.ndarray:
    """The first position at which drafting stops [X, S], or G."""
    return np.where(stops_XSG.any(axis=-1), stops_XSG.argmax(axis=-1), stops_XSG.shape[-1])


def _drafts(
    submitted_XSM: np.ndarray,
    passes_XSM: np.ndarray | None = None,
    asked_XSM: np.ndarray | None = None,
    confidences_XSM: np.ndarray | None = None,
) -> Drafts:
    none_XSM = np.zeros_like(submitted_XSM)
    return Drafts(
        submitted_XSM,
        submitted_XSM if passes_XSM is None else passes_XSM,
        none_XSM if asked_XSM is None else asked_XSM,
        none_XSM if confidences_XSM is None else confidences_XSM,
        none_XSM,
    )
