"""One text's text traces: both models' laws along it, and rollouts of the draft beside it (`trace_collection.texts`).

Shape suffixes: N places, G slots (γ_max), V vocabulary, K tapped layers, D hidden size, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predictors.features import state_vector
from predictors.lookup import longest_matches
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root
from predictors.stopping.features import StopSpec, draft_state
from runtime import ModelPair
from runtime.adapter import Forward, ModelState
from runtime.drafting.draft import fit_vocabulary
from runtime.drafting.views import Row, rows_of
from runtime.laws import processed_law
from runtime.randomness import Chance
from trace_collection.candidate_hits import LEAST_MASS, candidate_hits
from trace_collection.collection import Rows

LONGEST_MATCH = 16  # tokens: longer ones say no more


@dataclass(frozen=True)
class Extent:
    """How far a text is traced: rollouts of up to ``gamma_max`` tokens within the ``budget`` of new ones, hits and masses of up
    to ``candidates`` tokens, the target's ``layers``, and what is stored of the draft (``spec``)."""

    gamma_max: int
    budget: int
    candidates: int
    layers: tuple[int, ...]
    spec: StopSpec


@dataclass
class Slot:
    """A law of the draft, and the token that was drawn from it beside the text; ``None`` where nothing was."""

    law: NextLaw
    token: Tensor | None = None


