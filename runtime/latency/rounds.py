"""Cells of what a round does outside the models' passes: real decoders over weightless models (`runtime.latency.weightless`).

    chain_drawing, chain_verification  drafted, sampled      a chain of ``drafted`` tokens, verified by blocks
    tree_drawing, tree_verification    drafted, sampled      a delayed tree of ``drafted`` distinct nodes, verified by traversal
    verification_<rule>                drafted               such a tree, sampled, verified by another ``rule``
    branch_candidates, branch_drawing  rows, sampled         levels of ``rows`` branches: the first one, and each one behind it
    branch_verdict                     candidates, sampled   finding the token at the branch point among as many candidates
    plain                              context               a token of the real target alone, greedy, behind ``context`` tokens
                                                             and a few more: the sum of its other cells is held against it

Drawing is the time in phase ``draft`` of the round's own clock, verification all the rest of the round. ``sampled`` is the
temperature, 0 or 1; at 0 a tree is a chain. Branches are timed from the end of one draft pass to that of the next.

Passes evict this work from the caches, which makes it up to twice as long: an untimed pass of the target comes before each call.
In plain decoding a pass follows a pass: a call is some tokens in a row, after an untimed one.
"""

from collections.abc import Callable, Collection, Iterator
from time import perf_counter

import torch

from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw, Root
from runtime.branching.candidates import draw_at_branch_point, draw_candidates
from runtime.branching.draft import BranchConfig
from runtime.build import build_decoder
from runtime.clock import PhaseClock
from runtime.decoding.base import Decoder, Step
from runtime.drafting.draft import fit_vocabulary
from runtime.drafting.sampler import PlainSampler
from runtime.latency.cells import Cell, LatencyConfig, seconds_of, synchronise
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


def timed_rounds(
    decoder: Decoder, drafted: int, temperature: float, seed: int, devices: Collection[torch.device]
) -> Callable[[], tuple[float, float]]:
    """What measures the next round of an endless request that drafts ``drafted`` tokens: seconds of drawing and of the rest.
    Rounds whose rollouts met are passed over. Laps wait for ``devices``, so that phases hold their own work."""
    steps = endless(decoder, temperature, seed)

    def measure() -> tuple[float, float]:
        while True:
            synchronise(*devices)
            PhaseClock.waits_for = [device for device in devices if device.type == "cuda"]
            start = perf_counter()
            try:
                record = next(steps).record
            finally:
                PhaseClock.waits_for = ()
            synchronise(*devices)
            seconds = perf_counter() - start
            if record.drafted == drafted:
                drawing = record.seconds.get("draft", 0.0)
                return drawing, seconds - drawing

    return measure


def timed_branches(pair: ModelPair, rows: int, temperature: float, seed: int) -> Callable[[], tuple[float, float]]:
    """What measures the next round of an endless request over a weightless ``pair``, in which ``rows`` branches grow `LEVELS`
    levels and one more: seconds of the first level, and of each later one."""
    assert isinstance(pair.draft, WeightlessModel)
    stamps: list[float] = []
    draft = WeightlessModel(pair.draft.logits_RV, pair.draft.programs, stamps)
    stamped = ModelPair(pair.target, draft, pair.tokenizer, pair.tokenizer)
    steps = endless(branch_decoder(stamped, rows), temperature, seed)

    def measure() -> tuple[float, float]:
        """No controller stops, and nothing is drafted with the target idle: a pass at the branch point, then one a level."""
        stamps.clear()
        next(steps)
        point, candidates, *levels = stamps
        assert len(levels) == LEVELS, f"a round of {len(levels)} levels, not of {LEVELS}"
        return candidates - point, (levels[-1] - candidates) / LEVELS

    return measure


def timed_verdicts(pair: ModelPair, count: int, temperature: float, seed: int) -> Callable[[], tuple[float]]:
    """What measures the verdict on ``count`` candidates at the next branch point of a weightless ``pair``, in seconds."""
    assert pair.draft is not None
    settings, chance = SamplingSettings(temperature), Randomness(seed)
    kind = "match" if settings.greedy else BranchConfig.branch_verifier
    root = Root(1, 1, settings, None)
    states, size = [model.open(1) for model in (pair.target, pair.draft)], pair.target.vocabulary_size

    @torch.inference_mode()
    def measure() -> tuple[float]:
        target_V, draft_V = (fit_vocabulary(state.forward([0]).logits[0], size) for state in states)
        law_V = processed_law(target_V, settings)
        law = NextLaw(root, settings, 0, draft_V, processed_law(draft_V, settings))
        candidates = draw_candidates(kind, law, count, PlainSampler(settings, chance))
        if settings.greedy:  # the target's one token is there: it is looked for
            token = int(law_V.argmax())
            return (seconds_of(lambda: candidates.place(token), law_V.device),)
        return (seconds_of(lambda: draw_at_branch_point(candidates, law_V, chance), law_V.device),)

    return measure


