"""Decodes in arrays are those of the real controllers' sessions, text by text: counts exactly, seconds to rounding."""

import copy
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from predictors.bundle import read_bundle
from predictors.controllers import build_controller, learned_controller
from predictors.head import assemble
from predictors.latency.prices import RoundPrices
from predictors.replay.chains import ChainPolicy
from predictors.replay.decode import Clock
from predictors.replay.grid import Starts, decoded, no_memory
from predictors.replay.policies import confidence, heads, previous_round, remembered, static, stopping
from predictors.stopping import LAW
from predictors.training.predictor import static_length
from tests.bundles import random_bundle, stop_bundle
from tests.predictors.affine_profile import AS_RUN
from tests.trace_collection.collecting import GAMMA, differing


def starts_of(texts, greedy, depth=GAMMA):
    chosen = [text for text in texts if text.settings.greedy == greedy]
    return Starts.of(chosen, depth, "block", RoundPrices(AS_RUN, not greedy))


def stop_drafts(starts, controller, retains=False):
    """What an exported stop model does."""
    made = controller.setting(starts.texts[0].settings)
    chances, far = [], []
    for one in starts.texts:
        columns = one.columns
        rows = np.asarray(columns["states"]).astype(np.float32)
        if controller.inputs == LAW:
            rows = np.concatenate([columns["tops"][..., : controller.spec.top], columns["entropy"][..., None]], axis=-1)
        features = torch.from_numpy(rows.reshape(-1, controller.num_features))
        with torch.inference_mode():
            logits, distance = controller.network.judged(features)
        chances.append(made.calibration.probability(logits.double().numpy()).reshape(rows.shape[:2]))
        far.append(distance.reshape(rows.shape[:2]).numpy() > controller.max_distance)
    values = starts.by_start(chances), made.rule, controller.inputs, made.static_length, starts.by_start(far)
    return stopping(starts, *values), no_memory


def head_drafts(starts, controller, retains=False):
    """What an exported head does, by what it knows of the round before; ``retains``: where a branch survived."""
    spec, made = controller.spec, controller.setting(starts.texts[0].settings)
    rule, length, at_root = made.of(retains), made.static(retains), spec.decides_before_drafting
    memory, num_states = (no_memory, 1) if at_root else (previous_round(spec.gamma), spec.gamma + 2)
    if rule is None:
        return static(starts, length), memory
    before = [torch.tensor([0])] * 2 if at_root else list(map(torch.from_numpy, remembered(spec.gamma)))
    said, far = [], []
    for one in starts.texts:
        text, count = one, one.length - 1
        first = [text.columns[name][:, 0] for name in ("confidence", "entropy")]
        rows = np.asarray(text.roots.states_NS), *first
        states, *laws = (torch.from_numpy(values).repeat_interleave(num_states, 0) for values in rows)
        features = assemble(spec, states, *(values.repeat(count) for values in before), *laws)
        with torch.inference_mode():
            logits, distance = controller.network.judged(features)
            probabilities = made.calibration.probabilities(logits)
        said.append(probabilities.reshape(count, num_states, -1).numpy())
        far.append(distance.reshape(count, -1).numpy() > controller.max_distance)
    values = rule, spec.gamma, at_root, starts.column("confidence"), length, starts.by_start(far)
    return heads(starts, starts.by_start(said), *values), memory


def drafts_of(starts, controller, retains=False):
    """What ``controller`` does at every start, and its memory: the one place that knows how controllers are built."""
    if controller.kind == "fixed":
        return static(starts, starts.depth if controller.gamma is None else controller.gamma), no_memory
    if controller.kind == "confidence":
        return confidence(starts, starts.column("confidence"), controller.epsilon), no_memory
    return (head_drafts if controller.kind in ("hrad", "length") else stop_drafts)(starts, controller, retains)


def totals_of(starts, controller):
    drafts, memory = drafts_of(starts, controller)
    return decoded(starts, drafts, controller.question_seconds(starts.prices.profile), memory)


def differences(starts, controller, totals):
    """Texts whose totals are not those of the controller's own session."""
    policy = ChainPolicy(controller, starts.depth, starts.verifier)
    return list(differing(totals, (Clock(AS_RUN).policy(one, policy) for one in starts.texts)))


def far(card):
    """Some features lie far from the training rows."""
    card["max_distance"] = 1.0


def stop_controllers(pair, place):
    def last_layer(card):
        card["stop_spec"]["draft_layers"] = [2]
        card["settings"][1]["static_length"] = 3

    def with_far(card):
        last_layer(card)
        far(card)

    for number, (kind, inputs, rule, change) in enumerate(
        [
            ("early_stop", "before", {}, last_layer),
            ("early_stop", "before", {"product": True, "threshold": 0.3, "min_tokens": 2}, last_layer),
            ("early_stop", "law", {"keeps": True, "min_tokens": 1}, last_layer),
            ("specdecpp", "behind", {"keeps": True, "product": True}, last_layer),
            ("specdecpp", "behind", {"min_tokens": 3}, last_layer),
            ("logistic", "law", {"threshold": 0.0}, last_layer),
            ("logistic", "law", {}, with_far),
            ("early_stop", "before", {"product": True, "min_tokens": 1}, with_far),
        ]
    ):
        yield learned_controller(
            read_bundle(stop_bundle(place / f"stop-{number}", pair, kind, inputs, change=change, **rule))
        )


