"""Collect tree traces: what every delayed tree of an action set would emit at positions of the target's own text.

    text         a continuation under the sampling setting
    roots        every ``spacing`` tokens of it; state and scalars there are those a decoder's controller sees
    labels       expected tokens of a step by action and rule, exact on ``draws`` sampled trees (`trace_collection.efficiency`)

Both models walk along the text once; a root costs one tree pass of the target and the draft's levels. Source: paper 004,
section 6; specification of verification, section 7.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import numpy as np
import torch
from torch import Tensor

from predictors.actions import Action, ActionSet
from predictors.config import Count, Whole, at_least, of_length
from predictors.sampling import SamplingSettings
from predictors.schema import ROOT_COLUMNS, ROOT_TRACES_VERSION, SPLITS, Prompt
from predictors.signals import BothModels, NextLaw, Root, TreeRoot
from predictors.tree_choice import SCALARS, SelectionSpec, scalars_of, state_of
from runtime import ModelPair
from runtime.adapter import ReadingState, features_of
from runtime.laws import fit_vocabulary, recorded_law
from runtime.randomness import Chance, stream
from runtime.tree import DraftLaw
from runtime.verification.top_down import NODE_SOLVERS
from trace_collection.collection import CollectionConfig, Collector, Job, first_of_splits, hidden_size, last_layers
from trace_collection.efficiency import BY_LAW, Efficiencies
from trace_collection.grove import Extent, Grove
from trace_collection.shards import Rows, columns_of
from trace_collection.trajectories import of_layers


@dataclass(frozen=True, kw_only=True)
class TreeTraceConfig(CollectionConfig):
    """Section of tree traces: how they are collected.

    ``settings``: sampling settings, each with a trajectory of its own for every prompt. ``rules``: verification rules to label
    for. ``roots_per_prompt`` roots lie ``spacing`` tokens apart, the first after the prompt. ``prompts`` and ``draws``, each for
    the splits train, validation and test: most prompts, and sampled trees per root (of the test split many, so that an oracle can
    be chosen on some and scored on others). ``layers`` and ``draft_layers``: how many last hidden states of each model are
    stored.
    """

    settings: tuple[SamplingSettings, ...] = (SamplingSettings(0.6), SamplingSettings(1.0))
    actions: ActionSet = field(default_factory=ActionSet)
    rules: tuple[str, ...] = ("nss", "naive_tree", "spectr", "specinfer", "khisti", "traversal", "block")
    spacing: Annotated[int, at_least(2)] = 16
    roots_per_prompt: Count = 4
    prompts: Annotated[tuple[Whole, ...], of_length(3)] = (270, 80, 96)
    draws: Annotated[tuple[Count, ...], of_length(3)] = (2, 2, 6)
    layers: Count = 1
    draft_layers: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.settings or any(setting.greedy for setting in self.settings):
            raise ValueError(
                "settings must name temperatures above 0: at temperature 0 all rollouts are one and no tree branches."
            )
        known = [*BY_LAW, *(rule for rule, (_, laws) in NODE_SOLVERS.items() if DraftLaw.IID in laws)]
        wrong = [rule for rule in self.rules if rule not in known]
        if wrong or not self.rules:
            raise ValueError(f"no rules for i.i.d. trees: {wrong or 'none are named'}. Known: {', '.join(known)}.")

    @property
    def new_tokens(self) -> int:
        """Length of a trajectory: up to the newest token of the last root."""
        return (self.roots_per_prompt - 1) * self.spacing + 1


class TreeCollector(Collector):
    """Collects a row for every root of a text."""

    name = "trees"
    columns = ROOT_COLUMNS
    version = ROOT_TRACES_VERSION

    def __init__(self, pair: ModelPair, config: TreeTraceConfig, prompts: Sequence[Prompt]) -> None:
        super().__init__(pair, config, first_of_splits(prompts, config.prompts))
        self.actions: tuple[Action, ...] = config.actions.actions
        self.extent = Extent.of(self.actions)
        self.new_tokens, self.rows_per_job = config.new_tokens, config.roots_per_prompt
        self.reach = config.new_tokens + self.extent.depth
        self.layers = last_layers(pair.target, config.layers, "traces.trees.layers")
        self.spec = SelectionSpec(
            layers=self.layers,
            draft_layers=last_layers(pair.draft, config.draft_layers, "traces.trees.draft_layers"),
            hidden_size=hidden_size(pair.target),
            draft_hidden_size=hidden_size(pair.draft),
            actions=self.actions,
        )

    def traced(self, jobs: Sequence[Job]) -> Iterator[Rows]:
        for job, text in self.texts(jobs):
            yield columns_of(list(self._roots(job, text.tokens, stream(text.chance, "roots"))))

    @torch.inference_mode()
    def _roots(self, job: Job, text: list[int], chance: Chance) -> Iterator[dict[str, Any]]:
        """Yield the columns of every root, as far as the text goes on: features, and labels of the trees drawn there."""
        (settings, prompt), pair, spec = job, self.pair, self.spec
        assert pair.draft is not None
        sequence, begin = [*prompt.tokens, *text], len(prompt.tokens)
        places = range(0, len(text), self.config.spacing)
        starts = [begin + place for place in places if text[place] not in pair.target.eos_tokens]  # the newest tokens
        draws = self.config.draws[SPLITS.index(prompt.split)]
        room = len(sequence) + draws * self.extent.most_nodes
        target, draft = pair.target.open(room, self.taps), pair.draft.open(room, spec.draft_layers)
        cached, reads, taps = 0, features_of(pair.draft), self.taps  # cached by both models
        said_NKD: list[Tensor] = []  # by the target, which the draft has not read
        for index, start in enumerate(starts):
            ahead = target.forward(sequence[cached:start], last=1)
            target.keep(range(start - cached))
            assert ahead.hidden_NKD is not None
            fresh = sequence[cached : start + 1]
            if reads:
                fresh = fresh if cached else fresh[1:]  # no state is in front of the first token
                cast(ReadingState, draft).offer(of_layers(torch.cat([*said_NKD, ahead.hidden_NKD]), taps, reads))
            behind = draft.forward(fresh, last=2)
            draft.keep(range(len(fresh)))
            assert behind.hidden_NKD is not None
            (hidden_KD,) = of_layers(ahead.hidden_NKD[-1:], taps, spec.layers)
            root = Root(start + 1, self.extent.depth, settings, None, hidden_KD)
            logits_2V = fit_vocabulary(behind.logits, pair.target.vocabulary_size)
            laws_2V = recorded_law(logits_2V, settings)
            said = BothModels(recorded_law(ahead.logits[-1], settings), laws_2V[0], behind.hidden_NKD[-2:])
            law = NextLaw(root, settings, 0, logits_2V[1], laws_2V[1])
            grove = Grove(draft, laws_2V[1], self.extent, settings, pair.target.eos_tokens).draw(draws, chance)
            parents = [-1, *(parent + 1 for parent in grove.parents)]
            out = target.forward([sequence[start], *grove.tokens], parents)
            target.keep([0])
            said_NKD = [] if out.hidden_NKD is None else [out.hidden_NKD[:1]]
            cached = start + 1
            known = text[: cached - begin]
            continuation = known + [-1] * (self.new_tokens - len(known))
            columns = {**_features(law, said), **self._labels(grove, recorded_law(out.logits, settings))}
            yield {"root": index, "position": start + 1, **columns, "continuation": continuation}

    def _labels(self, grove: Grove, target_probs_NV: Tensor) -> dict[str, Any]:
        made = Efficiencies(grove, target_probs_NV, self.actions)
        nodes_A, fed_A = made.traffic()
        efficiency_DKA = made.array(self.config.rules)
        missing = np.full((max(self.config.draws) - len(efficiency_DKA), *efficiency_DKA.shape[1:]), np.nan)
        return {"efficiency": np.concatenate([efficiency_DKA, missing]).reshape(-1), "nodes": nodes_A, "fed": fed_A}

    @property
    def sizes(self) -> dict[str, int]:
        draws, actions = max(self.config.draws), len(self.actions)
        return {
            "continuation": self.new_tokens,
            "state": self.spec.state_size,
            "scalars": len(SCALARS),
            "actions": actions,
            "labels": draws * len(self.config.rules) * actions,
        }

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "selection_spec": dataclasses.asdict(self.spec),
            "rules": list(self.config.rules),
            "draws": max(self.config.draws),
        }


def _features(law: NextLaw, said: BothModels) -> dict[str, Any]:
    seen = TreeRoot(law, lambda: said)
    state = state_of(seen)
    if not bool(torch.isfinite(state).all()):
        raise ValueError(
            f"a hidden state at position {law.root.position} does not fit float16. Tap other layers (traces.trees.layers)."
        )
    return {"state": state.cpu().numpy(), "scalars": scalars_of(seen).cpu().numpy()}
