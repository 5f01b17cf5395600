"""Controllers with a head in the decoder: H-RAD's classes and explicit lengths. What holds of all controllers is tested in
`test_controller_contract`."""

import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from predictors.controllers import build_controller
from predictors.head import assemble, state_vector
from predictors.rounds import RoundRecord
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from tests.bundles import random_bundle
from tests.signals import GAMMA, SETTINGS, law, root
from tests.toys import tiny_llama

FEATURES = ("paper", "extended")


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


@pytest.fixture(scope="module")
def head(pair, tmp_path_factory):
    """Build a head of a kind over a feature set."""

    def build(kind, features):
        folder = random_bundle(tmp_path_factory.mktemp(kind) / "b", pair, features, gamma=GAMMA, kind=kind)
        return build_controller({"kind": kind, "bundle": str(folder)})

    return build


@pytest.mark.parametrize("kind", ["hrad", "length"])
def test_a_head_reads_what_the_target_tested(head, kind):
    """Of a round that drafted six levels, submitted three and was hit at the branch point too, it knows 3 of 3 tokens."""
    controller, plain = head(kind, "extended"), RoundRecord(drafted=3, accepted=3)
    branched = RoundRecord(drafted=9, levels=6, submitted=3, accepted=4)
    other = RoundRecord(drafted=4, accepted=4)  # what levels and hits would make of it
    found = []
    for previous in (plain, branched, other):
        start = replace(root(seed=0), previous=previous)
        found.append(controller.predict(start, law([0.6, 0.4], drafted=0, place=start))[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_another_soft_threshold_makes_another_hrad(head):
    """A head that says "some" stops at the ε it is given; the controller it came from keeps its own."""
    made = head("hrad", "paper")
    changed = made.with_epsilon(0.9)
    stops = []
    for controller in (made, changed):
        controller.predict = lambda start, law: (torch.tensor([0.0, 1.0, 0.0]), 0.0, ())
        session, start = controller.start(SETTINGS), root(seed=0)
        session.plan(start)
        stops.append(bool(session.stop_before(law([0.6, 0.4], drafted=1, place=start))))
    assert stops == [False, True] and made.settings[0].rule.epsilon == 0.5
    with pytest.raises(ValueError, match="'length' controller has no soft threshold"):
        head("length", "paper").with_epsilon(0.9)


def recorded_decisions(decoder):
    """The class of every prediction from now on."""
    decisions, predict = [], decoder.controller.predict

    def recorded(root, law):
        probabilities, *place = predict(root, law)
        decisions.append(int(probabilities.argmax()))
        return probabilities, *place

    decoder.controller.predict = recorded
    return decisions


def retaining(folder, pair, **options):
    """Rounds by a head for branches of a draft that is always right, and whether it said that it stands aside."""
    twin = ModelPair(pair.target.model, pair.target.model)
    config = {"method": "branch_parallel", "preset": "specbranch", "gamma": 3, "overlap": "none"}
    decoder = load_decoder(random_bundle(folder, twin, gamma=3, **options), twin, config)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        return decoder.generate([1, 2, 3], max_new_tokens=30, eos_token_id=[]).rounds[1:-3], bool(told)


@pytest.mark.parametrize("drafting, retention", [(0, 2), (2, 0)])
def test_what_is_retained_has_rules_of_its_own(pair, tmp_path, drafting, retention):
    """A rule that always says none for drafting and all for retention, and the other way round."""
    always = {s: {"epsilon": 0.5, "none_probability": [0.0, 2.0][s == 2], "all_probability": 0.0} for s in (0, 2)}
    rounds, _ = retaining(tmp_path / "b", pair, rule=always[drafting], retention=always[retention])
    submitted = {True: set(), False: set()}
    for before, record in pairwise(rounds):
        submitted[not before.ends_segment].add(record.submitted)
    assert submitted[True] == {3 * (retention == 2)} and submitted[False] <= {3 * (drafting == 2)}


@pytest.mark.parametrize("static_gamma, retained_gamma", [(1, 3), (2, 2)])
@pytest.mark.parametrize("aside", [{"max_distance": 1e-9}, {"rule": None}])
def test_what_is_retained_has_lengths_of_its_own(pair, tmp_path, static_gamma, retained_gamma, aside):
    """Where the head stands aside, or no rule pays."""
    lengths = {"static_gamma": static_gamma, "retained_gamma": retained_gamma}
    rounds, told = retaining(tmp_path / "b", pair, **aside, **lengths)
    assert [record.bypassed for record in rounds] == [told] * len(rounds) and told == ("rule" not in aside)
    assert rounds[0].submitted == static_gamma and rounds[1].submitted == retained_gamma


@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_a_head_is_not_asked_where_its_rule_would_not_listen(pair, tmp_path, feature_set):
    """The same text and rounds as under the confidence rule, whose ε it has."""
    deaf = {"epsilon": 0.5, "none_probability": 1.01, "all_probability": 1.01}
    decoder = load_decoder(random_bundle(tmp_path / "b", pair, feature_set, gamma=3, rule=deaf), pair)
    decisions = recorded_decisions(decoder)
    soft = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}, "verifier": "block"}
    soft = build_decoder(pair, soft | {"controller": {"kind": "confidence", "epsilon": 0.5}})
    out, expected = (d.generate([1, 2, 3], max_new_tokens=30) for d in (decoder, soft))
    assert not decisions
    assert [(r.submitted, r.accepted) for r in out.rounds] == [(r.submitted, r.accepted) for r in expected.rounds]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_served_features_are_the_contracts(pair, tmp_path, monkeypatch, temperature):
    """What the head saw, recomputed without caches by the code that training uses."""
    bundle = random_bundle(tmp_path / "b", pair, "extended", gamma=3, temperatures=(temperature,), seed=1)
    decoder = load_decoder(bundle, pair)
    predict, seen = decoder.controller.predict, []

    def some(root, law):
        predict(root, law)
        return torch.tensor([0.0, 1.0, 0.0]), 0.0, ()

    decoder.controller.predict = some
    features = decoder.controller.features
    monkeypatch.setattr(decoder.controller, "features", lambda root, law: seen.append(features(root, law)) or seen[-1])
    steps = list(
        decoder.stream([1, 2, 3], max_new_tokens=30, temperature=temperature, randomness=Randomness(0), observe=True)
    )
    tokens, previous = [1, 2, 3, *steps[0].tokens], None
    for row, step in zip(seen, steps[1:], strict=False):
        root = step.evidence.root
        with torch.no_grad():
            law = pair.draft.model(torch.tensor([tokens])).logits[0, -1].softmax(-1)
        expected = assemble(
            decoder.controller.spec,
            state_vector(root.hidden_KD, root.embedding_E).unsqueeze(0),
            torch.tensor([-1 if previous is None else previous.drafted]),
            torch.tensor([-1 if previous is None else previous.accepted]),
            law.max().reshape(1),
            -(law * law.log()).sum().reshape(1),
        )
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)
        tokens, previous = [*tokens, *step.tokens], step.record
    assert len(seen) >= 3


