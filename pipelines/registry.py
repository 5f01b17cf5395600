"""The MLflow model registry: one registered model per pair and predictor, one version per bundle content."""

import importlib.metadata
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.tracking import Tracking, new_client, require_reachable, tracking_uri
from predictors.bundle import Bundle, bundle_hash, read_bundle
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
