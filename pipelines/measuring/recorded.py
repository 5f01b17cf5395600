"""What replay knows of timed arms: the profile's seconds of their rounds, timed ones and those along recorded texts.

Both are summed alike (`predictors.latency.prices`), without what the host spends on reading distributions, which timed rounds do
not tell apart. Arms that draft trees, for themselves or alongside the target are not covered: their gains rest on the clock
alone.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.reference import chain_policy
from pipelines.measuring.tables import Rows
from pipelines.outputs import absent
from pipelines.prompt_table import Prompt
from predictors.controllers.survival import SurvivalSession
from predictors.controllers.unlearned import Fixed
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.replay.acceptance import CHAIN_RULES
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.decode import plain_rounds
from predictors.replay.text import RecordedText
from predictors.rounds import ReplayedRound
from predictors.sampling import SamplingSettings
from predictors.training.tables import TextTable
from runtime import Decoder, ModelPair
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig
from runtime.identity import require_pair

ROUND = ("context", "drafted", "submitted", "passes", "asked", "looked_up")  # what prices read of a timed round


class RecordedTexts:
    """The text traces in ``folder``, cut to ``max_new_tokens``; where there is none, nothing is recorded."""

    def __init__(self, folder: Path | None, max_new_tokens: int) -> None:
        self.max_new_tokens = max_new_tokens
        self.table = None if folder is None or not folder.is_dir() or absent(folder) else TextTable.read(folder)

    @property
    def sha256(self) -> str | None:
        """Hash of their content."""
        return None if self.table is None else self.table.manifest.content_hash

    def require(self, pair: ModelPair) -> None:
        """`ContractError` unless they were recorded for ``pair``."""
        if self.table is not None:
            require_pair(
                self.table.manifest.capture_contract("traces texts").identity, pair, "the table of recorded texts"
            )

    def of(self, split: str) -> list[RecordedText]:
        """The texts of a split that fit the budget."""
        if self.table is None or split not in self.table.column("split"):
            return []
        cut = (text.within(self.max_new_tokens) for text in self.table.rows(split).texts())
        return [text for text in cut if text is not None]

    def first(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Prompts that are recorded first, else in their order."""
        return sorted(prompts, key=lambda prompt: prompt.id not in self._known)

    @cached_property
    def _known(self) -> set[str]:
        return {text.prompt_id for split in (VALIDATION, TEST) for text in self.of(split)}


