"""Collect root traces: what every delayed tree of an action set would emit at places of the target's own text.

    trajectory   a continuation under the sampling setting, decoded once (any lossless decoder: its law is the target's)
    roots        every ``spacing`` tokens of it; state and scalars there are those a decoder's controller sees
    labels       expected tokens of a step by action and rule, exact on ``draws`` sampled trees (`trace_collection.efficiency`)

Both models walk along the text once; a root costs one tree pass of the target and the draft's levels. Source: paper 004,
section 6; specification of verification, section 7.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predictors.actions import Action, ActionSet
from predictors.contract import CaptureContract
from predictors.sampling import SamplingSettings
from predictors.schema import ROOT_COLUMNS, ROOT_TRACES_VERSION
from predictors.selection.features import SCALARS, SelectionSpec, scalars_of, state_of
from predictors.signals import BothModels, NextLaw, Root, TreeRoot
from runtime import ModelPair, Randomness, build_decoder
from runtime.drafting.draft import fit_vocabulary
from runtime.laws import processed_law
from runtime.tree import DraftLaw
from runtime.verification.acceptance import NODE_SOLVERS
from trace_collection.collection import (
    Collection,
    Job,
    Progress,
    Rows,
    capture_contract,
    dtypes,
    hidden_size,
    last_layers,
    require_context,
    require_disk,
    seed_of,
)
from trace_collection.efficiency import BY_LAW, Efficiencies
from trace_collection.grove import Extent, Grove, draw_grove
from trace_collection.rows import Prompt, place_columns

TRAJECTORY = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 6}, "verifier": "block"}
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class RootTraceConfig:
    """How root traces are collected.

    ``settings``: sampling settings, each with a trajectory of its own for every prompt. ``rules``: verification rules to label
    for. ``roots_per_prompt`` roots lie ``spacing`` tokens apart, the first behind the prompt. ``prompts`` and ``draws``, each for
    the splits train, validation and test: most prompts, and sampled trees per root (of the test split many, so that an oracle can
    be chosen on some and scored on others). ``layers`` and ``draft_layers``: how many last hidden states of each model are
    stored.
    """

    settings: tuple[SamplingSettings, ...] = (SamplingSettings(0.6), SamplingSettings(1.0))
    actions: ActionSet = field(default_factory=ActionSet)
    rules: tuple[str, ...] = ("nss", "naive_tree", "spectr", "specinfer", "khisti", "traversal", "block")
    spacing: int = 16
    roots_per_prompt: int = 4
    prompts: tuple[int, ...] = (270, 80, 96)
    draws: tuple[int, ...] = (2, 2, 6)
    layers: int = 1
    draft_layers: int = 1
    prompts_per_shard: int = 32
    threads: int = 2
    seed: int = 0
    max_gigabytes: float = 1.0

    def __post_init__(self) -> None:
        if self.spacing < 2:
            raise ValueError(f"roots must be at least 2 tokens apart, got spacing={self.spacing}.")
        for name in ("roots_per_prompt", "layers", "draft_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if not self.settings or any(setting.greedy for setting in self.settings):
            raise ValueError(
                "settings must name temperatures above 0: at temperature 0 all rollouts are one and no tree branches."
            )
        for name, values in (("prompts", self.prompts), ("draws", self.draws)):
            if len(values) != len(SPLITS) or min(values) < 1:
                raise ValueError(f"{name} must be three numbers >= 1, for {', '.join(SPLITS)}, got {list(values)}.")
        known = [*BY_LAW, *(rule for rule, (_, laws) in NODE_SOLVERS.items() if DraftLaw.IID in laws)]
        wrong = [rule for rule in self.rules if rule not in known]
        if wrong or not self.rules:
            raise ValueError(f"no rules for i.i.d. trees: {wrong or 'none are named'}. Known: {', '.join(known)}.")

    @property
    def new_tokens(self) -> int:
        """Length of a trajectory: up to the newest token of the last root."""
        return (self.roots_per_prompt - 1) * self.spacing + 1


class RootTracer:
    """Walks along trajectories of ``pair``."""

    def __init__(self, pair: ModelPair, config: RootTraceConfig) -> None:
        if pair.draft is None:
            raise ValueError("root traces need a draft model; this pair has none.")
        self.pair = pair
        self.draft = pair.draft
        self.config = config
        self.actions: tuple[Action, ...] = config.actions.actions
        self.extent = Extent.of(self.actions)
        self.spec = SelectionSpec(
            layers=last_layers(pair.target, config.layers),
            draft_layers=last_layers(pair.draft, config.draft_layers),
            hidden_size=hidden_size(pair.target),
            draft_hidden_size=hidden_size(pair.draft),
            actions=self.actions,
        )
        self.trajectories = build_decoder(pair, TRAJECTORY)

    def rows(self, prompt: Prompt, settings: SamplingSettings) -> Rows:
        """A row for every root, as far as the text goes on."""
        randomness = Randomness(seed_of(self.config.seed, prompt.id, settings))
        sequence, starts = self._trajectory(prompt, settings, randomness)
        draws = self.config.draws[SPLITS.index(prompt.split)]
        walk = self._walk(sequence, starts, settings, draws, randomness)
        return [
            {**place_columns(prompt, settings), "root": index, "position": start + 1, **columns}
            | {"continuation": _padded(sequence[len(prompt.tokens) : start + 1], self.config.new_tokens)}
            for index, (start, columns) in enumerate(zip(starts, walk, strict=True))
        ]

    def _trajectory(
        self, prompt: Prompt, settings: SamplingSettings, randomness: Randomness
    ) -> tuple[list[int], list[int]]:
        """Prompt and continuation, and the places of the roots' newest tokens in it."""
        options: dict[str, Any] = {"max_new_tokens": self.config.new_tokens, **dataclasses.asdict(settings)}
        text = self.trajectories.generate(prompt.tokens, randomness=randomness, **options).tokens
        places = range(0, len(text), self.config.spacing)
        begin, ends = len(prompt.tokens), self.pair.target.eos_tokens
        return [*prompt.tokens, *text], [begin + place for place in places if text[place] not in ends]

    @torch.inference_mode()
    def _walk(
        self,
        sequence: list[int],
        starts: Sequence[int],
        settings: SamplingSettings,
        draws: int,
        randomness: Randomness,
    ) -> Iterator[dict[str, Any]]:
        """Features and labels at the roots whose newest tokens are those at ``starts``."""
        pair, spec = self.pair, self.spec
        room = len(sequence) + draws * self.extent.most_nodes
        target, draft = pair.target.open(room, spec.layers), self.draft.open(room, spec.draft_layers)
        chance = randomness.stream("roots")
        cached = 0  # by both models
        for start in starts:
            ahead = target.forward(sequence[cached:start], last=1)
            target.keep(range(start - cached))
            behind = draft.forward(sequence[cached : start + 1], last=2)
            draft.keep(range(start + 1 - cached))
            assert ahead.hidden_NKD is not None and behind.hidden_NKD is not None
            root = Root(start + 1, self.extent.depth, settings, None, ahead.hidden_NKD[-1])
            logits_2V = fit_vocabulary(behind.logits, pair.target.vocabulary_size)
            laws_2V = processed_law(logits_2V, settings)
            said = BothModels(processed_law(ahead.logits[-1], settings), laws_2V[0], behind.hidden_NKD[-2:])
            seen = TreeRoot(NextLaw(root, settings, 0, logits_2V[1], laws_2V[1]), partial(_known, said))
            grove = draw_grove(draft, laws_2V[1], self.extent, draws, settings, pair.target.eos_tokens, chance)
            parents = [-1, *(parent + 1 for parent in grove.parents)]
            logits = target.forward([sequence[start], *grove.tokens], parents).logits
            target.keep([0])
            cached = start + 1
            yield {**self._features(seen), **self._labels(grove, processed_law(logits, settings))}

    def _features(self, seen: TreeRoot) -> dict[str, Any]:
        state = state_of(seen)
        if not bool(torch.isfinite(state).all()):
            raise ValueError(
                f"a hidden state at position {seen.root.position} does not fit float16. Tap other layers (traces.roots.layers)."
            )
        return {"state": state.cpu().numpy(), "scalars": scalars_of(seen).cpu().numpy()}

    def _labels(self, grove: Grove, target_probs_NV: Tensor) -> dict[str, Any]:
        made = Efficiencies(grove, target_probs_NV)
        nodes_A, fed_A = made.traffic(self.actions)
        efficiency_DKA = made.array(self.config.rules, self.actions)
        missing = np.full((max(self.config.draws) - len(efficiency_DKA), *efficiency_DKA.shape[1:]), np.nan)
        return {"efficiency": np.concatenate([efficiency_DKA, missing]).reshape(-1), "nodes": nodes_A, "fed": fed_A}


