"""The delayed-tree selector (paper 004): it chooses which tree to draft, at every root.

    a* = argmax_a E_a(x) - κ ρ T_a(l);   drafted if it promises more than the margin over the setting's static action

E: expected tokens of a step by action, from the exported network (`predictors.tree_choice`). T: its seconds by context, from the
latency profile the bundle was made with, or another one's. Known when the draft's first distribution is, before its token is
drawn: lossless with every rule for i.i.d. draws. Where choosing does not pay, calibration leaves the network unrun.
"""

import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

from predictors.actions import Action, Prices, Traffic
from predictors.bundle import Bundle
from predictors.controllers.learned import LARGEST_FACTOR, LearnedController, LearnedSession
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.sampling import SamplingSettings
from predictors.signals import Root, TreeRoot
from predictors.tree_choice import SelectionRule, SelectionSpec, Static, assembled, build_selector, scalars_of, state_of


class DelayedTreeSession(LearnedSession):
    controller: "DelayedTree"
    setting: Static

    def plan(self, root: Root) -> None:
        self.begin(root, self.controller.rule.asks)

    def tree(self, root: TreeRoot) -> Action:
        rule = self.controller.rule
        if rule.asks and not self.bypassed:
            self.asked += 1
            tokens_A, seconds_A, distance = self.controller.expected(root)
            finite = bool(np.isfinite(tokens_A).all())
            self.bypassed = not self.controller.guard.trusts(finite, distance, rule.max_distance)
        if not rule.asks or self.bypassed:
            return self.controller.actions[self.setting.place]
        return self.controller.actions[int(rule.chosen(tokens_A, seconds_A, self.setting.place, self.setting.rate))]


class DelayedTree(LearnedController):
    """Chooses among delayed trees by an exported network: the controller of a bundle of kind ``delayed_tree``."""

    kind = "delayed_tree"
    instead = "the best static tree"

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle, "selection_spec", "rule", "prices", "traffic")
        self.spec = bundle.part(SelectionSpec, "selection_spec")
        self.rule = bundle.part(SelectionRule, "rule")
        self.prices = bundle.part(Prices, "prices")
        self.traffic = bundle.parts(Traffic, "traffic")
        self.verifier = str(bundle.card["decoder"]["verifier"])
        self.actions = self.spec.actions
        if self.spec.layers:
            bundle.require_layers(self.spec.layers, "selection_spec")
        self.reads_views = self.rule.asks
        if self.rule.asks:
            self.layers, self.draft_layers = self.spec.layers, self.spec.draft_layers
        self.network = build_selector(self.spec, bundle.tensors, bundle.source)

    @property
    def num_features(self) -> int:
        return self.spec.state_size + self.spec.num_scalars

    def outputs(self, features: Tensor) -> Tensor:
        """Compute expected tokens of a step [B, A] from raw features [B, S + scalars]."""
        return self.network(features).exp()

    def start(self, settings: SamplingSettings) -> DelayedTreeSession:
        return DelayedTreeSession(self, settings, self.rule.asks)

    def setting(self, settings: SamplingSettings) -> Static:
        """Return the best static action at ``settings``, or at the captured ones nearest to them in temperature."""
        return self.rule.static(settings, self.prices)

    @torch.inference_mode()
    def expected(self, root: TreeRoot) -> tuple[np.ndarray, np.ndarray, float]:
        """Predict expected tokens [A] and seconds [A] of a step at ``root`` by action, and the squared distance of its features
        from the training rows."""
        features = assembled(state_of(root) if self.layers else None, scalars_of(root))
        logs_A, (distance, *_) = np.split(self.said(features.unsqueeze(0)).double().numpy(), [len(self.actions)])
        return np.exp(logs_A), self.prices.at(root.root.position), float(distance)

    def repriced(self, profile: LatencyProfile) -> Self:
        changed = copy.copy(self)
        changed.prices = self._prices_here(profile)
        return changed

    def doubt(self, profile: LatencyProfile) -> str | None:
        factor = self.prices.largest_factor(self._prices_here(profile))
        if factor <= LARGEST_FACTOR:
            return None
        return (
            f"{self.kind} was exported for a machine on which steps cost up to {factor:.2f} times as much, compared with "
            f"each other, as on this one (more than {LARGEST_FACTOR} times): its choices may not pay. Say reprice=True to "
            "choose by this machine's latencies, or export the bundle here (dvc repro)."
        )

    def _prices_here(self, profile: LatencyProfile) -> Prices:
        here = RoundPrices(profile, sampled=True)
        return here.actions(str(self.verifier), self.actions, self.traffic, self.spec.state_size)
