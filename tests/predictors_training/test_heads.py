"""Heads from texts: rows are what sessions meet, nothing leaks, and what is exported is what was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from predictors.branch_settings import BranchSettings
from predictors.bundle import Bundle
from predictors.config import parse_config
from predictors.controllers import build_controller, learned_controller
from predictors.latency.prices import RoundPrices
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.decode import Clock
from predictors.training.calibration import prior_shift
from predictors.training.heads import predictor, training
from predictors.training.heads.predictor import HeadFit, HeadPredictor, changed, require_served
from predictors.training.heads.quality import fit_baselines, length_accuracy
from predictors.training.heads.roots import Rows
from predictors.training.heads.rules import Candidates
from predictors.training.heads.served import Decoding, balanced, best_k_max
from predictors.training.heads.training import HeadTrainConfig, train
from predictors.training.metrics import MacroAuc
from predictors.training.text_table import TextTable
from runtime import build_decoder
from tests.predictors.affine_profile import PROFILE, toy_profile
from tests.predictors_training.conftest import labelled
from tests.predictors_training.stages import FAST, GAMMA, HEAD
from tests.predictors_training.synthetic_texts import (
    CANDIDATES,
    GAMMA_MAX,
    LAYERS,
    LENGTH,
    chains,
    synthetic_texts,
    write_texts,
)
from tests.selectors import tiniest_pair

CONFIG = parse_config(HeadPredictor, {key: value for key, value in HEAD.items() if key != "family"}, "test")


def config(**changes):
    return parse_config(HeadTrainConfig, FAST | changes, "test")


@pytest.fixture(scope="module")
def made(materials):
    return HeadFit(CONFIG, materials)


def rows_of(fit, *static):
    return fit.rows(fit.unsaid, dict.fromkeys(range(2), static), {})[0]


@pytest.fixture(scope="module")
def rows(made):
    return rows_of(made, 3, 3)


@pytest.fixture(scope="module")
def head(made, rows):
    return train(rows["train"], rows["validation"], config())


def trained_rows(materials):
    return TextTable.read(materials.texts).column("split") == "train"


def auc_on_test(fit, rows, head):
    test = rows["test"]
    with torch.inference_mode():
        return MacroAuc(head.network(test.features).softmax(dim=1).numpy(), test.label_P)()


# ---- rows


@pytest.mark.parametrize("controller", [{"kind": "fixed", "gamma": 3}, {"kind": "fixed", "gamma": 5}])
def test_rows_hold_every_root_that_real_sessions_meet(made, materials, controller):
    """With the round before it; of a static length above γ all tokens count, below it an uncut round says nothing."""
    found = rows_of(made, controller["gamma"], controller["gamma"])
    known = set(zip(found["test"].row_P.tolist(), found["test"].past_P.tolist(), strict=True))
    first, seen = 0, set()
    table = TextTable.read(materials.texts)
    for text in table.texts():
        start, past = 1, 0
        for one in replayed(text, ChainPolicy(build_controller(controller), 5)):
            row = first + start - 1
            if table.column("split")[row] == "test" and made.roots.known_R[row]:
                seen.add((row, past))
            start += one.emitted
            tested = one.accepted < one.submitted or one.submitted >= GAMMA
            past = 1 + min(one.accepted, GAMMA) if tested else 0
        first += text.length - 1
    assert seen <= known and len(known) > 1.5 * len(seen), "a round from every position meets more than decodes do"
    assert not seen <= {(row, (past + 1) % (GAMMA + 2)) for row, past in known}


def test_most_positions_are_learned_from(made, materials, rows):
    """A decode visits a third of them; those with fewer than γ tokens of text left are none."""
    assert len(rows["train"]) > 0.75 * trained_rows(materials).sum()
    assert made.roots.known_R[rows["train"].row_P].all()


def test_features_are_those_that_sessions_see(made, materials, monkeypatch):
    """The exported controller on a recorded text, against the rows it was learned from; another past is another row."""
    fitted = replace(CONFIG, rule=None, iterations=1).fit("hrad", materials)
    for setting in fitted.card["settings"]:
        setting["rule"] = setting["retention"] = setting["tried"]
    controller = learned_controller(Bundle(fitted.card, fitted.tensors))
    seen, features = [], controller.features
    monkeypatch.setattr(
        controller, "features", lambda root, law: seen.append((root, features(root, law))) or seen[-1][1]
    )
    table, first, pasts = TextTable.read(materials.texts), 0, set()
    for text in list(table.texts())[:6]:
        seen.clear()
        list(replayed(text, ChainPolicy(controller, 5)))
        for root, row in seen:
            place, previous = first + root.position - text.prompt_tokens - 1, root.previous
            drafted, accepted = (-1, 0) if previous is None else (previous.submitted, previous.accepted)
            tested = 0 <= accepted < drafted or drafted >= GAMMA
            past = np.array([1 + min(accepted, GAMMA) if tested else 0])
            expected = made.roots.features(np.array([place]), past)
            torch.testing.assert_close(row, expected, rtol=0, atol=0)
            assert not torch.equal(row, made.roots.features(np.array([place]), (past + 1) % (GAMMA + 2)))
            pasts.add(int(past[0]))
        first += text.length - 1
    assert len(pasts) > 2


def test_a_root_is_learned_from_once_where_its_past_is_not_read(rows):
    paper = replace(rows["train"].roots, spec=replace(rows["train"].roots.spec, feature_set="paper"))
    several = Rows(paper, np.array([4, 4, 7, 4]), np.array([2, 1, 0, 2]))
    assert several.distinct.row_P.tolist() == [4, 7] and several.distinct.past_P.tolist() == [2, 0]
    assert rows["train"].distinct is rows["train"]


def test_rows_settle(materials, monkeypatch):
    """Most rows change with the first policy that is served, few with the second. Counted are those of the last training."""
    counts = []
    monkeypatch.setattr(
        predictor, "train", lambda *rows_and_others: counts.append(len(rows_and_others[0])) or train(*rows_and_others)
    )
    quality = replace(CONFIG, target="length", iterations=2).fit("length", materials).quality
    shares = [one["changed"] for one in quality["iterations"]]
    assert shares[0] > 3 * shares[1]
    assert counts[0] != counts[1] == quality["rows"]["train"]
    assert (
        changed(Rows(None, np.array([1, 2]), np.array([0, 0])), Rows(None, np.array([1, 3]), np.array([0, 0]))) == 0.5
    )


# ---- training


def test_a_planted_signal_is_learned(made, rows, head):
    assert auc_on_test(made, rows, head) > 0.7


@pytest.mark.parametrize("targets", ["drawn", "expected"])
def test_nothing_is_learned_where_nothing_is(tmp_path, targets):
    """The failing twin: a leak would show as an AUC above one half."""
    write_texts(tmp_path / "texts", synthetic_texts(informative=False))
    fit = HeadFit(replace(CONFIG, feature_set="paper"), labelled(tmp_path, tmp_path))
    found = rows_of(fit, 3, 3)
    blind = train(found["train"], found["validation"], config(targets=targets))
    assert abs(auc_on_test(fit, found, blind) - 0.5) < 0.07


def test_expected_targets_train_too_and_keep_to_their_rows(made, rows, monkeypatch):
    expected = train(rows["train"], rows["validation"], config(targets="expected"))
    assert auc_on_test(made, rows, expected) > 0.7
    seen = {}
    monkeypatch.setattr(training, "fitted", lambda module, drawn, *others: seen.update(made=drawn) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(rows["train"], rows["validation"], config(targets="expected"))
    chances, count = seen["made"].columns[1], len(rows["train"])
    torch.testing.assert_close(chances[:count], torch.from_numpy(rows["train"].expected_PL).float())
    assert len(chances) > count and chances.sum(dim=1).numpy() == pytest.approx(1, abs=1e-4)


def test_the_best_epoch_is_restored(made, rows, head):
    validation = rows["validation"]
    with torch.inference_mode():
        logits = head.network(validation.features) + prior_shift(head.natural_shares, head.training_shares)
    loss = float(F.cross_entropy(logits, torch.from_numpy(validation.label_P)))
    assert loss == pytest.approx(min(epoch["val_loss"] for epoch in head.history), abs=1e-4)
    assert head.history[head.best_epoch]["val_loss"] == min(epoch["val_loss"] for epoch in head.history)


def test_the_same_seed_gives_the_same_head(made, rows, head):
    before = torch.random.get_rng_state()
    again, other = (train(rows["train"], rows["validation"], config(seed=seed)) for seed in (0, 1))
    assert torch.equal(before, torch.random.get_rng_state())  # the caller's own stream is not touched
    for name, tensor in head.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name]), name
    assert again.history == head.history
    assert not torch.equal(head.network.head[0].weight, other.network.head[0].weight)


def test_only_training_rows_shape_the_reduction(made, materials, rows, head):
    moved = replace(made.roots, state_RS=made.roots.state_RS.copy())
    moved.state_RS[~trained_rows(materials)] += 50
    parts = (Rows(moved, rows[split].row_P, rows[split].past_P) for split in ("train", "validation"))
    again = train(*parts, config(epochs=1))
    for name, buffer in head.network.reduction.named_buffers():
        assert torch.equal(buffer, again.network.reduction.get_buffer(name)), name


# ---- what is exported


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
        for made in part["policies"].values():
            assert made["gain"]["low"] <= made["gain"]["value"] <= made["gain"]["high"]
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
    return replace(made, candidates=Candidates(epsilons=(0.3,), probabilities=()), iterations=1)


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
        ({"feature_set": "papr"}, "feature_set must be one of paper, extended, got 'papr'"),
        ({"training": {"hidden_sizes": [4]}}, "hidden_sizes must have 2 entries"),
        ({"decoding": {"method": "trees"}}, "method must be one of chain, branches"),
        ({"decoding": {"gamma": 4, "draft_stage_gamma": 5}}, "draft_stage_gamma=5 exceeds gamma=4"),
        ({"target": "length", "rule": {"epsilon": 0.2}}, "rule is of target 'classes', and target is 'length'"),
        ({"choice": "argmax"}, "choice is of lengths, and target is 'classes'"),
        ({"candidates": {"epsilons": []}}, "epsilons must name at least one"),
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
