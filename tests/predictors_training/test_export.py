"""Stage ``export``: the bundle that decoding loads is the network that was trained, or it is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipelines.head_folder import read_head
from predictors.bundle import CARD, TENSORS, bundle_hash, read_bundle
from predictors.contract import ContractError
from predictors.controllers import CONTROLLERS, build_controller
from predictors.controllers.hrad import HRAD
from predictors.latency.serving import Serving
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import Root
from predictors.training.label_table import read_labels
from runtime.serving_record import read_serving
from tests.pipelines.hand_made_profile import PROFILE
from tests.predictors_training.synthetic import EMBEDDING, HIDDEN, LAYERS, stage, write_parameters

BUNDLE = Path("data/p/bundles/hrad")


@pytest.fixture
def copied(finished, workspace):
    shutil.copytree(finished / "data", workspace / "data")
    return workspace


def export(name="hrad"):
    stage("export", "--bundle", name, "data/p/predictors", "data/p/calibration", BUNDLE.with_name(name))


def offer(*predictors, name="hrad"):
    """Parameters that choose a bundle among ``predictors``."""
    write_parameters({"export": {name: {"predictors": list(predictors)}}})


def edit(path: Path, change) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(("name", "predictor"), [("hrad", "paper"), ("hrad", "extended"), ("length", "length")])
def test_the_bundle_predicts_what_the_network_did(copied, name, predictor):
    offer(predictor, name=name)
    export(name)
    controller = build_controller({"kind": name, "bundle": str(BUNDLE.with_name(name))})
    assert isinstance(controller, CONTROLLERS[name]) and controller.layers == LAYERS
    head, table = (
        read_head(Path("data/p/predictors") / predictor),
        read_labels("data/p/labels/hrad.parquet").rows("test"),
    )
    with torch.inference_mode():
        expected = controller.calibration.probabilities(head.network(table.features(head.spec)))
    states = torch.from_numpy(table.state_NS.copy())
    for i in range(0, len(table), 23):
        hidden, embedding = states[i].split([len(LAYERS) * HIDDEN, EMBEDDING])
        drafted, accepted = int(table.previous_drafted[i]), int(table.previous_accepted[i])
        previous = None if drafted < 0 else RoundRecord(drafted=drafted, accepted=accepted)
        root = Root(10, 4, SamplingSettings(0.0), previous, hidden.view(len(LAYERS), HIDDEN), embedding)
        scalars = [torch.tensor(float(values[i, 0])) for values in (table.confidence_NG, table.entropy_NG)]
        law = SimpleNamespace(confidence=scalars[0], entropy=scalars[1])
        probabilities, distance, _ = controller.predict(root, law)
        torch.testing.assert_close(probabilities, expected[i], atol=1e-6, rtol=1e-5)
        assert distance < controller.thresholds.max_distance


def test_the_length_bundle_holds_its_rule_and_what_it_is_worth(finished):
    card = read_bundle(finished / BUNDLE.with_name("length")).card
    record = json.loads((finished / "data/p/calibration/length.json").read_text())
    assert card["kind"] == "length" and card["selection"]["predictor"] == "length"
    assert card["decoder"] == {
        "method": "speculative",
        "drafter": {"kind": "chain", "gamma": 4},
        "verifier": "block",
    }
    assert card["thresholds"] == record["thresholds"]
    assert card["thresholds"]["rule"]["draft_cost"] == 0.2 and len(card["calibration"]["bias"]) == 5
    quality = card["measured_quality"]
    head = record["test"]["metrics"]["head"]
    assert quality["metrics"]["mean_absolute_error"] == head["mean_absolute_error"]
    assert list(quality["metrics"]["auc"]) == ["0", "1", "2", "3", "4"]
    assert "mean_absolute_error" not in read_bundle(finished / BUNDLE).card["measured_quality"]["metrics"]


def test_the_card_has_the_reference_that_texts_give(copied):
    made = read_bundle(BUNDLE).card["reference"]
    assert made["settings"] == {} and "exported without text traces" in made["missing"]
    places = "--bundle", "hrad", "data/p/predictors", "data/p/calibration", BUNDLE
    with pytest.raises(SystemExit, match="nowhere.* is missing: collection did not finish"):
        stage("export", *places, "--texts", "data/p/nowhere")


def test_a_bundle_holds_one_kind_of_controller(copied):
    before = bundle_hash(BUNDLE)
    offer("extended", "length")
    with pytest.raises(SystemExit, match=r"predicts .*: one bundle holds one kind.*Change export\.hrad\.predictors"):
        export()
    assert bundle_hash(BUNDLE) == before


def test_the_better_decision_on_validation_is_exported(copied, finished):
    values = {name: json.loads(Path(f"data/p/calibration/{name}.json").read_text()) for name in ("paper", "extended")}
    values = {name: record["validation"]["decision"]["head"] for name, record in values.items()}
    card = read_bundle(BUNDLE).card
    assert card["selection"]["validation_values"] == values
    assert card["selection"]["predictor"] == max(values, key=values.get)
    worse = min(values, key=values.get)
    edit(Path(f"data/p/calibration/{worse}.json"), lambda r: r["validation"]["decision"].update(head=99.0))
    export()
    assert read_bundle(BUNDLE).card["selection"]["predictor"] == worse
    assert f"{worse} decides best" in read_bundle(BUNDLE).card["selection"]["reason"]


def test_the_card_says_how_the_pair_is_served_where_it_was_priced(copied):
    assert "serving" not in read_bundle(BUNDLE).card  # calibrated at a given draft cost
    for name in ("paper", "extended"):
        edit(Path(f"data/p/calibration/{name}.json"), lambda r: r.update(serving=PROFILE["serving"]))
    export()
    assert read_serving(BUNDLE) == Serving.from_record(PROFILE["serving"], "serving")


def test_the_card_is_a_function_of_contents(copied):
    before = bundle_hash(BUNDLE)
    export()
    assert bundle_hash(BUNDLE) == before
    card = read_bundle(BUNDLE).card
    assert set(card["lineage"]) == {"head_sha256", "labels_sha256", "traces_sha256", "contract_sha256"}
    assert card["decoder"]["drafter"] == {"kind": "chain", "gamma": 4}
    assert card["thresholds"]["static_gamma"] <= 4
    assert tuple(card["feature_spec"]["layers"]) == tuple(card["contract"]["identity"]["layer_ids"]) == LAYERS


def test_it_is_calibrated_for_the_labelled_temperature_only(finished):
    controller = HRAD.from_bundle(read_bundle(finished / BUNDLE))
    assert controller.guard.covers(SamplingSettings(0.0))
    with pytest.warns(UserWarning, match="best static gamma="):
        assert not controller.guard.covers(SamplingSettings(1.0))


def test_a_flipped_norm_flag_is_refused(copied):
    edit(BUNDLE / CARD, lambda card: card["contract"]["identity"].update(last_layer_post_norm=False))
    with pytest.raises(ContractError, match=r"edited: .*last_layer_post_norm was True .* is False now"):
        read_bundle(BUNDLE)


@pytest.mark.parametrize("places", [("contract",), ("feature_spec",), ("contract", "feature_spec")])
def test_layer_ids_shifted_by_one_are_refused(copied, places):
    def shift(card):
        if "contract" in places:
            card["contract"]["identity"]["layer_ids"] = [layer + 1 for layer in LAYERS]
        if "feature_spec" in places:
            card["feature_spec"]["layers"] = [layer + 1 for layer in LAYERS]

    edit(BUNDLE / CARD, shift)
    with pytest.raises(ContractError, match="layer"):
        read_bundle(BUNDLE)


@pytest.mark.parametrize("keep", [0, 50, 3000])
def test_truncated_tensors_are_refused(copied, keep):
    path = BUNDLE / TENSORS
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="damaged bundle"):
        read_bundle(BUNDLE)


def test_an_edited_feature_spec_is_refused(copied):
    edit(BUNDLE / CARD, lambda card: card["feature_spec"].update(hidden_size=HIDDEN + 1))
    with pytest.raises(ContractError, match=r"edited: feature_spec\.hidden_size"):
        read_bundle(BUNDLE)


def test_the_calibration_of_another_head_is_refused_and_the_bundle_kept(copied):
    before = bundle_hash(BUNDLE)
    shutil.copytree("data/p/predictors/extended", "data/p/predictors/paper", dirs_exist_ok=True)
    with pytest.raises(SystemExit, match="calibration of 'paper' belongs to another head"):
        export()
    assert bundle_hash(BUNDLE) == before


def test_a_missing_or_unknown_setting_is_told(copied):
    write_parameters({"export": {"hrad": {"predictor": ["paper"]}}})
    with pytest.raises(SystemExit, match="Did you mean 'predictors'"):
        export()
    offer("paper", "third")
    with pytest.raises(SystemExit, match=r"third\.json does not exist"):
        export()
    with pytest.raises(SystemExit, match=r"pairs\.p\.export: section 'other' is missing. Sections there: hrad"):
        export("other")
