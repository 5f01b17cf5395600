"""The MLflow model registry: one registered model per pair and bundle, one version per bundle content.

A version of a bundle with a network leads back to the run that trained it. Settings alone have no run; bundle ``auto`` names the
runs of the bundles in it as tags ``run.<bundle>``. The content hash of ``auto`` covers theirs, which its card holds.
"""

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.gate.verdict import CHALLENGER
from pipelines.outputs import replacing
from pipelines.registry.tracking import Tracking, new_client, require_reachable, tracking_uri, without_password
from predictors.bundle import CARD, Bundle, bundle_hash, read_bundle
from predictors.controllers import is_learned, learned_controller

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUNDLE_TAG, PAIR_TAG = "bundle_sha256", "pair"
RUN_TAG = "run."  # and the name of a bundle in bundle ``auto``
REQUIREMENTS = ("mlflow", "torch", "safetensors", "numpy")
MODEL_CODE = Path(__file__).with_name("registered_model.py")


@dataclass(frozen=True)
class Registration:
    """Version ``version`` of registered model ``name`` holds the bundle; ``is_new`` unless an earlier call made it."""

    name: str
    version: str
    is_new: bool


class Registry:
    """Registers bundles at a tracking server that was found reachable."""

    def __init__(self) -> None:
        self.uri = tracking_uri()
        require_reachable(self.uri)
        self.client = new_client(self.uri)

    def register(self, pair: str, folder: Path) -> Registration:
        """Register the bundle unless a version holds it, whole; alias ``challenger`` then points to it.
        `ValueError` if the bundle, or one in it, is damaged or was edited, or another pair's has its name."""
        bundle = read_bundle(folder)
        _require_nested(folder, bundle)
        name, digest = f"{pair}-{folder.name}", bundle_hash(folder)
        for one in self.client.search_model_versions(f"name = '{name}'"):
            if (other := one.tags.get(PAIR_TAG, pair)) != pair:
                raise ValueError(
                    f"{folder}: its name {name} is that of a bundle of pair {other}. Rename one of the pairs."
                )
        with tempfile.TemporaryDirectory() as place:
            version, _ = self._stored(name, digest, place)
        made = version or self._new_version(name, pair, folder, bundle, digest)
        self.client.set_registered_model_alias(name, CHALLENGER, made)
        return Registration(name, made, version is None)

    def fetch(self, name: str, version: str, folder: Path) -> str:
        """Download the bundle of a version into ``folder``, whole or not at all; its content hash.

        `ValueError` as `stored`, and if ``folder`` holds something else than a bundle, which is all that may be replaced.
        """
        require_replaceable(folder)
        with self.stored(name, version) as found:
            return copy_bundle(found, folder)

    @contextmanager
    def stored(self, name: str, version: str) -> Iterator[Path]:
        """The bundle of a version, downloaded for a block. Another version of the same content serves where its files are gone.
        `ValueError` if the version does not exist, or no version holds the bundle that it was tagged with."""
        from mlflow.exceptions import MlflowException

        try:
            made = self.client.get_model_version(name, version)
        except MlflowException as error:
            raise ValueError(f"{name} has no version {version} at {without_password(self.uri)}.") from error
        with tempfile.TemporaryDirectory() as place:
            _, found = self._stored(name, made.tags.get(BUNDLE_TAG, ""), place, version)
            if isinstance(found, str):
                raise ValueError(
                    f"{name} version {version} does not hold its bundle any more ({found}). Put its files back, or register the "
                    "bundle again where a data folder has it (draftwright register). Another becomes champion by draftwright "
                    "promote --force, which needs no files of this one, or by draftwright rollback."
                )
            yield found

    def _place(self, version: Any) -> str:
        """Where a version's files are. MLflow would look the version up in what ``MLFLOW_REGISTRY_URI`` says."""
        source, logged = version.source, version.source.rpartition("/")[2]
        return str(self.client.get_logged_model(logged).artifact_location if source == f"models:/{logged}" else source)

    def _stored(self, name: str, digest: str, place: str, first: str = "") -> tuple[str | None, Path | str]:
        """The newest version of that content, or ``first``, whose bundle is whole, and that, downloaded; or ``None``,
        and what was found instead."""
        from mlflow.artifacts import download_artifacts

        known = self.client.search_model_versions(f"name = '{name}' and tags.{BUNDLE_TAG} = '{digest}'")
        found: list[str] = []
        for one in sorted(known, key=lambda one: (str(one.version) != first, -int(one.version))):
            to, where = Path(place) / str(one.version), one.source
            try:
                to.mkdir()
                where = f"{self._place(one)}/artifacts"
                files = download_artifacts(where, dst_path=str(to), tracking_uri=self.uri)
                bundle = next((card.parent for card in to.rglob(f"artifacts/*/{CARD}")), Path(files))
                _require_nested(bundle, read_bundle(bundle))
                if bundle_hash(bundle) == digest:
                    return str(one.version), bundle
                raise ValueError(f"content {bundle_hash(bundle)[:12]} instead of {digest[:12]}")
            except Exception as error:  # each storage has errors of its own
                found.append(f"{str(error).replace(f'{to}/', '').partition(':')[0]} at {without_password(where)}")
        return None, next(iter(found), "no content hash")

    def _new_version(self, name: str, pair: str, folder: Path, bundle: Bundle, digest: str) -> str:
        tracking = Tracking(pair, self.uri)
        predictor = bundle.card.get("selection", {}).get("predictor", folder.name)
        head = _head(bundle)
        run_id = None if head is None else tracking.run_of(head, predictor)
        for plot, figure in (_figures(folder) if run_id else {}).items():
            self.client.log_figure(run_id, figure, f"{plot}.png")  # replaces one of that name
        tags = {BUNDLE_TAG: digest, PAIR_TAG: pair, "predictor": predictor}
        for one in _nested(bundle):  # the runs that trained them, of those that the server knows
            nested = _head(read_bundle(folder / one))
            if nested is not None and (found := tracking.found_run(nested)) is not None:
                tags[f"{RUN_TAG}{one}"] = found
        if found_model(self.client, name) is None:
            self.client.create_registered_model(name)
        model = _log_model(tracking, run_id, folder, bundle)
        made = self.client.create_model_version(
            name, model.model_uri, run_id, tags=tags, model_id=model.model_id
        )  # tagged at birth: an interrupted call leaves no version without its hash
        return str(made.version)


