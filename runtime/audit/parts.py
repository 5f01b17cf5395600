"""A controller, drafter or verifier of the user's own, put into real decoders of toy pairs and judged by enumeration.

    lossless  iff  ½ Σ_y |P_decoder(y) - P_target(y)| <= 1e-9    y: texts of L tokens, of every toy pair, prompt and setting

A session may have ``submit(laws, tokens)``: how many tokens of a chain that is drawn in full are verified, as engines with
budgets choose. Draftwright's own decoders have no such hook: they verify all that was drawn.
"""

import inspect
import pickle
import random
from collections.abc import Iterator
from math import log
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch

from predictors.controllers import Controller, Session, build_controller
from predictors.sampling import SamplingSettings
from predictors.signals import Root
from runtime.adapter import LanguageModel
from runtime.audit.enumeration import Law, NotDrawableError, NotReproducibleError, summed, total_variation
from runtime.audit.rounds import decoded_law
from runtime.audit.tables import TableModel, target_law
from runtime.decoding.sequential import SequentialDecoder
from runtime.device import PhaseClock
from runtime.drafting.chain import ChainConfig, ChainDraft, LookupConfig, LookupDraft
from runtime.drafting.draft import Draft, Drafter
from runtime.drafting.drafted import DraftedTree
from runtime.drafting.trees import DelayedTreeConfig, MultiCandidateConfig
from runtime.pair import ModelPair
from runtime.request import Request
from runtime.tree import DraftLaw
from runtime.verification import VERIFIERS, Verifier

Part = Controller | Drafter | Verifier
ROUNDING = 1e-9  # total variation by which a lossless decoder may miss
FILTERED, CERTAIN = SamplingSettings(0.8, top_k=2, top_p=0.9), SamplingSettings(1.0, top_k=1)  # of one token, yet drawn
SETTINGS = SamplingSettings(1.0), FILTERED, CERTAIN, SamplingSettings(0.0)
RULES = {False: ("tokenwise", "block"), True: ("traversal", "specinfer", "rrs_without_replacement")}  # by branches


class SubmittedChain(ChainConfig):
    """Chains of which a session's ``submit``, if it has one, says how much is verified where tokens are drawn."""

    def open(self, model: LanguageModel, request: Request) -> Draft:
        if request.settings.greedy or self.lookup is None:
            return super().open(model, request)
        return LookupDraft(self.lookup, model.device, request, SubmittedDraft(model, request, None))


class SubmittedDraft(ChainDraft):
    """Draws a chain, and cuts it."""

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> DraftedTree:
        chain = self.draw(root, cap, session, clock)
        if hasattr(session, "submit"):
            count = session.submit(chain.laws, [int(token) for token in chain.tokens])
            chain.tokens, chain.laws = chain.tokens[:count], chain.laws[:count]
            self._scratch = {node: place for node, place in self._scratch.items() if node < len(chain.tokens)}
        return DraftedTree(chain.tree(), chain.laws)


class Case(NamedTuple):
    """A ``decoder`` of a toy ``pair``, judged by texts of ``length`` tokens; ``under`` names what in it is not the user's."""

    pair: str
    under: str
    decoder: SequentialDecoder
    prompt: list[int]
    length: int
    settings: SamplingSettings

    def laws(self) -> list[Law]:
        """Enumerate the texts that the target draws, and those that the decoder emits."""
        target: Any = self.decoder.pair.target
        return [law(of, *self[3:]) for law, of in ((target_law, target), (decoded_law, self.decoder))]


def part_of(name: str, found: Any) -> tuple[str, Part]:
    """Recognise what is ``found`` under a ``name``: its kind, and the part; `ValueError` for anything else."""
    if isinstance(found, type) or (inspect.isroutine(found) and not _needed(found)):
        found = found()
    for kind in (Controller, Drafter, Verifier):
        if isinstance(found, kind):
            return kind.__name__.lower(), found
    if callable(found) and _needed(found) == 2:
        return "verifier", Verifier(name, found, frozenset(DraftLaw), chains_only=True)
    raise ValueError(
        f"it is {found!r:.60}. Name a Controller (predictors.controllers), a Drafter (runtime.drafting), a Verifier "
        "(runtime.verification), a function (tree, target_probs) -> OutcomeLaw, or what makes one without arguments."
    )


def _needed(function: Any) -> int:
    """Count the arguments that a call must have."""
    own = inspect.signature(function).parameters.values()
    return sum(one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in own)