class Accounts:
    """Arms by the prices of a latency ``profile``: ``arms`` are decoders by name, ``settings`` those that they are timed at."""

    def __init__(
        self, profile: LatencyProfile, arms: Mapping[str, Decoder], settings: Iterable[SamplingSettings]
    ) -> None:
        self.profile = profile
        self._prices = {sampled: RoundPrices(profile, sampled) for sampled in (False, True)}
        known = {(name, one): self._policy(decoder, one) for one in settings for name, decoder in arms.items()}
        self._policies = {key: policy for key, policy in known.items() if policy is not None}

    def profiled(self, decodes: Rows, rounds: Rows) -> Rows:
        """Add to ``decodes`` their ``profiled`` seconds: those that the profile gives their prefill and ``rounds``, or NaN."""
        own: dict[tuple[str, str], Rows] = {}
        for row in rounds:
            if not row["prefill"]:
                own.setdefault((row["arm"], row["block"]), []).append(row)
        return [row | {"profiled": self._decode(row, own.get((row["arm"], row["block"]), []))} for row in decodes]

    def replayed(self, texts: Iterable[RecordedText]) -> Rows:
        """Make a row per arm and text: its tokens, and the profile's seconds of the rounds that the arm would make of it. An
        arm is left out at a setting if it reads more than was recorded."""
        made: dict[tuple[str, SamplingSettings], Rows] = {key: [] for key in self._policies}
        for text in texts:
            for key in [key for key in made if key[1] == text.settings]:
                try:
                    made[key].append(self._text(key, text))
                except ValueError as error:
                    warnings.warn(f"{key[0]} is not replayed at {key[1].name}: {error}", stacklevel=2)
                    del made[key]
        return [row for rows in made.values() for row in rows]

    def _policy(self, decoder: Decoder, settings: SamplingSettings) -> "Policy | None":
        """Return a decoder's policy; ``None``: replay does not cover it."""
        decoder = decoder.route(settings)
        if type(decoder) is not SequentialDecoder or (decoder.invariant and not settings.greedy):
            return None  # of invariant texts, which are others, it would know the tokens
        drafter, controller, rule = decoder.drafter, decoder.controller, decoder.verifier.name
        if drafter is None:
            return Policy(None, 0.0)
        if rule not in CHAIN_RULES or (chain := chain_policy(drafter, controller, rule)) is None:
            return None
        return Policy(chain, controller.question_seconds(self.profile))

    def _decode(self, row: Mapping[str, Any], rounds: Rows) -> float:
        policy = self._policies.get((row["arm"], settings_of(row)))
        if policy is None:
            return math.nan
        counts = [{name: int(one[name] or 0) for name in ROUND} for one in rounds]
        made = [ReplayedRound(**one) for one in counts]  # type: ignore[arg-type]
        return self._seconds(policy, settings_of(row), row["prompt_tokens"], made)

    def _text(self, key: tuple[str, SamplingSettings], text: RecordedText) -> dict[str, Any]:
        policy = self._policies[key]
        made = plain_rounds(text) if policy.chain is None else list(replayed(text, policy.chain))
        where = {"arm": key[0], "prompt": text.prompt_id, "document": text.document, "slice": text.slice}
        seconds = self._seconds(policy, text.settings, text.prompt_tokens, made)
        return where | {"setting": text.settings.name, "tokens": text.length, "seconds": seconds}

    def _seconds(
        self, policy: "Policy", settings: SamplingSettings, prompt_tokens: int, rounds: Sequence[ReplayedRound]
    ) -> float:
        prices, drafts = self._prices[not settings.read_off], policy.chain is not None and policy.chain.drafts
        unread = [replace(one, confidences=0, entropies=0, behind=0) for one in rounds]
        return prices.prefill(prompt_tokens, drafts) + prices.rounds(unread, policy.question)


@dataclass(frozen=True)
class Policy:
    """A decoder's drafting policy, ``chain=None``: it drafts nothing; ``question``: seconds of a query of its model."""

    chain: ChainPolicy | None
    question: float


def same_decoders(
    arms: Mapping[str, Decoder], settings: Iterable[SamplingSettings]
) -> dict[str, frozenset[frozenset[str]]]:
    """Find by sampling setting the pairs of arms that are one decoder there: plain decoding, or the same static chain."""
    found = {}
    for one in settings:
        chains = {name: chain for name, decoder in arms.items() if (chain := static_chain(decoder, one)) is not None}
        found[one.name] = frozenset(
            frozenset({name, other}) for name in chains for other in chains if chains[name] == chains[other]
        )
    return found


def static_chain(decoder: Decoder, settings: SamplingSettings) -> tuple[int, float | None, str] | None:
    """Length, draft temperature and verifier of the one chain that ``decoder`` drafts in every round at ``settings``, a length
    of 0 where it drafts nothing; ``None``: none is known."""
    chosen = decoder.route(settings)
    if not isinstance(chosen, SequentialDecoder):
        return None
    if chosen.drafter is None:
        return 0, None, ""
    if (
        not isinstance(chosen.drafter, ChainConfig)
        or chosen.drafter.lookup
        or (chosen.drafter.leaves and settings.read_off)
    ):
        return None
    session = chosen.controller.start(settings)
    if isinstance(session, Fixed):
        length = session.gamma
    elif isinstance(session, SurvivalSession) and not session.setting.pays:
        length = session.setting.static_length
    else:
        return None
    most = chosen.drafter.gamma
    return most if length is None else min(length, most), chosen.drafter.draft_temperature, chosen.verifier.name


def settings_of(row: Mapping[str, Any]) -> SamplingSettings:
    """The sampling setting of a row."""
    return SamplingSettings.of(row)
