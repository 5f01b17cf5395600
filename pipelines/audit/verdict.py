"""From scores to a verdict: are tokens drawn from the target's probabilities?

    z = Σ s / (Σ E s²)^½                                    without a control
    z = (mean s - mean s') / (error² + error'²)^½           s': of a control, the engine without speculation

p-values of scores are two-sided, by the normal distribution or, if that is larger, by Pearson's type III of the sum's skewness;
``transform`` has that of Kolmogorov and Smirnov; an impossible token 0, or Fisher's against a control. By Bonferroni, tokens
are not drawn so where the least of k is below `LEVEL` / k. Against a control, errors are clustered by answers where that is
more, as what rounding does differs by prefix. Detectable with probability `POWER` are

    shift = (z_{1 - LEVEL / 2k} + z_POWER) error            ε = shift of the likeliest token / mean(1 - max p)

ε: share of tokens made the likeliest, a total variation of ε mean(1 - max p). First tokens come before any draft, but in
engines that draft before they read the prompt: where they deviate, the model, the prompt or the settings are others.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import fisher_exact, ks_2samp, kstest, norm, pearson3

from pipelines.audit.scores import SCORES, Columns

LEVEL, POWER = 0.01, 0.9
NOTHING = 1e-18  # variance of what rounding alone moves
ENOUGH = 0.2  # share of wrong tokens that has to be detectable
LOSSLESS, NOT_LOSSLESS, UNDECIDED = "LOSSLESS as far as these samples show", "NOT LOSSLESS", "UNDECIDED: too few tokens"
LOG_PROBABILITY, LIKELIEST = SCORES[0], SCORES[2]


def judged(tokens: Columns, control: Columns | None = None) -> dict[str, Any]:
    """Make a verdict's record from columns of `scores.scored`, and of each token its ``answer``, ``place`` there and
    ``position`` in its pass, -1 where the engine does not say it.

    A z by position is no part of the verdict: accepted tokens alone are no draws from p where blocks are verified as a whole.
    `ValueError` where most tokens, and most first ones, are less likely than blind guesses: they are not the target's.
    """
    first, first_control = _rows(tokens, tokens["place"] == 0), control and _rows(control, control["place"] == 0)
    gains = [float(np.median(one["gain"])) for one in (tokens, first)]
    if max(gains) < 0:
        raise ValueError(
            "these are not answers of this model to these prompts: log-probabilities of all tokens and of the first ones are "
            f"{gains[0]:.1f} and {gains[1]:.1f} over blind guesses. Check the served model, chat template and token ids."
        )
    found = {name: deviation(tokens, control, name) for name in SCORES if name in tokens}
    found |= {"transform": _transform(tokens, control), "impossible": _impossible(tokens, control)}
    largest = min(found, key=lambda name: (found[name]["p"], -abs(found[name]["z"])))
    known, bound = tokens["known"], LEVEL / len(found)
    reach, room = norm.isf(bound / 2) + norm.ppf(POWER), float((1 - tokens["top"])[known].sum()) / len(known)
    share = 1 - (1 - POWER) ** (1 / len(known))  # where nothing is drawn, one impossible token is enough
    share = min(1.0, reach * found[LIKELIEST]["error"] / room) if room else share
    verdict = LOSSLESS if share <= ENOUGH else UNDECIDED
    return {
        "verdict": NOT_LOSSLESS if found[largest]["p"] < bound else verdict,
        "largest": largest,
        "bound": bound,
        "deviations": found,
        "first_tokens_z": deviation(first, first_control)["z"],
        "z_by_position": [
            deviation(_rows(tokens, tokens["position"] == at))["z"] for at in range(tokens["position"].max() + 1)
        ],
        "detectable": {"share": share, "shift": reach * found[LOG_PROBABILITY]["error"], "variation": share * room},
        "answers": len(first["place"]),
        "tokens": len(known),
        "impossible": int(tokens["impossible"].sum()),
        "at_edge": int((~known & ~tokens["impossible"]).sum()),
        "entropy": (entropy := float(tokens["entropy"].mean())),
        "log_probability": float(tokens[LOG_PROBABILITY][0].mean()) - entropy,
    }


def deviation(tokens: Columns, control: Columns | None = None, name: str = LOG_PROBABILITY) -> dict[str, float]:
    """Compare the mean score of that name with 0, or with a control's: difference ``mean``, its ``error``, ``z`` and ``p``."""
    mean, variance, third = _moments(tokens[name], tokens["answer"], control is not None)
    if control is not None:
        other, own, skewed = _moments(control[name], control["answer"], True)
        mean, variance, third = mean - other, variance + own, third - skewed
    if variance < NOTHING:
        return {"mean": mean, "error": 0.0, "z": 0.0, "p": 1.0}
    error, z = variance**0.5, mean / variance**0.5
    tail = max(norm.sf(abs(z)), pearson3.sf(abs(z), float(np.sign(z)) * third / error**3))
    return {"mean": mean, "error": error, "z": z, "p": min(1.0, 2 * float(tail))}


