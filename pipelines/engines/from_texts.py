"""What engines read that follows from recorded texts, one request at a time: a rule for lookups in vLLM, and files of SGLang.

    rule            hazards of `pipelines.engines.draftwright_proposer`, learned as those of `predictors.controllers.source`
    tiers           ``--speculative-adaptive-config``: draft lengths by batch size; at 1 the best static ones of the thirds of the
                    validation texts by acceptance
    cost table      ``SpsCostTable`` of DSpark: steps per second by tokens verified
    temperatures    ``DSparkStsCalibration``: t of σ(logit / t) by position; the logit is of the draft's largest probability

SGLang's names are of its main branch in 2026. Shape suffixes: X texts, S starts, N rows, L tokens, V rounds, G positions, D
drafts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit, logit

from pipelines.engines.draftwright_proposer import Rule
from predictors.latency.prices import RoundPrices
from predictors.lookup import LONGEST, LookupSettings
from predictors.replay.grid import DecodePath, Starts, decoded
from predictors.replay.policies import Lookups, static
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.schema import SPLITS, TEST, TRAIN, VALIDATION
from predictors.training.calibration import binary, sequential_temperatures
from predictors.training.intervals import log_gain
from predictors.training.predictor import static_length, static_totals
from predictors.training.source_contest import hazard_of
from predictors.training.tables import TextTable

Record = dict[str, Any]
FIXED = {"least": 2, "length": 5}  # a lookup near to vLLM's n-grams
LARGER = {"8": [0, 1, 3], "32": [0, 1], "64": [0]}  # SGLang's own tiers from these batch sizes on
EDGE = 1e-6  # a probability of 1 has no logit


def lookup_rule(
    table: TextTable, settings: SamplingSettings, prices: RoundPrices, measured: Record | None = None
) -> tuple[Record, Record]:
    """Fit ``rule.json`` at a sampling setting, and say what it gains over plain decoding and over a fixed lookup. ``measured``:
    an engine's own seconds by rows; else this runtime's. `ValueError` if lookups find nothing in the training texts."""
    train, test = (lookups_of(table, split, settings, prices) for split in (TRAIN, TEST))
    length, context = table.manifest.gamma_max, table.median_context
    if measured is None:
        seconds = np.maximum.accumulate([prices.round((), drafted, context) for drafted in range(length + 1)])
        measured = {"rows": [*range(1, length + 2)], "seconds": seconds.tolist()}
    record = {"longest": LONGEST, "length": length, "hazard": [*hazard_of(train)], **measured}
    rule, document_X, known = Rule(record), test.starts.document_X, (test.most_XS, test.match_XS, *test.known[2:])
    survival = rule.survival(*(one.ravel() for one in known))
    ours_XS = np.array([rule.lengths(one[None], 1)[0] for one in survival]).reshape(test.match_XS.shape)
    fixed_XS = np.where(test.match_XS >= FIXED["least"], np.minimum(test.most_XS, FIXED["length"]), 0)
    ours, fixed, plain = (served(test, rule, one) for one in (ours_XS, fixed_XS, np.zeros_like(ours_XS)))
    over = {name: log_gain(ours, one, document_X) for name, one in (("plain", plain), ("fixed", fixed))}
    return record, {"held_out": sorted({*document_X.tolist()}), "fixed": FIXED, "gain_over": over}


def lookups_of(table: TextTable, split: str, settings: SamplingSettings, prices: RoundPrices) -> Lookups:
    """What lookups find in a split's texts at a sampling setting, continued as the proposer does it."""
    depth, verifier = table.manifest.gamma_max, table.manifest.verifier
    texts = [continued(text) for text in table.rows(split).texts() if text.settings == settings]
    return Lookups(replace(Starts.of(texts, depth, verifier, prices), lookup=LookupSettings(depth)))


