"""Bundles that do not belong: one clear message each, naming the field, both values and the remedy."""

import json

import pytest
import torch

from predictors.bundle import ContractError, bundle_hash, read_bundle
from runtime import ModelPair, load_decoder
from tests.bundles import RULES, head_setting, random_bundle
from tests.toys import tiny_llama

LENGTHS = [head_setting(0.0, 3, RULES["length"], {})]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


@pytest.fixture
def bundle(pair, tmp_path):
    return random_bundle(tmp_path / "hrad", pair)


def edit(bundle, change):
    card = json.loads((bundle / "card.json").read_text())
    change(card)
    (bundle / "card.json").write_text(json.dumps(card))


def test_bundle_of_another_pair(bundle):
    other = ModelPair(tiny_llama(seed=3), tiny_llama(seed=0, layers=1))
    with pytest.raises(ContractError, match=r"does not belong here: target\.weights was .* is .* now\. Load the pair"):
        load_decoder(bundle, other)


def test_bundle_of_another_draft(bundle, pair):
    other = ModelPair(pair.target.model, tiny_llama(seed=4, layers=1))
    with pytest.raises(ContractError, match=r"draft\.weights"):
        load_decoder(bundle, other)


def test_bundle_of_another_shape(bundle):
    other = ModelPair(tiny_llama(seed=0, layers=3), tiny_llama(seed=0, layers=1))
    with pytest.raises(ContractError, match=r"target\.config_hash"):
        load_decoder(bundle, other)


def test_flipped_norm_flag(bundle, pair):
    edit(bundle, lambda card: card["contract"]["identity"].update(last_layer_post_norm=False))
    with pytest.raises(ContractError, match="last_layer_post_norm was True when it was exported and is False now"):
        load_decoder(bundle, pair)


def test_layer_ids_shifted_by_one(bundle, pair):
    edit(bundle, lambda card: card["contract"]["identity"].update(layer_ids=[0, 1]))
    with pytest.raises(ContractError, match=r"layer_ids was \[1, 2\] .* is \[0, 1\] now"):
        load_decoder(bundle, pair)


def test_layer_ids_shifted_in_the_feature_spec(bundle, pair):
    edit(bundle, lambda card: card["feature_spec"].update(layers=[0, 1]))
    with pytest.raises(ContractError, match="feature_spec.layers"):
        load_decoder(bundle, pair)


def test_tokenizer_known_on_one_side_only_is_no_match(bundle, pair):
    known = ModelPair(pair.target.model, pair.draft.model)
    known.tokenizer = type("Tokenizer", (), {"get_vocab": lambda self: {"a": 0}, "chat_template": None})()
    with pytest.raises(ContractError, match="tokenizer_hash was unknown"):
        load_decoder(bundle, known)


@pytest.mark.parametrize("card", [b"null", b"3", b"[" * 100_000, b'"\xff"'], ids=["null", "3", "deep", "bytes"])
def test_a_card_that_is_no_object_is_a_damaged_bundle(bundle, pair, card):
    (bundle / "card.json").write_bytes(card)
    with pytest.raises(ValueError, match="hrad: damaged bundle"):
        load_decoder(bundle, pair)


def test_a_file_is_no_bundle(bundle, pair):
    with pytest.raises(ValueError, match="is not a controller bundle"):
        load_decoder(bundle / "card.json", pair)


def test_missing_and_damaged_files(bundle, pair):
    with pytest.raises(ValueError, match="is not a controller bundle"):
        load_decoder(bundle.parent / "nothing", pair)
    tensors = bundle / "controller.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged bundle"):
        load_decoder(bundle, pair)
    tensors.write_bytes(whole)
    (bundle / "card.json").write_text("{")
    with pytest.raises(ValueError, match="damaged bundle"):
        load_decoder(bundle, pair)


def test_unknown_kind(bundle, pair):
    strange = random_bundle(bundle, pair, change=lambda card: card.update(kind="oracle"))
    with pytest.raises(ValueError, match="unknown controller kind 'oracle'"):
        load_decoder(strange, pair)


