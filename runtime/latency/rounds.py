"""Cells of what a round does outside the models' passes, measured in place: real rounds of the real pair less their passes.

    chain_drawing, chain_verification  drafted, sampled      a chain of ``drafted`` tokens, verified by blocks
    tree_drawing, tree_verification    drafted, sampled      a delayed tree of ``drafted`` distinct nodes, verified by traversal
    verification_<rule>                drafted               such a tree, sampled, verified by another ``rule``
    branch_candidates, branch_drawing  rows, sampled         levels of ``rows`` branches: the first one, and each one after it
    guessing                           guessed               a model drafting for itself: phase ``draft`` of a pass that fed so
                                                             many guesses, a chain of the paper's progressive tree
    plain                              context               a token of plain decoding as it runs, greedy, behind ``context``
                                                             tokens and a few more: the sum of its cells is held against it

Drawing is the time in phase ``draft`` of the round's own clock less the draft's passes; verification is all the rest of the round
less the target's. What a pass cell times is a pass here, too: the forward, what is kept and what is offered. Branches are timed
from the end of one draft pass to the beginning of the next.

``sampled`` is 0 greedy, where a tree is a chain, or 1. Sampled trees are drawn at a temperature at which rollouts part at once,
so that they have as many nodes as asked; their verdicts were seen to take 2 to 18 % longer than at temperature 1. Prompts are
random; every visit begins a request of its own, over the memory of the last one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from time import perf_counter
from typing import Any

import torch

from predictors.rounds import RoundRecord
from runtime.build import build_decoder
from runtime.decoding.base import Decoder, Step
from runtime.device import PhaseClock
from runtime.latency.cells import Cell, LatencyConfig, seconds_of, synchronise
from runtime.pair import ModelPair
from runtime.randomness import Randomness

FLAT = 4.0  # temperature of sampled trees
PROMPT, LONGEST = 32, 128  # tokens of a request's prompt and of its output
LEVELS = 2  # of branches timed per round, after the candidates
TOKENS = 4  # of plain decoding timed in a row
MOST_ROUNDS = 1000  # until one is as wanted
CHAIN, TREE = ("chain_drawing", "chain_verification"), ("tree_drawing", "tree_verification")


@dataclass
class Notes:
    """When each pass of a model began and ended, the device waited for, and seconds of what else was done to its states."""

    device: torch.device
    passes: list[tuple[float, float]] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(end - start for start, end in self.passes) + sum(self.others)

    def clear(self) -> None:
        self.passes.clear()
        self.others.clear()


class Timed:
    """A model, or one of its requests' states, of which ``notes`` are taken."""

    def __init__(self, inner: Any, notes: Notes) -> None:
        self._inner, self._notes = inner, notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, *given: Any) -> "Timed":
        return Timed(self._inner.open(*given), self._notes)

    def forward(self, *given: Any, **named: Any) -> Any:
        synchronise(self._notes.device)
        start = perf_counter()
        out = self._inner.forward(*given, **named)
        synchronise(self._notes.device)
        self._notes.passes.append((start, perf_counter()))
        return out

    def keep(self, *given: Any, **named: Any) -> None:
        self._notes.others.append(seconds_of(lambda: self._inner.keep(*given, **named), self._notes.device))

    def offer(self, hidden_NKD: torch.Tensor) -> None:
        self._notes.others.append(seconds_of(lambda: self._inner.offer(hidden_NKD), self._notes.device))


