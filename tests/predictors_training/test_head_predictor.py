"""Heads that are exported: their worth is what real sessions make of the texts, and how a pair decodes decides their sizes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from predictors.bundle import Bundle
from predictors.config import parse_config
from predictors.controllers import build_controller, learned_controller
from predictors.latency.prices import RoundPrices
from predictors.replay.chains import ChainPolicy
from predictors.replay.decode import Clock
from predictors.rounds import BranchSettings
from predictors.training.head_predictor import HeadFit, HeadPredictor, require_served
from predictors.training.head_rules import RuleCandidates, fit_baselines, length_accuracy
from predictors.training.head_served import Decoding, balanced, best_k_max
from predictors.training.tables import TextTable
from runtime import build_decoder
from tests.predictors.affine_profile import PROFILE, toy_profile
from tests.predictors_training.conftest import labelled
from tests.predictors_training.stages import FAST, GAMMA
from tests.predictors_training.synthetic_texts import (
    CANDIDATES,
    GAMMA_MAX,
    LAYERS,
    LENGTH,
    chains,
    synthetic_texts,
    write_texts,
)
from tests.predictors_training.test_heads import CONFIG, made, rows
from tests.selectors import tiniest_pair

__all__ = ["made", "rows"]  # fixtures


@pytest.fixture(scope="module", params=["classes", "length"])
def fitted(request, materials):
    return replace(CONFIG, target=request.param).fit(request.param, materials)


def test_every_setting_has_its_own_calibration_and_static_length(fitted):
    first, second = fitted.card["settings"]
    assert first["calibration"] != second["calibration"] and first["static_gamma"] != second["static_gamma"]
    assert [made["settings"]["temperature"] for made in (first, second)] == [0.0, 1.0]
    assert fitted.card["decoder"]["drafter"] == {"kind": "chain", "gamma": 5}
    controller = learned_controller(Bundle(fitted.card, fitted.tensors))
    assert controller.kind == fitted.quality["kind"] and controller.spec.layers == LAYERS
    assert controller.prices.profile_hash == PROFILE.profile_hash


def test_worth_is_what_the_exported_controller_makes_of_the_texts(fitted, materials, made):
    """Served, and forced: tokens per second of the quality file are the real sessions' on the same texts and luck."""
    texts = list(TextTable.read(materials.texts).rows("test").texts())
    controller, clock = learned_controller(Bundle(fitted.card, fitted.tensors)), Clock(PROFILE)
    for name, part in fitted.quality["parts"].items():
        totals = [clock.policy(text, ChainPolicy(controller, 5)) for text in texts if text.settings.name == name]
        rate = sum(one.tokens for one in totals) / sum(one.seconds for one in totals)
        assert part["policies"]["head"]["tokens_per_second"] == pytest.approx(rate, rel=1e-9)
        policies = {key: one["tokens_per_second"] for key, one in part["policies"].items()}
        assert max(policies, key=policies.get) == "oracle" and policies["head"] > 0.99 * policies["best_static"]


def test_a_controller_that_forgets_its_calibration_is_worth_something_else(fitted, materials):
    """The wrong twin of the proof above."""
    card = fitted.card | {"settings": [made | {"rule": made["tried"]} for made in fitted.card["settings"]]}
    wrong = card | {
        "settings": [
            made | {"calibration": {"bias": [2.0, *made["calibration"]["bias"][1:]]}} for made in card["settings"]
        ]
    }
    text = next(iter(TextTable.read(materials.texts).rows("test").texts()))
    totals = [
        Clock(PROFILE).policy(text, ChainPolicy(learned_controller(Bundle(one, fitted.tensors)), 5))
        for one in (card, wrong)
    ]
    assert totals[0].seconds != totals[1].seconds and totals[0].asked > 0


