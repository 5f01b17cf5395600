"""Toy models readable in ten lines, and the distribution of their own text: what every lossless decoder must emit."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.adapter import Forward
from runtime.audit.enumeration import Law
from runtime.laws import processed_law


class TableModel:
    """A language model given by a table: logits of the next token depend on the last two tokens of the context."""

    context_limit = 1000
    device, dtype, programs = torch.device("cpu"), torch.float64, None
    eos_tokens: frozenset[int] = frozenset()

    def __init__(self, vocabulary_size: int, seed: int, sharpness: float = 1.5, zeros: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocabulary_size = vocabulary_size
        shape = (vocabulary_size + 1, vocabulary_size + 1, vocabulary_size)
        self.table = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        if zeros:  # impossible tokens, but never all of them
            impossible = torch.rand(shape, generator=generator) < 0.3
            impossible[..., 0] = False
            self.table[impossible] = -torch.inf

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> "TableState":
        return TableState(self)

    def embedding(self, token: int) -> Tensor:
        return torch.zeros(1)

    def logits(self, context: list[int]) -> Tensor:
        padded = [self.vocabulary_size, self.vocabulary_size, *context]
        return self.table[padded[-2], padded[-1]]


class TableState:
    """Committed tokens plus scratch nodes; no cache, so it cannot go stale."""

    def __init__(self, model: TableModel) -> None:
        self.model = model
        self.committed: list[int] = []
        self.nodes: list[tuple[int, list[int]]] = []

    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        first = len(self.nodes)
        parents = range(first - 1, first + len(tokens) - 1) if parents is None else parents
        for token, parent in zip(torch.as_tensor(tokens).tolist(), parents, strict=True):
            before = self.committed if parent < 0 else self.nodes[parent][1]
            self.nodes.append((parent, [*before, token]))
        rows = [self.model.logits(context) for _, context in self.nodes[first:]]
        return Forward(torch.stack(rows)[-(last or len(rows)) :])

    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        kept = [self.nodes[node] for node in path]
        assert [parent for parent, _ in kept] == [-1, *list(path)[:-1]][: len(kept)]
        if len(kept) > pending:
            self.committed = kept[len(kept) - pending - 1][1]
        self.nodes = [(place - 1, text) for place, (_, text) in enumerate(kept[len(kept) - pending :])]


def target_law(model: Any, prompt: Sequence[int], length: int, settings: SamplingSettings) -> Law:
    """Compute the distribution of the next ``length`` tokens by plain ancestral sampling."""
    law: Law = {(): 1.0}
    for _ in range(length):
        longer: Law = {}
        for tokens, probability in law.items():
            probs = processed_law(model.logits([*prompt, *tokens]), settings)
            longer |= {(*tokens, token): probability * share for token, share in enumerate(probs.tolist()) if share}
        law = longer
    return law
