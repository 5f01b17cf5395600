"""The H-RAD controller in the decoder: exact under every decision, served features, fallbacks."""

import warnings

import pytest
import torch

from predictors.bundle import read_bundle
from predictors.controllers import HRAD, build_controller, learned_controller
from predictors.features import assemble, state_vector
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.drafting.chain import ChainConfig
from runtime.verification import VERIFIERS
from tests.ancestral import LlamaLogits, target_law
from tests.bundles import random_bundle
from tests.by_rounds import decoded_law
from tests.predictors.affine_profile import PROFILE
from tests.runtime.test_exactness import PROMPT
from tests.runtime.test_greedy import plain
from tests.toys import TableModel, tiny_llama, total_variation


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


def recorded_decisions(decoder):
    """The class of every prediction from now on."""
    decisions, predict = [], decoder.controller.predict

    def recorded(root, law):
        probabilities, *place = predict(root, law)
        decisions.append(int(probabilities.argmax()))
        return probabilities, *place

    decoder.controller.predict = recorded
    return decisions


@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_greedy_equality_and_all_decisions_taken(pair, tmp_path, feature_set):
    decoder = load_decoder(random_bundle(tmp_path / "b", pair, feature_set, gamma=3), pair)
    decisions = recorded_decisions(decoder)
    for prompt in ([1, 2, 3], [9, 8], [4, 4, 7, 30], [11]):
        assert decoder.generate(prompt, max_new_tokens=30).tokens == plain(pair.target.model, prompt, 30)
    assert len(set(decisions)) >= 2, "a random head that always decides alike tests little"