class TextTracer:
    """Walks along texts of ``pair``."""

    def __init__(self, pair: ModelPair, extent: Extent) -> None:
        assert pair.draft is not None
        self.pair, self.draft, self.extent = pair, pair.draft, extent

    @torch.inference_mode()
    def trace(self, prompt: list[int], text: list[int], settings: SamplingSettings, chance: Chance) -> Rows:
        """Columns of `TEXT_COLUMNS`, but for the prompt's own, at places 1, 2, … of ``text``."""
        if len(text) < 2:
            return []
        target_NV, root_N = self._target(prompt, text, settings)
        draft = self.draft.open(len(prompt) + len(text) * self.extent.gamma_max, self.extent.spec.draft_layers)
        laws = self._along(draft, prompt, text, settings)
        slots = self._beside(draft, laws, target_NV, chance)
        lookups = self._lookups(prompt, text)
        tokens = torch.tensor(text[1:], device=target_NV.device)
        compared = self._compared(laws, target_NV, tokens, settings, chance)
        return [
            {"place": place, "position": len(prompt) + place, "newest": text[place - 1], "token": token, "root": root}
            | {name: numbers[place - 1] for name, numbers in compared.items()}
            | {"beside_ratio": _ratio(beside[0], target_NV[place - 1])}
            | lookup
            | self._slots(beside)
            for place, (token, root, beside, lookup) in enumerate(
                zip(text[1:], root_N, slots, lookups, strict=True), start=1
            )
        ]

    def _lookups(self, prompt: list[int], text: list[int]) -> list[dict[str, Any]]:
        """By place: what followed the longest match of the tokens in front of it."""
        tokens, size = [*prompt, *text], self.extent.gamma_max
        matches = longest_matches(tokens, LONGEST_MATCH)[len(prompt) : -1]
        return [
            {"match": match.length, "lookup": _filled(tokens[match.start : min(end, match.start + size)], size, -1)}
            for end, match in enumerate(matches, start=len(prompt) + 1)
        ]

    def _target(
        self, prompt: list[int], text: list[int], settings: SamplingSettings
    ) -> tuple[Tensor, list[np.ndarray]]:
        """The target's laws of the text's tokens but the first [N, V], and its state in front of a round at each."""
        state = self.pair.target.open(len(prompt) + len(text), self.extent.layers)
        ahead, inside = _walk(state, prompt, text[:-1])
        assert inside is not None
        law_NV = processed_law(inside.logits, settings)
        if (
            settings.greedy
        ):  # the text has decided, where passes over one token and over many round a near-tie differently
            law_NV = torch.zeros_like(law_NV).scatter_(
                1, torch.tensor(text[1:], device=law_NV.device).unsqueeze(1), 1.0
            )
        return law_NV, [self._root(ahead, inside, place, token) for place, token in enumerate(text[:-1])]

    def _root(self, ahead: Forward, inside: Forward, place: int, newest: int) -> np.ndarray:
        """The state at the row whose logits produced the ``newest`` token, and that token's embedding; empty without taps."""
        if ahead.hidden_NKD is None or inside.hidden_NKD is None:
            return np.zeros(0, np.float16)
        hidden_KD = inside.hidden_NKD[place - 1] if place else ahead.hidden_NKD[-1]
        return _finite(state_vector(hidden_KD, self.pair.target.embedding(newest)), "target", "layers")

    def _along(
        self, state: ModelState, prompt: list[int], text: list[int], settings: SamplingSettings
    ) -> list[NextLaw]:
        """The draft's laws of the text's tokens but the first; all tokens but the last two stay in ``state``'s scratch."""
        ahead, inside = _walk(state, [*prompt, text[0]], text[1:-1])
        rows = [self._rows(ahead)[-1], *([] if inside is None else self._rows(inside))]
        return [self._law(row, settings, len(prompt) + place) for place, row in enumerate(rows, start=1)]

    def _beside(
        self, state: ModelState, laws: Sequence[NextLaw], target_NV: Tensor, chance: Chance
    ) -> list[list[Slot]]:
        """By place: the law along the text with a token that is rejected there, and a rollout of the draft behind it."""
        draft_NV = torch.stack([law.probs_V for law in laws]).to(target_NV)
        surplus_NV = (draft_NV - target_NV).clamp(min=0)
        slots = [[Slot(law)] for law in laws]
        active = [place for place, mass in enumerate(surplus_NV.sum(1).tolist()) if mass > LEAST_MASS]
        if active:
            for place, token in zip(active, chance.categorical(surplus_NV[active]), strict=True):
                slots[place][0].token = token
        parents = {place: place - 1 for place in active}  # in scratch; -1: the committed end
        fed = len(laws) - 1
        while active := [place for place in active if self._goes_on(slots[place], place)]:
            tokens = torch.stack([_last(slots[place]) for place in active])
            rows = self._rows(state.forward(tokens, [parents[place] for place in active]))
            parents = {place: fed + number for number, place in enumerate(active)}
            fed += len(active)
            grown = [self._law(row, laws[0].settings, 0) for row in rows]
            drawn = chance.categorical(torch.stack([law.probs_V for law in grown]))
            for place, law, token in zip(active, grown, drawn, strict=True):
                slots[place].append(Slot(law, token))
        return slots

    def _goes_on(self, slots: Sequence[Slot], place: int) -> bool:
        """Whether another token may be drafted behind the last one; ``place`` counts from the text's second token."""
        most = min(self.extent.gamma_max, self.extent.budget - 2 - place)
        return len(slots) < most and int(_last(slots)) not in self.pair.target.eos_tokens

    def _compared(
        self, laws: Sequence[NextLaw], target_NV: Tensor, tokens_N: Tensor, settings: SamplingSettings, chance: Chance
    ) -> dict[str, np.ndarray]:
        """What both models' laws say of the text's tokens."""
        draft_NV = torch.stack([law.probs_V for law in laws]).to(target_NV)
        unit_NV = torch.stack([law.unit_probs_V for law in laws]).to(target_NV)
        q_N, unit_N, p_N = (
            law_NV.gather(1, tokens_N.unsqueeze(1)).squeeze(1) for law_NV in (draft_NV, unit_NV, target_NV)
        )
        rank_N = (unit_NV > unit_N.unsqueeze(1)).sum(1)
        count = min(self.extent.candidates, target_NV.shape[1])
        if settings.greedy:
            hits_NC = (rank_N.unsqueeze(1) < torch.arange(1, count + 1, device=rank_N.device)).float()
        else:
            hits_NC = candidate_hits(target_NV, draft_NV, tokens_N, count, chance)
        ratio_N = torch.where(p_N > 0, q_N.double() / p_N.double(), torch.where(q_N > 0, torch.inf, 0.0).double())
        mass_NC = target_NV.gather(1, unit_NV.topk(count, dim=1).indices).cumsum(1)
        numbers = {
            "probability": q_N,
            "unit_probability": unit_N,
            "ratio": ratio_N,
            "overlap": torch.minimum(draft_NV, target_NV).sum(1),
            "rank": rank_N,
            "mass": _widened(mass_NC, self.extent.candidates),
            "hits": _widened(hits_NC, self.extent.candidates),
        }
        return {name: values.cpu().numpy() for name, values in numbers.items()}

    def _slots(self, slots: Sequence[Slot]) -> dict[str, Any]:
        """List columns of one place, up to γ_max slots."""
        size, laws = self.extent.gamma_max, [slot.law for slot in slots]
        drawn = [None if slot.token is None else DrawnToken(slot.law, slot.token) for slot in slots]
        return {
            "tokens": _filled([-1 if one is None else int(one.token) for one in drawn], size, -1),
            "probabilities": _filled([np.nan if one is None else float(one.probability) for one in drawn], size),
            "unit_probabilities": _filled(
                [np.nan if one is None else float(one.unit_probability) for one in drawn], size
            ),
            "confidence": _filled([float(law.confidence) for law in laws], size),
            "entropy": _filled([float(law.entropy) for law in laws], size),
            "law_confidence": _filled([float(law.law_confidence) for law in laws], size),
            "law_entropy": _filled([float(law.law_entropy) for law in laws], size),
            "tops": _stacked([law.likeliest(self.extent.spec.top).cpu().numpy() for law in laws], size),
            "states": _stacked([self._state(law) for law in laws], size),
        }

    def _state(self, law: NextLaw) -> np.ndarray:
        if not self.extent.spec.draft_layers:
            return np.zeros(0, np.float16)
        return _finite(draft_state(law), "draft", "draft_layers")

    def _rows(self, out: Forward) -> list[Row]:
        return rows_of(Forward(fit_vocabulary(out.logits, self.pair.target.vocabulary_size), out.hidden_NKD))

    def _law(self, row: Row, settings: SamplingSettings, position: int) -> NextLaw:
        logits_V, hidden_KD = row
        root = Root(position, self.extent.gamma_max, settings, None)
        return NextLaw(root, settings, 0, logits_V, processed_law(logits_V, settings), hidden_KD)


