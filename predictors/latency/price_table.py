"""Prices of many rounds of chains at once, in arrays. Shape suffixes: V rounds, C contexts, L drafted tokens, P pairs."""

import numpy as np

from predictors.latency.prices import RoundPrices


class PriceTable:
    """Rounds of at most ``depth`` tokens behind ``contexts``, priced in arrays."""

    def __init__(self, prices: RoundPrices, contexts: np.ndarray, depth: int) -> None:
        self._prices, self._context_C = prices, np.unique(contexts)
        known = self._context_C.tolist()
        self._chain_CL = np.array(
            [[prices.chain(drafted, context) for drafted in range(depth + 1)] for context in known]
        )
        self._plain_C = np.array([prices.plain(context) for context in known])
        laws = (prices.law(context) for context in range(known[0], known[-1] + depth))
        self._laws_C = np.cumsum([0.0, *laws])  # of all passes behind contexts from the first one up to this one

        self._drawing_L = np.array([prices.drawing(drafted) for drafted in range(depth + 1)])

    def rounds(self, context_V: np.ndarray, submitted_V: np.ndarray, passes_V: np.ndarray) -> np.ndarray:
        """Seconds of rounds, without readings and questions."""
        place_V = np.searchsorted(self._context_C, context_V)
        none_V = (submitted_V == 0) & (passes_V == 0)
        chain_V = np.where(none_V, self._plain_C[place_V], self._chain_CL[place_V, submitted_V])
        first_V = context_V - self._context_C[0]
        return np.asarray(chain_V + self._laws_C[first_V + passes_V] - self._laws_C[first_V + submitted_V])

    def looked_up(self, submitted_V: np.ndarray, tokens_V: np.ndarray) -> np.ndarray:
        """Price what `rounds` leave out where ``tokens_V`` of the submitted came from a lookup."""
        drawing_V = (
            self._drawing_L[submitted_V - tokens_V] - self._drawing_L[submitted_V] + self._drawing_L[1] * tokens_V
        )
        return np.where(tokens_V > 0, drawing_V, 0.0)

    def catching_up(self, context_V: np.ndarray, passes_V: np.ndarray, behind_V: np.ndarray) -> np.ndarray:
        """Price what `rounds` leave out where the draft model is ``behind_V``."""
        pairs_2P, place_V = np.unique([behind_V, context_V], axis=1, return_inverse=True)
        catching_P = np.array([self._prices.catching_up(*pair) for pair in pairs_2P.T.tolist()])
        return np.where(passes_V > 0, catching_P[place_V], 0.0)