def test_fingerprint_survives_a_change_of_dtype(bundle, pair):
    """The same pair in bfloat16 loads, with one warning that names the bundle and both formats; its rules stay in force."""
    half = ModelPair(tiny_llama(seed=0).bfloat16(), tiny_llama(seed=0, layers=1).bfloat16())
    expected = f"hrad of {bundle} was trained on float32 traces and serves bfloat16 features: .* calibrated in float32"
    with pytest.warns(UserWarning, match=expected) as caught:
        decoder = load_decoder(bundle, half)
    assert len(caught) == 1
    rounds = decoder.generate([1, 2, 3], max_new_tokens=12, eos_token_id=[]).rounds
    assert not any(record.bypassed for record in rounds)


def test_hash_follows_the_content(bundle, pair):
    before = bundle_hash(bundle)
    assert before == bundle_hash(bundle)
    random_bundle(bundle, pair, static_gamma=7)
    assert bundle_hash(bundle) != before
    assert read_bundle(bundle).card["settings"][0]["static_gamma"] == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda card: card["contract"]["serving_range"].update(max_context=9999), "max_context was 200 .* 9999 now"),
        (lambda card: card["contract"]["serving_range"]["settings"].append([0.7, 0.0, 1.0]), "serving_range.settings"),
        (lambda card: card["feature_spec"].update(gamma=1), "feature_spec.gamma was 2 .* 1 now"),
        (lambda card: card["decoder"]["drafter"].update(gamma=8), "decoder.drafter.gamma was 2"),
        (lambda card: card.update(max_distance=1.0), "max_distance"),
        (lambda card: card["settings"][1].update(static_gamma=1), "settings was "),
        (lambda card: card.update(note="mine"), "note was None"),
    ],
)
def test_every_edit_of_the_card_is_noticed(bundle, pair, change, message):
    edit(bundle, change)
    with pytest.raises(ContractError, match=f"was edited: .*{message}"):
        load_decoder(bundle, pair)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda card: card.update(max_distance=float("nan")), "a number that is not finite"),
        (lambda card: card.update(max_distance=0.0), "max_distance must be > 0"),
        (lambda card: card["settings"][0].update(static_gamma=-3), "static_gamma must be >= 0"),
        (lambda card: card["settings"][0]["rule"].update(epsilon=2.0), "epsilon must be <= 1"),
        (lambda card: card["settings"][0]["calibration"].update(temperature=-1.0), "temperature must be > 0"),
        (
            lambda card: card["settings"][0]["calibration"].update(bias=[0.0, 0.0]),
            r"has 3 classes, but settings\[0\]: calibration.bias has 2",
        ),
        (lambda card: card.pop("feature_spec"), "card.json lacks feature_spec"),
        (lambda card: card["feature_spec"].update(layers=[0, 1]), "not the contract's layer_ids"),
        (lambda card: card["decoder"]["drafter"].update(gamma=1), "gamma=1 is shorter than the 2 tokens"),
        (
            lambda card: card.update(kind="length", feature_spec=card["feature_spec"] | {"gamma": 3}, settings=LENGTHS),
            "length at gamma=3 has 4 classes, but the head has 3. Export the bundle again",
        ),
    ],
)
def test_bundles_exported_wrong_are_refused(pair, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_decoder(random_bundle(tmp_path / "wrong", pair, change=change), pair)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_every_parameter_is_part_of_the_identity(bundle, name):
    model = tiny_llama(seed=0)
    with torch.no_grad():
        model.get_parameter(name).mul_(1.1).add_(0.01)
    with pytest.raises(ContractError, match=r"target\.weights"):
        load_decoder(bundle, ModelPair(model, tiny_llama(seed=0, layers=1)))


def test_special_tokens_and_output_flags_are_no_identity(bundle):
    model = tiny_llama(seed=0)
    model.config.pad_token_id, model.config.eos_token_id, model.config.output_hidden_states = 0, 3, True
    load_decoder(bundle, ModelPair(model, tiny_llama(seed=0, layers=1)))


def test_tensors_that_do_not_fit_the_card(bundle, pair):
    wrong = random_bundle(bundle, pair, change=lambda card: card["feature_spec"].update(feature_set="paper"))
    with pytest.raises(ValueError, match="do not fit the card's feature spec"):
        load_decoder(wrong, pair)
    assert torch.is_tensor(read_bundle(bundle).tensors["reduction.mean"])