class TimedPair:
    """A ``pair`` whose passes are noted; the target drafts where there is no draft. Prompts are the beginning of one."""

    def __init__(self, pair: ModelPair, config: LatencyConfig, generator: torch.Generator) -> None:
        models = pair.target, pair.draft or pair.target
        self.target, self.draft = (Notes(model.device) for model in models)
        target, draft = map(Timed, models, (self.target, self.draft))
        self.pair = ModelPair(target, draft, pair.tokenizer, pair.tokenizer)
        self.devices = {model.device for model in models}
        self.vocabulary_size = min(model.vocabulary_size for model in models)
        self.context_limit = min(model.context_limit for model in models)
        longest = max(PROMPT, *config.contexts)
        self.prompt = torch.randint(self.vocabulary_size, (longest,), generator=generator).tolist()
        self.chance = Randomness(config.seed)  # goes on from visit to visit, so that their rounds differ

    def decoder(self, **options: Any) -> Decoder:
        return build_decoder(self.pair, options)

    def chain(self, gamma: int) -> Decoder:
        """Chains of ``gamma`` tokens at a fixed length; plain decoding for 0."""
        if not gamma:
            return self.decoder(method="autoregressive")
        return self.decoder(method="speculative", drafter={"kind": "chain", "gamma": gamma}, verifier="block")


