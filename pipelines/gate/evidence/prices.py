"""What rounds cost on a machine: the latency profile's cells, refined by the rounds that were timed in place.

    seconds of a component k in block b    Y_bk = X_bk exp(θ_k + β_b + noise)

X is what the profile says of the block's rounds, summed over its arms; exp(θ_k) corrects the profile, and β_b says how fast the
machine was in that block. Least squares of log(Y / X) by rounds, with Σ_b rounds_b β_b = 0:

    (diag(n_k) - Σ_b n_b n_b' / n_b+ + n n' / n_++) θ = Σ_b n_b (r_b - mean r_b) + n mean(r)

Blocks add up, so that the fit without a document is one subtraction. Source: two-way additive model with one factor swept out
(Searle, Linear Models, 1971, section 7.2).

Shape suffixes: B blocks, D documents, K components.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from predictors.latency.actions import undisturbed
from predictors.latency.profile import FIRST, LatencyProfile

TARGET_ROWS = (1, 4, 8)  # largest number of rows of a target pass in a component; the last holds all above
COMPONENTS = ("prefill", "draft", "target-1", "target-4", "target-8", "target-more", "verify", "question", "rest")
K, QUESTION = len(COMPONENTS), COMPONENTS.index("question")
PHASES = {"seconds_draft": "draft", "seconds_verify": "verify", "seconds_controller": "question"}
TARGET = "seconds_target"
Row = Mapping[str, Any]


class RoundParts:
    """Seconds of rounds on chains by component [K], as a latency ``profile`` has them; ``sampled``: at a temperature above 0.
    The last component counts rounds: what a decode spends between its phases is a price a round."""

    def __init__(self, profile: LatencyProfile, sampled: bool) -> None:
        self.profile, self.sampled = undisturbed(profile), int(sampled)
        self._round = cache(self._undecided)

    def prefill(self, tokens: int, drafts: bool) -> np.ndarray:
        """Of a prompt of so many ``tokens``; ``drafts``: the draft's too."""
        seconds = self.profile.latency("target_prefill", tokens=tokens).seconds
        seconds += self.profile.latency("draft_prefill", tokens=tokens).seconds * drafts
        return _vector({"prefill": seconds})

    def reading(self, confidences: int, entropies: int) -> float:
        """Of the host reading distributions: of so many the confidence, of so many the entropy, too."""
        counts = enumerate((confidences, entropies))
        return sum(
            count * self.profile.latency("reading", entropy=entropy).seconds for entropy, count in counts if count
        )

    def round(self, context: int, passes: int, submitted: int, deciding: float = 0.0, behind: int = 0) -> np.ndarray:
        """Of ``passes`` draft passes and ``submitted`` tokens after ``context`` cached ones, and the seconds of ``deciding``; the
        first pass feeds ``behind`` tokens more than usual."""
        seconds_K = self._round(context, passes, submitted, behind).copy()
        seconds_K[QUESTION] = deciding
        return seconds_K

    def _undecided(self, context: int, passes: int, submitted: int, behind: int) -> np.ndarray:
        price = self.profile.latency
        draft = sum(price("draft", rows=1, context=context + place).seconds for place in range(1, passes))
        if passes:
            first = FIRST if FIRST in self.profile.tables else "draft"
            draft += price(first, rows=1 + behind, context=context).seconds
            draft += price("chain_drawing", drafted=passes, sampled=self.sampled).seconds
        return _vector(
            {
                "draft": draft,
                target_component(1 + submitted): price("target", tokens=1 + submitted, context=context).seconds,
                "verify": price("chain_verification", drafted=submitted, sampled=self.sampled).seconds,
                "rest": 1.0,
            }
        )


def target_component(rows: int) -> str:
    """The component of a target pass over so many ``rows``.

    Examples
    --------
    >>> [target_component(rows) for rows in (1, 2, 4, 5, 9)]
    ['target-1', 'target-4', 'target-4', 'target-8', 'target-more']
    """
    return next((f"target-{most}" for most in TARGET_ROWS if rows <= most), "target-more")


