"""Smaller sets of traces: whole training documents are kept or dropped, and a smaller share lies within every larger one.

Shape suffixes: N rows.
"""

import numpy as np


def training_documents(document_N: np.ndarray, split_N: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Names of a random ``share`` of the training documents, at least one; of one ``seed`` the smaller within the larger.

    Examples
    --------
    >>> documents, splits = np.array(["a", "a", "b", "c", "d"]), np.array(["train"] * 4 + ["test"])
    >>> len(training_documents(documents, splits, 1.0, seed=0))
    3
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of documents must lie in (0, 1], got {share}.")
    names = np.unique(document_N[split_N == "train"])
    shuffled = np.random.default_rng(seed).permutation(names)
    return shuffled[: max(1, round(share * len(names)))]


def kept_rows(document_N: np.ndarray, split_N: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Which rows remain [N] bool: of training only those of ``documents``, of the other splits all."""
    return (split_N != "train") | np.isin(document_N, documents)
