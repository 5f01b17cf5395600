"""Registration of bundles without a network of their own: ``auto`` with the bundles in it, and settings alone."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from pipelines.cli import main
from pipelines.registry.tracking import HEAD_TAG, Tracking, new_client
from predictors.bundle import bundle_hash
from runtime import ModelPair, Randomness, load_decoder
from tests.bundles import random_bundle, routed_bundle, settings_bundle
from tests.toys import tiny_llama

CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}
ALONE = {
    "progressive_tree": {"method": "progressive_tree"},
    "lookahead": {"method": "lookahead"},
    "self_draft": {"method": "self_draft"},
}
HEAD = "f" * 64


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))


def trained(card):
    card["lineage"] = {"head_sha256": HEAD}


@pytest.fixture
def bundles(pair, template_db, tmp_path, monkeypatch):
    """A workspace with an empty registry and bundles of pair ``p``: ``auto`` with a controller in it, and settings alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    shutil.copy(template_db, tmp_path / "mlflow.db")
    folder = Path("data") / "p" / "bundles"
    routed_bundle(folder / "auto", pair, random_bundle(tmp_path / "made" / "hrad", pair, change=trained), CHAIN)
    for name, decoder in ALONE.items():
        settings_bundle(folder / name, pair, decoder)
    return folder


@pytest.fixture
def client(bundles, tmp_path):
    return new_client(f"sqlite:///{tmp_path}/mlflow.db")


def register(capsys):
    capsys.readouterr()
    main(["register"])
    return capsys.readouterr().out


def texts(folder, pair):
    """What its decoder says, and how."""
    decoder = load_decoder(folder, pair)
    made = [
        decoder.generate([1, 2, 3], max_new_tokens=12, temperature=temperature, randomness=Randomness(0))
        for temperature in (0.0, 1.0)
    ]
    return [(one.tokens, [(record.drafted, record.accepted) for record in one.rounds]) for one in made]


def test_every_bundle_is_registered_once(bundles, client, capsys):
    names = sorted(["auto", *ALONE])
    for state in ("registered", "already registered"):
        wanted = [f"data/p/bundles/{name}: {state} as p-{name} version 1, alias challenger" for name in names]
        assert register(capsys).splitlines() == wanted
    for name in names:
        version = client.get_model_version_by_alias(f"p-{name}", "challenger")
        assert version.tags["bundle_sha256"] == bundle_hash(bundles / name) and version.tags["predictor"] == name
    assert len(client.search_model_versions("")) == len(names)


def test_settings_lead_to_no_run_and_auto_to_those_of_its_bundles(bundles, client, capsys):
    with Tracking("p").new_run("hrad", {}, {HEAD_TAG: HEAD}) as run_id:
        pass
    register(capsys)
    versions = {name: client.get_model_version_by_alias(f"p-{name}", "challenger") for name in ("auto", *ALONE)}
    assert not any(version.run_id for version in versions.values())
    assert versions["auto"].tags["run.hrad"] == run_id
    assert not any(key.startswith("run.") for name in ALONE for key in versions[name].tags)
    assert len(client.search_runs([client.get_experiment_by_name("draftwright-p").experiment_id])) == 1


@pytest.mark.parametrize("name", ["auto", *ALONE])
def test_what_is_fetched_decodes_as_what_was_exported(bundles, pair, capsys, name):
    register(capsys)
    main(["fetch", f"models:/p-{name}@challenger", f"served/{name}"])
    assert bundle_hash(f"served/{name}") == bundle_hash(bundles / name)
    assert texts(f"served/{name}", pair) == texts(bundles / name, pair)


def test_fetch_replaces_a_bundle_or_nothing(bundles, capsys):
    register(capsys)
    Path("served/lookahead").mkdir(parents=True)
    for name in ("lookahead", "self_draft"):
        main(["fetch", f"models:/p-{name}@challenger", "served/lookahead"])
    assert bundle_hash("served/lookahead") == bundle_hash(bundles / "self_draft")
    Path("notes").mkdir()
    Path("notes/thesis.txt").write_text("years of work")
    for place in ("notes", "notes/thesis.txt"):
        with pytest.raises(SystemExit, match=f"{place} holds no bundle, and would be replaced. Name a new folder"):
            main(["fetch", "models:/p-lookahead@challenger", place])
    assert Path("notes/thesis.txt").read_text() == "years of work"


def test_auto_whose_controller_was_replaced_is_not_registered(bundles, pair, client, capsys):
    for places in (("auto/hrad", "auto"), ("auto", "auto/lookahead")):
        with pytest.raises(SystemExit, match="lie in one another"):
            main(["fetch", *(str(bundles / place) for place in places)])
    random_bundle(bundles / "auto" / "hrad", pair, seed=3)
    with pytest.raises(SystemExit, match=r"auto/hrad is not the bundle that data/p/bundles/auto was made of"):
        register(capsys)
    shutil.rmtree(bundles / "auto" / "hrad")
    with pytest.raises(SystemExit, match=r"auto/hrad is not a controller bundle"):
        register(capsys)
    assert not client.search_registered_models()


def test_auto_whose_controller_changed_in_the_registry_is_not_fetched(bundles, pair, capsys):
    register(capsys)
    (stored,) = Path("mlruns").glob("**/artifacts/auto/hrad")
    random_bundle(stored, pair, seed=3)
    with pytest.raises(SystemExit, match=r"auto/hrad is not the bundle that .*auto was made of"):
        main(["fetch", "models:/p-auto@challenger", "served/auto"])
    assert not Path("served/auto").exists()


def test_the_registered_model_of_settings_says_that_it_predicts_nothing(bundles, capsys, tmp_path):
    import mlflow

    register(capsys)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    model = mlflow.pyfunc.load_model("models:/p-lookahead@challenger")
    with pytest.raises(ValueError, match="settings alone predict nothing"):
        model.predict(np.zeros((1, 2), np.float32))
