"""One text's rows: both models' distributions along it, and rollouts of the draft beside it (`trace_collection.texts`).

Shape suffixes: N positions, R rows of a level, G slots (γ_max), V vocabulary, K tapped layers, D hidden size, C candidates.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predictors.features import state_vector
from predictors.lookup import founds
from predictors.sampling import SamplingSettings
from predictors.stopping import StopSpec
from runtime import ModelPair
from runtime.adapter import Forward, ModelState, Row
from runtime.drafting.draft import fit_vocabulary
from runtime.laws import processed_law
from runtime.randomness import Chance
from trace_collection.shards import Rows

LEAST_MASS = 1e-12  # below which nothing can be rejected


@dataclass
class Level:
    """What the draft says at one slot of ``places`` (from 0): its processed and its temperature-1 distribution, its tapped
    states, and the tokens drawn there, -1 where nothing was."""

    places: list[int]
    probs_RV: Tensor
    unit_RV: Tensor
    hidden_RKD: Tensor | None
    tokens_R: Tensor


@dataclass
class TextTracer:
    """Walks along texts of ``pair``: rollouts of up to ``gamma_max`` tokens within the ``budget`` of new ones, hits and masses of
    up to ``candidates`` tokens. Stored are ``layers`` of the target, and ``spec`` of the draft, its states in ``state_slots``."""

    pair: ModelPair
    gamma_max: int
    budget: int
    candidates: int
    layers: tuple[int, ...]
    spec: StopSpec
    state_slots: int

    @torch.inference_mode()
    def trace(
        self,
        prompt: list[int],
        text: list[int],
        settings: SamplingSettings,
        chance: Chance,
        said: Sequence[Row] | None = None,
    ) -> Rows:
        """Columns of `TEXT_COLUMNS`, but for the prompt's own, at positions 1, 2, … of ``text``; ``said``: what the target said
        in front of each of its tokens, where it drew them itself."""
        if len(text) < 2:
            return {}
        assert self.pair.draft is not None
        if said is None:  # another pass has drawn the text
            said = walk(self.pair.target.open(len(prompt) + len(text), self.layers), prompt, text[:-1]).rows()
        target_NV, root_NS = self._law(said[1:], text[1:], settings), self._roots(said[:-1], text[:-1])
        draft = self.pair.draft.open(len(prompt) + len(text) * self.gamma_max, self.spec.draft_layers)
        walked = walk(draft, [*prompt, text[0]], text[1:-1])  # all tokens but the last; after the first is scratch
        along = self._level(list(range(len(text) - 1)), walked, settings)
        beside = self._beside(draft, along, target_NV, settings, chance)
        slots = self._slots(len(text) - 1, beside)  # draws along's tokens, too
        places_N = np.arange(1, len(text))
        tokens_N = torch.tensor(text[1:], device=target_NV.device)
        return {
            "place": places_N,
            "position": len(prompt) + places_N,
            "newest": np.array(text[:-1]),
            "token": np.array(text[1:]),
            "root": root_NS,
            **self._lookups(prompt, text),
            **self._compared(along, target_NV, tokens_N, settings, chance),
            "beside_ratio": _numpy(_ratio(along.probs_RV.to(target_NV), target_NV, along.tokens_R)),
            **slots,
        }

    def _lookups(self, prompt: list[int], text: list[int]) -> Rows:
        """What followed the longest match of the tokens in front of every position."""
        known = founds([*prompt, *text[:-1]], self.gamma_max)[len(prompt) :]
        numbers = {"match": "length", "seen": "seen", "agreed": "agreed"}
        counts = {name: np.array([getattr(one, field) for one in known]) for name, field in numbers.items()}
        padded = [[*one.tokens, *[-1] * (self.gamma_max - len(one.tokens))] for one in known]
        return {**counts, "lookup": np.array(padded)}

    def _law(self, said: Sequence[Row], tokens: Sequence[int], settings: SamplingSettings) -> Tensor:
        """The target's distributions of ``tokens`` [N, V]."""
        law_NV = processed_law(torch.stack([logits_V for logits_V, _ in said]), settings)
        if settings.greedy:  # a token has decided, where passes over one row and over many round a near-tie differently
            tokens_N1 = torch.tensor(tokens, device=law_NV.device).unsqueeze(1)
            law_NV = torch.zeros_like(law_NV).scatter_(1, tokens_N1, 1.0)
        return law_NV

    def _roots(self, said: Sequence[Row], newest: Sequence[int]) -> np.ndarray:
        """The state at the rows whose logits produced the ``newest`` tokens, and those tokens' embeddings; empty without taps."""
        hidden = [hidden_KD for _, hidden_KD in said if hidden_KD is not None]
        if not hidden:
            return np.zeros((len(newest), 0), np.float16)
        embeddings = (self.pair.target.embedding(token) for token in newest)
        states = [state_vector(hidden_KD, one_E) for hidden_KD, one_E in zip(hidden, embeddings, strict=True)]
        return _finite(torch.stack(states), "target", "layers")

    def _level(self, places: list[int], out: Forward, settings: SamplingSettings) -> Level:
        logits_RV = fit_vocabulary(out.logits, self.pair.target.vocabulary_size)
        probs_RV = processed_law(logits_RV, settings)
        unit_RV = probs_RV if settings.unfiltered else torch.softmax(logits_RV.to(probs_RV.dtype), dim=-1)
        return Level(places, probs_RV, unit_RV, out.hidden_NKD, torch.full((len(places),), -1, device=probs_RV.device))

    def _beside(
        self, state: ModelState, along: Level, target_NV: Tensor, settings: SamplingSettings, chance: Chance
    ) -> Iterator[Level]:
        """Draw a token that is rejected at each position ``along`` the text, and a rollout of the draft after it: ``along``,
        then a level at a time."""
        surplus_NV = (along.probs_RV.to(target_NV) - target_NV).clamp(min=0)
        active = torch.nonzero(surplus_NV.sum(1) > LEAST_MASS).squeeze(1)
        if len(active):
            along.tokens_R[active] = chance.categorical(surplus_NV[active]).to(along.tokens_R)
        parents, fed = {place: place - 1 for place in active.tolist()}, len(along.places) - 1  # -1: the committed end
        yield along
        level, drafted = along, 1
        while goes_on := self._going_on(level, drafted):
            places, tokens = zip(*goes_on, strict=True)
            out = state.forward(list(tokens), [parents[place] for place in places])
            parents, fed = {place: fed + row for row, place in enumerate(places)}, fed + len(places)
            level, drafted = self._level(list(places), out, settings), drafted + 1
            level.tokens_R = chance.categorical(level.probs_RV)
            yield level

    def _going_on(self, level: Level, drafted: int) -> list[tuple[int, int]]:
        """The places after whose last token, at ``level``, another may be drafted, and those tokens."""
        ends = self.pair.target.eos_tokens
        return [
            (place, token)
            for place, token in zip(level.places, level.tokens_R.tolist(), strict=True)
            if token >= 0 and token not in ends and drafted < min(self.gamma_max, self.budget - 2 - place)
        ]

    def _compared(
        self, along: Level, target_NV: Tensor, tokens_N: Tensor, settings: SamplingSettings, chance: Chance
    ) -> Rows:
        """What both models' distributions say of the text's tokens."""
        draft_NV, unit_NV = along.probs_RV.to(target_NV), along.unit_RV.to(target_NV)
        q_N, unit_N = (_at(law_NV, tokens_N) for law_NV in (draft_NV, unit_NV))
        rank_N = (unit_NV > unit_N.unsqueeze(1)).sum(1)
        count = min(self.candidates, target_NV.shape[1])
        if settings.greedy:
            hits_NC = (rank_N.unsqueeze(1) < torch.arange(1, count + 1, device=rank_N.device)).float()
        else:
            hits_NC = candidate_hits(target_NV, draft_NV, tokens_N, count, chance)
        mass_NC = target_NV.gather(1, unit_NV.topk(count, dim=1).indices).cumsum(1)
        numbers = {
            "target_probability": _at(target_NV, tokens_N),
            "probability": q_N,
            "unit_probability": unit_N,
            "ratio": _ratio(draft_NV, target_NV, tokens_N),
            "overlap": torch.minimum(draft_NV, target_NV).sum(1),
            "rank": rank_N,
            "mass": _widened(mass_NC, self.candidates),
            "hits": _widened(hits_NC, self.candidates),
        }
        return {name: _numpy(values) for name, values in numbers.items()}

    def _slots(self, rows: int, levels: Iterable[Level]) -> Rows:
        """List columns, a slot for every level and nothing behind the last. A level's distributions are let go before the next's
        but one is made."""
        spec, size = self.spec, self.gamma_max
        columns: Rows = {"tokens": np.full((rows, size), -1)}
        names = ("probabilities", "unit_probabilities", "confidence", "entropy", "law_entropy")
        columns |= {name: np.full((rows, size), np.nan) for name in names}
        columns |= {"tops": np.zeros((rows, size, spec.top), np.float32)}
        columns |= {"states": np.zeros((rows, self.state_slots, spec.state_size), np.float16)}
        for slot, level in enumerate(levels):
            largest_RT = level.unit_RV.topk(min(spec.top, level.unit_RV.shape[1])).values
            columns["tops"][level.places, slot, : largest_RT.shape[1]] = _numpy(largest_RT)
            for name, values in _numbers(level).items():
                columns[name][level.places, slot] = _numpy(values)
            if level.hidden_RKD is not None and slot < self.state_slots:
                states_RS = level.hidden_RKD.flatten(1).to(torch.float16)
                columns["states"][level.places, slot] = _finite(states_RS, "draft", "draft_layers")
        return columns