def test_the_head_stands_beside_its_baselines(fitted):
    for part in fitted.quality["parts"].values():
        metrics = part["metrics"]
        assert list(metrics) == ["head", "head_uncalibrated", "majority", "previous_label", "draft_confidence"]
        assert metrics["majority"]["macro_auc"] == 0.5 < 0.65 < metrics["head"]["macro_auc"]
        assert metrics["head"]["nll"] < metrics["head_uncalibrated"]["nll"] + 0.02
        assert ("mean_absolute_error" in metrics["head"]) == (fitted.quality["target"] == "length")
        for policy in part["policies"].values():
            assert policy["gain"]["low"] <= policy["gain"]["value"] <= policy["gain"]["high"]
        assert 0 < part["policies"]["head"]["length_accuracy"] < 1
    errors = [part["metrics"]["head"]["ece"] for part in fitted.quality["parts"].values()]
    assert fitted.card["measured_quality"]["metrics"]["ece"] == max(errors)


def test_where_one_class_alone_was_seen_baselines_are_sure_of_it(made, rows):
    labels = rows["train"].label_P
    alone = rows["train"].take(labels == labels[0])
    for name, baseline in fit_baselines(alone).items():
        assert (baseline(rows["test"]).argmax(axis=1) == labels[0]).all(), name


def test_lengths_at_the_budgets_edge_are_right(made):
    """Nobody can draft more than the budget leaves. With no other limit a draft of all that is accepted is always right."""
    served = made.unsaid["test", 0]
    starts = replace(served.idle, would_XS=np.full_like(served.idle.would_XS, GAMMA))
    served = replace(served, idle=starts)
    assert (starts.cap_XS[starts.valid_XS] < GAMMA).any()
    assert length_accuracy(served, served.totals(GAMMA, GAMMA)) == 1


def test_test_texts_decide_nothing(fitted, tmp_path):
    """Network, calibration, rules and static lengths stay the same when test texts are spoiled."""

    def spoiled(text):
        made = chains(np.random.default_rng(0), np.arange(LENGTH) % 2.0, text["temperature"])
        return text | made | {"root": np.ones_like(text["root"])}

    texts = [spoiled(text) if text["split"] == "test" else text for text in synthetic_texts()]
    write_texts(tmp_path / "texts", texts)
    again = replace(CONFIG, target=fitted.quality["target"]).fit("x", labelled(tmp_path, tmp_path))
    for key in ("settings", "max_distance"):
        assert again.card[key] == fitted.card[key]
    assert all(torch.equal(tensor, again.tensors[name]) for name, tensor in fitted.tensors.items())
    assert again.quality["parts"]["T=0"]["policies"] != fitted.quality["parts"]["T=0"]["policies"]


def test_a_rule_that_is_given_is_served_at_every_setting(materials):
    """The paper's: its features, the argmax, ε = .2, whether it pays or not."""
    given = parse_config(HeadPredictor, {"feature_set": "paper", "rule": {"epsilon": 0.2}, "training": FAST}, "x")
    card = replace(given, decoding=CONFIG.decoding, bootstrap_replicates=5, iterations=1).fit("paper", materials).card
    rule = {"epsilon": 0.2, "none_probability": None, "all_probability": None}
    assert [made["rule"] for made in card["settings"]] == [rule, rule] and card["feature_spec"][
        "feature_set"
    ] == "paper"


def test_branches_have_rules_of_their_own_for_what_is_retained(materials):
    branches = {"method": "branches", "gamma": GAMMA, "k_max": 2}
    made = parse_config(HeadPredictor, {"decoding": branches, "training": FAST, "bootstrap_replicates": 5}, "x")
    made = replace(made, candidates=CONFIG.candidates, iterations=1).fit("branches", materials)
    assert {setting["retained_gamma"] for setting in made.card["settings"]} == {GAMMA}  # its tokens are there already
    assert all(setting["static_gamma"] < GAMMA for setting in made.card["settings"])
    assert made.card["decoder"]["preset"] == "specbranch" and made.card["decoder"]["gamma"] == GAMMA
    assert "oracle" not in made.quality["parts"]["T=0"]["policies"]


def branching(**given):
    values = {"method": "branches", **given}
    made = parse_config(
        HeadPredictor, {"decoding": values, "training": FAST | {"epochs": 1}, "bootstrap_replicates": 5}, "x"
    )
    return replace(made, candidates=RuleCandidates(epsilons=(0.3,), probabilities=()), iterations=1)