def found_model(client: Any, name: str) -> Any:
    """The registered model of that name; ``None`` without one."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def registered_model(client: Any, name: str) -> Any:
    """As `found_model`; `ValueError` without one."""
    model = found_model(client, name)
    if model is None:
        raise ValueError(f"nothing is registered as {name}. Run draftwright register (or make repro) first.")
    return model


def copy_bundle(bundle: Path, folder: Path) -> str:
    """Copy a bundle, and those in it, to ``folder``, whole or not at all; its content hash. `ValueError` as `Registry.fetch`."""
    require_replaceable(folder)
    here, there = bundle.resolve(), folder.resolve()
    if here != there and (here in there.parents or there in here.parents):
        raise ValueError(f"{bundle} and {folder} lie in one another: the copy would replace one. Name another folder.")
    _require_nested(bundle, read_bundle(bundle))
    with replacing(folder) as partial:
        shutil.copytree(bundle, partial)
    return bundle_hash(folder)


def require_replaceable(folder: Path) -> None:
    """`ValueError` if ``folder`` holds what no earlier fetch or export left there."""
    if folder.is_dir() and (not any(folder.iterdir()) or (folder / CARD).is_file()):
        return
    if folder.exists():
        raise ValueError(f"{folder} holds no bundle, and would be replaced. Name a new folder, or empty this one.")


def _head(bundle: Bundle) -> str | None:
    """Content hash of the bundle's network, by which its run is found; ``None``: it has no network that was trained."""
    head: str | None = bundle.card.get("lineage", {}).get("head_sha256")
    return head


def _figures(folder: Path) -> "dict[str, Figure]":
    """Plots of a head's calibration, if stage ``fit`` left its quality beside the bundles."""
    path = folder.parents[1] / "fit" / f"{folder.name}.json"
    record = json.loads(path.read_text()) if path.is_file() else {}
    if record.get("family") != "head":
        return {}
    from pipelines.report.fitted import reliability
    from pipelines.report.page import draw

    return {"reliability": draw(reliability(record))}


def _nested(bundle: Bundle) -> dict[str, str]:
    """Content hashes of the bundles in folders below this one's, by folder."""
    routes = bundle.card.get("routes", [])
    return {route["bundle"]: route.get("sha256") or "unknown" for route in routes if route.get("bundle")}


def _require_nested(folder: Path, bundle: Bundle) -> None:
    """`ValueError` unless the bundles below ``folder`` are those that its card names."""
    for name, sha256 in _nested(bundle).items():
        read_bundle(folder / name)
        found = bundle_hash(folder / name)
        if found != sha256:
            raise ValueError(
                f"{folder / name} is not the bundle that {folder} was made of: its content hash is {found[:12]}, not "
                f"{sha256[:12]}. Run draftwright tune again."
            )


def _log_model(tracking: Tracking, run_id: str | None, folder: Path, bundle: Bundle) -> Any:
    """Log the bundle as a model from code, in its run if it has one. Requirements are explicit: inferring them takes seconds."""
    os.environ.setdefault("MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK", "true")
    import mlflow

    import predictors

    kind = bundle.card["kind"]
    named = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(tracking.uri)
    model_id = None
    if run_id is None:  # its experiment is the pair's all the same
        model_id = tracking.client.create_logged_model(tracking.experiment_id, name=kind).model_id
    with ExitStack() as after, warnings.catch_warnings(), mlflow.start_run(run_id=run_id) if run_id else nullcontext():
        after.callback(mlflow.set_tracking_uri, named)  # which it leaves in the environment, for all that comes after
        warnings.filterwarnings("ignore", message=".*input example was not provided")  # the signature is explicit
        return mlflow.pyfunc.log_model(
            name=kind,
            python_model=str(MODEL_CODE),
            artifacts={"bundle": str(folder)},
            code_paths=[str(Path(path)) for path in predictors.__path__],
            signature=_signature(bundle) if is_learned(bundle) else False,  # False: MLflow looks for none
            pip_requirements=[f"{name}=={installed(name).split('+')[0]}" for name in REQUIREMENTS],  # no index has +cpu
            model_id=model_id,
        )


def _signature(bundle: Bundle) -> Any:
    """What the network of a learned controller takes and gives."""
    import numpy as np
    import torch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    controller = learned_controller(bundle)
    said = controller.outputs(torch.zeros(1, controller.num_features))
    return ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("float32"), (-1, controller.num_features))]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1, said.shape[1]))]),
    )
