"""A causal language model as the decoder sees it: a committed cache plus scratch nodes.

    state.forward(tokens, parents)   append scratch nodes (parents index scratch, -1 = the committed end); logits and taps
    state.keep(path, pending)        commit a path of scratch nodes but for its last `pending` ones, and drop the rest

Prefill, a draft step, a tree and branches are all this. The newest token is never cached yet. Shape suffixes: N nodes of a call,
V vocabulary, K tapped layers, D hidden size. `Scratch` knows the nodes' positions and whom they may see: one mask, grown with the
tree and sliced.

    mask[i, j] = 1  iff  j is i or an ancestor of i

A node's row is its parent's row and itself, so the mask of the tree cut after any node is a slice. For chains that part at the
root and lie depth by depth (i = level · width + chain) it is j ≡ i (mod width) and j <= i. Source: specification of drafting,
section 5.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from runtime.device import is_out_of_memory
from runtime.graphs import Programs

Row = tuple[Tensor, Tensor | None]  # logits [V] and tapped hidden states [K, D]


@dataclass(frozen=True)
class Forward:
    """One pass: ``logits`` [rows, V] of the last rows asked for, ``hidden_NKD`` of every node (``None`` without taps)."""

    logits: Tensor
    hidden_NKD: Tensor | None = None

    def rows(self) -> list[Row]:
        """Pair every row that has logits with its tapped states."""
        if self.hidden_NKD is None:
            return [(logits_V, None) for logits_V in self.logits]
        return list(zip(self.logits, self.hidden_NKD[-len(self.logits) :], strict=True))


class ModelState(Protocol):
    """One request's state over one model."""

    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        """Append nodes and run the model over them. ``parents=None``: a chain from the newest scratch node (or the committed
        end); ``last``: logits of the last rows only."""

    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        """Keep scratch nodes ``path`` (ascending, a path from the committed end) and drop the others: the last ``pending`` of
        them stay scratch, now a chain of nodes 0, 1, …; those before are committed."""


class ReadingState(ModelState, Protocol):
    """State of a draft model that reads its target's hidden states (EAGLE-3)."""

    def offer(self, hidden_NKD: Tensor) -> None:
        """Take the target's states [N, K, D] in front of the next N tokens that are fed or, of drafted ones, committed."""


class LanguageModel(Protocol):
    """A model of a pair. `CausalLanguageModel` wraps Hugging Face models; tests fake one in twenty lines."""

    vocabulary_size: int
    context_limit: int

    @property
    def device(self) -> torch.device:
        """The device of its weights; of a model over several devices, the one where tokens go in."""

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""

    @property
    def programs(self) -> Programs | None:
        """Graphed programs over the model's output, or ``None`` where its passes are not graphed (`runtime.graphs`)."""

    @property
    def eos_tokens(self) -> frozenset[int]:
        """Tokens that end a generation; may be empty."""

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> ModelState:
        """Open a fresh state for a request of ``max_length`` tokens, tapping hidden states of ``layers``."""

    def embedding(self, token: int) -> Tensor:
        """Return the input embedding [E] of a token."""


def features_of(model: LanguageModel) -> tuple[int, ...]:
    """Name the target's layers that a draft ``model`` reads, ascending; most read none."""
    return getattr(model, "features", ())


def cache_prompt(state: ModelState, prompt: Sequence[int]) -> Forward:
    """Commit a prompt; its last pass, with logits of its last token. It is the widest pass of a request: where it finds no memory
    two follow, once, with a warning; their sums may round differently. `MemoryError` if a half finds none either."""
    half, parts = len(prompt) // 2, [prompt]
    while True:
        try:
            out, tapped = None, []
            for part in parts:
                out = None  # the first half's logits go before the second's come
                out = state.forward(part, last=1)
                state.keep(range(len(part)))
                tapped += [] if out.hidden_NKD is None else [out.hidden_NKD]
            assert out is not None
            return Forward(out.logits, torch.cat(tapped)) if len(tapped) > 1 else out
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(parts) == 2 or not half:
                raise MemoryError(
                    f"no memory for a pass over {len(parts[-1])} tokens of the prompt ({error}): shorten the prompt, free "
                    "memory, or place the models on more devices. `draftwright plan` counts what they need."
                ) from error
            text = f"no memory for {len(prompt)} tokens at once ({error}): two passes read the prompt"
            warnings.warn(text, stacklevel=2)
        state.keep(())
        parts = [prompt[:half], prompt[half:]]


