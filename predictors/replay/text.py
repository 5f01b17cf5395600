"""A recorded text: the target's own continuation of a prompt, and at every position of it what a draft from there comes to.

Row t (from 1) is a root: a round may start there, after t tokens y_0 … y_{t-1} of the continuation. Of a draft from it are known

    along the text    how likely y_t, y_{t+1}, … are under a draft that has drafted the text so far: what any number of tokens
                      would come to (`predictors.replay.acceptance`)
    the chain         the tokens that are drafted, accepted ones first, with the draft's distribution in front of each

Whether a token at a position of the text is kept follows from the position's own uniform number, whatever drafts there. So
policies are compared on the same random numbers, and their differences are those of decisions; no two rounds of one decode test
the same position, so that its numbers are independent. Source: `trace_collection.texts`.

Shape suffixes: N rows, G drafted tokens (γ_max), T most likely tokens, C candidates, K tapped layers, D hidden size, E embedding
size, S state size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predictors.lookup import LONGEST, NOTHING, Found, LookupSettings
from predictors.replay.acceptance import BeyondRecordError, acceptance_of, accepted, reached
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root, TokenNumbers
from predictors.survival import numbers_of


class LazyRows:
    """Rows of an array that is read when one of them is first used: of hidden states, which few controllers read."""

    def __init__(self, read: Callable[[], np.ndarray], rows: slice) -> None:
        self._read, self._rows = read, rows

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self._read()[self._rows]

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.__array__())

    def __getitem__(self, key: Any) -> Any:
        """Take rows ``[:end]`` as lazy ones, anything else of the array."""
        return LazyRows(self.__array__, key) if isinstance(key, slice) else self.__array__()[key]


@dataclass(frozen=True)
class RootStates:
    """Target states at every row: ``states_NS`` (`predictors.head.state_vector`) of ``layers``, each of ``hidden_size``
    numbers, and an embedding."""

    states_NS: np.ndarray | LazyRows
    layers: tuple[int, ...]
    hidden_size: int

    def at(self, row: int) -> tuple[Tensor, Tensor]:
        """Return hidden states [K, D] and embedding [E] at a row."""
        state_S = torch.from_numpy(np.array(self.states_NS[row - 1]))
        split = len(self.layers) * self.hidden_size
        return state_S[:split].reshape(len(self.layers), self.hidden_size), state_S[split:]


@dataclass(frozen=True)
class RecordedText:
    """A recorded continuation of ``prompt_tokens`` tokens, within a ``budget`` of new ones.

    ``columns`` hold its rows from 1 on, as `predictors.schema.TEXT_COLUMNS` names them: numbers [N] and lists [N, G, …]; the
    draft's ``states`` may be `LazyRows`. ``verifier``: what its chains are accepted by; ``reads_states``: whether the draft reads
    the target's states, so that it runs over accepted tokens again.
    """

    prompt_id: str
    document: str
    slice: str
    settings: SamplingSettings
    prompt_tokens: int
    budget: int
    verifier: str
    columns: Mapping[str, Any]
    eos_tokens: frozenset[int] = frozenset()
    roots: RootStates | None = None
    draft_layers: tuple[int, ...] = ()
    reads_states: bool = False

    @property
    def length(self) -> int:
        """Number of new tokens, the prefill's own among them."""
        return len(self.columns["token"]) + 1

    @property
    def tokens(self) -> list[int]:
        """Tokens of the continuation, from its first one on."""
        return [int(self.columns["newest"][0]), *self.columns["token"].tolist()]

    @cached_property
    def ends(self) -> bool:
        """True if any of the text's tokens, or of those drafted, ends a sequence."""
        known = [self.columns[name].ravel() for name in ("token", "tokens")]
        return not self.eos_tokens.isdisjoint(np.concatenate(known).tolist())

    def within(self, budget: int) -> "RecordedText | None":
        """Cut the text where only ``budget`` new tokens are decoded; ``None`` if more are wanted than it was recorded for, even
        if it ended early: those that did are no fair sample of all."""
        if self.budget < budget:
            return None
        columns = {name: values[: budget - 1] for name, values in self.columns.items()}
        roots = None if self.roots is None else replace(self.roots, states_NS=self.roots.states_NS[: budget - 1])
        return replace(self, budget=budget, columns=columns, roots=roots)

    @property
    def slots(self) -> int:
        """Largest number of tokens of a round that can be replayed."""
        return int(self.columns["tokens"].shape[1])

    def tapped(self, kind: str, layers: tuple[int, ...], draft_layers: tuple[int, ...]) -> "RecordedText":
        """Show a controller of ``kind`` what its decoder taps, which are these layers: no states of the target where it taps
        none. `BeyondRecordError` unless they were recorded."""
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
        """Return the most tokens that the budget leaves to draft in a round that starts at row ``start``."""
        return self.budget - start - 1

    def root(self, start: int, depth: int, previous: RoundRecord | None, lookup: LookupSettings | None = None) -> Root:
        """Make the root that a controller sees in a round that starts at row ``start`` and may draft ``depth`` tokens;
        ``lookup``: the drafter's, if it has one."""
        hidden_KD, embedding_E = (None, None) if self.roots is None else self.roots.at(start)
        found = None if lookup is None else self.found(start, lookup)
        return Root(self.prompt_tokens + start, depth, self.settings, previous, hidden_KD, embedding_E, found=found)

    def found(self, start: int, lookup: LookupSettings) -> Found:
        """Return the match of ``lookup`` at row ``start``."""
        columns, row = self.columns, start - 1
        if columns["match"][row] < lookup.least:
            return NOTHING
        tokens = tuple(token for token in columns["lookup"][row, : lookup.length].tolist() if token >= 0)
        return Found(int(columns["match"][row]), tokens, int(columns["seen"][row]), int(columns["agreed"][row]))

    def require_verifier(self, verifier: str) -> None:
        """Raise `BeyondRecordError` unless chains that ``verifier`` verifies were recorded; at temperature 0 all accept alike."""
        if not self.settings.read_off and verifier not in acceptance_of(self.verifier):
            raise BeyondRecordError(
                f"verifier {verifier!r} cannot be replayed on chains recorded under {self.verifier!r}. Set "
                "traces.texts.verifier and collect again."
            )

    def accepted(self, looked_up: int = 0) -> Sequence[int]:
        """Count, by row, the tokens accepted of ``looked_up`` tokens of the lookup and any number drafted after them."""
        if looked_up not in self._accepted:
            counts_N = self.columns["accepted"]
            if looked_up:
                kept_NG = onward(self.columns["kept"], self.slots)
                counts_N = accepted(reached(*self._sourced(looked_up), self.verifier), kept_NG)
            self._accepted[looked_up] = [0, *counts_N.tolist()]
        return self._accepted[looked_up]

    @cached_property
    def _accepted(self) -> dict[int, Sequence[int]]:
        return {}

    def _sourced(self, looked_up: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute ratios and probabilities [N, G] of the text's tokens where the lookup's ones go before drafted ones: its
        distributions are one-hot."""
        columns = self.columns
        right_NL = (onward(columns["token"], self.slots, -2) == columns["lookup"])[:, :looked_up]
        target_NL = onward(columns["target_probability"], self.slots, 1)[:, :looked_up].astype(np.float64)
        made = zip((right_NL / target_NL, right_NL.astype(np.float64)), ("ratio", "probability"), strict=True)
        ratio_NG, probability_NG = (np.hstack([one, columns[name][:, looked_up:]]) for one, name in made)
        return ratio_NG, probability_NG

    def require_lookup(self, lookup: LookupSettings) -> None:
        """Raise `ValueError` unless what ``lookup`` finds was recorded."""
        if lookup.length > self.slots or lookup.longest != LONGEST:
            raise BeyondRecordError(
                f"lookups of {lookup.length} tokens after matches of at most {lookup.longest} cannot be replayed on texts "
                f"recorded with gamma_max={self.slots} after matches of at most {LONGEST}. Raise traces.texts.gamma_max and "
                "collect again, or leave longest out."
            )

    def number(self, name: str, row: int, *slot: int) -> float:
        """Return a number of a row, or of a slot of it."""
        return float(self.columns[name][row - 1, *slot])


def onward(values_N: np.ndarray, count: int, then: float = 0) -> np.ndarray:
    """Slide over values from every row on [N, count], ``then`` after a text's end."""
    ends = np.full(count - 1, then, values_N.dtype)
    return np.lib.stride_tricks.sliding_window_view(np.append(values_N, ends), count)


def _recorded(name: str) -> Any:
    """Read a distribution's number from the column ``name``, kept once it was read."""
    return cached_property(lambda law: torch.tensor(law.text.number(name, law.row, law.slot)))


class RecordedLaw(NextLaw):
    """The draft's distribution at a slot: the numbers that were recorded of it, and no probabilities."""

    confidence, entropy = _recorded("confidence"), _recorded("entropy")
    law_entropy = _recorded("law_entropy")

    def __init__(self, text: RecordedText, root: Root, drafted: int, row: int, slot: int) -> None:
        self.text, self.row, self.slot = text, row, slot
        self.root, self.settings, self.drafted = root, text.settings, drafted

    @property
    def confidence_read(self) -> bool:
        """True once the largest probability was read."""
        return "confidence" in vars(self)

    @property
    def entropy_read(self) -> bool:
        """True once an entropy was read."""
        return not {"entropy", "law_entropy"}.isdisjoint(vars(self))

    @cached_property
    def hidden_KD(self) -> Tensor:  # type: ignore[override]
        recorded = self.text.columns["states"].shape[1]
        if self.slot >= recorded:
            raise ValueError(
                f"a controller reads a state at slot {self.slot}, and {recorded} were recorded. Set traces.texts.rollout_states."
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
    """The token drawn at a slot, with the numbers that were recorded of it."""

    def __init__(self, law: RecordedLaw) -> None:
        self.law, self.drafted, self._recorded = law, law.drafted + 1, law
        self.id = int(self._number("tokens"))

    def _number(self, name: str) -> float:
        law = self._recorded
        return law.text.number(name, law.row, law.slot)

    @cached_property
    def token(self) -> Tensor:  # type: ignore[override]
        return torch.tensor(self.id)

    @cached_property
    def probability(self) -> Tensor:
        return torch.tensor(self._number("probabilities"))

    @cached_property
    def unit_probability(self) -> Tensor:
        return torch.tensor(self._number("unit_probabilities"))

    def numbers(self, run: Callable[[Tensor], Tensor]) -> TokenNumbers:
        return numbers_of(self._number("confidence"), self._number("unit_probabilities"))