def head_controllers(pair, place):
    rules = {
        "hrad": [{"epsilon": 0.5}, {"epsilon": 0.3, "none_probability": 0.4, "all_probability": 0.3}],
        "length": [{"choice": "argmax", "draft_cost": 0.1}, {"choice": "expectation", "draft_cost": 0.1}],
    }
    for kind, made in rules.items():
        for number, rule in enumerate(made):
            for features in ("paper", "extended"):
                for gamma, change in ((3, None), (5, far), (4, far)):
                    name = place / f"{kind}-{features}-{number}-{gamma}"
                    static_gamma = (number + gamma) % 4
                    yield learned_controller(
                        read_bundle(
                            random_bundle(
                                name,
                                pair,
                                features,
                                gamma=gamma,
                                kind=kind,
                                change=change,
                                rule=rule,
                                static_gamma=static_gamma,
                            )
                        )
                    )
    yield learned_controller(read_bundle(random_bundle(place / "static", pair, gamma=3, rule=None, static_gamma=3)))
    unread = {"epsilon": 0.4, "none_probability": 1.1, "all_probability": 1.1}
    yield learned_controller(read_bundle(random_bundle(place / "unread", pair, gamma=3, rule=unread)))


def plain_controllers():
    yield from (build_controller({"kind": "fixed", "gamma": gamma}) for gamma in (0, 1, 3, 9))
    yield from (build_controller({"kind": "confidence", "epsilon": epsilon}) for epsilon in (0.0, 0.2, 0.3, 0.7))


def vars_of(starts):
    return {field.name: getattr(starts, field.name) for field in fields(Starts)}


def test_the_static_length_is_the_fastest_of_all_texts_together(texts):
    sampled = [text for text in texts if not text.settings.greedy]
    starts = [starts_of(some, False) for some in (sampled[:2], sampled[2:])]
    clock, rates = Clock(AS_RUN), []
    for length in range(GAMMA + 1):
        policy = ChainPolicy(build_controller({"kind": "fixed", "gamma": length}), GAMMA)
        decodes = [clock.policy(text, policy) for one in starts for text in one.texts]
        rates.append(sum(one.tokens for one in decodes) / sum(one.seconds for one in decodes))
    assert static_length(starts) == np.argmax(rates) and len(set(rates)) == GAMMA + 1


def test_chains_longer_than_recorded_are_refused(texts):
    refused = [
        (texts, 6, "block", "chains of 6 tokens"),
        ([], 3, "block", "on 0 texts"),
        (texts, 3, "nss", "under 'block'"),
    ]
    for some, depth, verifier, words in refused:
        with pytest.raises(ValueError, match=words):
            Starts.of(some, depth, verifier, RoundPrices(AS_RUN, False))


def learned_controllers(pair, place):
    yield from stop_controllers(pair, place)
    yield from head_controllers(pair, place)


@pytest.mark.parametrize("greedy", [True, False])
def test_totals_are_those_of_real_sessions(pair, texts, tmp_path, greedy):
    starts = starts_of(texts, greedy)
    asked, lengths = 0, set()
    for controller in (*plain_controllers(), *learned_controllers(pair, tmp_path)):
        with warnings.catch_warnings(action="ignore"):  # of rounds that are bypassed
            totals = totals_of(starts, controller)
            assert not differences(starts, controller, totals), controller.kind
        asked += totals.asked_X.sum()
        lengths |= set(np.unique(drafts_of(starts, controller)[0].submitted))
    assert lengths == set(range(GAMMA + 1)) and asked > 100


class Shifted(Starts):
    """Wrong: reads the distribution one root on."""

    def column(self, name):
        return np.roll(super().column(name), -1, axis=1)


class Sooner(Starts):
    """Wrong: reads what is said of a chain one token too soon."""

    @staticmethod
    def by_start(values):
        made = Starts.by_start(values)
        return np.roll(made, 1, axis=2) if made.ndim > 2 else made


def forgets(starts, controller):
    drafts, _ = drafts_of(starts, controller)
    return decoded(starts, drafts, controller.question_seconds(starts.prices.profile), no_memory)


def trusts_all(starts, controller):
    trusting = copy.copy(controller)
    trusting.max_distance = 1e9
    return totals_of(starts, trusting)


def through_the_end(starts, controller):
    left_XS = np.array([[one.cap(start) for start in range(1, starts.left_XS.shape[1] + 1)] for one in starts.texts])
    endless = replace(starts, cap_XS=np.minimum(np.maximum(left_XS, 0), starts.depth) * starts.valid_XS)
    return totals_of(endless, controller)


def asks_for_nothing(starts, controller):
    drafts, memory = drafts_of(starts, controller)
    return decoded(starts, drafts, 0.0, memory)


TWINS = {
    "shifted": lambda starts, controller: totals_of(Shifted(**vars_of(starts)), controller),
    "sooner": lambda starts, controller: totals_of(Sooner(**vars_of(starts)), controller),
    "forgets": forgets,
    "trusts all": trusts_all,
    "through the end": through_the_end,
    "asks for nothing": asks_for_nothing,
}


@pytest.mark.parametrize("twin", TWINS)
def test_wrong_twins_are_found_out(pair, texts, tmp_path, twin):
    def found_out():
        for greedy in (True, False):
            starts = starts_of(texts, greedy)
            for controller in learned_controllers(pair, tmp_path):
                with warnings.catch_warnings(action="ignore"):
                    yield bool(differences(starts, controller, TWINS[twin](starts, controller)))

    assert any(found_out())