def round_cells(pair: ModelPair, config: LatencyConfig, before: Callable[[], None]) -> list[Cell]:
    """Cells of the tables of chains and trees, and of one for each of the ``tree_rules``, over a weightless ``pair``."""
    assert pair.draft is not None
    models = (pair.target, pair.draft)
    vocabulary_size = min(model.vocabulary_size for model in models)
    if config.tree_paths > vocabulary_size:
        raise ValueError(
            f"tree_paths={config.tree_paths} rollouts cannot part at the root over {vocabulary_size} tokens. "
            f"Set latency.tree_paths to {vocabulary_size} or fewer."
        )
    devices = {model.device for model in models}

    def cell(tables: tuple[str, ...], decoder: Decoder, count: int, temperature: int, **more: int) -> Cell:
        measure = timed_rounds(decoder, count, temperature, config.seed, devices)
        last = len(tables)  # of one table: without drawing
        return Cell(tables, {"drafted": count, **more}, lambda: measure()[-last:], before)

    cells = []
    for temperature in TEMPERATURES:
        for count in config.drafted:
            tables = ("chain_drawing", "chain_verification")[0 if count else 1 :]
            cells.append(cell(tables, chain_decoder(pair, count), count, temperature, sampled=temperature))
        for count in config.tree_nodes:
            decoder = tree_decoder(pair, config.tree_paths, count // config.tree_paths if temperature else count)
            tables = ("tree_drawing", "tree_verification")
            cells.append(cell(tables, decoder, count, temperature, sampled=temperature))
    for rule in config.tree_rules:
        for count in config.tree_nodes:
            decoder = tree_decoder(pair, config.tree_paths, count // config.tree_paths, rule)
            cells.append(cell((f"verification_{rule}",), decoder, count, 1))
    return cells


def branch_cells(pair: ModelPair, config: LatencyConfig, before: Callable[[], None]) -> list[Cell]:
    """Cells of the three tables of branches over a weightless ``pair``; ``branch_rows`` are candidates, too."""
    vocabulary_size = min(model.vocabulary_size for model in (pair.target, pair.draft) if model)
    if max(config.branch_rows) > vocabulary_size:
        raise ValueError(
            f"there are no {max(config.branch_rows)} candidates among {vocabulary_size} tokens. "
            f"End latency.branch_rows at {vocabulary_size} or before."
        )
    cells = []
    for temperature in TEMPERATURES:
        for count in config.branch_rows:
            given, at = (pair, count, temperature, config.seed), {"sampled": temperature}
            grown = ("branch_candidates", "branch_drawing")
            cells.append(Cell(grown, {"rows": count, **at}, timed_branches(*given), before))
            cells.append(Cell(("branch_verdict",), {"candidates": count, **at}, timed_verdicts(*given), before))
    return cells


def plain_cells(pair: ModelPair, context: int, generator: torch.Generator) -> list[Cell]:
    """The cell of table ``plain``: seconds a token behind a random prompt; none where the target holds fewer than 3 tokens
    beyond ``context``."""
    most = min(LONGEST, pair.target.context_limit - context)
    if most < 3:
        return []
    decoder, prompt = chain_decoder(pair, 0), random_tokens(pair.target, context, generator)
    count = min(TOKENS, most - 2)

    def turns() -> Iterator[None]:
        """A token, then ``count`` in a row, over and over. A new request begins, once the last one's memory is free, where the
        next turn would not fit."""
        while True:
            steps = decoder.stream(prompt, max_new_tokens=most, eos_token_id=[])
            next(steps)  # the prefill emits the first token
            for _ in range((most - 1) // (1 + count)):
                next(steps)
                yield
                for _ in range(count):
                    next(steps)
                yield

    turn, device = turns(), pair.target.device

    def measure() -> tuple[float]:
        return (seconds_of(lambda: next(turn), device) / count,)

    return [Cell(("plain",), {"context": context}, measure, lambda: next(turn))]


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
