"""Tokens of a draft that a verifier accepted, given the text that came out.

After a committed prefix the target's own text y_1 y_2 … is known, drafts are not. Of a draft from q, verified losslessly against
p, the accepted tokens are the text's, so their number N follows from ratios a_j = q_j(y_j) / p_j(y_j):

    tokenwise    P(N >= n | y) = Π_{j<=n} min(1, a_j)
    block        P(N >= n | y) = min_{m<=n} Π_{j<=m} a_j,  at most 1          (also hsd and traversal, which are block on chains)
    nss          P(N >= n | y) = Π_{j<=n} q_j(y_j)                            (accepted where the target drew the same token)

Neither depends on how many tokens were submitted, if where drafting stops is decided before the next token is drawn: a shorter
draft accepts min(N, submitted). Derivation: P(x_1..n = y_1..n, N = n, next token = y_n+1) is q(y_1..n) times the verifier's
stopping weight there (specification of verification, sections 2 and 3), divided by p(y_1..n+1). Proved by enumeration in
tests/predictors/test_replay_acceptance.py.

The same number, position by position: the token at position i is kept, given that all before it are, with probability

    k_i = P(N >= i | y) / P(N >= i - 1 | y),    N = first i with uniform number u_i >= k_i, less one

from which replay draws. Shape suffix: G positions after the prefix; others may come before it.
"""

import numpy as np


class BeyondRecordError(ValueError):
    """Error of a decoder or controller that needs what a text trace does not hold: it can be run, and not replayed."""


TOKENWISE = ("tokenwise", "naive_tree", "spectr", "specinfer", "khisti")
BLOCK = ("block", "hsd", "traversal", "hsd_multi_draft")
MATCHED = ("nss", "match")
CHAIN_RULES = (*TOKENWISE, *BLOCK, *MATCHED)


def acceptance_of(verifier: str) -> tuple[str, ...]:
    """Return the rules that accept as much of a chain as ``verifier``, which is among them; alone if it cannot be replayed."""
    return next((rules for rules in (TOKENWISE, BLOCK, MATCHED) if verifier in rules), (verifier,))


def reached(ratios_G: np.ndarray, probabilities_G: np.ndarray, verifier: str) -> np.ndarray:
    """Compute P(N >= n | text) for n = 1, 2, … [..., G].

    Parameters
    ----------
    ratios_G
        Draft over target probability of the text's tokens; infinite where the target's is 0.
    probabilities_G
        The draft's probabilities of them.
    verifier
        A rule for chains, of `CHAIN_RULES`.
    """
    if verifier in TOKENWISE:
        return np.cumprod(np.minimum(ratios_G, 1.0), axis=-1)
    if verifier in BLOCK:
        with np.errstate(invalid="ignore"):  # 0 times infinity: nothing reaches there
            products_G = np.nan_to_num(np.cumprod(ratios_G, axis=-1), nan=0.0)
        return np.minimum.accumulate(np.minimum(products_G, 1.0), axis=-1)
    if verifier in MATCHED:
        return np.cumprod(probabilities_G, axis=-1)
    raise BeyondRecordError(f"verifier {verifier!r} cannot be replayed on chains. Known: {', '.join(CHAIN_RULES)}.")


def accepted(reached_G: np.ndarray, uniforms_G: np.ndarray) -> np.ndarray:
    """Draw N [...] by a uniform number in [0, 1) at every position."""
    assert uniforms_G.shape[-1] == reached_G.shape[-1], "a number at every position"
    before_G = np.concatenate([np.ones_like(reached_G[..., :1]), reached_G[..., :-1]], axis=-1)
    kept_G = reached_G > uniforms_G * before_G
    return np.asarray(np.logical_and.accumulate(kept_G, axis=-1).sum(axis=-1))
