"""Bundles that do not belong: one clear message each, naming the field, both values and the remedy."""

import json

import pytest
import torch

from predictors.bundle import ContractError, bundle_hash, read_bundle
from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.audit.enumeration import output_law, total_variation
from runtime.audit.tables import TableModel, target_law
from runtime.decoding.base import RoutedDecoder
from tests.bundles import RULES, auto_bundle, head_setting, random_bundle, routed_bundle
from tests.toys import tiny_llama

LENGTHS = [head_setting(0.0, 3, RULES["length"], {})]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


@pytest.fixture
def bundle(pair, tmp_path):
    return random_bundle(tmp_path / "hrad", pair)


OTHERS = {
    "target.weights": lambda: (tiny_llama(seed=3), tiny_llama(seed=0, layers=1)),
    "draft.weights": lambda: (tiny_llama(seed=0), tiny_llama(seed=4, layers=1)),
    "target.config_hash": lambda: (tiny_llama(seed=0, layers=3), tiny_llama(seed=0, layers=1)),
}


@pytest.mark.parametrize("field", OTHERS)
def test_bundle_of_another_pair(bundle, field):
    with pytest.raises(ContractError, match=f"does not belong here: {field} was .* is .* now"):
        load_decoder(bundle, ModelPair(*OTHERS[field]()))


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_every_parameter_is_part_of_the_identity(bundle, name):
    model = tiny_llama(seed=0)
    with torch.no_grad():
        model.get_parameter(name).mul_(1.1).add_(0.01)
    with pytest.raises(ContractError, match="target.weights"):
        load_decoder(bundle, ModelPair(model, tiny_llama(seed=0, layers=1)))


def test_tokenizer_known_on_one_side_only_is_no_match(bundle, pair):
    known = ModelPair(pair.target.model, pair.draft.model)
    known.tokenizer = type("Tokenizer", (), {"get_vocab": lambda self: {"a": 0}, "chat_template": None})()
    with pytest.raises(ContractError, match="tokenizer_hash was unknown"):
        load_decoder(bundle, known)


def test_missing_and_damaged_files(bundle, pair):
    for path in (bundle.parent / "nothing", bundle / "card.json"):
        with pytest.raises(ValueError, match="is not a controller bundle"):
            load_decoder(path, pair)
    tensors, card = bundle / "controller.safetensors", bundle / "card.json"
    whole = tensors.read_bytes()
    for file, content in (
        *((tensors, content) for content in (whole[: len(whole) // 2], whole)),
        *((card, content) for content in (b"{", b"null", b"3", b"[" * 100_000, b'"\xff"')),
    ):
        file.write_bytes(content)
        if content != whole:
            with pytest.raises(ValueError, match="damaged bundle"):
                load_decoder(bundle, pair)


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


EDITS = {
    "last_layer_post_norm": lambda card: card["contract"]["identity"].update(last_layer_post_norm=False),
    "layer_ids": lambda card: card["contract"]["identity"].update(layer_ids=[0, 1]),
    "feature_spec.layers": lambda card: card["feature_spec"].update(layers=[0, 1]),
    "max_context": lambda card: card["contract"]["serving_range"].update(max_context=9999),
    "serving_range.settings": lambda card: card["contract"]["serving_range"]["settings"].append([0.7, 0.0, 1.0]),
    "feature_spec.gamma": lambda card: card["feature_spec"].update(gamma=1),
    "decoder.drafter.gamma": lambda card: card["decoder"]["drafter"].update(gamma=8),
    "max_distance": lambda card: card.update(max_distance=1.0),
    "settings": lambda card: card["settings"][1].update(static_gamma=1),
    "note": lambda card: card.update(note="mine"),
}


@pytest.mark.parametrize("field", EDITS)
def test_every_edit_of_the_card_is_noticed(bundle, pair, field):
    card = json.loads((bundle / "card.json").read_text())
    EDITS[field](card)
    (bundle / "card.json").write_text(json.dumps(card))
    with pytest.raises(ContractError, match=f"{field} was "):
        load_decoder(bundle, pair)


WRONG = {  # what is said of a card that was exported so
    "unknown controller kind 'oracle'": lambda card: card.update(kind="oracle"),
    "a number that is not finite": lambda card: card.update(max_distance=float("nan")),
    "max_distance must be > 0": lambda card: card.update(max_distance=0.0),
    "static_gamma must be >= 0": lambda card: card["settings"][0].update(static_gamma=-3),
    "epsilon must be <= 1": lambda card: card["settings"][0]["rule"].update(epsilon=2.0),
    "temperature must be > 0": lambda card: card["settings"][0]["calibration"].update(temperature=-1.0),
    "has 3 classes, .*bias has 2": lambda card: card["settings"][0]["calibration"].update(bias=[0.0, 0.0]),
    "lacks feature_spec": lambda card: card.pop("feature_spec"),
    "not the contract's layer_ids": lambda card: card["feature_spec"].update(layers=[0, 1]),
    "gamma=1 is shorter than the 2 tokens": lambda card: card["decoder"]["drafter"].update(gamma=1),
    "4 classes, but the head has 3": lambda card: card.update(
        kind="length", feature_spec=card["feature_spec"] | {"gamma": 3}, settings=LENGTHS
    ),
    "do not fit the card's feature spec": lambda card: card["feature_spec"].update(feature_set="paper"),
}


@pytest.mark.parametrize("message", WRONG)
def test_bundles_exported_wrong_are_refused(pair, tmp_path, message):
    with pytest.raises(ValueError, match=message):
        load_decoder(random_bundle(tmp_path / "wrong", pair, change=WRONG[message]), pair)


def test_special_tokens_and_output_flags_are_no_identity(bundle):
    model = tiny_llama(seed=0)
    model.config.pad_token_id, model.config.eos_token_id, model.config.output_hidden_states = 0, 3, True
    load_decoder(bundle, ModelPair(model, tiny_llama(seed=0, layers=1)))


# ---- bundles of kind ``auto``: a decoder for every sampling setting, each exactly the one it names

CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}
PLAIN = {"method": "autoregressive"}
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def routed_pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))


