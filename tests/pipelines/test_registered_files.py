"""The registry looks at a bundle's files, not at its tag alone: what is gone is registered anew, and every version of that
content can be fetched again. In a file, and at a server."""

import http.server
import os
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.registry.champions import Champions
from pipelines.registry.tracking import Tracking, new_client, require_reachable
from predictors.bundle import CARD, TENSORS, bundle_hash
from runtime import ModelPair
from tests.bundles import random_bundle, settings_bundle
from tests.toys import tiny_llama

NAME, FOLDER = "p-hrad", Path("data/p/bundles/hrad")
PASSED = {"version": 2, "passed": True, "verdict": "passed", "checks": []}


def bundle(seed=0):
    pair = ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))
    lineage = {"selection": {"predictor": "hrad"}, "lineage": {"head_sha256": f"head{seed}"}}
    random_bundle(FOLDER, pair, seed=seed, change=lambda card: card.update(lineage))


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


@pytest.mark.parametrize("harm", HARM)
def test_what_is_gone_is_registered_anew(champions, stored, capsys, harm):
    champions.promote("1", None, PASSED)
    HARM[harm](stored)
    with pytest.raises(SystemExit, match="draftwright register") as error:
        main(["fetch", f"models:/{NAME}@champion", "served"])
    assert "/artifacts" in str(error.value) and "\n" not in str(error.value), "it says which place"
    capsys.readouterr()
    for state in ("registered", "already registered"):
        main(["register"])
        assert capsys.readouterr().out == f"{FOLDER}: {state} as {NAME} version 2, alias challenger\n"
    for model in ("@champion", "@challenger", "/1", "/2"):
        main(["fetch", f"models:/{NAME}{model}", "served"])
        assert bundle_hash("served") == bundle_hash(FOLDER)


def test_what_is_lost_is_not_rolled_back_to(champions, stored, capsys):
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
@pytest.mark.parametrize("setting", ["INSECURE_TLS", "SERVER_CERT_PATH", None])
def test_a_server_is_trusted_as_mlflow_trusts_it(tmp_path, monkeypatch, setting):
    monkeypatch.chdir(tmp_path)
    names = "-keyout k.pem -out c.pem -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names.split()]
    subprocess.run(made, check=True, capture_output=True)
    (tmp_path / "health").write_text("OK")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("c.pem", "k.pem")
    if setting:
        monkeypatch.setenv(
            f"MLFLOW_TRACKING_{setting}", "true" if setting == "INSECURE_TLS" else str(tmp_path / "c.pem")
        )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"https://user:secret@localhost:{server.server_port}"
        if setting:
            require_reachable(uri)
        else:
            with pytest.raises(ValueError, match="cannot be reached .*certificate") as error:
                require_reachable(uri)
            assert "secret" not in str(error.value)
        with pytest.raises(ValueError, match="not as an MLflow server|certificate"):
            require_reachable(f"{uri}/elsewhere")
        server.shutdown()


def test_bundles_go_through_a_release_and_back(champions):
    """Registered, promoted, replaced, rolled back and fetched."""
    first = bundle_hash(FOLDER)
    champions.promote("1", None, PASSED)
    bundle(seed=1)
    main(["register"])
    assert champions.challenger().version == "2"
    champions.promote("2", first, PASSED)
    main(["fetch", f"models:/{NAME}@champion", "served"])
    assert bundle_hash("served") == bundle_hash(FOLDER) != first
    champions.rollback()
    main(["fetch", f"models:/{NAME}@champion", "served"])
    assert bundle_hash("served") == first


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


def test_registering_leaves_the_environment_as_it_is(tmp_path, template_db, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{tmp_path}/other.db")  # another program's
    shutil.copy(template_db, "mlflow.db")
    bundle()
    settings_bundle(FOLDER.with_name("lookahead"), ModelPair(tiny_llama(seed=0)), {"method": "lookahead"})
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