def _walk(state: ModelState, committed: Sequence[int], chain: Sequence[int]) -> tuple[Forward, Forward | None]:
    """Commit tokens, and run over a ``chain`` behind them that stays scratch: the last committed row, and the chain's."""
    ahead = state.forward(committed, last=1)
    state.keep(range(len(committed)))
    return ahead, state.forward(chain) if chain else None


def _ratio(slot: Slot, target_V: Tensor) -> float:
    """Draft over target probability of the token drawn at a slot."""
    if slot.token is None:
        return float("nan")
    drafted, wanted = (float(law_V[int(slot.token)]) for law_V in (slot.law.probs_V.double(), target_V.double()))
    return drafted / wanted if wanted > 0 else float("inf")


def _last(slots: Sequence[Slot]) -> Tensor:
    token = slots[-1].token
    assert token is not None
    return token


def _finite(state: Tensor, model: str, key: str) -> np.ndarray:
    if not bool(torch.isfinite(state).all()):
        raise ValueError(f"a hidden state of the {model} does not fit float16. Tap other layers (traces.texts.{key}).")
    return state.cpu().numpy()


def _filled(numbers: list[Any], size: int, missing: float = np.nan) -> list[Any]:
    return numbers + [missing] * (size - len(numbers))


def _stacked(rows: list[np.ndarray], size: int) -> np.ndarray:
    """Rows one after the other, zeros behind the last."""
    missing = [np.zeros_like(rows[0])] * (size - len(rows))
    return np.concatenate([*rows, *missing])


def _widened(values_NC: Tensor, size: int) -> Tensor:
    """Columns up to ``size``, the last one repeated: more candidates than tokens are no more."""
    return torch.cat([values_NC, values_NC[:, -1:].expand(-1, size - values_NC.shape[1])], dim=1)
