"""Cells of what a round does outside the models' passes: real decoders over weightless models (`runtime.latency.weightless`).

    chain_drawing, chain_verification  drafted, sampled   a chain of ``drafted`` tokens, verified by blocks
    tree_drawing, tree_verification    drafted, sampled   a delayed tree of ``drafted`` distinct nodes, verified by traversal
    verification_<rule>                drafted            such a tree, sampled, verified by another ``rule``

Drawing is the time in phase ``draft`` of the round's own clock, verification all the rest of the round: verdict, controller
hooks, records. ``sampled`` is the temperature, 0 or 1. Nothing drafted is plain decoding, which has no drawing. At temperature 1
a tree is some paths that part at the root; at temperature 0 all paths are one and the tree is a chain.

In decoding this work follows passes that evict it from the caches, and it takes up to twice as long as in a loop of its own: a
pass of the target comes before each call, untimed. The devices of both models are waited for.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from runtime.build import build_decoder
from runtime.clock import PhaseClock
from runtime.decoding.base import Decoder, Step
from runtime.latency.cells import Cell, synchronise
from runtime.pair import ModelPair
from runtime.randomness import Randomness

TEMPERATURES = (0, 1)
ENDLESS = 2**40  # new tokens: no round is cut short by the budget


class Rounds:
    """Rounds of one endless request to ``decoder``, those that draft ``drafted`` tokens."""

    def __init__(self, decoder: Decoder, drafted: int, temperature: float, seed: int, *devices: torch.device) -> None:
        options: dict[str, Any] = {"temperature": temperature, "randomness": Randomness(seed), "eos_token_id": []}
        self._steps: Iterator[Step] = decoder.stream([0], max_new_tokens=ENDLESS, **options)
        self._drafted = drafted
        self._devices = devices
        next(self._steps)  # the prefill

    def measure(self) -> tuple[float, float]:
        """Seconds of drawing and of the rest of the next full round; rounds whose rollouts met are passed over."""
        while True:
            synchronise(*self._devices)
            start = perf_counter()
            with laps_waiting_for(self._devices):
                record = next(self._steps).record
            synchronise(*self._devices)
            seconds = perf_counter() - start
            if record.drafted == self._drafted:
                drawing = record.seconds.get("draft", 0.0)
                return drawing, seconds - drawing

    def measure_rest(self) -> tuple[float]:
        """Seconds of the next round outside drawing."""
        return self.measure()[1:]


@contextmanager
def laps_waiting_for(devices: Sequence[torch.device]) -> Iterator[None]:
    """Clocks' laps wait for the accelerators among ``devices`` within the block: phases hold their own work."""
    PhaseClock.waits_for = [device for device in devices if device.type == "cuda"]
    try:
        yield
    finally:
        PhaseClock.waits_for = ()


def round_cells(
    pair: ModelPair,
    drafted: Sequence[int],
    tree_paths: int,
    tree_nodes: Sequence[int],
    rules: Sequence[str],
    seed: int,
    before: Callable[[], None],
) -> list[Cell]:
    """Cells of the four tables, and of one for each of ``rules``, over a weightless ``pair``; ``tree_nodes`` are multiples of
    ``tree_paths``."""
    assert pair.draft is not None
    models = (pair.target, pair.draft)
    _require_parting_paths(tree_paths, min(model.vocabulary_size for model in models))
    devices = {model.device for model in models}
    cells = []
    for temperature in TEMPERATURES:
        for count in drafted:
            rounds = Rounds(chain_decoder(pair, count), count, temperature, seed, *devices)
            at = {"drafted": count, "sampled": temperature}
            cells.append(_cell("chain", at, rounds, before))
        for count in tree_nodes:
            depth = count // tree_paths if temperature else count
            rounds = Rounds(tree_decoder(pair, tree_paths, depth), count, temperature, seed, *devices)
            at = {"drafted": count, "sampled": temperature}
            cells.append(_cell("tree", at, rounds, before))
    for rule in rules:
        for count in tree_nodes:
            rounds = Rounds(tree_decoder(pair, tree_paths, count // tree_paths, rule), count, 1, seed, *devices)
            cells.append(Cell((f"verification_{rule}",), {"drafted": count}, rounds.measure_rest, before))
    return cells


def chain_decoder(pair: ModelPair, gamma: int) -> Decoder:
    """Chains of ``gamma`` tokens at a fixed length; plain decoding for 0."""
    if not gamma:
        return build_decoder(pair, {"method": "autoregressive"})
    drafter = {"kind": "chain", "gamma": gamma}
    return build_decoder(pair, {"method": "speculative", "drafter": drafter, "verifier": "block"})


def tree_decoder(pair: ModelPair, paths: int, depth: int, rule: str = "traversal") -> Decoder:
    """Trees of ``paths`` rollouts of ``depth`` tokens from the root."""
    drafter = {"kind": "delayed_tree", "k": paths, "l1": 0, "l2": depth}
    return build_decoder(pair, {"method": "speculative", "drafter": drafter, "verifier": rule})


def _require_parting_paths(paths: int, vocabulary_size: int) -> None:
    if paths > vocabulary_size:
        raise ValueError(
            f"tree_paths={paths} rollouts cannot part at the root over {vocabulary_size} tokens. "
            f"Set latency.tree_paths to {vocabulary_size} or fewer."
        )


def _cell(kind: str, at: dict[str, int], rounds: Rounds, before: Callable[[], None]) -> Cell:
    if not at["drafted"]:
        return Cell((f"{kind}_verification",), at, rounds.measure_rest, before)
    return Cell((f"{kind}_drawing", f"{kind}_verification"), at, rounds.measure, before)
