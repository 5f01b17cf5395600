"""Bundles of kind ``auto``: a decoder for every sampling setting, each exactly the one it names."""

import json

import pytest

from predictors.bundle import ContractError, read_bundle
from runtime import ModelPair, Randomness, build_decoder, load_decoder
from runtime.decoding.base import RoutedDecoder
from tests.ancestral import target_law
from tests.bundles import auto_bundle, random_bundle, routed_bundle
from tests.toys import TableModel, output_law, tiny_llama, total_variation

CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}
PLAIN = {"method": "autoregressive"}
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))


def at(temperature, **what):
    return {"settings": {"temperature": temperature}, **what}


def with_controller(folder, pair):
    """Greedy requests by a learned controller, others by a chain."""
    return routed_bundle(folder / "auto", pair, random_bundle(folder / "hrad", pair), CHAIN)


def test_requests_go_to_the_decoder_of_their_settings(pair, tmp_path):
    decoder = load_decoder(with_controller(tmp_path, pair), pair)
    for temperature, alone in (
        (0.0, load_decoder(tmp_path / "auto" / "hrad", pair)),
        (1.0, build_decoder(pair, CHAIN)),
        (0.9, build_decoder(pair, CHAIN)),
    ):
        options = {"max_new_tokens": 16, "temperature": temperature}
        out, expected = (one.generate(PROMPT, randomness=Randomness(0), **options) for one in (decoder, alone))
        counts = [[(record.drafted, record.accepted) for record in made.rounds] for made in (out, expected)]
        assert out.tokens == expected.tokens and counts[0] == counts[1]
    assert decoder.route(decoder.routes[0][0]).controller.kind == "hrad"


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_the_output_law_is_the_targets(temperature):
    from predictors.sampling import SamplingSettings

    pair = ModelPair(TableModel(3, seed=1), TableModel(3, seed=2))
    settings = SamplingSettings(temperature)
    decoder = RoutedDecoder(
        pair, [(SamplingSettings(0.0), build_decoder(pair, PLAIN)), (SamplingSettings(1.0), build_decoder(pair, CHAIN))]
    )
    law = output_law(
        lambda chance: decoder.generate([0, 1], max_new_tokens=4, temperature=temperature, randomness=chance).tokens
    )
    assert total_variation(law, target_law(pair.target, [0, 1], 4, settings)) < 1e-9


def test_it_serves_custom_generate(pair, tmp_path):
    import torch

    decoder = load_decoder(with_controller(tmp_path, pair), pair)
    ids = torch.tensor([PROMPT])
    made = pair.target.model.generate(ids, custom_generate=decoder, max_new_tokens=8, do_sample=False)
    assert made[0, len(PROMPT) :].tolist() == decoder.generate(PROMPT, max_new_tokens=8).tokens


def test_another_pair_or_another_content_is_refused(pair, tmp_path):
    folder = with_controller(tmp_path, pair)
    with pytest.raises(ContractError, match=r"auto does not belong here: draft\.weights"):
        load_decoder(folder, ModelPair(pair.target, tiny_llama(seed=5)))
    random_bundle(folder / "hrad", pair, seed=3)
    with pytest.raises(
        ValueError, match=r"hrad is not the bundle that .*auto was made of.* Run draftwright tune again"
    ):
        load_decoder(folder, pair)
    card = json.loads((folder / "card.json").read_text())
    card["routes"][1]["decoder"]["drafter"]["gamma"] = 7
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(ContractError, match="was edited"):
        read_bundle(folder)


def test_routes_are_checked(pair, tmp_path):
    for routes, words in (
        ([], "routes is empty"),
        ([at(0.0)], "a route is either"),
        *(([at(0.0, bundle=name, sha256="x")], "is no folder's name") for name in ("../hrad", "", ".", "..")),
        ([at(0.0, decoder={"method": "speculation"})], "unknown method 'speculation'"),
    ):
        with pytest.raises(ValueError, match=words):
            load_decoder(auto_bundle(tmp_path / "auto", pair, routes), pair)
    with pytest.raises(ValueError, match="changes and reprice would speak to all"):
        load_decoder(auto_bundle(tmp_path / "auto", pair, [at(0.0, decoder=PLAIN)]), pair, {"verifier": "nss"})


def test_what_was_tuned_without_a_draft_takes_the_target_alone(pair, tmp_path):
    alone = ModelPair(pair.target)
    folder = auto_bundle(tmp_path / "auto", alone, [at(0.0, decoder={"method": "lookahead"})])
    for served in (alone, pair):
        assert len(load_decoder(folder, served).generate(PROMPT, max_new_tokens=6).tokens) == 6