def collect_roots(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    config: RootTraceConfig,
    folder: Path,
    progress: Progress,
    code: str = "",
) -> dict[str, int]:
    """Write the shards and the manifest of root traces into ``folder``; arguments and result as `collect`'s."""
    torch.set_num_threads(config.threads)
    tracer = RootTracer(pair, config)
    counts = dict(zip(SPLITS, config.prompts, strict=True))
    chosen = [
        prompt for split, count in counts.items() for prompt in [one for one in prompts if one.split == split][:count]
    ]
    ahead = config.new_tokens + tracer.extent.depth
    limit = min(pair.target.context_limit, tracer.draft.context_limit)
    require_context(limit, chosen, ahead, "traces.roots: a trajectory and the deepest tree behind it")
    jobs = [(settings, prompt) for settings in config.settings for prompt in chosen]
    contract = capture_contract(pair, tracer.spec.layers, chosen, config.settings, config.new_tokens)
    collection = _collection(tracer, contract)
    sizes = collection.sizes
    numbers = sizes["continuation"] + sizes["scalars"] + 2 * sizes["actions"] + sizes["labels"]
    max_rows = len(jobs) * config.roots_per_prompt
    bytes_per_row = 2 * sizes["state"] + 4 * numbers + 128
    require_disk(folder, "root traces", max_rows, bytes_per_row, config.max_gigabytes, "traces.roots")

    def rows_of(job: Job) -> Rows:
        settings, prompt = job
        return tracer.rows(prompt, settings)

    minutes = _minutes(rows_of, jobs)
    rate = max_rows / minutes / 60
    print(
        f"root traces: {len(tracer.actions)} actions and {len(config.rules)} rules, {rate:.1f} roots a second: about "
        f"{minutes:.0f} minutes unless shards are kept",
        flush=True,
    )
    return collection.write(folder, jobs, rows_of, progress, code)