def lines(record: Mapping[str, Any]) -> list[str]:
    """Say a record in five lines; besides its own entries it has ``setting``, ``format`` and ``control``."""
    worst, power, positions = record["deviations"][record["largest"]], record["detectable"], record["z_by_position"]
    others = " ".join(f"{z:+.1f}" for z in positions[:6] or [record["first_tokens_z"]])
    places = "by position" if positions else "of first tokens"
    control = "against the control" if record["control"] else "no control: another number format counts as a deviation"
    return [
        record["verdict"],
        f"largest: {record['largest']} {worst['mean']:+.3g} a token (z {worst['z']:+.1f}, p {worst['p']:.2g}, bound "
        f"{record['bound']:.2g}); z {places} {others}",
        f"found with probability {POWER:g}: {power['shift']:.2g} nats a token, or {power['share']:.1%} of tokens made the "
        f"likeliest (TV {power['variation']:.2g})",
        f"settings: {record['setting']}; judged in {record['format']}; {control}",
        f"counts: {record['answers']} answers, {record['tokens']} tokens, {record['impossible']} impossible, "
        f"{record['at_edge']} at an edge; log-probability {record['log_probability']:.2f}, entropy {record['entropy']:.2f}",
    ]


def _rows(tokens: Columns, rows: np.ndarray) -> Columns:
    return {name: column[..., rows] for name, column in tokens.items()}


def _moments(score_3N: np.ndarray, answer_N: np.ndarray, clustered: bool) -> list[float]:
    """Mean, variance and third moment of a mean score; the variance clustered by answers where that is more."""
    mean, variance, third = score_3N.sum(-1) / max(1, score_3N.shape[1]) ** np.array([1.0, 2.0, 3.0])
    if clustered:
        sums_A = np.bincount(answer_N, score_3N[0] - mean) / max(1, score_3N.shape[1])
        variance = max(variance, np.square(sums_A).sum() * len(sums_A) / max(1, len(sums_A) - 1))
    return [float(mean), float(variance), float(third)]


def _transform(tokens: Columns, control: Columns | None) -> dict[str, float]:
    drawn = [one["transform"][one["known"] & (one["top"] < 1)] for one in (tokens, control) if one is not None]
    if not all(map(len, drawn)):
        return {"mean": 0.0, "z": 0.0, "p": 1.0}
    p = float((kstest(drawn[0], "uniform") if control is None else ks_2samp(*drawn)).pvalue)
    centre = 0.5 if control is None else drawn[1].mean()
    return {"mean": float(drawn[0].mean() - centre), "z": float(norm.isf(max(p, 1e-300) / 2)), "p": p}


def _impossible(tokens: Columns, control: Columns | None) -> dict[str, float]:
    table = [[one["impossible"].sum(), (~one["impossible"]).sum()] for one in (tokens, control) if one is not None]
    p = float(table[0][0] == 0) if control is None else float(fisher_exact(table, alternative="greater").pvalue)
    return {"mean": float(tokens["impossible"].mean()), "z": 0.0, "p": p}