@dataclass(eq=False)
class PriceFit:
    """Measured and profiled seconds by block and component, and the ``rounds_BK`` behind them (0: nothing to compare);
    ``factors_K`` on the profile's components that make up for the difference (of ``rest``: seconds a round)."""

    document_B: np.ndarray
    measured_BK: np.ndarray
    profiled_BK: np.ndarray
    rounds_BK: np.ndarray

    @staticmethod
    def of(
        decodes: Iterable[Row],
        rounds: Iterable[Row],
        profile: LatencyProfile,
        questions: Mapping[str, float] | None = None,
    ) -> "PriceFit":
        """From both tables. Decodes count if all their rounds are of chains, and draft and target took turns. ``questions``:
        seconds a query, by arm."""
        once = {(row["block"], row["order"]): row for row in decodes}  # one that stands for two arms counts once
        decoded = {(row["arm"], row["block"]): row for row in once.values()}
        parts = {sampled: RoundParts(profile, sampled) for sampled in (False, True)}
        cells: dict[str, np.ndarray] = {}
        left: dict[tuple[str, str], np.ndarray] = {}
        rounds = list(rounds)
        # Trees, or both models worked at the same time.
        unlike = (row for row in rounds if row.get("overlapped") or (row.get("nodes") or 0) > (row["submitted"] or 0))
        others = {(row["arm"], row["block"]) for row in unlike}
        drafting = {row["arm"] for row in rounds if row["passes"]}  # others may look up, and prefill no draft model
        for row, behind in zip(rounds, _behind(rounds, FIRST in profile.tables), strict=True):
            key = row["arm"], row["block"]
            if key not in decoded or key in others:
                continue
            part, seconds = parts[row["temperature"] > 0], {phase: row[phase] or 0.0 for phase in (*PHASES, TARGET)}
            if row["prefill"]:
                profiled = part.prefill(decoded[key]["prompt_tokens"], row["arm"] in drafting)
                measured = _vector({"prefill": sum(seconds.values())})
            else:
                passes, submitted = row["passes"] or 0, row["submitted"] or 0
                deciding = (row["asked"] or 0) * (questions or {}).get(row["arm"], 0.0)
                profiled = part.round(row["context"], passes, submitted, deciding, behind)
                profiled[-1] = 0.0  # the rest is known of whole decodes only
                own = {component: seconds[phase] for phase, component in PHASES.items()}
                measured = _vector(own | {target_component(1 + submitted): seconds[TARGET]})
            cell = cells.setdefault(row["block"], np.zeros((3, K)))
            cell += np.array([measured, profiled, np.ones(K)]) * ((measured > 0) & (profiled > 0))
            left.setdefault(key, np.zeros(2))
            left[key] += measured.sum(), not row["prefill"]
        for (arm, block), (inside, count) in left.items():
            rest = decoded[arm, block]["seconds"] - inside
            cells[block][:, -1] += (rest, count, count) if rest > 0 else 0
        documents = {row["block"]: row["document"] for row in decoded.values()}
        names = sorted(cells)
        measured_BK, profiled_BK, rounds_BK = np.array([cells[name] for name in names]).reshape(-1, 3, K).swapaxes(0, 1)
        return PriceFit(np.array([str(documents[name]) for name in names]), measured_BK, profiled_BK, rounds_BK)

    def __post_init__(self) -> None:
        known_BK = (self.measured_BK > 0) & (self.profiled_BK > 0)
        n_BK = np.where(known_BK, self.rounds_BK, 0.0)
        ratio_BK = np.log(np.where(known_BK, self.measured_BK, 1.0) / np.where(known_BK, self.profiled_BK, 1.0))
        n_B = np.maximum(n_BK.sum(axis=1), 1e-300)
        swept_BK = n_BK * (ratio_BK - ((n_BK * ratio_BK).sum(axis=1) / n_B)[:, None])
        products_BKK = n_BK[:, :, None] * n_BK[:, None, :] / n_B[:, None, None]
        names, place_B = np.unique(self.document_B, return_inverse=True)
        self._place = {str(name): place for place, name in enumerate(names)}
        terms = (n_BK, swept_BK, products_BKK, (n_BK * ratio_BK).sum(axis=1))
        self._by_document = [np.zeros((len(names), *term.shape[1:])) for term in terms]
        for summed, term in zip(self._by_document, terms, strict=True):
            np.add.at(summed, place_B, term)
        self._total = [term.sum(axis=0) for term in self._by_document]
        self.factors_K = _solved(*self._total)

    def without(self, document: str) -> np.ndarray:
        """Factors [K] of the fit that never saw ``document``."""
        if document not in self._place:
            return self.factors_K
        place = self._place[document]
        return _solved(*(total - terms[place] for total, terms in zip(self._total, self._by_document, strict=True)))

    def without_each(self, documents: Sequence[str]) -> np.ndarray:
        """Factors [D, K] without each of ``documents``."""
        return np.array([self.without(document) for document in documents])


def _vector(seconds: Mapping[str, float]) -> np.ndarray:
    return np.array([seconds.get(name, 0.0) for name in COMPONENTS])


def _behind(rounds: Sequence[Row], reads_states: bool) -> list[int]:
    """By round: tokens that its first draft pass feeds more than one (`predictors.rounds.ReplayedRound`). Only drafters with a
    lookup leave the draft model behind, but that one which reads the target's states runs over accepted tokens again."""
    looking = {row["arm"] for row in rounds if row.get("looked_up")}
    waiting: dict[tuple[str, str], int] = {}
    made = []
    for row in rounds:
        key, counts = (row["arm"], row["block"]), (reads_states or row["arm"] in looking) and not row["prefill"]
        made.append(waiting.get(key, 0) + (row["looked_up"] or 0) if counts and row["passes"] else 0)
        if counts:
            drew = row["emitted"] - 1 if reads_states else 0
            waiting[key] = drew if row["passes"] else waiting.get(key, 0) + row["emitted"]
    return made


def _solved(n_K: np.ndarray, swept_K: np.ndarray, products_KK: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """exp(θ); 1 for a component that was never measured (of the rest: no seconds)."""
    total, known_K = n_K.sum(), n_K > 1e-9
    factors_K = np.ones(K)
    factors_K[-1] = 0.0
    if total <= 0:
        return factors_K
    matrix_KK = np.diag(n_K) - products_KK + np.outer(n_K, n_K) / total
    wanted_K = swept_K + n_K * ratios / total
    chosen = np.ix_(known_K, known_K)
    factors_K[known_K] = np.exp(np.linalg.lstsq(matrix_KK[chosen], wanted_K[known_K], rcond=None)[0])
    return factors_K