def _collection(tracer: RootTracer, contract: CaptureContract) -> Collection:
    """Columns, and what the manifest says, of root traces."""
    config, spec = tracer.config, tracer.spec
    draws = max(config.draws)
    return Collection(
        ROOT_COLUMNS,
        {
            "continuation": config.new_tokens,
            "state": spec.state_size,
            "scalars": len(SCALARS),
            "actions": len(spec.actions),
            "labels": draws * len(config.rules) * len(spec.actions),
        },
        ROOT_TRACES_VERSION,
        contract,
        inputs={"config": dataclasses.asdict(config), "dtypes": dtypes(tracer.pair)},
        facts={
            "parameters": dataclasses.asdict(config),
            "selection_spec": dataclasses.asdict(spec),
            "rules": list(config.rules),
            "draws": draws,
            "dtypes": dtypes(tracer.pair),
        },
        prompts_per_shard=config.prompts_per_shard,
    )


def _padded(tokens: list[int], size: int) -> list[int]:
    return tokens + [-1] * (size - len(tokens))


def _known(said: BothModels) -> BothModels:
    return said


def _minutes(rows_of: Callable[[Job], Rows], jobs: Sequence[Job]) -> float:
    """What all jobs will take, from one of each split; the first runs twice, to warm up."""
    splits = {prompt.split: [job for job in jobs if job[1].split == prompt.split] for _, prompt in jobs}
    rows_of(jobs[0])
    seconds = 0.0
    for some in splits.values():
        began = perf_counter()
        rows_of(some[0])
        seconds += len(some) * (perf_counter() - began)
    return seconds / 60