def test_gamma_and_k_max_of_branches_follow_the_pair(materials):
    """γ is the longest branch within a target pass over as many tokens; k_max the fastest of those recorded, by real sessions."""
    chosen = branching().fit("branches", materials).card["decoder"]
    costs = RoundPrices(PROFILE, sampled=True)
    context = TextTable.read(materials.texts).median_context
    hidden = [gamma for gamma in range(GAMMA, GAMMA_MAX) if costs.balanced_gamma(gamma, 1, context) >= gamma]
    assert chosen["gamma"] == max(hidden, default=GAMMA) and 1 <= chosen["k_max"] <= CANDIDATES
    given = branching(gamma=GAMMA, k_max=2).fit("branches", materials).card["decoder"]
    assert (given["gamma"], given["k_max"]) == (GAMMA, 2), "what is given is kept"


@pytest.mark.parametrize("dear", [False, True])
def test_a_machine_where_drafting_is_dear_hides_shorter_branches(dear):
    profile = toy_profile(draft=lambda rows, context: 5.0 if dear else 0.01)
    assert balanced(Decoding(method="branches"), RoundPrices(profile, True), 2, 9, 40.0) == (2 if dear else 9)


def test_the_decoder_of_branches_that_the_fit_sized_can_be_built():
    made = parse_config(Decoding, {"method": "branches"}, "decoding")
    assert made.open == ("gamma", "k_max")
    decoder = build_decoder(tiniest_pair(), replace(made, gamma=3, k_max=2).decoder)
    assert (decoder.config.gamma, decoder.config.k_max) == (3, 2)


def test_k_max_is_the_fastest_by_real_sessions(materials):
    unsaid, speeds = HeadFit(branching(gamma=GAMMA, k_max=1), materials).unsaid, {}
    several, always = (
        [unsaid["validation", place] for place in range(2)],
        build_controller({"kind": "fixed", "gamma": 3}),
    )
    texts = [text for one in several for text in one.idle.texts]
    for k_max in range(1, CANDIDATES + 1):
        settings = BranchSettings(gamma=GAMMA, k_max=k_max)
        decodes = [Clock(PROFILE).branches(text, always, settings, "block") for text in texts]
        speeds[k_max] = sum(one.tokens for one in decodes) / sum(one.seconds for one in decodes)
    assert best_k_max(several, CANDIDATES, lambda _: (3, 3)) == max(speeds, key=speeds.get)
    assert best_k_max(several, 1, lambda _: (3, 3)) == 1 and len(set(speeds.values())) == CANDIDATES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoding": {"gamma": 4, "draft_stage_gamma": 5}}, "draft_stage_gamma=5 exceeds gamma=4"),
        ({"target": "length", "rule": {"epsilon": 0.2}}, "rule is of target 'classes', and target is 'length'"),
        ({"choice": "argmax"}, "choice is of lengths, and target is 'classes'"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        parse_config(HeadPredictor, changes, "test")


@pytest.mark.parametrize(
    ("decoding", "message"),
    [
        (
            {"gamma": 5, "verifier": "nss"},
            "verifier 'block' and decoding.verifier is 'nss'.*Set traces.texts.verifier to 'nss'",
        ),
        ({"gamma": 5, "verifier": "tokenwise"}, "decoding.verifier is 'tokenwise'"),
        ({"gamma": 3}, "decoding.gamma=3 is shorter than the 4 tokens .* Use decoding.gamma >= 4"),
    ],
)
def test_labels_of_another_decoding_are_refused(decoding, message):
    facts = {"gamma": 4, "verifier": "block"}
    with pytest.raises(ValueError, match=message):
        require_served(Decoding(**decoding), facts)
    require_served(Decoding(gamma=4, verifier="hsd"), facts)  # is block on chains


def test_the_papers_heads_decide_by_the_softmax_as_trained():
    """Specification 4.3: argmax, without the correction of class shares."""
    recipes = yaml.safe_load((Path(__file__).parents[2] / "pipelines/predictors.yaml").read_text())
    heads = {name: made for name, made in recipes.items() if made.get("feature_set") == "paper"}
    assert heads and not any(made["prior_correction"] for made in heads.values())
