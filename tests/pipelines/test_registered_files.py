"""The registry looks at a bundle's files, not at its tag alone: what is gone is registered anew, and every version of that
content can be fetched again. In a file, and at a server."""

import http.server
import os
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from pipelines.cli import main
from pipelines.registry.champions import Champions
from pipelines.registry.tracking import HEAD_TAG, Tracking, new_client, require_reachable
from predictors.bundle import CARD, TENSORS, bundle_hash
from runtime import ModelPair, Randomness, load_decoder
from tests.bundles import random_bundle, routed_bundle, settings_bundle
from tests.toys import tiny_llama

PAIR = ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))
NAME, FOLDER = "p-hrad", Path("data/p/bundles/hrad")
PASSED = {"version": 2, "passed": True, "verdict": "passed", "checks": []}


def bundle(seed=0):
    random_bundle(FOLDER, PAIR, seed=seed, change=lambda card: card.update(lineage={"head_sha256": f"head{seed}"}))


def workspace(folder, uri, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    bundle()
    main(["register"])
    return Champions(new_client(uri), NAME)


@pytest.fixture
def champions(tracking_uri, tmp_path, monkeypatch):
    return workspace(tmp_path, tracking_uri, monkeypatch)


@pytest.fixture
def stored(champions, tmp_path, tmp_path_factory):
    """The bundle's folder in the registry."""
    places = (tmp_path, *tmp_path_factory.getbasetemp().glob("server*"))
    cards = [card for place in places for card in place.glob(f"**/artifacts/hrad/{CARD}")]
    return max(cards, key=lambda card: card.stat().st_mtime).parent


HARM = {
    "all files": lambda stored: shutil.rmtree(stored.parents[1]),
    "the bundle": lambda stored: shutil.rmtree(stored),
    "its card": lambda stored: (stored / CARD).unlink(),
    "its tensors": lambda stored: (stored / TENSORS).unlink(),
    "a byte": lambda stored: (stored / TENSORS).write_bytes((stored / TENSORS).read_bytes() + b"x"),
}


@pytest.mark.parametrize(
    ("tracking_uri", "harm"),
    [*(("sqlite", harm) for harm in HARM), ("postgresql", "a byte")],
    indirect=["tracking_uri"],
)
def test_what_is_gone_is_registered_anew(champions, stored, harm):
    champions.promote("1", None, PASSED)
    HARM[harm](stored)
    with pytest.raises(SystemExit, match="draftwright register") as error:
        main(["fetch", f"models:/{NAME}@champion", "served"])
    assert "/artifacts" in str(error.value) and "\n" not in str(error.value), "it says which place"
    for _ in range(2):
        main(["register"])
        assert champions.challenger().version == "2"
    for model in ("@champion", "@challenger", "/1", "/2"):
        main(["fetch", f"models:/{NAME}{model}", "served"])
        assert bundle_hash("served") == bundle_hash(FOLDER)


def test_what_is_lost_is_not_rolled_back_to(champions, stored):
    """Neither where its files are gone, nor where MLflow has forgotten where they were."""
    first = bundle_hash(FOLDER)
    champions.promote("1", None, PASSED)
    bundle(seed=1)
    main(["register"])
    champions.promote("2", first, PASSED)
    shutil.move(stored, "away")
    rollback = ["rollback", "--pair", "p", "--predictor", "hrad"]
    with pytest.raises(SystemExit, match="version 1 does not hold its bundle any more.*promote --force"):
        main(rollback)
    assert champions.champion().version == "2" and champions.follows() and len(champions.history()) == 2
    shutil.move("away", stored)
    main(rollback)
    assert champions.champion().version == "1" and champions.follows()
    champions.client.delete_logged_model(champions.client.get_model_version(NAME, "1").source.rpartition("/")[2])
    with pytest.raises(SystemExit, match="version 1 does not hold its bundle any more.*draftwright register"):
        main(["fetch", f"models:/{NAME}@champion", "served"])


def test_two_pairs_whose_bundles_have_one_name_are_kept_apart(champions):
    """Pair ``p`` with bundle ``a-hrad``, and pair ``p-a`` with bundle ``hrad``."""
    for folder in ("data/p/bundles/a-hrad", "data/p-a/bundles/hrad"):
        shutil.copytree(FOLDER, folder)
    with pytest.raises(SystemExit, match="p-a-hrad is that of a bundle of pair p. Rename"):
        main(["register"])
    versions = champions.client.search_model_versions("name = 'p-a-hrad'")
    assert [one.tags["pair"] for one in versions] == ["p"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it makes the certificate")
def test_a_server_is_trusted_as_mlflow_trusts_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = "-keyout k.pem -out c.pem -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names.split()]
    subprocess.run(made, check=True, capture_output=True)
    (tmp_path / "health").write_text("OK")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("c.pem", "k.pem")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"https://user:secret@localhost:{server.server_port}"
        with pytest.raises(ValueError, match="certificate") as error:
            require_reachable(uri)
        assert "secret" not in str(error.value)
        for setting, value in (("INSECURE_TLS", "true"), ("SERVER_CERT_PATH", str(tmp_path / "c.pem"))):
            with monkeypatch.context() as patch:
                patch.setenv(f"MLFLOW_TRACKING_{setting}", value)
                require_reachable(uri)
                with pytest.raises(ValueError, match="not as an MLflow server"):
                    require_reachable(f"{uri}/elsewhere")
        server.shutdown()


def test_a_champion_that_was_deleted_stands_no_more(champions):
    first = bundle_hash(FOLDER)
    champions.promote("1", None, PASSED)
    bundle(seed=1)
    main(["register"])
    champions.promote("2", first, PASSED)
    champions.client.delete_model_version(NAME, "2")
    champions.mend()
    assert champions.champion().version == "1" and champions.follows()
    bundle(seed=2)
    main(["register"])
    champions.promote(champions.challenger().version, first, PASSED)
    champions.rollback()
    assert champions.champion().version == "1"
    champions.client.delete_model_version(NAME, "1")
    assert champions.champion() is None
    champions.promote(champions.challenger().version, None, PASSED)
    assert champions.champion().sha256 == bundle_hash(FOLDER)


@pytest.mark.parametrize("in_the_way", [False, True])
def test_a_project_that_was_moved_registers_where_it_is(template_db, tmp_path, monkeypatch, in_the_way):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    shutil.copy(template_db, old / "mlflow.db")
    workspace(old, f"sqlite:///{old}/mlflow.db", monkeypatch)
    old.rename(new)
    if in_the_way:  # nobody may write there any more
        old.write_text("")
    monkeypatch.chdir(new)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{new}/mlflow.db")
    main(["register"])
    main(["fetch", f"models:/{NAME}/1", "served"])
    assert bundle_hash("served") == bundle_hash(FOLDER)
    assert in_the_way or not old.exists()


def test_registering_leaves_the_environment_as_it_is(workspace, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{tmp_path}/other.db")  # another program's
    bundle()
    settings_bundle(FOLDER.with_name("lookahead"), PAIR, {"method": "lookahead"})
    main(["register"])
    assert "MLFLOW_TRACKING_URI" not in os.environ
    main(["fetch", f"models:/{NAME}@challenger", "served"])
    assert not Path("other.db").exists()


def test_a_deleted_experiment_is_named_with_the_command_that_restores_it(tracking_uri, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    tracking = Tracking("gone")
    tracking.client.delete_experiment(tracking.experiment_id)
    with pytest.raises(ValueError, match=f"draftwright-gone.*restore.* {tracking.experiment_id}"):
        Tracking("gone")
    tracking.client.restore_experiment(tracking.experiment_id)
    assert Tracking("gone").experiment_id == tracking.experiment_id


KINDS = {"auto": None, **{name: {"method": name} for name in ("progressive_tree", "lookahead", "self_draft")}}


@pytest.fixture
def bundles(workspace, tmp_path):
    """Bundles of pair ``p`` that have no network of their own: ``auto`` with a controller in it, and settings alone."""
    chain = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}}
    made = random_bundle(
        tmp_path / "made" / "hrad", PAIR, change=lambda card: card.update(lineage={"head_sha256": HEAD})
    )
    routed_bundle(FOLDER.with_name("auto"), PAIR, made, chain)
    for name in KINDS.keys() - {"auto"}:
        settings_bundle(FOLDER.with_name(name), PAIR, KINDS[name])
    return FOLDER.parent


HEAD = "f" * 64


def texts(folder):
    """What its decoder says, and how."""
    options = {"max_new_tokens": 12, "randomness": Randomness(0)}
    decoder = load_decoder(folder, PAIR)
    made = [decoder.generate([1, 2, 3], temperature=temperature, **options) for temperature in (0.0, 1.0)]
    return [(one.tokens, [(record.drafted, record.accepted) for record in one.rounds]) for one in made]


def test_every_bundle_is_registered_once_and_what_is_fetched_decodes_as_what_was_exported(bundles, workspace):
    """Settings lead to no run, and ``auto`` to those of the bundles in it."""
    client = new_client(workspace)
    with Tracking("p").new_run("hrad", {}, {HEAD_TAG: HEAD}) as run_id:
        pass
    for _ in range(2):
        main(["register"])
    assert len(client.search_model_versions("")) == len(KINDS)
    for name in KINDS:
        version = client.get_model_version_by_alias(f"p-{name}", "challenger")
        assert version.tags["bundle_sha256"] == bundle_hash(bundles / name) and version.tags["predictor"] == name
        runs = {key: value for key, value in version.tags.items() if key.startswith("run.")}
        assert runs == ({"run.hrad": run_id} if name == "auto" else {}) and not version.run_id
        main(["fetch", f"models:/p-{name}@challenger", f"served/{name}"])
        assert bundle_hash(f"served/{name}") == bundle_hash(bundles / name)
        assert texts(f"served/{name}") == texts(bundles / name)
    assert len(client.search_runs([client.get_experiment_by_name("draftwright-p").experiment_id])) == 1


def test_fetch_replaces_a_bundle_or_nothing(bundles):
    main(["register"])
    Path("served/lookahead").mkdir(parents=True)
    for name in ("lookahead", "self_draft"):
        main(["fetch", f"models:/p-{name}@challenger", "served/lookahead"])
    assert bundle_hash("served/lookahead") == bundle_hash(bundles / "self_draft")
    Path("notes").mkdir()
    Path("notes/thesis.txt").write_text("years of work")
    for place in ("notes", "notes/thesis.txt"):
        with pytest.raises(SystemExit, match=f"{place} holds no bundle"):
            main(["fetch", "models:/p-lookahead@challenger", place])
    assert Path("notes/thesis.txt").read_text() == "years of work"
    for places in (("auto/hrad", "auto"), ("auto", "auto/lookahead")):
        with pytest.raises(SystemExit, match="lie in one another"):
            main(["fetch", *(str(bundles / place) for place in places)])


def test_auto_whose_controller_was_replaced_is_neither_registered_nor_fetched(bundles, workspace):
    main(["register"])
    (stored,) = Path("mlruns").glob("**/artifacts/auto/hrad")
    random_bundle(stored, PAIR, seed=3)
    with pytest.raises(SystemExit, match="auto/hrad is not the bundle"):
        main(["fetch", "models:/p-auto@challenger", "served/auto"])
    assert not Path("served/auto").exists()
    client = new_client(workspace)
    for model in client.search_registered_models():
        client.delete_registered_model(model.name)
    random_bundle(bundles / "auto" / "hrad", PAIR, seed=3)
    with pytest.raises(SystemExit, match="auto/hrad is not the bundle"):
        main(["register"])
    shutil.rmtree(bundles / "auto" / "hrad")
    with pytest.raises(SystemExit, match="auto/hrad is not a controller bundle"):
        main(["register"])
    assert not client.search_registered_models()


def test_the_registered_model_of_settings_says_that_it_predicts_nothing(bundles, workspace):
    import mlflow

    main(["register"])
    mlflow.set_tracking_uri(workspace)
    model = mlflow.pyfunc.load_model("models:/p-lookahead@challenger")
    with pytest.raises(ValueError, match="settings alone predict nothing"):
        model.predict(np.zeros((1, 2), np.float32))
