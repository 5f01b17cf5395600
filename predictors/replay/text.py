"""A recorded text: the target's own continuation of a prompt, and what the draft says at and beside every place of it.

Row t (from 1) is where a round may start: behind t tokens y_0 … y_{t-1} of the continuation. Its slots are the draft's laws there
and the tokens drawn from them: slot 0 in front of y_t, with a token x_t that was rejected there; slot i behind x_t and i - 1 free
draws after it. A round that starts at row s and accepts n tokens saw slot 0 of rows s … s + n, then slots 1, 2, … of row s + n.
No two rounds of one decode end at the same row, so what was drawn beside the text is drawn once and serves every policy. Source:
`trace_collection.texts`.

Shape suffixes: N rows, G slots (γ_max), T most likely tokens, K tapped layers, D hidden size, E embedding size, S state size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predictors.lookup import LONGEST, NOTHING, Found, LookupSettings
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root, TokenNumbers
from predictors.survival import numbers_of


class BeyondRecordError(ValueError):
    """A decoder or a controller needs what a text trace does not hold: it can be run, and not replayed."""


class LazyRows:
    """Some rows of an array that is read when one of them is first asked for: of hidden states, which few controllers read."""

    def __init__(self, read: Callable[[], np.ndarray], rows: slice) -> None:
        self._read, self._rows = read, rows

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self._read()[self._rows]

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.__array__())

    def __getitem__(self, key: Any) -> Any:
        """Rows ``[:end]`` as lazy ones, anything else of the array."""
        return LazyRows(self.__array__, key) if isinstance(key, slice) else self.__array__()[key]


@dataclass(frozen=True)
class RootStates:
    """The target's states at every row: ``states_NS`` (`predictors.features.state_vector`) of ``layers``, each of
    ``hidden_size`` numbers, and an embedding."""

    states_NS: np.ndarray | LazyRows
    layers: tuple[int, ...]
    hidden_size: int

    def at(self, row: int) -> tuple[Tensor, Tensor]:
        """Hidden states [K, D] and embedding [E]."""
        state_S = torch.from_numpy(np.array(self.states_NS[row - 1]))
        split = len(self.layers) * self.hidden_size
        return state_S[:split].reshape(len(self.layers), self.hidden_size), state_S[split:]


@dataclass(frozen=True)
class RecordedText:
    """One continuation of ``prompt_tokens`` tokens within a ``budget`` of new ones.

    ``columns`` hold its rows from 1 on, as `predictors.schema.TEXT_COLUMNS` names them: numbers [N] and lists [N, G, …]; the
    draft's ``states`` may be `LazyRows`.
    """

    prompt_id: str
    document: str
    slice: str
    settings: SamplingSettings
    prompt_tokens: int
    budget: int
    columns: Mapping[str, Any]
    eos_tokens: frozenset[int] = frozenset()
    roots: RootStates | None = None
    draft_layers: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """New tokens, the prefill's own among them."""
        return len(self.columns["token"]) + 1

    @property
    def tokens(self) -> list[int]:
        """The continuation from its first token on."""
        return [int(self.columns["newest"][0]), *self.columns["token"].tolist()]

    @cached_property
    def ends(self) -> bool:
        """Whether any of its tokens, or of those drafted beside it, ends a sequence."""
        known = [self.columns[name].ravel() for name in ("token", "tokens")]
        return not self.eos_tokens.isdisjoint(np.concatenate(known).tolist())

    def within(self, budget: int) -> "RecordedText | None":
        """The same text where only ``budget`` new tokens are decoded; ``None`` if more are wanted than it was recorded for, even
        if it ended early: those that did are no fair sample of all."""
        if self.budget < budget:
            return None
        columns = {name: values[: budget - 1] for name, values in self.columns.items()}
        roots = None if self.roots is None else replace(self.roots, states_NS=self.roots.states_NS[: budget - 1])
        return replace(self, budget=budget, columns=columns, roots=roots)

    @property
    def slots(self) -> int:
        """Most tokens of a round that can be replayed."""
        return int(self.columns["tokens"].shape[1])

    def tapped(self, kind: str, layers: tuple[int, ...], draft_layers: tuple[int, ...]) -> "RecordedText":
        """What a controller of ``kind`` sees, whose decoder taps these layers: without the target's states where it taps none.
        `BeyondRecordError` unless they were recorded."""
        recorded = () if self.roots is None else self.roots.layers
        for model, wanted, known, key in (
            ("target", layers, recorded, "layers"),
            ("draft", draft_layers, self.draft_layers, "draft_layers"),
        ):
            if wanted and wanted != known:
                raise BeyondRecordError(
                    f"a {kind} controller reads hidden states {list(wanted)} of the {model}, and {list(known)} were recorded. "
                    f"Set traces.texts.{key} to {len(wanted)} and collect again."
                )
        return self if layers else replace(self, roots=None)

    def cap(self, start: int) -> int:
        """Most tokens that the budget leaves to draft in a round that starts at row ``start``."""
        return self.budget - start - 1

    def root(self, start: int, depth: int, previous: RoundRecord | None, lookup: LookupSettings | None = None) -> Root:
        """What a controller sees of a round that starts at row ``start`` and may draft ``depth`` tokens; ``lookup``: the
        drafter's, if it has one."""
        hidden_KD, embedding_E = (None, None) if self.roots is None else self.roots.at(start)
        found = None if lookup is None else self.found(start, lookup)
        return Root(self.prompt_tokens + start, depth, self.settings, previous, hidden_KD, embedding_E, found=found)

    def found(self, start: int, lookup: LookupSettings) -> Found:
        """What ``lookup`` finds at row ``start``."""
        columns, row = self.columns, start - 1
        if columns["match"][row] < lookup.least:
            return NOTHING
        tokens = tuple(token for token in columns["lookup"][row, : lookup.length].tolist() if token >= 0)
        return Found(int(columns["match"][row]), tokens, int(columns["seen"][row]), int(columns["agreed"][row]))

    def require_lookup(self, lookup: LookupSettings) -> None:
        """`ValueError` unless what ``lookup`` finds was recorded."""
        if lookup.length > self.slots or lookup.longest != LONGEST:
            raise BeyondRecordError(
                f"lookups of {lookup.length} tokens after matches of at most {lookup.longest} cannot be replayed on texts "
                f"recorded with gamma_max={self.slots} after matches of at most {LONGEST}. Raise traces.texts.gamma_max and "
                "collect again, or leave longest out."
            )

    def number(self, name: str, row: int, *slot: int) -> float:
        """A number of a slot, or of the text's token at ``row``."""
        return float(self.columns[name][row - 1, *slot])


