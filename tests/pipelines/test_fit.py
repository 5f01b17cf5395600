"""Stage ``fit`` with a family of its own: what it writes and tracks, and that a failure costs nothing."""

import json
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock

from pipelines.cli import main
from pipelines.outputs import replacing, write_json
from pipelines.registry.tracking import HEAD_TAG, Tracking, require_reachable
from pipelines.registry.versions import BUNDLE_TAG
from pipelines.stages import fit
from predictors.bundle import bundle_hash, read_bundle
from predictors.monitoring import read_reference
from predictors.training.predictor import Fitted
from runtime import ModelPair, Randomness, load_decoder
from tests.bundles import selector_bundle, settings_bundle
from tests.predictors.affine_profile import PROFILE
from tests.toys import tiny_llama

QUALITY, BUNDLE = Path("data/p/fit/toy.json"), Path("data/p/bundles/toy")
CURVE = (0.9, 0.5, 0.6)
FAULTS = {"disk": OSError("disk full"), "key": KeyboardInterrupt()}


@dataclass(frozen=True)
class Toy:
    """Exports the bundle in ``made``, its last bias moved by ``step``, and logs a curve. ``fault``: raises instead."""

    made: str
    step: float = 0.0
    fault: str | None = None

    def fit(self, name, materials, logger=None):
        assert materials.profile.profile_hash == PROFILE.profile_hash
        assert materials.labels == Path("data/p/labels").resolve()
        assert materials.trees == Path("data/p/traces/trees").resolve()
        for epoch, loss in enumerate(CURVE if logger else ()):
            logger.log_metrics({"val_loss": loss}, epoch)
        if self.fault is not None:
            raise FAULTS[self.fault]
        bundle = read_bundle(self.made)
        last = list(bundle.tensors)[-1:]
        tensors = {key: value + self.step if [key] == last else value for key, value in bundle.tensors.items()}
        card = bundle.card | {"lineage": {"traces_sha256": "t" * 64}}
        return Fitted(card, tensors, {"worth": 0.25}, {"test_worth": 0.25, "test_unknown": None}, "worth a quarter")


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=1))


