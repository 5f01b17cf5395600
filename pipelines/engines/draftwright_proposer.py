"""Lookups as a proposer of vLLM (``method: custom_class``, checked in 0.32.0), with lengths by the fitted ``rule.json`` beside
this file. It runs in vLLM's environment, and needs NumPy alone.

    S_ri    P(the first i tokens found for request r are accepted) = Π_{j<=i} σ(hazard · z_rj)
    m       argmax (B + Σ of the m largest S) / T(B + m)            tokens per second of a step of B requests

T is seconds of a step over so many rows. As S falls along a request, the m largest are prefixes; where none is worth its row,
nothing is drafted. z follows from a request's own tokens: its match, the place, how often the end occurred and went on so.

Shape suffixes: R requests, L tokens, N tokens of a request.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 3  # tokens whose earlier continuations are counted


def found(token_N: np.ndarray, most: int, longest: int) -> tuple[np.ndarray, int, int, int]:
    """What followed the longest match of the end, and after the newest token begins anew: ``most`` tokens. Else as
    `predictors.lookup.Lookup.found`: how many match, occurrences of the last of these, and how many of them went on so."""
    last, match = len(token_N) - 1, 1
    ends = context = np.flatnonzero(token_N[:last] == token_N[last])
    if not len(ends):
        return token_N[:0], 0, 0, 0
    while match < longest:
        longer = ends[ends >= match]
        longer = longer[token_N[longer - match] == token_N[last - match]]
        if not len(longer):
            break
        ends, match = longer, match + 1
        context = ends if match <= CONTEXT else context
    start = ends[-1] + 1
    agreed = int(np.count_nonzero(token_N[context + 1] == token_N[start]))
    return token_N[start + np.arange(most) % (len(token_N) - start)], match, len(context), agreed


class Rule:
    """How much of what was found is drafted: at most ``length`` tokens after a match of at most ``longest``. A step takes
    ``seconds`` by ``rows``, and beyond them goes on as between the last two."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.longest, self.length, self.hazard = record["longest"], record["length"], record["hazard"]
        rows, seconds = record["rows"], record["seconds"]
        slope = max(0.0, (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2]))
        self.seconds = lambda some: np.interp(some, rows, seconds) + slope * np.maximum(np.subtract(some, rows[-1]), 0)

    def survival(self, count_R: Any, match_R: Any, seen_R: Any, agreed_R: Any) -> np.ndarray:
        """S [R, L] by how many tokens were found, after which it is 0, tokens that match, occurrences, and those that agreed."""
        count, match, seen, agreed = (np.asarray(one)[:, None] for one in (count_R, match_R, seen_R, agreed_R))
        place_L, log = np.arange(self.length), np.log1p
        share, times, first_L = agreed / np.maximum(seen, 1), log(seen), place_L == 0
        columns = (1.0, log(match + place_L), log(place_L), first_L, share, share * first_L, times, times * share)
        logit_RL = sum(weight * column for weight, column in zip(self.hazard, columns, strict=True))
        return np.where(place_L < count, np.cumprod(1 / (1 + np.exp(-logit_RL)), axis=1), 0.0)

    def lengths(self, survival_RL: np.ndarray, batch: int) -> np.ndarray:
        """Tokens to draft [R] in a step of ``batch`` requests, these among them."""
        order = np.argsort(-survival_RL, axis=None, kind="stable")
        tokens = np.cumsum(np.append(batch, survival_RL.ravel()[order]))
        best = (tokens / self.seconds(batch + np.arange(len(tokens)))).argmax()
        return np.bincount(order[:best] // self.length, minlength=len(survival_RL))


class Lookup:
    """The proposer that vLLM makes and asks. It keeps nothing from one step to the next."""

    def __init__(self, vllm_config: Any) -> None:
        self.rule = Rule(json.loads((Path(__file__).parent / "rule.json").read_text()))
        self.rule.length = min(self.rule.length, vllm_config.speculative_config.num_speculative_tokens)
        self.limit = vllm_config.model_config.max_model_len

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is none."""

    def propose(self, sampled: list[list[int]], num_tokens: Any, token_ids: np.ndarray, **_: Any) -> list[list[int]]:
        """Propose tokens for every request of a step, of whose ``token_ids`` [requests, …] the first ``num_tokens`` are known;
        none where none was ``sampled``, as its prompt is not read yet."""
        drafts: list[list[int]] = [[] for _ in sampled]
        asked = [place for place, tokens in enumerate(sampled) if tokens]
        known = [token_ids[place, : num_tokens[place]] for place in asked]
        looked = [found(tokens, self.rule.length, self.rule.longest) for tokens in known]
        counts = [min(len(one[0]), max(0, self.limit - len(tokens))) for one, tokens in zip(looked, known, strict=True)]
        if any(counts):
            survival_RL = self.rule.survival(counts, *zip(*(one[1:] for one in looked), strict=True))
            for place, one, length in zip(asked, looked, self.rule.lengths(survival_RL, len(drafts)), strict=True):
                drafts[place] = one[0][:length].tolist()
        return drafts