def continued(text: RecordedText) -> RecordedText:
    """``text`` with lookups that begin anew after the newest token."""
    lookup_NL = text.columns["lookup"]
    count_N1 = np.maximum((lookup_NL >= 0).sum(axis=1), 1)[:, None]
    lookup_NL = np.take_along_axis(lookup_NL, np.arange(lookup_NL.shape[1]) % count_N1, axis=1)
    return replace(text, columns={**text.columns, "lookup": lookup_NL})


def served(lookups: Lookups, rule: Rule, length_XS: np.ndarray) -> np.ndarray:
    """Tokens after the first, and seconds [2, X], where so much is drafted in a round from every start."""
    starts = lookups.starts
    path = DecodePath.of(starts, lambda *cells: (length_XS[cells], length_XS[cells]), lambda *_: ())
    return np.stack([starts.left_XS[:, 0], starts.summed(path, rule.seconds(1 + path.drafted[0]))])


def sglang_files(table: TextTable, settings: SamplingSettings, prices: RoundPrices) -> tuple[Record, Record]:
    """Make SGLang's files by name, and say what the best static length gains over plain decoding."""
    depth, verifier, context = table.manifest.gamma_max, table.manifest.verifier, table.median_context
    starts = {split: table.rows(split).starts(settings, depth, verifier, prices)[0] for split in SPLITS}
    texts, test = sorted(starts[VALIDATION].texts, key=lambda one: one.columns["accepted"].mean()), starts[TEST]
    thirds = [texts[place * len(texts) // 3 : (place + 1) * len(texts) // 3] for place in range(3)]
    tiers = sorted({static_length([Starts.of(some, depth, verifier, prices)]) for some in thirds})
    length = static_length([starts[VALIDATION]])
    drawn, plain = (static_totals(test, one).sums_2X for one in (length, 0))
    rates = [1 / prices.round((1,) * depth, tokens, context, chain=depth) for tokens in range(depth + 1)]
    drafts, ones = {split: confidences(one) for split, one in starts.items()}, [1.0] * depth
    tried = sequential_temperatures(*drafts[TRAIN]), ones
    kept = min(tried, key=lambda temperatures: sum(errors(*drafts[VALIDATION], temperatures)))
    before, after = (errors(*drafts[TEST], temperatures) for temperatures in (ones, kept))
    rows, counts = [*range(1, depth + 2)], {"dataset": "test documents", "num_samples": len(drafts[TEST][0])}
    files = {
        "adaptive.json": {batch: {"candidate_steps": steps} for batch, steps in {"1": tiers, **LARGER}.items()},
        "dspark_sps.json": {"sample_batch_tokens": rows, "sample_steps_per_sec": rates, "max_batch_tokens": rows[-1]},
        "dspark_sts.json": {"temperatures": kept, **counts, "ece_before": before, "ece_after": after},
    }
    evidence = {"held_out": sorted({*test.document_X.tolist()}), "static_length": length}
    return files, evidence | {"gain_over_plain": log_gain(drawn, plain, test.document_X)}


def confidences(starts: Starts) -> tuple[np.ndarray, np.ndarray]:
    """Collect logits [D, G] of the draft's largest probability, and whether tokens survive, in drafts of always all tokens."""
    path = decoded(starts, static(starts, starts.depth)).path
    assert path is not None
    whole_V = starts.cap_XS[path.text_V, path.start_V] == starts.depth
    cells = path.text_V[whole_V], path.start_V[whole_V]
    chance_DG = np.clip(starts.column("confidence")[cells].astype(float), EDGE, 1 - EDGE)
    return logit(chance_DG), starts.would_XS[cells][:, None] > np.arange(starts.depth)


def errors(logits_DG: np.ndarray, survives_DG: np.ndarray, temperatures: Sequence[float]) -> list[float]:
    """Measure the calibration error of survival by position."""
    survival_DG = np.cumprod(expit(logits_DG / np.array(temperatures)), axis=1)
    return [binary(*pair)["ece"] for pair in zip(survival_DG.T, survives_DG.T, strict=True)]
