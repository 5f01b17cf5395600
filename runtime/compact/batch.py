"""Texts of many prompts written at once by the compact forward: what traces and drafters are collected from.

A slot holds one text: its rows of the cache lie one after the other, those of slot b from b T on. A pass runs over the newest
token of every slot; a text that ends makes room for the next prompt. A text depends on the other texts by rounding alone: it
draws from a source of its own. Shape suffixes: B slots, T rows of a slot, N tokens of a text, K tapped layers, C hidden size.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.compact.forward import Pass, forward
from runtime.compact.state import CompactState, Memory, said
from runtime.compact.weights import CompactWeights
from runtime.laws import processed_law, says_something
from runtime.randomness import Randomness, inverted


@dataclass(frozen=True)
class Wanted:
    """A text to write: up to ``max_new_tokens`` tokens after ``prompt``, drawn from ``randomness``. ``name`` tells it apart."""

    name: int
    prompt: list[int]
    max_new_tokens: int
    settings: SamplingSettings
    randomness: Randomness


@dataclass(frozen=True)
class WrittenText:
    """A written text: ``tokens`` after the prompt, with the one that ends it; ``hidden_NKC``: the tapped states at all tokens of
    prompt and text but the last one."""

    wanted: Wanted
    tokens: list[int]
    hidden_NKC: Tensor | None


@dataclass
class _Slot:
    number: int
    wanted: Wanted
    tokens: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)

    @property
    def row(self) -> int:
        """Row of the slot that the newest token goes to."""
        return len(self.wanted.prompt) + len(self.tokens) - 1


class BatchWriter:
    """Writes texts in ``slots`` slots of up to ``longest`` tokens each, prompt included, tapping hidden states of ``layers``; a
    text ends at ``eos_tokens``."""

    def __init__(
        self,
        weights: CompactWeights,
        slots: int,
        longest: int,
        layers: tuple[int, ...] = (),
        eos_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self._weights, self._longest, self._layers, self._eos_tokens = weights, longest, layers, eos_tokens
        self._memory = Memory(weights, slots * longest, clean=True)
        self._positions = torch.arange(longest, device=self._memory.rows.device)
        self._slots = slots

    @torch.inference_mode()
    def write(self, texts: Iterable[Wanted]) -> Iterator[WrittenText]:
        """Write ``texts``; yield them as they end."""
        waiting, free = iter(texts), deque(range(self._slots))
        running: list[_Slot] = []
        while True:
            while free and (wanted := next(waiting, None)) is not None:
                if len(wanted.prompt) + wanted.max_new_tokens > self._longest:
                    count = f"{len(wanted.prompt)} tokens of prompt and {wanted.max_new_tokens} new ones"
                    raise ValueError(f"text {wanted.name}: {count} are more than the {self._longest} rows of a slot.")
                running.append(self._begun(free.popleft(), wanted))
            ended = [slot for slot in running if self._ends(slot)]
            for slot in ended:
                running.remove(slot)
                free.append(slot.number)
                yield WrittenText(slot.wanted, slot.tokens, torch.cat(slot.hidden) if slot.hidden else None)
            if not ended:
                if not running:
                    return
                self._step(running)

    def _begun(self, number: int, wanted: Wanted) -> _Slot:
        """Begin a text: fill a slot with the prompt's rows and the first token."""
        state = CompactState(Memory(self._weights, len(wanted.prompt)), self._layers)
        out = state.forward(wanted.prompt, last=1)
        first, count = number * self._longest, len(wanted.prompt)
        for held, own in zip(self._memory.tensors, state.memory.tensors, strict=True):
            held[:, :, first : first + count] = own
        slot = _Slot(number, wanted)
        self._take([slot], out.logits, out.hidden_NKD, count)
        return slot

    def _step(self, running: list[_Slot]) -> None:
        """Run one pass over the newest token of every slot."""
        device, memory = self._memory.rows.device, self._memory
        tokens_B = torch.zeros(self._slots, dtype=torch.int64)
        own_B = torch.zeros(self._slots, dtype=torch.int64)  # slots that are free write where the next text writes over
        for slot in running:
            tokens_B[slot.number], own_B[slot.number] = slot.tokens[-1], slot.row
        own_B = own_B.to(device)
        most = int(own_B.max()) + 1
        seen_BT = self._positions[:most] <= own_B.unsqueeze(1)
        mask_BT = memory.cos.new_zeros(seen_BT.shape).masked_fill_(~seen_BT, -torch.inf)
        rows_B = own_B + self._longest * torch.arange(self._slots, device=device)
        call = Pass(tokens_B.to(device), rows_B, memory.cos[own_B], memory.sin[own_B], most, mask_BT, self._slots)
        logits, states = forward(self._weights, call, memory.caches, self._slots, self._layers)
        numbers = [slot.number for slot in running]
        hidden = said(logits, states).hidden_NKD
        self._take(running, logits[numbers], None if hidden is None else hidden[numbers], 1)

    def _take(self, slots: list[_Slot], logits: Tensor, hidden_NKC: Tensor | None, count: int) -> None:
        """Draw the next token of every slot; ``count`` rows of hidden states belong to each."""
        by_settings: dict[SamplingSettings, list[int]] = {}
        for place, slot in enumerate(slots):
            by_settings.setdefault(slot.wanted.settings, []).append(place)
        for settings, places in by_settings.items():
            probs = processed_law(logits[places], settings)
            if not bool(says_something(logits[places]).all()):
                names = ", ".join(str(slots[place].wanted.name) for place in places)
                raise ValueError(
                    f"the model's logits are not finite in one of the texts {names}: check its weights and dtype."
                )
            if settings.greedy:
                drawn = probs.argmax(-1)
            else:
                uniform = torch.empty(len(places), 1, dtype=torch.float64, device=probs.device)
                for row, place in zip(uniform, places, strict=True):
                    slots[place].wanted.randomness.fill(row)
                drawn = inverted(probs, uniform)
            for place, token in zip(places, drawn.tolist(), strict=True):
                slots[place].tokens.append(token)
        if hidden_NKC is not None:
            for slot, own in zip(slots, hidden_NKC.split(count), strict=True):
                slot.hidden.append(own.clone())

    def _ends(self, slot: _Slot) -> bool:
        return slot.tokens[-1] in self._eos_tokens or len(slot.tokens) == slot.wanted.max_new_tokens