def walk(state: ModelState, committed: Sequence[int], chain: Sequence[int]) -> Forward:
    """Commit tokens, and run over a ``chain`` behind them that stays scratch: the last committed row, and the chain's."""
    ahead = state.forward(committed, last=1)
    state.keep(range(len(committed)))
    passes = [Forward(ahead.logits[-1:], None if ahead.hidden_NKD is None else ahead.hidden_NKD[-1:])]
    passes += [state.forward(chain)] if chain else []
    hidden = [one.hidden_NKD for one in passes if one.hidden_NKD is not None]
    return Forward(torch.cat([one.logits for one in passes]), torch.cat(hidden) if hidden else None)


def _numbers(level: Level) -> dict[str, Tensor]:
    """What is recorded of the distributions and drawn tokens of a level [R], as `predictors.signals` defines it."""
    drawn_R = level.tokens_R >= 0
    probability_R, unit_R = (_at(law, level.tokens_R.clamp(min=0)) for law in (level.probs_RV, level.unit_RV))
    return {
        "tokens": level.tokens_R,
        "probabilities": probability_R.where(drawn_R, torch.nan),
        "unit_probabilities": unit_R.where(drawn_R, torch.nan),
        "confidence": level.unit_RV.amax(1),
        "entropy": torch.special.entr(level.unit_RV).sum(1),
        "law_entropy": torch.special.entr(level.probs_RV).sum(1),
    }