def judged(name: str, part: Part, seconds: float = 8.0) -> tuple[bool, list[str]]:
    """Judge a ``part`` by `cases`, the shortest first, up to one that shows it lossy; none begins after ``seconds`` of CPU time.
    Tells whether it is lossless, and in lines under what. `NotReproducibleError` where the same draws do not give the same text
    again; an error of the part's own is passed on."""
    start, generators, largest, every = process_time(), _generators(), 0.0, cases(part)
    for done, case in enumerate(every, start=1):
        lossy, pair = f"NOT LOSSLESS: {name}, under {case.under} at {case.settings.name}", f"  toy pair: {case.pair}"
        try:
            laws = case.laws()
        except NotDrawableError as wrong:
            return False, [lossy, f"  {wrong}", pair]
        largest = max(largest, total_variation(*laws))
        last = not largest <= ROUNDING or done == len(every) or process_time() - start > seconds
        if generators != _generators() or (last and total_variation(laws[1], case.laws()[1]) > ROUNDING):
            raise NotReproducibleError
        if not largest <= ROUNDING:
            return False, [lossy, _counterexample(case, laws), f"{pair}; total variation {largest:.1g}"]
        if last:
            break
    judging = every[:done]
    return True, [
        f"LOSSLESS: {name}, in {done} of {len(every)} enumerations of texts of 3 to 5 tokens of toy pairs",
        f"  under {'; '.join(dict.fromkeys(one.under for one in judging))}",
        f"  at {'; '.join(dict.fromkeys(one.settings.name for one in judging))}",
        f"  largest total variation {largest:.0e}",
    ]


def _generators() -> bytes:
    """State of the generators that a program shares."""
    return pickle.dumps((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()))


def _counterexample(case: Case, laws: list[Law]) -> str:
    """Say after which text, the shortest and then the one of the largest difference, the next token is not the target's."""
    for length in range(1, case.length + 1):
        p, o = (summed((text[:length], share) for text, share in law.items()) for law in laws)
        if total_variation(p, o) > ROUNDING:
            break
    *before, _ = max({*p, *o}, key=lambda text: abs(p.get(text, 0.0) - o.get(text, 0.0)))
    texts = [(*before, token) for token in range(case.decoder.pair.target.vocabulary_size)]
    mass = sum(p.get(text, 0.0) for text in texts)
    drawn, emitted = (
        " and ".join(f"{text[-1]} with {law.get(text, 0.0) / mass:.4g}" for text in texts) for law in (p, o)
    )
    return f"  after {[*case.prompt, *before]}: the target draws {drawn}; this decoder emits {emitted}"


def cases(part: Part) -> list[Case]:
    """List what ``part`` is judged by: the smallest vocabulary first, then the shortest texts."""
    found = []
    for name, pair, prompt, most in toy_pairs():
        for under, decoder in decoders(part, pair):
            branches = decoder.drafter is not None and decoder.drafter.branches
            for length in range(3, most + 1 - branches):
                chosen = SETTINGS if length == 4 else SETTINGS[:1]
                found += [Case(name, under, decoder, prompt, length, settings) for settings in chosen]
    if not found:
        raise ValueError("no draft here has a verifier that is lossless for it.")
    return sorted(found, key=lambda case: (case.decoder.pair.target.vocabulary_size, case.length))


def decoders(part: Part, pair: ModelPair) -> Iterator[tuple[str, SequentialDecoder]]:
    """Put ``part`` into decoders of ``pair``, and name what else they are made of."""
    controller = part if isinstance(part, Controller) else build_controller({"kind": "fixed"})
    drafters: dict[str, Drafter] = {"chains": SubmittedChain(3, lookup=LookupConfig(2), leaves=(1, 1))}
    drafters |= {"rollouts": DelayedTreeConfig(2, 0, 2), "distinct children": MultiCandidateConfig((2, 1))}
    if isinstance(part, Drafter):
        drafters = {"": part}
    if controller.actions:
        drafters = {"its trees": DelayedTreeConfig(2, 0, 2, choices=controller.actions)}
    if isinstance(part, Verifier):
        drafters |= {"three draws": DelayedTreeConfig(3, 0, 1), "top-k": MultiCandidateConfig((2, 1), "top_k")}
    for drafts, drafter in drafters.items():
        names = RULES[drafter.branches][: 1 if isinstance(part, Controller) and drafter.branches else None]
        for rule in [part] if isinstance(part, Verifier) else [VERIFIERS[name] for name in names]:
            if drafter.laws <= rule.lossless_for and not (rule.chains_only and drafter.branches):
                under = " by ".join(filter(None, [drafts, "" if rule is part else f"verifier {rule.name}"]))
                yield under, SequentialDecoder(pair, drafter, rule, controller)


def toy_pairs() -> Iterator[tuple[str, ModelPair, list[int], int]]:
    """Pairs of a target p and a draft q by name, each with a prompt and the most tokens of a text."""
    p, q = TableModel(2, 0, 0.0), TableModel(2, 0, 0.0)
    p.table[..., 0] += log(0.7 / 0.3)
    yield "p = (.7, .3) and q = (.5, .5) after any text", ModelPair(p, q), [0], 4
    yield "two tokens", ModelPair(TableModel(2, 1), TableModel(2, 2)), [0], 5
    yield "two tokens, one of them likely", ModelPair(TableModel(2, 3, 4.0), TableModel(2, 4, 3.0)), [0, 1] * 9, 4
    p, q = TableModel(3, 6), TableModel(3, 7, 0.5)
    q.table += p.table
    yield "three tokens, q close to p", ModelPair(p, q), [0], 4
    p, q = TableModel(3, 3, zeros=True), TableModel(3, 4, zeros=True)
    yield "three tokens, some impossible", ModelPair(p, q), [0], 4
