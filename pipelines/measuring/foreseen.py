"""What replay foresees of measured arms: every recorded text of a split, and every timed decode with its own text and luck.

    texts    recorded texts at the timed settings
    timed    a decode's own text; above temperature 0 recorded anew with the luck that the decode was led with
             (`runtime.leading.leader`)

Both are seconds by component (`RoundParts`), not prices yet. Arms that draft trees, for themselves or beside the target are not
covered: what is said of them rests on the clock alone. Shape suffix: K components.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.gate.evidence.ledger import Replayed
from pipelines.gate.evidence.prices import PriceFit, RoundParts
from pipelines.measuring.bench import Bench
from pipelines.measuring.led import RecordedTexts
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.reference import chain_policy
from pipelines.places import read_device_profile
from pipelines.prompt_table import Prompt
from predictors.latency.profile import LatencyProfile
from predictors.replay.acceptance import CHAIN_RULES
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.decode import plain_rounds
from predictors.replay.text import RecordedText
from predictors.sampling import SamplingSettings
from predictors.training.text_table import ROOT, STATES
from runtime import Decoder, ModelPair, Randomness
from runtime.decoding.sequential import SequentialDecoder
from runtime.leading.leader import KEEP, seeded_uniforms
from trace_collection.text_tracer import TextTracer

Row = Mapping[str, Any]
Trace = Callable[[Row], RecordedText | None]  # of a decode's row: the text that came out, recorded now


@dataclass(frozen=True)
class Policy:
    """What a decoder drafts, ``chain=None``: nothing; ``question``: seconds of a query of its model."""

    chain: ChainPolicy | None
    question: float = 0.0

    @property
    def drafts(self) -> bool:
        """Whether a draft model is prefilled, too."""
        return self.chain is not None and self.chain.drafts


def policy_of(decoder: Decoder, settings: SamplingSettings, profile: LatencyProfile) -> Policy | None:
    """The policy of a decoder that drafts chains or nothing; ``None``: replay does not cover it."""
    decoder = decoder.route(settings)
    if type(decoder) is not SequentialDecoder:
        return None
    drafter, controller, rule = decoder.drafter, decoder.controller, decoder.verifier.name
    if drafter is None:
        return Policy(None)
    if rule not in CHAIN_RULES or (chain := chain_policy(drafter, controller, rule)) is None:
        return None
    return Policy(chain, controller.question_seconds(profile))


class Foresight:
    """On a machine of ``profile``, with ``recorded`` texts; ``trace`` records one that is missing there."""

    def __init__(
        self, profile: LatencyProfile, recorded: Sequence[RecordedText], trace: Trace = lambda row: None
    ) -> None:
        self.profile, self.recorded, self.trace = profile, recorded, trace
        self._parts = {sampled: RoundParts(profile, sampled) for sampled in (False, True)}
        self._known = {(text.prompt_id, text.settings): text for text in recorded}
        self._texts: dict[tuple[str, SamplingSettings, tuple[int, ...], int], RecordedText | None] = {}

    def of(self, arms: Mapping[str, Decoder], decodes: Sequence[Row], rounds: Iterable[Row]) -> Replayed | None:
        """What replay says of timed ``decodes`` of ``arms`` by name, and of recorded texts of the same split.

        An arm is left out whole if it is not covered, or if one of its decodes is of a text that is not to be had.
        """
        policies: dict[str, Mapping[SamplingSettings, Policy]] = {}
        timed = Rows()
        for name, decoder in arms.items():
            own = [row for row in decodes if row["arm"] == name]
            made = {one: policy_of(decoder, one, self.profile) for one in {settings_of(row) for row in own}}
            known = {one: policy for one, policy in made.items() if policy is not None}
            rows = self._timed(known, own) if len(known) == len(made) else None
            if rows:
                policies[name] = known
                timed += rows
        if not timed:
            return None
        questions = {name: max(one.question for one in some.values()) for name, some in policies.items()}
        traced = {(one.prompt_id, one.settings): one for one in self._texts.values() if one is not None}
        known_texts = (traced | self._known).values()
        texts = [row for name, some in policies.items() for row in self._replayed(name, some, known_texts)]
        prices = PriceFit.of([row for row in decodes if row["arm"] in policies], rounds, self.profile, questions)
        return Replayed(texts, timed, prices)

    def _timed(self, policies: Mapping[SamplingSettings, Policy], decodes: Sequence[Row]) -> Rows | None:
        """A row per decode; ``None`` if replay cannot tell of one, as of a controller that reads more than was recorded."""
        made = Rows()
        for row in decodes:
            policy = policies[settings_of(row)]
            try:
                if len(row["output"]) == 1:  # a prefill
                    tokens = 1
                    spent_K = self._parts[row["temperature"] > 0].prefill(row["prompt_tokens"], policy.drafts)
                elif (text := self._text(row)) is None:
                    return None
                else:
                    tokens, spent_K = text.length, self._spent(policy, text)
            except ValueError as error:
                warnings.warn(f"{row['arm']} is not replayed: {error}", stacklevel=2)
                return None
            made.append({"arm": row["arm"], "block": row["block"], "tokens": tokens, "parts": spent_K.tolist()})
        return made

    def _replayed(self, arm: str, policies: Mapping[SamplingSettings, Policy], texts: Iterable[RecordedText]) -> Rows:
        """A row per text at the settings of ``policies``."""
        return [
            {
                "arm": arm,
                "prompt": text.prompt_id,
                "document": text.document,
                "slice": text.slice,
                **asdict(text.settings),
                "tokens": text.length,
                "parts": self._spent(policy, text).tolist(),
            }
            for text in texts
            if (policy := policies.get(text.settings)) is not None
        ]

    def _text(self, row: Row) -> RecordedText | None:
        """The text of a decode with its luck; where none is to be had, another one of its prompt."""
        settings, output = settings_of(row), tuple(row["output"])
        known, key = self._known.get((row["prompt"], settings)), (row["prompt"], settings, output, row["seed"])
        if settings.greedy and known is not None and tuple(known.tokens) == output:
            return known
        if key not in self._texts:
            self._texts[key] = self.trace(row) or known
        return self._texts[key]

    def _spent(self, policy: Policy, text: RecordedText) -> np.ndarray:
        """Seconds by component [K] of a whole decode."""
        parts = self._parts[not text.settings.greedy]
        spent_K = parts.prefill(text.prompt_tokens, policy.drafts)
        for one in plain_rounds(text) if policy.chain is None else replayed(text, policy.chain):
            asking = one.asked * policy.question + parts.reading(one.confidences, one.entropies)
            spent_K = spent_K + parts.round(one.context, one.passes, one.submitted, asking, one.behind)
        return np.asarray(spent_K)


def recorder(pair: ModelPair, texts: RecordedTexts, prompts: Iterable[Prompt]) -> Trace:
    """Records the texts of timed decodes of ``prompts`` by ``pair`` as far as ``texts`` are. There is none of a single token,
    which has no rounds, and of an unknown prompt."""
    table, by_id = texts.table, {prompt.id: prompt for prompt in prompts}
    assert table is not None
    manifest = table.manifest

    @cache
    def tracer() -> TextTracer:  # made when a text is to be recorded, as it takes the recorded states to be known
        return TextTracer(
            pair,
            gamma_max=manifest.gamma_max,
            budget=texts.max_new_tokens,
            candidates=manifest.candidates,
            layers=tuple(manifest.feature_layers),
            spec=manifest.stop_spec,
            state_slots=table.slots(STATES).shape[1],
            verifier=manifest.verifier,
        )

    def record(row: Row) -> RecordedText | None:
        prompt, settings = by_id.get(row["prompt"]), settings_of(row)
        if prompt is None:
            return None
        uniform = seeded_uniforms(row["seed"])
        kept_N = np.array([uniform(place, KEEP) for place in range(1, len(row["output"]))])
        luck_2N = np.stack([kept_N, kept_N])
        rows = tracer().trace(prompt.tokens, list(row["output"]), settings, Randomness(row["seed"]), luck_2N)
        if not rows:
            return None
        columns, where = dict(rows), {"prompt_id": prompt.id, "document": prompt.document, "slice": prompt.slice}
        root_NS = columns.pop(ROOT)
        return manifest.text(where, settings, len(prompt.tokens), texts.max_new_tokens, columns, root_NS)

    return record


def settings_of(row: Row) -> SamplingSettings:
    """The sampling setting of a row."""
    return SamplingSettings(row["temperature"], row["top_k"], row["top_p"])


def foreseen(
    bench: Bench,
    latency: Path,
    arms: Mapping[str, Decoder],
    texts: RecordedTexts,
    prompts: Sequence[Prompt],
    decodes: Rows,
    rounds: Rows,
) -> Replayed | None:
    """What replay says of timed ``decodes`` of test ``prompts``, and of the reserve's; nothing without recorded texts."""
    if texts.table is None or bench.pair.draft is None:
        return None
    profile = read_device_profile(latency, bench.device["slug"])
    timed = [row for row in decodes if row["split"] != VALIDATION]
    return Foresight(profile, texts.of(TEST), recorder(bench.pair, texts, prompts)).of(arms, timed, rounds)