def rounds_of(decoder, temperature):
    out = decoder.generate(
        [1, 2, 3], max_new_tokens=24, temperature=temperature, randomness=Randomness(0), eos_token_id=[]
    )
    return out.rounds[1:-3]


@pytest.mark.parametrize("kind", ["hrad", "length"])
@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_every_captured_setting_has_a_rule_of_its_own(pair, tmp_path, kind, feature_set):
    """A head that is asked at temperature 0, and where it does not pay, at 1, a planned chain without a question."""

    def change(card):
        card["settings"][1] |= {"rule": None, "retention": None, "static_gamma": 3, "retained_gamma": 3}

    folder = random_bundle(tmp_path / "b", pair, feature_set, gamma=3, kind=kind, change=change)
    decoder = load_decoder(folder, pair)
    asked = {temperature: {r.asked for r in rounds_of(decoder, temperature)} for temperature in (0.0, 1.0)}
    assert asked == {0.0: {1}, 1.0: {0}}
    assert {record.drafted for record in rounds_of(decoder, 1.0)} == {3}
    config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}}
    assert decoder.controller.layers == (1, 2), "one setting asks"
    again = build_decoder(pair, config | {"controller": {"kind": kind, "bundle": str(folder), "asked": True}})
    assert {record.asked for record in rounds_of(again, 1.0)} == {1}


def test_a_head_asked_anyway_retains_by_the_rule_tried_for_that(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair, rule=None, retention=None, tried_retention={"epsilon": 0.9})
    made = build_controller({"kind": "hrad", "bundle": str(folder), "asked": True}).settings[0]
    assert made.of(True).epsilon == 0.9 != made.of(False).epsilon


def test_every_captured_setting_has_a_calibration_of_its_own(pair, tmp_path):
    """The same features and head: at temperature 1 the bias makes every class none."""

    def change(card):
        card["settings"][1]["calibration"]["bias"] = [1e3, 0.0, 0.0]

    decoder = load_decoder(random_bundle(tmp_path / "b", pair, "paper", gamma=3, change=change), pair)
    assert {record.drafted for record in rounds_of(decoder, 1.0)} == {0} != {r.drafted for r in rounds_of(decoder, 0.0)}
