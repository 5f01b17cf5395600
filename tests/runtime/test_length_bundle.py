"""The explicit length predictor stands aside where it cannot be trusted, and bundles that make no sense are refused."""

import warnings

import pytest
import torch

from runtime import ModelPair, build_decoder, load_decoder
from tests.bundles import head_setting, random_bundle
from tests.greedy import greedy_text
from tests.toys import tiny_llama

FEATURES = ("paper", "extended")


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


def bundle(folder, pair, features="extended", **options):
    return random_bundle(folder, pair, features, kind="length", **options)


def static_rounds(decoder, **options):
    """Drafted tokens of rounds that the budget does not cut."""
    out = decoder.generate([1, 2, 3], max_new_tokens=20, **options)
    assert all(record.bypassed for record in out.rounds[1:-1])
    return {record.drafted for record in out.rounds[1:6]}


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("static_gamma", [0, 1, 2])
def test_uncalibrated_settings_fall_back(pair, tmp_path, features, static_gamma):
    folder = bundle(tmp_path / "b", pair, features, gamma=3, static_gamma=static_gamma, temperatures=(0.0,))
    decoder = load_decoder(folder, pair)
    with pytest.warns(UserWarning, match="length is bypassed.*calibrated for.*best static gamma"):
        assert static_rounds(decoder, temperature=0.9) == {static_gamma}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        static_rounds(decoder, temperature=0.9)  # warned once, not every request


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("static_gamma", [0, 1, 2])
def test_features_far_from_training_fall_back(pair, tmp_path, features, static_gamma):
    folder = bundle(tmp_path / "b", pair, features, gamma=3, static_gamma=static_gamma, max_distance=1e-9)
    with pytest.warns(UserWarning, match="length is bypassed.*squared distance"):
        assert static_rounds(load_decoder(folder, pair)) == {static_gamma}


@pytest.mark.parametrize("features", FEATURES)
def test_a_head_that_returns_nan_falls_back(pair, tmp_path, features):
    decoder = load_decoder(bundle(tmp_path / "b", pair, features, gamma=3, static_gamma=1), pair)
    with torch.no_grad():
        decoder.controller.network.head[-1].bias.fill_(float("nan"))
    with pytest.warns(UserWarning, match="length is bypassed.*not finite"):
        assert static_rounds(decoder) == {1}
    assert decoder.generate([1, 2, 3], max_new_tokens=20).tokens == greedy_text(pair.target.model, [1, 2, 3], 20)


def test_contexts_outside_the_captured_range_fall_back(pair, tmp_path):
    decoder = load_decoder(bundle(tmp_path / "b", pair, gamma=3, static_gamma=1), pair)  # captured up to 200 tokens
    with pytest.warns(UserWarning, match="length is bypassed: a context of 20[0-9] tokens"):
        out = decoder.generate(list(range(30)) * 6 + [1] * 15, max_new_tokens=20)
    flags = [record.bypassed for record in out.rounds[1:]]
    assert flags == sorted(flags) and set(flags) == {False, True}, "rounds inside the range are the head's"


@pytest.mark.parametrize("features", FEATURES)
def test_build_decoder_takes_the_bundle_as_a_controller(pair, tmp_path, features):
    folder = bundle(tmp_path / "b", pair, features, gamma=3)
    drafter, controller = {"kind": "chain", "gamma": 3}, {"kind": "length", "bundle": str(folder)}
    config = {"method": "speculative", "drafter": drafter, "controller": controller}
    rounds = [
        [record.drafted for record in decoder.generate([5, 6], max_new_tokens=20).rounds]
        for decoder in (build_decoder(pair, config), load_decoder(folder, pair))
    ]
    assert rounds[0] == rounds[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda card: card["settings"][0]["calibration"].update(bias=[0.0, 0.0, 0.0]),
            r"has 4 classes, but settings\[0\]: calibration.bias has 3",
        ),
        (lambda card: card["feature_spec"].update(gamma=2), "length at gamma=2 has 3 classes, but the head has 4"),
        (lambda card: card["settings"][0]["rule"].update(choice="mean"), r"settings\[0\].rule: choice must be one of"),
        (lambda card: card["settings"][0].update(rule={"epsilon": 0.5}), r"settings\[0\].rule: unknown key 'epsilon'"),
        (lambda card: card["decoder"]["drafter"].update(gamma=1), "gamma=1 is shorter than the 3 tokens the length"),
    ],
)
def test_bundles_exported_wrong_are_refused(pair, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_decoder(bundle(tmp_path / "b", pair, gamma=3, change=change), pair)


def test_hrads_head_is_no_length_predictor(pair, tmp_path):
    def rename(card):
        rule = {"choice": "argmax", "draft_cost": 0.1}
        card.update(kind="length", settings=[head_setting(0.0, 4, rule, {})])

    folder = random_bundle(tmp_path / "b", pair, gamma=3, change=rename)
    with pytest.raises(
        ValueError, match="length at gamma=3 has 4 classes, but the head has 3. Export the bundle again"
    ):
        load_decoder(folder, pair)
