"""Drafts from every root of a text, depth by depth: along the text, and the chain that would be drawn.

    x ~ [q_N - w p]_+      w = 1 tokenwise; the running weight after y_0 … y_{N-1}, w <- min(w p / q, 1), for block verification;
                           q_N without y_N for matching

x is the token that the verifier rejects after N accepted ones; block's weight after a draft is P(N >= its length | the draft).
Source: the specification of verification, sections 2 and 3. Shape suffixes: N roots, R rows of a level, G drafted tokens (γ_max),
V vocabulary, K tapped layers, D hidden size, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from predictors.replay.acceptance import reached
from predictors.sampling import SamplingSettings
from runtime.adapter import Forward, ModelState
from runtime.invariant import Perturbation
from runtime.laws import fit_vocabulary, recorded_law
from runtime.randomness import Chance
from trace_collection.rejections import candidate_hits, rejected_law
from trace_collection.shards import Rows
from trace_collection.trajectories import Written

if TYPE_CHECKING:
    from trace_collection.text_tracer import TextTracer


RATIO, PROBABILITY = "ratio", "probability"
PER_SLOT = ("confidence", "entropy", "law_entropy", "probabilities", "unit_probabilities", "overlap")


@dataclass(frozen=True)
class Level:
    """Predictions of the draft at one depth from some ``roots_R``: its processed and its temperature-1 distribution, and its
    tapped states, at the nodes ``nodes_R`` of its scratch (-1: the committed end)."""

    roots_R: np.ndarray
    nodes_R: np.ndarray
    probs_RV: Tensor
    unit_RV: Tensor
    hidden_RKD: Tensor | None

    def take(self, rows: np.ndarray, roots: np.ndarray | None = None) -> "Level":
        """Take some rows, by default of their own ``roots``."""
        if roots is None and len(rows) == len(self.roots_R):
            return self
        at = torch.from_numpy(rows).to(self.probs_RV.device)
        probs_RV = self.probs_RV[at]
        unit_RV = probs_RV if self.unit_RV is self.probs_RV else self.unit_RV[at]
        hidden_RKD = None if self.hidden_RKD is None else self.hidden_RKD[at]
        return Level(self.roots_R[rows] if roots is None else roots, self.nodes_R[rows], probs_RV, unit_RV, hidden_RKD)


@dataclass
class Chains:
    """Drafts from every root of a ``text``, depth by depth, whose tokens are kept by the numbers ``kept_N``."""

    tracer: "TextTracer"
    prompt: list[int]
    text: list[int]
    settings: SamplingSettings
    chance: Chance
    kept_N: np.ndarray
    target_NV: Tensor
    weight_N: np.ndarray = field(default_factory=lambda: np.zeros(0))  # block's, after the text so far
    fed: int = 0  # nodes of the draft's scratch
    made: Rows = field(default_factory=dict)

    def columns(self, written: Written, perturbation: Perturbation | None = None) -> Rows:
        """Compute the columns of slots, ``accepted`` and ``rejected_ratio``; with a ``perturbation`` of the draft's logits."""
        tracer, count = self.tracer, len(self.text) - 1
        state, walked = tracer.open(self.prompt, self.text, written, perturbation)
        self.fed, self.made, self.weight_N = count - 1, self._empty(count), np.ones(count)
        first = along = self._level(np.arange(count), np.arange(-1, count - 1), walked)
        on_text_N, before_N = np.ones(count, bool), np.ones(count)
        rolled: Level | None = None
        for depth in range(tracer.gamma_max):
            known = count - depth  # roots from which the text holds so many tokens
            rolls: list[tuple[int, int]] = []  # roots and tokens off the text after which their drafts go on,
            following: list[int] = []  # and the nodes that these follow
            if known > 0:
                on_text_N[known:] = False
                reached_N, law_NV, y_N = self._along(depth, along)
                kept_N = on_text_N[:known] & (reached_N > self.kept_N[depth:] * before_N[:known])
                before_N[:known] = reached_N
                rolls, following = self._on_text(depth, along, on_text_N[:known], kept_N, law_NV, y_N)
                on_text_N[:known] = kept_N
                self.made["accepted"] += on_text_N
            if rolled is not None:
                tokens = self.chance.categorical(rolled.probs_RV).cpu().numpy()
                self._record(depth, rolled, tokens)
                rolls += list(zip(rolled.roots_R.tolist(), tokens.tolist(), strict=True))
                following += rolled.nodes_R.tolist()
            if depth + 1 < tracer.gamma_max:
                along, rolled = self._next(state, depth + 1, first, along, rolls, following)
        return self.made

    def _along(self, depth: int, along: Level) -> tuple[np.ndarray, Tensor, Tensor]:
        """Record ratios at ``depth``; return every root's P(N > depth | text), the target's distribution there and the token."""
        law_NV = self.target_NV[depth:]
        y_N = torch.tensor(self.text[1 + depth :], device=law_NV.device)
        known, made = len(law_NV), self.made
        made[RATIO][:known, depth] = to_numpy(_ratio(along.probs_RV.to(law_NV), law_NV, y_N))
        made[PROBABILITY][:known, depth] = to_numpy(at_tokens(along.probs_RV, y_N))
        ratio_NG, probability_NG = (made[name][:known, : depth + 1] for name in (RATIO, PROBABILITY))
        return reached(ratio_NG, probability_NG, self.tracer.verifier)[:, -1], law_NV, y_N

    def _on_text(
        self, depth: int, along: Level, on_text_N: np.ndarray, kept_N: np.ndarray, law_NV: Tensor, y_N: Tensor
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """Draw and record the token at ``depth`` of chains that are on the text; return roots and tokens of those rejected, and
        nodes that these follow."""
        rows = np.flatnonzero(on_text_N)
        if not len(rows):
            return [], []
        at = torch.from_numpy(rows).to(law_NV.device)
        level, p_RV, y_R = along.take(rows), law_NV[at], y_N[at]
        q_RV, tokens_R, rejected = level.probs_RV.to(p_RV), y_R.clone(), np.flatnonzero(~kept_N[rows])
        self._compare(depth, level, p_RV, q_RV, y_R)
        if len(rejected):
            out = torch.from_numpy(rejected).to(law_NV.device)
            weight_R = torch.from_numpy(self.weight_N[rows[rejected]]).to(p_RV)
            wrong_RV = rejected_law(q_RV[out], p_RV[out], y_R[out], weight_R, self.tracer.verifier)
            tokens_R[out] = self.chance.categorical(wrong_RV).to(tokens_R)
            self.made["rejected_ratio"][rows[rejected]] = to_numpy(_ratio(q_RV[out], p_RV[out], tokens_R[out]))
        tokens = tokens_R.cpu().numpy()
        self._record(depth, level, tokens)
        with np.errstate(divide="ignore"):  # of roots that leave the text it is not looked at again
            self.weight_N[rows] = np.minimum(self.weight_N[rows] / self.made[RATIO][rows, depth], 1.0)
        rolls = list(zip(rows[rejected].tolist(), tokens[rejected].tolist(), strict=True))
        return rolls, level.nodes_R[rejected].tolist()

    def _next(
        self,
        state: ModelState,
        depth: int,
        first: Level,
        along: Level,
        rolls: Sequence[tuple[int, int]],
        following: Sequence[int],
    ) -> tuple[Level, Level | None]:
        """Run the draft to the levels at ``depth``, along the text and off it."""
        tracer, ends, known = self.tracer, self.tracer.pair.target.eos_tokens, max(len(self.text) - 1 - depth, 0)
        going = [
            place for place, (root, token) in enumerate(rolls) if token not in ends and depth < tracer.budget - 2 - root
        ]
        roots, tokens = np.array([rolls[place][0] for place in going], int), [rolls[place][1] for place in going]
        parents = [following[place] for place in going]
        reads = tracer.reads_states
        if reads:
            tokens = [*self.text[depth : depth + known], *tokens]
            parents = [*along.nodes_R[:known].tolist(), *parents]
        level = None
        if tokens:
            nodes = np.arange(self.fed, self.fed + len(tokens))
            out, self.fed = state.forward(tokens, parents), self.fed + len(tokens)
            level = self._level(np.concatenate([np.arange(known), roots]) if reads else roots, nodes, out)
        if not reads:
            return first.take(np.arange(depth, depth + known), np.arange(known)), level
        if level is None:
            return first.take(np.arange(0)), None
        off = level.take(np.arange(known, len(tokens)))
        return level.take(np.arange(known)), off if len(roots) else None

    def _level(self, roots: np.ndarray, nodes: np.ndarray, out: Forward) -> Level:
        logits_RV = fit_vocabulary(out.logits, self.tracer.pair.target.vocabulary_size)
        probs_RV = recorded_law(logits_RV, self.settings)
        unit_RV = probs_RV if self.settings.unfiltered else torch.softmax(logits_RV.to(probs_RV.dtype), dim=-1)
        return Level(roots, nodes, probs_RV, unit_RV, out.hidden_NKD)

    def _empty(self, rows: int) -> Rows:
        size, spec, candidates = self.tracer.gamma_max, self.tracer.spec, self.tracer.candidates
        return {
            RATIO: np.zeros((rows, size)),
            PROBABILITY: np.zeros((rows, size), np.float32),
            "accepted": np.zeros(rows, np.int32),
            "rejected_ratio": np.full(rows, np.nan),
            "tokens": np.full((rows, size), -1),
            "rank": np.full((rows, size), -1),
            "hits": np.zeros((rows, size, candidates), np.float32),
            "tops": np.zeros((rows, size, spec.top), np.float32),
            "states": np.zeros((rows, self.tracer.state_slots, spec.state_size), np.float16),
            **{name: np.full((rows, size), np.nan, np.float32) for name in PER_SLOT},
        }

    def _record(self, depth: int, level: Level, tokens: np.ndarray) -> None:
        """Record distributions and the ``tokens`` drawn from them, as `predictors.signals` defines their numbers."""
        roots, made, spec = level.roots_R, self.made, self.tracer.spec
        tokens_R = torch.from_numpy(tokens).to(level.probs_RV.device)
        made["tokens"][roots, depth] = tokens
        entropy_R, law_entropy_R = torch.special.entr(level.unit_RV).sum(1), torch.zeros_like(level.probs_RV[:, 0])
        if not self.settings.read_off:
            unfiltered = level.unit_RV is level.probs_RV
            law_entropy_R = entropy_R if unfiltered else torch.special.entr(level.probs_RV).sum(1)
        numbers = {
            "probabilities": at_tokens(level.probs_RV, tokens_R),
            "unit_probabilities": at_tokens(level.unit_RV, tokens_R),
            "confidence": level.unit_RV.amax(1),
            "entropy": entropy_R,
            "law_entropy": law_entropy_R,
        }
        for name, values in numbers.items():
            made[name][roots, depth] = to_numpy(values)
        largest_RT = level.unit_RV.topk(min(spec.top, level.unit_RV.shape[1])).values
        made["tops"][roots, depth, : largest_RT.shape[1]] = to_numpy(largest_RT)
        if level.hidden_RKD is not None and depth < self.tracer.state_slots:
            states_RS = level.hidden_RKD.flatten(1).to(torch.float16)
            made["states"][roots, depth] = finite(states_RS, "draft", "draft_layers")

    def _compare(self, depth: int, level: Level, p_RV: Tensor, q_RV: Tensor, y_R: Tensor) -> None:
        """Record what both models' distributions give the text's tokens ``y_R``."""
        roots, candidates, made = level.roots_R, self.tracer.candidates, self.made
        unit_RV = level.unit_RV.to(p_RV)
        rank_R = (unit_RV > at_tokens(unit_RV, y_R).unsqueeze(1)).sum(1)
        count = min(candidates, p_RV.shape[1])
        if self.settings.read_off:
            hits_RC = (rank_R.unsqueeze(1) < torch.arange(1, count + 1, device=rank_R.device)).float()
        else:
            hits_RC = candidate_hits(p_RV, q_RV, y_R, count, self.chance)
        made["rank"][roots, depth] = to_numpy(rank_R)
        made["overlap"][roots, depth] = to_numpy(torch.minimum(p_RV, q_RV).sum(1))
        made["hits"][roots, depth] = to_numpy(_widened(hits_RC, candidates))


def at_tokens(law_NV: Tensor, tokens_N: Tensor) -> Tensor:
    """Take the probability [N] of a token of every row."""
    return law_NV.gather(1, tokens_N.unsqueeze(1)).squeeze(1)


def _ratio(draft_NV: Tensor, target_NV: Tensor, tokens_N: Tensor) -> Tensor:
    """Divide draft by target probability of tokens [N] in float64: infinite where the target's is 0, nan without a token."""
    q_N, p_N = (at_tokens(law_NV, tokens_N.clamp(min=0)).double() for law_NV in (draft_NV, target_NV))
    ratio_N = torch.where(p_N > 0, q_N / p_N, torch.where(q_N > 0, torch.inf, 0.0))
    return ratio_N.where(tokens_N >= 0, torch.nan)


def finite(states: Tensor, model: str, key: str) -> np.ndarray:
    """Return hidden ``states`` of a ``model`` as an array; `ValueError` with the parameter ``key`` where they overflow."""
    if not bool(torch.isfinite(states).all()):
        raise ValueError(f"a hidden state of the {model} does not fit float16. Tap other layers (traces.texts.{key}).")
    return to_numpy(states)


def to_numpy(values: Tensor) -> np.ndarray:
    """Return a tensor as an array on the host."""
    return values.cpu().numpy()


def _widened(values_NC: Tensor, size: int) -> Tensor:
    """Widen columns to ``size``, the last one repeated: more candidates than tokens are no more."""
    return torch.cat([values_NC, values_NC[:, -1:].expand(-1, size - values_NC.shape[1])], dim=1)