@pytest.fixture
def folder(pair, template_db, tmp_path, monkeypatch):
    """The current folder, with a device, its profile and families ``toy`` and ``settings``, which is not trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    shutil.copy(template_db, tmp_path / "mlflow.db")
    monkeypatch.setattr(fit, "FAMILIES", {**fit.FAMILIES, "toy": "toys.Toy"})
    monkeypatch.setattr(fit, "predictor_class", lambda family: Toy)
    monkeypatch.setattr(fit, "UNTRAINED", ("guess",))
    write_json(Path("device.json"), {"slug": "toy", "cpu": "toy", "gpus": [], "bfloat16_flags": []})
    write_json(Path("data/p/latency/toy.json"), PROFILE.to_record())
    selector_bundle(tmp_path / "made", pair)
    settings_bundle(tmp_path / "settings", pair, {"method": "lookahead", "ngram": 3, "window": 3, "guesses": 2})
    return tmp_path


def run(family="toy", made="made", **changes):
    values = {"family": family, "made": made, **changes}
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"fit": {"toy": values}}}}))
    places = {
        "device": "device.json",
        "latency": "data/p/latency",
        "traces": "data/p/traces",
        "labels": "data/p/labels",
    }
    named = [word for name, place in places.items() for word in (f"--{name}", place)]
    main(["fit", "--pair", "p", "--predictor", "toy", *named])


def runs():
    tracking = Tracking("p")
    return tracking.client, tracking.client.search_runs([tracking.experiment_id])


def test_a_predictor_becomes_a_bundle_its_quality_and_a_run(folder, pair, capsys):
    run(step=0.0)
    assert capsys.readouterr().out.endswith("toy: worth a quarter\n")
    client, (tracked,) = runs()
    bundle, quality = read_bundle(BUNDLE), json.loads(QUALITY.read_text())
    head = fit.tensors_sha256(bundle.tensors)
    assert bundle.card["lineage"] == {"traces_sha256": "t" * 64, HEAD_TAG: head} == quality["lineage"]
    assert bundle.card["selection"] == {"predictor": "toy", "reason": "worth a quarter"}
    assert quality["worth"] == 0.25 and quality["profile_hash"] == PROFILE.profile_hash
    assert (quality["family"], quality["predictor"], quality["bundle_sha256"]) == ("toy", "toy", bundle_hash(BUNDLE))
    references, missing = read_reference(bundle.card)
    assert not references and missing.startswith("delayed_tree ")
    assert tracked.info.status == "FINISHED" and tracked.data.tags[HEAD_TAG] == head
    assert tracked.data.tags["traces_sha256"] == "t" * 64 and tracked.data.tags["predictor"] == "toy"
    assert tracked.data.params["step"] == "0.0" and tracked.data.params["family"] == "toy"
    assert tracked.data.metrics["test_worth"] == 0.25 and "test_unknown" not in tracked.data.metrics
    assert [one.value for one in client.get_metric_history(tracked.info.run_id, "val_loss")] == list(CURVE)
    decoder = load_decoder(BUNDLE, pair)
    assert len(decoder.generate([1, 2, 3], max_new_tokens=6, temperature=1.0, randomness=Randomness(0)).tokens) == 6
    files = [path for path in Path("data").rglob("*") if path.is_file()]
    assert len(files) == 4 and not any(tracked.info.run_id.encode() in path.read_bytes() for path in files)


def test_the_same_inputs_give_the_same_bundle_and_another_network_another(folder):
    hashes = []
    for step in (0.0, 0.0, 1.0):
        QUALITY.unlink(missing_ok=True)
        run(step=step)
        hashes.append((bundle_hash(BUNDLE), read_bundle(BUNDLE).card["lineage"][HEAD_TAG]))
    assert hashes[0] == hashes[1] and all(one != other for one, other in zip(hashes[0], hashes[2], strict=True))
    _, tracked = runs()
    assert Tracking("p").found_run(hashes[2][1]) == tracked[0].info.run_id
    assert Tracking("p").found_run(hashes[0][1]) in {one.info.run_id for one in tracked[1:]}


def fit_named(**predictors):
    """Stage ``fit`` of all that the parameters name: what it says of each."""
    named = {name: {"family": "toy", "made": "made", **values} for name, values in predictors.items()}
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"machine": {"threads": 1}, "fit": named}}}))
    main(["fit", "--pair", "p", "--device", "device.json"])


def test_a_change_of_one_predictor_fits_that_one_alone_and_what_is_named_no_more_goes(folder, capsys):
    def said(**predictors):
        fit_named(**predictors)
        return {line.partition(":")[0]: "kept" in line for line in capsys.readouterr().out.splitlines()}

    assert said(a={}, b={"step": 1.0}) == {"a": False, "b": False}
    assert said(a={}, b={"step": 1.0}) == {"a": True, "b": True}
    assert said(a={}, b={"step": 2.0}, c={}) == {"a": True, "b": False, "c": False}
    Path("data/p/bundles/a/card.json").write_text("damaged")
    Path("data/p/fit/b.json").write_text("damaged")
    assert said(a={}, b={"step": 2.0}) == {"a": False, "b": False}
    assert said(a={}, b={"step": 2.0}) == {"a": True, "b": True}
    assert {path.name for path in Path("data/p/bundles").iterdir()} == {"a", "b"}
    assert {path.name for path in Path("data/p/fit").iterdir()} == {"a.json", "b.json"}
    Path("data/p/traces/texts").mkdir(parents=True)
    Path("data/p/traces/texts/manifest.json").write_text("other texts")
    assert said(a={}, b={"step": 2.0}) == {"a": False, "b": False}


def test_a_recipe_is_taken_by_its_name_and_what_is_said_beside_it_replaces_it(tmp_path):
    path = tmp_path / "params.yaml"

    def load(name, values):
        path.write_text(yaml.safe_dump({"pairs": {"p": {"machine": {"seed": 3, "threads": 8}, "fit": {name: values}}}}))
        return fit.load_predictor("p", name, path)

    family, hrad = load("hrad", {})
    assert family == "head" and (hrad.training.reduced_size, hrad.training.batch_size) == (48, 256)
    assert (hrad.training.seed, hrad.training.threads) == (3, 1), "the machine's seed, and one thread on every machine"
    changed = replace(hrad, target="length", training=replace(hrad.training, epochs=3))
    assert load("mine", {"recipe": "hrad", "target": "length", "training": {"epochs": 3}}) == ("head", changed)
    with pytest.raises(ValueError, match=r"fit\.mine: there is no recipe 'hrat'. Recipes: hrad, length"):
        load("mine", {"recipe": "hrat"})
    with pytest.raises(ValueError, match=r"fit\.mine: expected a mapping of what is other"):
        load("mine", [1])


def test_the_bundle_leads_back_to_the_run_that_trained_it(folder):
    run()
    _, (tracked,) = runs()
    main(["register"])
    version = Tracking("p").client.get_model_version_by_alias("p-toy", "challenger")
    assert str(version.version) == "1" and version.tags[BUNDLE_TAG] == bundle_hash(BUNDLE)
    assert version.run_id == tracked.info.run_id and version.tags["predictor"] == "toy"


def test_settings_that_were_chosen_have_no_network_and_no_run(folder, pair, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # where no server is
    run("guess", "settings")
    bundle = read_bundle(BUNDLE)
    assert not bundle.tensors and bundle.card["lineage"] == {"traces_sha256": "t" * 64}
    assert read_reference(bundle.card)[1].startswith("lookahead ")
    assert load_decoder(BUNDLE, pair).generate([1, 2, 3], max_new_tokens=6).tokens


@pytest.mark.parametrize(("fault", "message"), [("disk", "disk full"), ("key", "interrupted; finished work is kept")])
def test_a_failed_fit_keeps_the_earlier_results_and_marks_its_run(folder, fault, message):
    run()
    before = (bundle_hash(BUNDLE), QUALITY.read_bytes())
    with pytest.raises(SystemExit, match=message):
        run(step=1.0, fault=fault)
    assert (bundle_hash(BUNDLE), QUALITY.read_bytes()) == before
    assert not list(Path("data").rglob("*.partial"))
    assert sorted(one.info.status for one in runs()[1]) == ["FAILED", "FINISHED"]


def test_an_unreachable_server_is_told_before_any_work(folder, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(Toy, "fit", lambda *_: pytest.fail("trained before the server was probed"))
    start = time.monotonic()
    with pytest.raises(SystemExit, match=rf"127\.0\.0\.1:{port} cannot be reached .*unset MLFLOW_TRACKING_URI"):
        run()
    assert time.monotonic() - start < 6 and not BUNDLE.exists()


def test_unknown_families_keys_and_predictors_are_refused_by_name(folder):
    with pytest.raises(
        SystemExit,
        match=r"fit\.toy: family is 'oracle'; name one of head, stop, survival, grow, source, tree, guess, toy",
    ):
        run("oracle")
    with pytest.raises(SystemExit, match=r"pairs\.p\.fit\.toy: unknown key 'momentum'"):
        run(momentum=1)
    Path("params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"fit": {"toy": None}}}}))
    with pytest.raises(ValueError, match="family is 'unknown'"):
        fit.load_predictor("p", "toy")
    with pytest.raises(ValueError, match="section 'third' is missing"):
        fit.load_predictor("p", "third")


def test_the_hash_is_of_numbers_not_of_memory():
    columns = torch.arange(6.0).reshape(2, 3)
    assert fit.tensors_sha256({"a": columns.t()}) == fit.tensors_sha256({"a": columns.t().contiguous()})
    assert fit.tensors_sha256({"a": columns.t()}) != fit.tensors_sha256({"a": columns})


def test_an_unreachable_database_server_is_told_without_its_password():
    with pytest.raises(ValueError, match=r"postgresql://127\.0\.0\.1:9/mlflow cannot be reached") as caught:
        require_reachable("postgresql://user:secret@127.0.0.1:9/mlflow")
    assert "secret" not in str(caught.value)
    for password in ("secret", "se#secret", "se?secret"):
        with pytest.raises(ValueError, match=r"oracle://127\.0\.0\.1/mlflow' names no server") as caught:
            require_reachable(f"oracle://user:{password}@127.0.0.1/mlflow")
        assert "secret" not in str(caught.value)


def test_a_new_database_is_opened_by_one_process_at_a_time(tmp_path):
    database = tmp_path / "mlflow.db"
    with ThreadPoolExecutor() as pool:
        with FileLock(f"{database}.lock"):  # as another process, which makes the tables, holds it
            opened = pool.submit(Tracking, "p", f"sqlite:///{database}")
            assert not wait([opened], timeout=1).done
            assert not database.exists()
        assert opened.result().experiment == "draftwright-p"


def test_an_output_appears_whole_or_not_at_all(tmp_path):
    for make in (lambda path: path.write_text("new"), lambda path: (path.mkdir(), (path / "a").write_text("new"))):
        target = tmp_path / "target"
        with replacing(target) as partial:
            make(partial)
        with pytest.raises(RuntimeError), replacing(target) as partial:
            make(partial)
            raise RuntimeError
        assert (target if target.is_file() else target / "a").read_text() == "new"
        assert [path.name for path in tmp_path.iterdir()] == ["target"]
        if target.is_file():
            target.unlink()


def test_help_imports_no_heavy_library():
    code = """
import sys, pipelines.stages.labels, pipelines.stages.fit, pipelines.commands.releases, pipelines.commands.ready_pairs
print([name for name in ("torch", "mlflow", "lightning", "sklearn", "pyarrow") if name in sys.modules])"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_all_families_and_their_references_load_at_most_a_hundred_files():
    code = """
import sys, pipelines.cli
import pipelines.measuring.reference, pipelines.measuring.provenance, pipelines.registry.tracking
import runtime.presets, runtime.drafting.chain, runtime.branching.draft
from pipelines.stages import fit
from predictors.controllers import CONTROLLERS
[*map(fit.predictor_class, fit.FAMILIES), *CONTROLLERS.values()]
own = [name for name in sys.modules if name.partition(".")[0] in ("pipelines", "predictors", "runtime")]
assert len(own) <= 100, sorted(own)"""
    subprocess.run([sys.executable, "-c", code], check=True)
