"""Rows of one text: at every root the draft along the text, and the chain that would be drawn (`trace_collection.texts`).

    along the text    q_0, q_1, … in front of y_0, y_1, …, each after a draft of the tokens before it from this root
    the chain         y_0 … y_{N-1}, N accepted by the verifier; then x that it rejects, and a rollout of the draft after x

A draft that reads tokens alone predicts the same at a position from any root: one pass over the text is all of its part along
it. One that reads the target's states goes on from its own after the root, so it runs over the text from every root, a level at a
time (`trace_collection.drafts`). Shape suffixes: N roots, V vocabulary, K tapped layers, D hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from predictors.head import state_vector
from predictors.lookup import founds
from predictors.sampling import SamplingSettings
from predictors.stopping import StopSpec
from runtime import ModelPair
from runtime.adapter import Forward, LanguageModel, ModelState, ReadingState, features_of
from runtime.invariant import Noise, Perturbation
from runtime.laws import recorded_law
from runtime.randomness import Chance
from trace_collection.drafts import Chains, at_tokens, finite, to_numpy
from trace_collection.shards import Rows
from trace_collection.trajectories import Written, of_layers, taps_of


@dataclass
class TextTracer:
    """Walks along texts of ``pair``: drafts of up to ``gamma_max`` tokens within the ``budget`` of new ones, which ``verifier``
    verifies; hits of up to ``candidates`` tokens. Stored are ``layers`` of the target, and ``spec`` of the draft, its states at
    the first ``state_slots`` tokens."""

    pair: ModelPair
    gamma_max: int
    budget: int
    candidates: int
    layers: tuple[int, ...]
    spec: StopSpec
    state_slots: int
    verifier: str

    @cached_property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target that are tapped: those stored, and those that the draft reads."""
        return taps_of(self.pair, self.layers)

    @property
    def reads_states(self) -> bool:
        """True if the draft's predictions depend on where its round began."""
        return reads_states(self._draft)

    @property
    def _draft(self) -> LanguageModel:
        assert self.pair.draft is not None
        return self.pair.draft

    @torch.inference_mode()
    def trace(
        self,
        prompt: list[int],
        text: list[int],
        settings: SamplingSettings,
        chance: Chance,
        luck_2N: np.ndarray,
        written: Written | None = None,
        noise: Noise | None = None,
    ) -> Rows:
        """Trace the roots in front of tokens 1, 2, … of ``text``: `TEXT_COLUMNS`, but for the prompt's own.

        ``luck_2N``: uniform numbers [2, N] of those tokens' positions, for `kept` and `tried`; ``written``: the target's outputs
        on its prompt and every token with `taps`, where it wrote the text itself; ``noise``: of an invariant text, whose drafts
        are greedy ones of perturbed logits.
        """
        if len(text) < 2:
            return {}
        written = written or self._read(prompt, text)
        perturbation = None if noise is None else Perturbation(noise, settings)
        settings = settings if noise is None else SamplingSettings(0.0)
        target_NV = self._law(written.logits_NV[1:], text[1:], settings)
        places_N = np.arange(1, len(text))
        return {
            "place": places_N,
            "position": len(prompt) + places_N,
            "newest": np.array(text[:-1]),
            "token": np.array(text[1:]),
            "target_probability": to_numpy(at_tokens(target_NV, torch.tensor(text[1:], device=target_NV.device))),
            "root": self._roots(written, text[:-1]),
            "kept": luck_2N[0],
            "tried": luck_2N[1],
            **self._lookups(prompt, text),
            **Chains(self, prompt, text, settings, chance, luck_2N[0], target_NV).columns(written, perturbation),
        }

    def _read(self, prompt: list[int], text: list[int]) -> Written:
        """Run the target over a text that another pass has drawn."""
        state = self.pair.target.open(len(prompt) + len(text), self.taps)
        ahead = state.forward(prompt, last=1)
        state.keep(range(len(prompt)))
        along = state.forward(text[:-1])
        logits_NV = torch.cat([ahead.logits, along.logits])
        if ahead.hidden_NKD is None or along.hidden_NKD is None:
            return Written(logits_NV)
        return Written(logits_NV, torch.cat([ahead.hidden_NKD[-1:], along.hidden_NKD]), ahead.hidden_NKD)

    def _lookups(self, prompt: list[int], text: list[int]) -> Rows:
        """Look up what followed the longest match of the tokens in front of every position."""
        known = founds([*prompt, *text[:-1]], self.gamma_max)[len(prompt) :]
        numbers = {"match": "length", "seen": "seen", "agreed": "agreed"}
        counts = {name: np.array([getattr(one, field) for one in known]) for name, field in numbers.items()}
        padded = [[*one.tokens, *[-1] * (self.gamma_max - len(one.tokens))] for one in known]
        return {**counts, "lookup": np.array(padded)}

    def _law(self, logits_NV: Tensor, tokens: Sequence[int], settings: SamplingSettings) -> Tensor:
        """Return the target's distributions of ``tokens`` [N, V]."""
        law_NV = recorded_law(logits_NV, settings)
        if (
            settings.read_off
        ):  # a token has decided, where passes over one row and over many round a near-tie differently
            tokens_N1 = torch.tensor(tokens, device=law_NV.device).unsqueeze(1)
            law_NV = torch.zeros_like(law_NV).scatter_(1, tokens_N1, 1.0)
        return law_NV

    def _roots(self, written: Written, newest: Sequence[int]) -> np.ndarray:
        """Return the state at the rows whose logits produced the ``newest`` tokens, with their embeddings; empty without taps."""
        if written.hidden_NKD is None or not self.layers:
            return np.zeros((len(newest), 0), np.float16)
        hidden_NKD = of_layers(written.hidden_NKD[: len(newest)], self.taps, self.layers)
        embeddings = (self.pair.target.embedding(token) for token in newest)
        states = [state_vector(hidden_KD, one_E) for hidden_KD, one_E in zip(hidden_NKD, embeddings, strict=True)]
        return finite(torch.stack(states), "target", "layers")

    def open(
        self, prompt: list[int], text: list[int], written: Written, perturbation: Perturbation | None
    ) -> tuple[ModelState, Forward]:
        """Open the draft's state after the first token of ``text``, with the other tokens but the last as a chain of scratch;
        also return its outputs in front of tokens 1, 2, …."""
        reads = features_of(self._draft)
        state = self._draft.open(len(prompt) + 2 * len(text) * self.gamma_max, self.spec.draft_layers)
        if perturbation is not None:
            state = perturbation.of(state, self.pair.target.vocabulary_size, int(bool(reads)))
        if reads:
            assert written.hidden_NKD is not None and written.prompt_NKD is not None
            hidden_NKD = torch.cat([written.prompt_NKD, written.hidden_NKD[1 : len(text) - 1]])
            cast(ReadingState, state).offer(of_layers(hidden_NKD, self.taps, reads))
        return state, walk(state, [*prompt[1 if reads else 0 :], text[0]], text[1:-1])


def reads_states(model: LanguageModel) -> bool:
    """Tell whether the predictions of a draft ``model`` depend on where its round began."""
    return bool(features_of(model))


def walk(state: ModelState, committed: Sequence[int], chain: Sequence[int]) -> Forward:
    """Commit tokens, and run over a ``chain`` after them that stays scratch; return the last committed row, and the chain's."""
    ahead = state.forward(committed, last=1)
    state.keep(range(len(committed)))
    passes = [Forward(ahead.logits[-1:], None if ahead.hidden_NKD is None else ahead.hidden_NKD[-1:])]
    passes += [state.forward(chain)] if chain else []
    hidden = [one.hidden_NKD for one in passes if one.hidden_NKD is not None]
    return Forward(torch.cat([one.logits for one in passes]), torch.cat(hidden) if hidden else None)
