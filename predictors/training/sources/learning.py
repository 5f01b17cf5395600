"""What ``source`` learns of one sampling setting: every source is scored at every start of the training texts, for nothing.

    hazard     logistic regression on every token of every lookup up to the first wrong one
    gained     mean tokens of a tail after a lookup that was accepted whole
    chain      least squares of tokens emitted and drafted by the rounds of ``survival``, after rounds of all kinds

Shape suffixes: X readings, S starts, L tokens of a lookup, V rounds, F features.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression

from predictors.latency.actions import undisturbed
from predictors.latency.profile import LatencyProfile
from predictors.source_rule import Seen, SourceRule, root_features, token_features
from predictors.training.sources.contest import Contest, Options
from predictors.training.survival.model import LENGTHS

LEAST_SCALE = 1e-3
MIDDLE = LENGTHS[len(LENGTHS) // 2]


def learned(train: Contest, profile: LatencyProfile, context: float) -> SourceRule:
    """The rule at the rate of chains, before anything says that it pays."""
    options = train.options
    features_VF, tokens_V, drafted_V = _chains(train)
    chain = [tuple(np.linalg.lstsq(features_VF, one_V, rcond=None)[0].tolist()) for one_V in (tokens_V, drafted_V)]
    scale_F = features_VF.std(axis=0)
    rule = SourceRule(
        share=1.0,
        hazard=_hazard(options),
        tails=options.tails,
        gained=_gained(options),
        tokens=chain[0],
        drafted=chain[1],
        costs=((1.0,) * (1 + _length(options)),) * len(options.tails),
        behind=0.0,
        mean=tuple(features_VF.mean(axis=0).tolist()),
        scale=tuple(np.where(scale_F > LEAST_SCALE, scale_F, 1.0).tolist()),
    )
    return rule.at_prices(undisturbed(profile), context, not train.inner.settings.greedy)


def distances(contest: Contest, rule: SourceRule) -> np.ndarray:
    """How far roots where something is found are from those learned from [V]."""
    return np.asarray(rule.chosen(_roots(contest, MIDDLE)[1], 1.0, contest.inner.costs).far)


def right(options: Options) -> np.ndarray:
    """Tokens of every lookup that are the text's [X, S]."""
    would_XS = options.lookups.starts.would_LXS[_length(options)]
    return np.minimum(would_XS, options.lookups.found_XS)


def tested(options: Options) -> np.ndarray:
    """Which tokens of every lookup all before which are the text's, as far as that goes [X, S, L]."""
    lookups, place_L = options.lookups, np.arange(_length(options))
    reach_XS = np.minimum(lookups.found_XS, lookups.starts.left_XS)
    return np.asarray((place_L <= right(options)[..., None]) & (place_L < reach_XS[..., None]))


def _length(options: Options) -> int:
    return len(options.lookups.starts.would_LXS) - 1


def _hazard(options: Options) -> tuple[float, ...]:
    lookups, tested_XSL = options.lookups, tested(options)
    none_XS = np.zeros(lookups.match_XS.shape)
    seen = Seen(lookups.match_XS, lookups.found_XS, lookups.seen_XS, lookups.agreed_XS, none_XS, none_XS)
    features_NZ = token_features(seen, tested_XSL.shape[-1])[tested_XSL]
    right_N = (np.arange(tested_XSL.shape[-1]) < right(options)[..., None])[tested_XSL]
    if not len(right_N):
        raise ValueError(
            "lookups propose no token along the training texts, so when they pay cannot be learned. Raise prompts.train and "
            "traces.texts.prompts, or traces.texts.max_new_tokens."
        )
    if right_N.all() or not right_N.any():  # one of either kind more, as by the rule of succession
        features_NZ = np.concatenate([features_NZ, np.tile(features_NZ.mean(axis=0), (2, 1))])
        right_N = np.append(right_N, [True, False])
    model = LogisticRegression(fit_intercept=False, max_iter=1000).fit(features_NZ, right_N)
    return tuple(model.coef_[0].tolist())


def _gained(options: Options) -> tuple[float, ...]:
    lookups, would_LXS = options.lookups, options.lookups.starts.would_LXS
    count_L = np.arange(len(would_LXS))[:, None, None]
    room_LXS = np.minimum(lookups.starts.left_XS, lookups.starts.depth) - count_L
    whole_LXS = (would_LXS >= count_L) & (count_L > 0) & (count_L <= lookups.found_XS)
    made = []
    for tail in options.tails:
        there_LXS = whole_LXS & (room_LXS > tail)
        more_LXS = np.minimum(would_LXS - count_L, tail)
        made.append(float(more_LXS[there_LXS].mean()) if there_LXS.any() else 0.0)
    return tuple(made)


def _roots(contest: Contest, length: int) -> tuple[list[np.ndarray], Seen]:
    """Rounds [V] of a static chain of ``length`` tokens at whose roots something is found, and what is known there."""
    path = contest.chains.grid.static(length)
    found_V = contest.options.lookups.match_XS[path.reading_V, path.start_V] > 0
    rounds = [one[found_V] for one in path.places]
    return rounds, contest.options.seen(*rounds)


def _chains(contest: Contest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of chains where something is found: what their roots know, tokens emitted and drafted [V]."""
    made, chains = [], contest.chains
    for length in LENGTHS:
        rounds, seen = _roots(contest, length)
        drafted_V, _ = chains.chain(*rounds)
        accepted_V = np.minimum(chains.grid.starts.would_XS[rounds[0], rounds[1]], drafted_V)
        made.append((root_features(seen), accepted_V + 1.0, drafted_V.astype(float)))
    features_VF, tokens_V, drafted_V = (np.concatenate(column) for column in zip(*made, strict=True))
    return features_VF, tokens_V, drafted_V