@pytest.mark.parametrize("static_gamma, retained_gamma", [(1, 3), (2, 2)])
@pytest.mark.parametrize("aside", [{"max_distance": 1e-9}, {"rule": None}])
def test_what_is_retained_has_rules_of_its_own(pair, tmp_path, static_gamma, retained_gamma, aside):
    """A rule that always says none for drafting and all for retention, and the other way round; then both standing aside, or none
    that pays."""
    always = {s: {"epsilon": 0.5, "none_probability": [0.0, 2.0][s == 2], "all_probability": 0.0} for s in (0, 2)}
    twin = ModelPair(pair.target.model, pair.target.model)
    for drafting, retention in ((0, 2), (2, 0)):
        folder = random_bundle(
            tmp_path / f"{drafting}", twin, gamma=3, rule=always[drafting], retention=always[retention]
        )
        decoder = load_decoder(
            folder, twin, {"method": "branch_parallel", "preset": "specbranch", "gamma": 3, "overlap": "none"}
        )
        rounds = decoder.generate([1, 2, 3], max_new_tokens=30, eos_token_id=[]).rounds[1:-3]
        survived = [not before.ends_segment for before in rounds[:-1]]
        submitted = {
            s: {r.submitted for r, after in zip(rounds[1:], survived, strict=True) if after == s} for s in (True, False)
        }
        assert submitted[True] == {3 * (retention == 2)} and submitted[False] <= {3 * (drafting == 2)}
    lengths = {"static_gamma": static_gamma, "retained_gamma": retained_gamma}
    folder = random_bundle(tmp_path / "aside", twin, gamma=3, **aside, **lengths)
    decoder = load_decoder(
        folder, twin, {"method": "branch_parallel", "preset": "specbranch", "gamma": 3, "overlap": "none"}
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rounds = decoder.generate([1, 2, 3], max_new_tokens=30, eos_token_id=[]).rounds[1:-3]
    assert [record.bypassed for record in rounds] == [bool(told)] * len(rounds) and bool(told) == ("rule" not in aside)
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


def undecided_decoder(tmp_path, pair, feature_set, temperature):
    """The first random head that takes more than one decision in a few sampled texts."""
    for seed in range(50):
        bundle = random_bundle(
            tmp_path / f"b{seed}", pair, feature_set, gamma=2, temperatures=(temperature,), seed=seed
        )
        decoder = load_decoder(bundle, pair)
        decisions = recorded_decisions(decoder)
        for chance in range(5):
            decoder.generate(PROMPT, max_new_tokens=4, temperature=temperature, randomness=Randomness(chance))
        if len(set(decisions)) >= 2:
            return load_decoder(bundle, pair)
    raise AssertionError("no random head decides more than one thing")


@pytest.mark.parametrize("feature_set", ["paper", "extended"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_output_law_is_the_targets(tmp_path, feature_set, temperature):
    """The real head on tiny Llamas, every random choice enumerated."""
    pair = ModelPair(tiny_llama(4, seed=0), tiny_llama(4, seed=1))
    settings = SamplingSettings(temperature)
    decoder = undecided_decoder(tmp_path, pair, feature_set, temperature)
    decisions = recorded_decisions(decoder)
    law = decoded_law(decoder, PROMPT, 4, settings)
    assert len(set(decisions)) >= 2, "a head that always decides alike is a static setting"
    assert total_variation(law, target_law(LlamaLogits(pair.target.model), PROMPT, 4, settings)) < 1e-5


@pytest.mark.parametrize("feature_set", ["paper", "extended"])
def test_output_law_with_the_signal_driven_through_its_values(pair, tmp_path, feature_set):
    """Decisions that depend on everything a head may see, on toy models in float64."""
    controller = HRAD(read_bundle(random_bundle(tmp_path / "b", pair, feature_set, gamma=2)))

    def predict(root, law):
        decision = root.position + (0 if law is None else int(law.confidence > 0.6))
        return torch.nn.functional.one_hot(torch.tensor(decision % 3), 3).double(), 0.0, ()

    controller.predict = predict
    controller.layers = ()
    toys = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    decoder = SequentialDecoder(toys, ChainConfig(gamma=2), VERIFIERS["block"], controller)
    settings = SamplingSettings(1.0)
    law = decoded_law(decoder, PROMPT, 5, settings)
    assert total_variation(law, target_law(toys.target, PROMPT, 5, settings)) < 1e-9


def drafted(decoder, **options):
    out = decoder.generate([1, 2, 3], max_new_tokens=20, **options)
    return {record.drafted for record in out.rounds[1:-2]}


def test_uncalibrated_temperature_falls_back_to_the_static_setting(pair, tmp_path):
    decoder = load_decoder(random_bundle(tmp_path / "b", pair, gamma=3, static_gamma=2, temperatures=(0.0,)), pair)
    with pytest.warns(UserWarning, match="hrad is bypassed.*calibrated for.*best static gamma"):
        assert drafted(decoder, temperature=0.9) == {2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafted(decoder, temperature=0.9)  # warned once, not every request


def test_features_far_from_training_fall_back(pair, tmp_path):
    decoder = load_decoder(random_bundle(tmp_path / "b", pair, gamma=3, static_gamma=1, max_distance=1e-9), pair)
    with pytest.warns(UserWarning, match="squared distance"):
        assert drafted(decoder) == {1}


def test_contexts_outside_the_captured_range_fall_back(pair, tmp_path):
    decoder = load_decoder(
        random_bundle(tmp_path / "b", pair, gamma=3, static_gamma=1), pair
    )  # captured up to 200 tokens
    with pytest.warns(UserWarning, match="context of 20[0-9] tokens"):
        out = decoder.generate(list(range(30)) * 6 + [1] * 15, max_new_tokens=20)
    flags = [record.bypassed for record in out.rounds[1:]]
    assert flags == sorted(flags) and set(flags) == {False, True}, "rounds inside the range are the head's"


def test_every_kind_of_bypass_is_told(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair, gamma=3, temperatures=(0.0,), max_distance=1e-9)
    decoder = load_decoder(folder, pair)
    with pytest.warns(UserWarning, match="calibrated for"):
        decoder.generate([1, 2], max_new_tokens=8, temperature=1.0)
    with pytest.warns(UserWarning, match="squared distance"):
        out = decoder.generate([1, 2], max_new_tokens=8)
    assert all(record.bypassed for record in out.rounds[1:-1])


def test_a_head_that_returns_nan_falls_back(pair, tmp_path):
    decoder = load_decoder(random_bundle(tmp_path / "b", pair, gamma=3, static_gamma=1), pair)
    with torch.no_grad():
        decoder.controller.network.head[-1].bias.fill_(float("nan"))
    with pytest.warns(UserWarning, match="not finite"):
        out = decoder.generate([1, 2, 3], max_new_tokens=20)
    assert out.tokens == plain(pair.target.model, [1, 2, 3], 20)
    assert {record.drafted for record in out.rounds[2:-1]} == {1}


def test_build_decoder_takes_the_bundle_as_a_controller(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair, gamma=3)
    config = {
        "method": "speculative",
        "drafter": {"kind": "chain", "gamma": 3},
        "controller": {"kind": "hrad", "bundle": str(folder)},
    }
    built, loaded = build_decoder(pair, config), load_decoder(folder, pair)
    assert isinstance(built, SequentialDecoder)
    texts = [decoder.generate([5, 6], max_new_tokens=20) for decoder in (built, loaded)]
    assert [record.drafted for record in texts[0].rounds] == [record.drafted for record in texts[1].rounds]


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


def test_epsilon_is_used(pair, tmp_path):
    """A head that always says "some" drafts as the confidence controller with its ε."""
    lengths = []
    for epsilon in (0.02, 0.5):
        rule = {"epsilon": epsilon}
        decoder = load_decoder(random_bundle(tmp_path / f"b{epsilon}", pair, gamma=5, rule=rule), pair)
        decoder.controller.predict = lambda root, law: (torch.tensor([0.0, 1.0, 0.0]), 0.0, ())
        controller = {"kind": "confidence", "epsilon": epsilon}
        config = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 5}, "controller": controller}
        runs = [
            [record.drafted for record in item.generate([1, 2], max_new_tokens=30).rounds]
            for item in (decoder, build_decoder(pair, config))
        ]
        assert runs[0] == runs[1]
        lengths.append(runs[0])
    assert lengths[0] != lengths[1]


def test_other_layers_than_the_heads_are_refused(pair, tmp_path):
    decoder = load_decoder(random_bundle(tmp_path / "b", pair), pair)
    with pytest.raises(ValueError, match=r"layers \(0,\).*taps \(1, 2\)"):
        decoder.stream([1, 2], layers=(0,))


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
    again = build_decoder(pair, config | {"controller": {"kind": kind, "bundle": str(folder), "asked": True}})
    assert {record.asked for record in rounds_of(again, 1.0)} == {1}


def test_rules_chosen_by_another_profile_are_told(pair, tmp_path):
    folder = random_bundle(tmp_path / "b", pair)
    made = learned_controller(read_bundle(folder))
    with pytest.warns(UserWarning, match="chosen by another latency profile"):
        assert made.at_latency(PROFILE, reprice=False) is made
    with pytest.raises(ValueError, match="reprice is not possible"):
        made.at_latency(PROFILE, reprice=True)
    prices = {"profile_hash": PROFILE.profile_hash}
    own = random_bundle(tmp_path / "own", pair, change=lambda card: card.update(prices=prices))
    with warnings.catch_warnings(action="error"):
        learned_controller(read_bundle(own)).at_latency(PROFILE, reprice=False)


@pytest.mark.parametrize("rule", [None, {"epsilon": 0.9, "none_probability": 1.01, "all_probability": 1.01}])
def test_settings_that_were_not_captured_draft_the_nearest_static_length(pair, tmp_path, rule):
    """Where no rule pays, and where it is settled whatever the head says, there is a warning too."""
    decoder = load_decoder(random_bundle(tmp_path / "b", pair, gamma=3, rule=rule, static_gamma=3), pair)
    with pytest.warns(UserWarning, match="calibrated for.*best static gamma of the nearest captured settings"):
        assert {record.drafted for record in rounds_of(decoder, 0.7)} == {3}


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


@pytest.mark.parametrize("kind", ["hrad", "length"])
def test_a_head_that_is_never_asked_taps_nothing(pair, tmp_path, kind):
    """Layers cost time at every pass; with one setting that asks, they are tapped."""
    folder = random_bundle(tmp_path / "b", pair, gamma=3, kind=kind, rule=None)
    decoder = load_decoder(folder, pair)
    assert decoder.controller.layers == () and not decoder.controller.start(SamplingSettings(0.0)).stops
    out = decoder.generate([1, 2, 3], max_new_tokens=20)
    assert out.tokens == plain(pair.target.model, [1, 2, 3], 20) and {record.asked for record in out.rounds} == {0}
    asking = random_bundle(
        tmp_path / "c",
        pair,
        gamma=3,
        kind=kind,
        change=lambda card: card["settings"][0].update(rule=None, retention=None),
    )
    assert load_decoder(asking, pair).controller.layers == (1, 2)
