"""From a model to measured self-drafting, on tiny models: guess traces, prices, bundles, timed decodes, pages."""

import json
import shutil
import warnings
from argparse import Namespace

import pytest
import yaml

from pipelines.commands import releases
from pipelines.measuring.names import CALIBRATED, METHODS
from pipelines.outputs import write_json
from pipelines.registry.tracking import new_client
from pipelines.report.inputs import Inputs
from pipelines.report.speed import of_kind
from pipelines.stages import fit, measure, traces
from predictors.bundle import ContractError, read_bundle
from predictors.latency.profile import LatencyProfile
from runtime import ModelPair, build_decoder, load_decoder
from tests.pipelines.toy_bench import toy_bench, toy_pair
from tests.predictors.affine_profile import PROFILE
from tests.toys import tiny_llama

SMALL = {"method": "progressive_tree", "max_children": 2, "max_depth": 3}
WAYS = [
    SMALL,
    {"method": "progressive_tree", "geometry": "paper"},
    {"method": "lookahead", "ngram": 3, "window": 3, "guesses": 2},
    {"method": "self_draft", "branches": 2, "length": 4, "ngram": 3},
]
ALONE = [
    {"name": "autoregressive", "family": "plain", "decoder": {"method": "autoregressive"}},
    {"name": "{method}", "family": "calibrated", "each": {"method": list(METHODS)}, "bundle": "{method}"},
    {"name": "progressive_tree-paper", "family": "given", "decoder": WAYS[1]},
    {"name": "hf_generate", "family": "hugging_face", "hugging_face": "generate"},
    {
        "name": "hf_prompt_lookup",
        "family": "hugging_face",
        "hugging_face": "prompt_lookup",
        "options": {"prompt_lookup_num_tokens": 3},
    },
]
CHAINS = {"name": "chain-{gamma}", "family": "chain", "choose": True, "each": {"gamma": [1, 3]}}
CHAINS |= {"decoder": {"method": "speculative", "drafter": {"kind": "chain", "gamma": "{gamma}"}}}
SHORT = {"validation_prompts": 2, "test_prompts": 3, "max_new_tokens": 12, "threads": 1}
SHORT |= {"exactness_prompts": 0}
PARAMETERS = {
    "traces": {"guesses": {"ways": WAYS, "prompts": 3, "max_new_tokens": 16, "threads": 1}},
    "fit": {method: {"family": "guess", "method": method, "bootstrap_replicates": 20} for method in METHODS},
    "measure": {"arms": [*ALONE, CHAINS], **SHORT},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which guesses, all methods and their measurement were made."""
    place = tmp_path_factory.mktemp("self_drafting")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = toy_bench(place, "unused", {})
        (place / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": PARAMETERS}}))
        write_json(place / "latency" / "toy-1c.json", PROFILE.to_record())
        args.out = place / "traces" / "guesses"
        args.of = "guesses"
        traces.run(args)
        args.latency, args.traces, args.labels = place / "latency", place / "traces", place / "labels"
        args.predictor, args.fit, args.bundles = METHODS, place / "fit", place / "bundles"
        fit.run(args)
        args.output = place / "measured"
        measure.run(args)
    return place


@pytest.fixture(scope="module")
def pair(folder):
    return toy_pair(folder)


def test_bundles_decode_as_their_cards_say_with_and_without_a_draft(folder, pair):
    plain = build_decoder(pair, {"method": "autoregressive"}).generate(list(range(6)), max_new_tokens=16).tokens
    for method in METHODS:
        card = read_bundle(folder / "bundles" / method).card
        assert card["decoder"]["method"] == method and "T=0" in card["selection"]["reason"]
        for served in (pair, ModelPair(pair.target)):
            assert (
                load_decoder(folder / "bundles" / method, served).generate(list(range(6)), max_new_tokens=16).tokens
                == plain
            )


def test_settings_alone_are_registered_but_not_repriced(folder, pair, template_db, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    shutil.copy(template_db, tmp_path / "mlflow.db")
    (tmp_path / "data" / "p").mkdir(parents=True)
    (tmp_path / "data" / "p" / "bundles").symlink_to(folder / "bundles")
    releases.register(Namespace(data=tmp_path / "data"))
    client = new_client(f"sqlite:///{tmp_path}/mlflow.db")
    challengers = [client.get_model_version_by_alias(f"p-{method}", "challenger") for method in METHODS]
    assert {str(one.version) for one in challengers} == {"1"}
    bundle, latency = folder / "bundles" / "lookahead", folder / "latency" / "toy-1c.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_decoder(bundle, pair, latency=latency)
    other = LatencyProfile({"target": PROFILE.tables["target"]}, "toy", {}, {})
    write_json(tmp_path / "other.json", other.to_record())
    with pytest.warns(UserWarning, match="chosen by another latency profile"):
        load_decoder(bundle, pair, latency=tmp_path / "other.json")
    with pytest.raises(ValueError, match="Run the stage that exports them again"):
        load_decoder(bundle, pair, latency=latency, reprice=True)


def test_a_bundle_belongs_to_its_model(folder):
    with pytest.raises(ContractError, match=r"target\.weights was .* Load the pair it was made for"):
        load_decoder(folder / "bundles" / "lookahead", ModelPair(tiny_llama(32, seed=5)))


def test_the_page_reads_what_was_measured(folder):
    inputs = Inputs(folder, "toy-1c")
    own = inputs.measured.test[inputs.measured.test["family"] == CALIBRATED]
    assert (own["guessed"] > 0).all() and (own["tried"] <= own["rounds"]).all()
    assert own[own["temperature"] == 0]["equals_plain"].all()
    made = of_kind("self_drafting", inputs)
    assert [len(table.frame) for table in made.tables] == [7, 7, 4, 4]
    assert made.tables[0].frame["upkeep"].dropna().between(0, 1).all()
    json.dumps(made.record(), allow_nan=False)