def at(temperature, **what):
    return {"settings": {"temperature": temperature}, **what}


def with_controller(folder, pair):
    """Greedy requests by a learned controller, others by a chain."""
    return routed_bundle(folder / "auto", pair, random_bundle(folder / "hrad", pair), CHAIN)


def test_requests_go_to_the_decoder_of_their_settings(routed_pair, tmp_path):
    decoder = load_decoder(with_controller(tmp_path, routed_pair), routed_pair)
    for temperature, alone in (
        (0.0, load_decoder(tmp_path / "auto" / "hrad", routed_pair)),
        (1.0, build_decoder(routed_pair, CHAIN)),
        (0.9, build_decoder(routed_pair, CHAIN)),
    ):
        options = {"max_new_tokens": 16, "temperature": temperature}
        out, expected = (one.generate(PROMPT, randomness=Randomness(0), **options) for one in (decoder, alone))
        counts = [[(record.drafted, record.accepted) for record in made.rounds] for made in (out, expected)]
        assert out.tokens == expected.tokens and counts[0] == counts[1]
    assert decoder.route(decoder.routes[0][0]).controller.kind == "hrad"


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_the_output_law_is_the_targets(temperature):
    pair = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    settings = SamplingSettings(temperature)
    decoder = RoutedDecoder(
        pair, [(SamplingSettings(0.0), build_decoder(pair, PLAIN)), (SamplingSettings(1.0), build_decoder(pair, CHAIN))]
    )
    law = output_law(
        lambda chance: decoder.generate([0, 1], max_new_tokens=4, temperature=temperature, randomness=chance).tokens
    )
    assert total_variation(law, target_law(pair.target, [0, 1], 4, settings)) < 1e-9


def test_another_pair_or_another_content_is_refused(routed_pair, tmp_path):
    folder = with_controller(tmp_path, routed_pair)
    with pytest.raises(ContractError, match=r"auto does not belong here: draft\.weights"):
        load_decoder(folder, ModelPair(routed_pair.target, tiny_llama(seed=5)))
    random_bundle(folder / "hrad", routed_pair, seed=3)
    with pytest.raises(
        ValueError, match=r"hrad is not the bundle that .*auto was made of.* Run draftwright tune again"
    ):
        load_decoder(folder, routed_pair)
    card = json.loads((folder / "card.json").read_text())
    card["routes"][1]["decoder"]["drafter"]["gamma"] = 7
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(ContractError, match="was edited"):
        read_bundle(folder)


def test_routes_are_checked(routed_pair, tmp_path):
    for routes, words in (
        ([], "routes is empty"),
        ([at(0.0)], "a route is either"),
        *(([at(0.0, bundle=name, sha256="x")], "is no folder's name") for name in ("../hrad", "", ".", "..")),
        ([at(0.0, decoder={"method": "speculation"})], "unknown method 'speculation'"),
    ):
        with pytest.raises(ValueError, match=words):
            load_decoder(auto_bundle(tmp_path / "auto", routed_pair, routes), routed_pair)
    with pytest.raises(ValueError, match="changes and reprice would speak to all"):
        load_decoder(
            auto_bundle(tmp_path / "auto", routed_pair, [at(0.0, decoder=PLAIN)]), routed_pair, {"verifier": "nss"}
        )


def test_what_was_tuned_without_a_draft_takes_the_target_alone(routed_pair, tmp_path):
    alone = ModelPair(routed_pair.target)
    folder = auto_bundle(tmp_path / "auto", alone, [at(0.0, decoder={"method": "lookahead"})])
    for served in (alone, routed_pair):
        assert len(load_decoder(folder, served).generate(PROMPT, max_new_tokens=6).tokens) == 6
