"""The MLflow model registry: one registered model per pair and predictor, one version per bundle content."""

import importlib.metadata
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.outputs import replacing
from pipelines.tracking import Tracking, new_client, require_reachable, tracking_uri
from predictors.bundle import CARD, Bundle, bundle_hash, read_bundle
from predictors.controllers import learned_controller

BUNDLE_TAG = "bundle_sha256"
CHALLENGER = "challenger"
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

    def __init__(self, uri: str | None = None) -> None:
        self.uri = uri or tracking_uri()
        require_reachable(self.uri)
        self.client = new_client(self.uri)

    def register(self, pair: str, folder: Path) -> Registration:
        """Register the bundle unless a version with its content hash exists; alias ``challenger`` then points to it.

        Raises
        ------
        ValueError
            If the bundle is damaged or was edited.
        """
        bundle = read_bundle(folder)
        name, digest = f"{pair}-{folder.name}", bundle_hash(folder)
        version = self._version_of(name, digest)
        is_new = version is None
        if version is None:
            version = self._new_version(name, pair, folder, bundle, digest)
        self.client.set_registered_model_alias(name, CHALLENGER, version)
        return Registration(name, version, is_new)

    def version_at(self, name: str, alias: str) -> str:
        """The version that ``alias`` of a registered model points to; `ValueError` naming the known ones."""
        models = self.client.search_registered_models(f"name = '{name}'")
        if not models:
            raise ValueError(f"nothing is registered as {name}. Run draftwright register (or make repro) first.")
        aliases = self.client.get_registered_model(name).aliases
        if alias not in aliases:
            raise ValueError(f"{name} has no alias {alias!r}. Known: {', '.join(sorted(aliases)) or 'none'}.")
        return str(aliases[alias])

    def fetch(self, name: str, version: str, folder: Path) -> str:
        """Download the bundle of a version into ``folder``, whole or not at all; its content hash.

        Raises
        ------
        ValueError
            If the version does not exist, holds no bundle, or another one than it was tagged with.
        """
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        try:
            tagged = self.client.get_model_version(name, version).tags.get(BUNDLE_TAG)
        except MlflowException as error:
            raise ValueError(f"{name} has no version {version} at {self.uri}.") from error
        with tempfile.TemporaryDirectory() as place:
            files = download_artifacts(
                f"models:/{name}/{version}", dst_path=place, tracking_uri=self.uri, registry_uri=self.uri
            )
            found = sorted(Path(files).glob(f"artifacts/*/{CARD}"))
            if len(found) != 1:
                raise ValueError(f"{name} version {version} holds no bundle. Register it again (draftwright register).")
            bundle = found[0].parent
            sha256 = bundle_hash(bundle)
            if sha256 != tagged:
                raise ValueError(
                    f"{name} version {version} was registered with content {(tagged or 'unknown')[:12]}, and what the registry "
                    f"holds now is {sha256[:12]}: not fetched. Register the bundle again."
                )
            with replacing(folder) as partial:
                shutil.copytree(bundle, partial)
        return sha256

    def _version_of(self, name: str, digest: str) -> str | None:
        versions = self.client.search_model_versions(f"name = '{name}' and tags.{BUNDLE_TAG} = '{digest}'")
        return max((str(version.version) for version in versions), key=int, default=None)

    def _new_version(self, name: str, pair: str, folder: Path, bundle: Bundle, digest: str) -> str:
        tracking = Tracking(pair, self.uri)
        run_id = tracking.run_of(bundle.card["lineage"]["head_sha256"], bundle.card["selection"]["predictor"])
        tags = {BUNDLE_TAG: digest, "pair": pair, "predictor": bundle.card["selection"]["predictor"]}
        if not self.client.search_registered_models(f"name = '{name}'"):
            self.client.create_registered_model(name)
        model = _log_model(self.uri, run_id, folder, bundle)
        made = self.client.create_model_version(
            name, model.model_uri, run_id, tags=tags, model_id=model.model_id
        )  # tagged at birth: an interrupted call leaves no version without its hash
        return str(made.version)


def _log_model(uri: str, run_id: str, folder: Path, bundle: Bundle) -> Any:
    """Log the bundle as a model from code, with an explicit signature and requirements (inferring them takes seconds)."""
    os.environ.setdefault("MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK", "true")
    import mlflow
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    import predictors

    controller = learned_controller(bundle)
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("float32"), (-1, controller.num_features))]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1, controller.num_outputs))]),
    )
    mlflow.set_tracking_uri(uri)
    with warnings.catch_warnings(), mlflow.start_run(run_id=run_id):
        warnings.filterwarnings("ignore", message=".*input example was not provided")  # the signature is explicit
        return mlflow.pyfunc.log_model(
            name=bundle.card["kind"],
            python_model=str(MODEL_CODE),
            artifacts={"bundle": str(folder)},
            code_paths=[str(Path(path)) for path in predictors.__path__],
            signature=signature,
            pip_requirements=[f"{name}=={_public_version(name)}" for name in REQUIREMENTS],
        )


def _public_version(package: str) -> str:
    """The installed version without a local part such as ``+cpu``, which no index has."""
    return importlib.metadata.version(package).split("+")[0]