def _at(law_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return law_NV.gather(1, tokens_N.unsqueeze(1)).squeeze(1)


def _ratio(draft_NV: Tensor, target_NV: Tensor, tokens_N: Tensor) -> Tensor:
    """Draft over target probability of tokens [N] in float64: infinite where the target's is 0, nan where there is no token."""
    q_N, p_N = (_at(law_NV, tokens_N.clamp(min=0)).double() for law_NV in (draft_NV, target_NV))
    ratio_N = torch.where(p_N > 0, q_N / p_N, torch.where(q_N > 0, torch.inf, 0.0))
    return ratio_N.where(tokens_N >= 0, torch.nan)


def _finite(states: Tensor, model: str, key: str) -> np.ndarray:
    if not bool(torch.isfinite(states).all()):
        raise ValueError(f"a hidden state of the {model} does not fit float16. Tap other layers (traces.texts.{key}).")
    return _numpy(states)


def _numpy(values: Tensor) -> np.ndarray:
    return values.cpu().numpy()


def _widened(values_NC: Tensor, size: int) -> Tensor:
    """Columns up to ``size``, the last one repeated: more candidates than tokens are no more."""
    return torch.cat([values_NC, values_NC[:, -1:].expand(-1, size - values_NC.shape[1])], dim=1)


def candidate_hits(target_NV: Tensor, draft_NV: Tensor, tokens_N: Tensor, count: int, chance: Chance) -> Tensor:
    """P(one of k candidates is accepted | the token that comes out) for k from 1 to ``count`` [N, count].

    Candidates are drawn from the draft's law without replacement and tried in turn: x is accepted with min(1, p/q), else p
    becomes [p - q]_+ and q loses x, both normalised. Exact for the first candidate; behind it along one sequence of rejected
    candidates drawn from [q - p]_+, weighted by how likely the rejections were, whose mean is exact.
    """
    left_NV = target_NV.double()  # the target's mass not accepted yet
    draft_NV = draft_NV.double()  # the next candidates' laws
    weight_N = torch.ones_like(left_NV[:, 0])  # P(all rejected so far), along the sequence
    place = tokens_N.unsqueeze(1)
    out_N = left_NV.gather(1, place).squeeze(1)
    hits, hit_N = [], torch.zeros_like(weight_N)
    for candidate in range(count):
        law_NV = left_NV / left_NV.sum(1, keepdim=True).clamp(min=LEAST_MASS)
        taken_NV = torch.minimum(law_NV, draft_NV)
        hit_N = hit_N + weight_N * taken_NV.gather(1, place).squeeze(1) / out_N
        hits.append(hit_N)
        surplus_NV = (draft_NV - law_NV).clamp(min=0)
        rejected_N = surplus_NV.sum(1)
        weight_N = weight_N * rejected_N
        open_N = weight_N > LEAST_MASS
        if candidate + 1 == count or not bool(open_N.any()):
            hits += [hit_N] * (count - candidate - 1)
            break
        tried_N = chance.categorical(torch.where(open_N.unsqueeze(1), surplus_NV, draft_NV))
        left_NV = (law_NV - draft_NV).clamp(min=0)
        draft_NV = draft_NV.scatter(1, tried_N.unsqueeze(1), 0.0)
        draft_NV = draft_NV / draft_NV.sum(1, keepdim=True).clamp(min=LEAST_MASS)
    return torch.stack(hits, dim=1).clamp(max=1.0).float()