@dataclass
class Rounds:
    """Rounds of requests to ``decoder``, whose records are as ``wanted``; `end` ends the request in progress. Where laps wait for
    the devices (``laps_wait``), phases hold their own work."""

    timed: TimedPair
    decoder: Decoder
    temperature: float
    wanted: Callable[[RoundRecord], bool]
    prompt_tokens: int = PROMPT
    laps_wait: bool = True
    made: Iterator[tuple[RoundRecord, float]] | None = None

    def next(self) -> tuple[RoundRecord, float]:
        """The next one and its seconds."""
        self.made = self.made or self._made()
        for record, seconds in islice(self.made, MOST_ROUNDS):
            if self.wanted(record):
                return record, seconds
        raise ValueError(f"no round of {MOST_ROUNDS} is of the shape that a latency cell times: use smaller grids.")

    def end(self) -> None:
        self.made = None

    def cell(self, tables: tuple[str, ...], at: dict[str, int], parts: Callable[..., tuple[float, ...]]) -> Cell:
        """A cell of the ``parts`` of a round, by its record and seconds."""
        return Cell(tables, at, lambda: parts(*self.next()), end=self.end)

    def _made(self) -> Iterator[tuple[RoundRecord, float]]:
        prompt = self.timed.prompt[: min(self.prompt_tokens, self.timed.context_limit // 2)]
        most = min(LONGEST, self.timed.context_limit - len(prompt))
        while True:
            steps = self.decoder.stream(prompt, most, self.temperature, randomness=self.timed.chance, eos_token_id=[])
            next(steps)  # the prefill
            while (one := self._round(steps)) is not None:
                yield one
            del steps  # its memory is the next request's

    def _round(self, steps: Iterator[Step]) -> tuple[RoundRecord, float] | None:
        for notes in (self.timed.target, self.timed.draft):
            notes.clear()
        synchronise(*self.timed.devices)
        PhaseClock.waits_for = [one for one in self.timed.devices if one.type == "cuda" and self.laps_wait]
        start = perf_counter()
        try:
            step = next(steps, None)
        finally:
            PhaseClock.waits_for = ()
        synchronise(*self.timed.devices)
        return None if step is None else (step.record, perf_counter() - start)


def round_cells(timed: TimedPair, config: LatencyConfig) -> list[Cell]:
    """Cells of the tables of chains and trees, and of one for each of the ``tree_rules``."""
    if config.tree_paths > timed.vocabulary_size:
        raise ValueError(
            f"tree_paths={config.tree_paths} rollouts cannot part at the root over {timed.vocabulary_size} tokens. "
            f"Set latency.tree_paths to {timed.vocabulary_size} or fewer."
        )

    def parts(record: RoundRecord, seconds: float) -> tuple[float, float]:
        drafting = record.seconds.get("draft", 0.0)
        return drafting - timed.draft.seconds, seconds - drafting - timed.target.seconds

    def cell(tables: tuple[str, ...], decoder: Decoder, count: int, heat: float, **more: int) -> Cell:
        rounds = Rounds(timed, decoder, heat, lambda record: record.drafted == count)
        return rounds.cell(tables, {"drafted": count, **more}, lambda *made: parts(*made)[-len(tables) :])

    def tree(count: int, sampled: int, rule: str = "traversal") -> Decoder:
        depth = count // config.tree_paths if sampled else count
        drafter = {"kind": "delayed_tree", "k": config.tree_paths, "l1": 0, "l2": depth}
        return timed.decoder(method="speculative", drafter=drafter, verifier=rule)

    cells = []
    for sampled in (0, 1):
        for count in config.drafted:
            cells.append(cell(CHAIN if count else CHAIN[1:], timed.chain(count), count, sampled, sampled=sampled))
        for count in config.tree_nodes:
            cells.append(cell(TREE, tree(count, sampled), count, FLAT * sampled, sampled=sampled))
    for rule in config.tree_rules:
        cells += [cell((f"verification_{rule}",), tree(count, 1, rule), count, FLAT) for count in config.tree_nodes]
    return cells


def branch_cells(timed: TimedPair, config: LatencyConfig) -> list[Cell]:
    """Cells of the tables of growing branches: one job after the other, ``rows`` branches in every round, nothing that stops
    them, and nothing that is drafted with the target idle."""
    if max(config.branch_rows) > timed.vocabulary_size:
        raise ValueError(
            f"there are no {max(config.branch_rows)} candidates among {timed.vocabulary_size} tokens. "
            f"End latency.branch_rows at {timed.vocabulary_size} or before."
        )

    def gaps(*made: object) -> tuple[float, float]:
        """Between the pass at the branch point and the first level's, and between a level's and the next one's."""
        passes = timed.draft.passes[-LEVELS - 2 :]
        first, *others = (start - end for (_, end), (start, _) in pairwise(passes))
        return first, sum(others) / LEVELS

    def cell(rows: int, sampled: int) -> Cell:
        options = {"gamma": LEVELS + 1, "k_max": rows, "k_rule": "const", "draft_stage": "preverify", "overlap": "none"}
        decoder = timed.decoder(method="branch_parallel", controller={"kind": "fixed"}, **options)
        whole = rows, LEVELS + 2, False
        rounds = Rounds(timed, decoder, sampled, lambda made: (made.candidates, made.levels, made.law_known) == whole)
        return rounds.cell(("branch_candidates", "branch_drawing"), {"rows": rows, "sampled": sampled}, gaps)

    return [cell(rows, sampled) for sampled in (0, 1) for rows in config.branch_rows]


def guessing_cells(timed: TimedPair, config: LatencyConfig) -> list[Cell]:
    """Cells of the table ``guessing``. A tree without branches holds as many guesses as its depth allows."""

    def cell(count: int) -> Cell:
        tree = {"geometry": "paper", "max_children": 1, "max_depth": count + 1}
        decoder = timed.decoder(method="progressive_tree", **tree)
        rounds = Rounds(timed, decoder, 0.0, lambda record: record.guessed == count)
        return rounds.cell(("guessing",), {"guessed": count}, lambda record, _: (record.seconds["draft"],))

    return [cell(count) for count in config.guessed]


def plain_cells(pair: ModelPair, timed: TimedPair, config: LatencyConfig) -> list[Cell]:
    """The cell of table ``plain``, behind a prompt of the middle one of ``contexts``: a call is some whole rounds of ``pair``, of
    whose passes no notes are taken."""
    context = min(config.contexts[len(config.contexts) // 2], timed.context_limit // 2)
    decoder = build_decoder(pair, {"method": "autoregressive"})
    rounds = Rounds(timed, decoder, 0.0, lambda record: True, context, laps_wait=False)

    def measure() -> tuple[float]:
        return (sum(rounds.next()[1] for _ in range(TOKENS)) / TOKENS,)

    return [Cell(("plain",), {"context": context}, measure, end=rounds.end)]
