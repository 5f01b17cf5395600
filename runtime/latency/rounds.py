"""Cells of what a round does outside the models' passes: real decoders over weightless models (`runtime.latency.weightless`).

    chain_drawing, chain_verification  drafted, sampled      a chain of ``drafted`` tokens, verified by blocks
    tree_drawing, tree_verification    drafted, sampled      a delayed tree of ``drafted`` distinct nodes, verified by traversal
    verification_<rule>                drafted               such a tree, sampled, verified by another ``rule``
    branch_candidates, branch_drawing  rows, sampled         levels of ``rows`` branches: the first one, and each one behind it
    branch_verdict                     candidates, sampled   finding the token at the branch point among as many candidates
    plain                              context               a token of the real target alone, greedy, behind ``context`` tokens
                                                             and a few more: the sum of its other cells is held against it

Drawing is the time in phase ``draft`` of the round's own clock, verification all the rest of the round: verdict, controller
hooks, records. ``sampled`` is the temperature, 0 or 1. Nothing drafted is plain decoding, which has no drawing. At temperature 1
a tree is some paths that part at the root; at temperature 0 all paths are one and the tree is a chain.

Branches are timed from the end of one draft pass to that of the next: the branch point's, the candidates', and so on by level.
Candidates are drawn as the default ``branch_verifier`` has it, and the verdict on them is the decoder's own function.

In decoding this work follows passes that evict it from the caches, and it takes up to twice as long as in a loop of its own: a
pass of the target comes before each call, untimed. The devices of both models are waited for. In plain decoding a pass follows a
pass: a call is some tokens in a row, after an untimed one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch

from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw, Root
from runtime.branching.candidates import draw_at_branch_point, draw_candidates
from runtime.branching.draft import BranchConfig
from runtime.build import build_decoder
from runtime.clock import PhaseClock
from runtime.decoding.base import Decoder, Step
from runtime.drafting.sampler import PlainSampler
from runtime.latency.cells import Cell, seconds_of, synchronise
from runtime.latency.passes import random_tokens
from runtime.latency.weightless import WeightlessModel
from runtime.laws import processed_law
from runtime.pair import ModelPair
from runtime.randomness import Randomness

TEMPERATURES = (0, 1)
ENDLESS = 2**40  # new tokens: no round is cut short by the budget
LEVELS = 4  # of branches timed per round, behind the candidates
TOKENS = 4  # of plain decoding timed in a row
LONGEST = 64  # tokens of a request to it


class Rounds:
    """Rounds of one endless request to ``decoder``, those that draft ``drafted`` tokens."""

    def __init__(self, decoder: Decoder, drafted: int, temperature: float, seed: int, *devices: torch.device) -> None:
        self._steps = endless(decoder, temperature, seed)
        self._drafted = drafted
        self._devices = devices

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


class BranchRounds:
    """Rounds of one endless request over a weightless ``pair`` that grow ``rows`` branches of `LEVELS` levels and one more."""

    def __init__(self, pair: ModelPair, rows: int, temperature: float, seed: int) -> None:
        assert isinstance(pair.draft, WeightlessModel)
        self._stamps: list[float] = []
        stamped = ModelPair(pair.target, WeightlessModel(pair.draft.logits_RV, pair.draft.programs, self._stamps))
        self._steps = endless(branch_decoder(stamped, rows), temperature, seed)

    def measure(self) -> tuple[float, float]:
        """Seconds of the first level of the next round, and of each later one.

        No controller stops, and nothing is drafted with the target idle: a pass at the branch point, then one for each level.
        """
        self._stamps.clear()
        next(self._steps)
        point, candidates, *levels = self._stamps
        assert len(levels) == LEVELS, f"a round of {len(levels)} levels, not of {LEVELS}"
        return candidates - point, (levels[-1] - candidates) / LEVELS


class Verdicts:
    """Verdicts on ``count`` candidates at branch points of a weightless ``pair``."""

    def __init__(self, pair: ModelPair, count: int, temperature: float, seed: int) -> None:
        assert pair.draft is not None
        self._settings = SamplingSettings(temperature)
        self._kind = "match" if self._settings.greedy else BranchConfig.branch_verifier
        self._root = Root(1, 1, self._settings, None)
        self._states = [model.open(1) for model in (pair.target, pair.draft)]
        self._count = count
        self._chance = Randomness(seed)

    @torch.inference_mode()
    def measure(self) -> tuple[float]:
        """Seconds of the verdict at the next branch point."""
        target_V, draft_V = (state.forward([0]).logits[0] for state in self._states)
        law_V = processed_law(target_V, self._settings)
        law = NextLaw(self._root, self._settings, 0, draft_V, processed_law(draft_V, self._settings))
        candidates = draw_candidates(self._kind, law, self._count, PlainSampler(self._settings, self._chance))
        if self._settings.greedy:  # the target's one token is there: it is looked for
            token = int(law_V.argmax())
            return (seconds_of(lambda: candidates.place(token), law_V.device),)
        return (seconds_of(lambda: draw_at_branch_point(candidates, law_V, self._chance), law_V.device),)


class Plain:
    """Plain decoding behind a random prompt of ``context`` tokens, begun anew before it goes more than ``most`` beyond."""

    def __init__(self, pair: ModelPair, context: int, most: int, generator: torch.Generator) -> None:
        self._decoder = chain_decoder(pair, 0)
        self._device = pair.target.device
        self._prompt = random_tokens(pair.target, context, generator)
        self._most = most
        self._left = 0
        self._steps: Iterator[Step] = iter(())
        self._count = min(TOKENS, most - 2)

    def begin(self) -> None:
        """A token, untimed; before it, if the timed ones would not fit, a new request's prefill."""
        if self._left <= self._count:
            self._steps = self._decoder.stream(self._prompt, max_new_tokens=self._most, eos_token_id=[])
            next(self._steps)  # emits the first token
            self._left = self._most - 1
        self._run(1)

    def measure(self) -> tuple[float]:
        """Seconds a token."""
        return (seconds_of(lambda: self._run(self._count), self._device) / self._count,)

    def _run(self, count: int) -> None:
        for _ in range(count):
            next(self._steps)
        self._left -= count


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
    """Cells of the tables of chains and trees, and of one for each of ``rules``, over a weightless ``pair``; ``tree_nodes`` are
    multiples of ``tree_paths``."""
    assert pair.draft is not None
    models = (pair.target, pair.draft)
    vocabulary_size = min(model.vocabulary_size for model in models)
    if tree_paths > vocabulary_size:
        raise ValueError(
            f"tree_paths={tree_paths} rollouts cannot part at the root over {vocabulary_size} tokens. "
            f"Set latency.tree_paths to {vocabulary_size} or fewer."
        )
    devices = {model.device for model in models}

    def cell(tables: tuple[str, ...], decoder: Decoder, count: int, temperature: int, **more: int) -> Cell:
        rounds = Rounds(decoder, count, temperature, seed, *devices)
        return Cell(tables, {"drafted": count, **more}, rounds.measure if tables[1:] else rounds.measure_rest, before)

    cells = []
    for temperature in TEMPERATURES:
        for count in drafted:
            tables = ("chain_drawing", "chain_verification")[0 if count else 1 :]
            cells.append(cell(tables, chain_decoder(pair, count), count, temperature, sampled=temperature))
        for count in tree_nodes:
            decoder = tree_decoder(pair, tree_paths, count // tree_paths if temperature else count)
            tables = ("tree_drawing", "tree_verification")
            cells.append(cell(tables, decoder, count, temperature, sampled=temperature))
    for rule in rules:
        for count in tree_nodes:
            decoder = tree_decoder(pair, tree_paths, count // tree_paths, rule)
            cells.append(cell((f"verification_{rule}",), decoder, count, 1))
    return cells


def branch_cells(pair: ModelPair, rows: Sequence[int], seed: int, before: Callable[[], None]) -> list[Cell]:
    """Cells of the three tables of branches over a weightless ``pair``; ``rows`` are candidates, too."""
    vocabulary_size = min(model.vocabulary_size for model in (pair.target, pair.draft) if model)
    if max(rows) > vocabulary_size:
        raise ValueError(
            f"there are no {max(rows)} candidates among {vocabulary_size} tokens. "
            f"End latency.branch_rows at {vocabulary_size} or before."
        )
    cells = []
    for temperature in TEMPERATURES:
        for count in rows:
            rounds, verdicts = (kind(pair, count, temperature, seed) for kind in (BranchRounds, Verdicts))
            sampled = {"sampled": temperature}
            grown = ("branch_candidates", "branch_drawing")
            cells.append(Cell(grown, {"rows": count, **sampled}, rounds.measure, before))
            cells.append(Cell(("branch_verdict",), {"candidates": count, **sampled}, verdicts.measure, before))
    return cells


def plain_cells(pair: ModelPair, context: int, generator: torch.Generator) -> list[Cell]:
    """The cell of table ``plain``; none where the target holds fewer than 3 tokens beyond ``context``."""
    most = min(LONGEST, pair.target.context_limit - context)
    if most < 3:
        return []
    plain = Plain(pair, context, most, generator)
    return [Cell(("plain",), {"context": context}, plain.measure, plain.begin)]


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


def branch_decoder(pair: ModelPair, rows: int) -> Decoder:
    """Branch-parallel decoding, one job after the other, with ``rows`` branches in every round and nothing that stops them."""
    options = {"gamma": LEVELS + 1, "k_max": rows, "k_rule": "const", "draft_stage": "preverify", "overlap": "none"}
    return build_decoder(pair, {"method": "branch_parallel", "controller": {"kind": "fixed"}, **options})


def endless(decoder: Decoder, temperature: float, seed: int) -> Iterator[Step]:
    """The rounds of a request without end, after its prefill."""
    steps = decoder.stream(
        [0], max_new_tokens=ENDLESS, temperature=temperature, randomness=Randomness(seed), eos_token_id=[]
    )
    next(steps)
    return steps