SCRATCH_ROOM = 128  # rows a fresh state holds beyond the request's own length; lookahead's default feeds 120
CAPACITY = 64  # nodes of a fresh mask


class Scratch:
    """Topology of a request's cache: committed tokens, then scratch nodes by parent (-1: the committed end)."""

    def __init__(self) -> None:
        self.committed = 0
        self.is_chain = True  # whether every node so far hangs under the one before it
        self._mask = torch.zeros(CAPACITY, CAPACITY, dtype=torch.bool)  # whole rows are written, before they are read
        self._clear()

    @property
    def total(self) -> int:
        """Rows in use: committed tokens and scratch nodes."""
        return self.committed + len(self._parents)

    def append(self, count: int, parents: Sequence[int] | None) -> None:
        """Append ``count`` nodes; ``parents=None``: a chain from the newest scratch node (or the committed end)."""
        first = len(self._parents)
        if parents is None:
            parents = range(first - 1, first + count - 1)
        for node, parent in enumerate(parents, start=first):
            assert -1 <= parent < node, f"scratch node {node} has parent {parent}"
            self.is_chain = self.is_chain and parent == node - 1
            self._parents.append(parent)
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)

    def positions(self, count: int) -> list[int]:
        """Return positions of the last ``count`` nodes in their own text."""
        return [self.committed - 1 + depth for depth in self._depths[-count:]]

    def mask(self, count: int, device: torch.device) -> Tensor | None:
        """Build the mask of the last ``count`` nodes [count, total]: they see committed rows, their ancestors and themselves.

        ``None`` where that is plain causal attention over all rows: one node at the end of a chain, or a prefill.
        """
        if self.is_chain and count in (1, self.total):
            return None
        if self.is_chain:
            return torch.ones(count, self.total, dtype=torch.bool, device=device).tril_(self.total - count)
        committed = torch.ones(count, self.committed, dtype=torch.bool)
        return torch.cat([committed, self.topology(count)], dim=1).to(device)

    def topology(self, count: int) -> Tensor:
        """Build the mask [count, scratch nodes] of whom the last ``count`` nodes see, on the host: ancestors and themselves."""
        end, held = len(self._parents), len(self._mask)
        if end > held:
            more = max(end - held, held)
            self._mask = torch.nn.functional.pad(self._mask, (0, more, 0, more))
        while self._masked < end:  # a run of nodes whose parents are all there is one copy
            start, pending = self._masked, self._parents[self._masked :]
            run = next((place for place, parent in enumerate(pending) if parent >= start), len(pending))
            rows = torch.tensor(pending[:run])
            self._mask[start : start + run] = self._mask[rows.clamp(min=0)] & (rows >= 0).unsqueeze(1)
            self._mask[start : start + run].diagonal(start).fill_(True)
            self._masked += run
        return self._mask[end - count : end, :end]

    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        """Commit the nodes of ``path``, which leads down from the committed end, but for its last ``pending`` ones, which stay;
        drop the others."""
        before = -1
        for node in path:
            assert self._parents[node] == before, f"{path} is no path of {self._parents}"
            before = node
        assert 0 <= pending <= len(path), f"{pending} nodes cannot stay of a path of {len(path)}"
        self.committed += len(path) - pending
        self._clear()
        self.append(pending, None)

    def _clear(self) -> None:
        self._parents: list[int] = []
        self._depths: list[int] = []
        self.is_chain = True
        self._masked = 0  # nodes whose rows the mask has