def _recorded(name: str) -> Any:
    """A law's number from the column ``name``, kept where somebody has read it."""
    return cached_property(lambda law: torch.tensor(law.text.number(name, law.row, law.slot)))


class RecordedLaw(NextLaw):
    """The draft's law at a slot: the numbers that were recorded of it, and no law."""

    confidence, entropy = _recorded("confidence"), _recorded("entropy")
    law_entropy = _recorded("law_entropy")

    def __init__(self, text: RecordedText, root: Root, drafted: int, row: int, slot: int) -> None:
        self.text, self.row, self.slot = text, row, slot
        self.root, self.settings, self.drafted = root, text.settings, drafted

    @property
    def confidence_read(self) -> bool:
        """Whether anybody has read how likely the likeliest token is."""
        return "confidence" in vars(self)

    @property
    def entropy_read(self) -> bool:
        """Whether anybody has read an entropy."""
        return not {"entropy", "law_entropy"}.isdisjoint(vars(self))

    @cached_property
    def hidden_KD(self) -> Tensor:  # type: ignore[override]
        recorded = self.text.columns["states"].shape[1]
        if self.slot >= recorded:
            raise ValueError(
                f"a controller reads a state at slot {self.slot}, and {recorded} were recorded. Set traces.texts.beside_states."
            )
        return torch.from_numpy(np.array(self.text.columns["states"][self.row - 1, self.slot])).unsqueeze(0)

    def likeliest(self, top: int) -> Tensor:
        recorded_T = np.array(self.text.columns["tops"][self.row - 1, self.slot])
        if top > len(recorded_T):
            raise BeyondRecordError(
                f"this controller reads the {top} most likely tokens, and {len(recorded_T)} were recorded. Raise "
                "traces.texts.top and collect again."
            )
        return torch.from_numpy(recorded_T[:top])

    @property
    def unit_probs_V(self) -> Tensor:
        raise BeyondRecordError(
            "a recorded text holds no whole distributions: this controller can be run, and not replayed."
        )


class RecordedToken(DrawnToken):
    """The token drawn at a slot: the text's own (``on_path``), or the one beside it."""

    def __init__(self, law: RecordedLaw, on_path: bool) -> None:
        self.law, self.drafted = law, law.drafted + 1
        self._recorded, self._on_path = law, on_path
        self.id = int(self._number("token", "tokens"))

    def _number(self, of_token: str, at_slot: str) -> float:
        law = self._recorded
        return law.text.number(of_token, law.row) if self._on_path else law.text.number(at_slot, law.row, law.slot)

    @cached_property
    def token(self) -> Tensor:  # type: ignore[override]
        return torch.tensor(self.id)

    @cached_property
    def probability(self) -> Tensor:
        return torch.tensor(self._number("probability", "probabilities"))

    @cached_property
    def unit_probability(self) -> Tensor:
        return torch.tensor(self._number("unit_probability", "unit_probabilities"))

    def numbers(self, run: Callable[[Tensor], Tensor]) -> TokenNumbers:
        law = self._recorded
        return numbers_of(law.text.number("confidence", law.row, law.slot), float(self.unit_probability))
