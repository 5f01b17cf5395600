"""The registered form of a controller bundle: an MLflow model from code. Weights come from safetensors, nothing is unpickled.

Rows of raw features in, what the controller's network says of them out: calibrated class probabilities of a head, expected
tokens by action of a delayed-tree selector. A bundle of settings alone predicts nothing. MLflow runs this file when it loads
the model.
"""

from typing import Any

import mlflow
import numpy as np
from mlflow.pyfunc import PythonModel


class RegisteredBundle(PythonModel):
    """The network of the bundle's controller, if it has one."""

    def load_context(self, context: Any) -> None:
        from predictors.bundle import read_bundle
        from predictors.controllers import is_learned, learned_controller

        bundle = read_bundle(context.artifacts["bundle"])
        self.controller = learned_controller(bundle) if is_learned(bundle) else None

    def predict(self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None) -> np.ndarray:
        import torch

        if self.controller is None:
            raise ValueError("settings alone predict nothing: draftwright fetch brings them to load_decoder.")
        with torch.inference_mode():
            return self.controller.outputs(torch.from_numpy(np.ascontiguousarray(model_input))).numpy()


mlflow.models.set_model(RegisteredBundle())
