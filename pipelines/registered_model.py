"""The registered form of a controller bundle: an MLflow model from code. Weights come from safetensors, nothing is unpickled.

Rows of raw features in, what the controller's network says of them out: calibrated class probabilities of a head, expected
tokens by action of a delayed-tree selector. MLflow runs this file when it loads the model.
"""

from typing import Any

import mlflow
import numpy as np
from mlflow.pyfunc import PythonModel


class RegisteredHead(PythonModel):
    """The network of the bundle's controller."""

    def load_context(self, context: Any) -> None:
        from predictors.bundle import read_bundle
        from predictors.controllers import learned_controller

        self.controller = learned_controller(read_bundle(context.artifacts["bundle"]))

    def predict(self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return self.controller.outputs(torch.from_numpy(np.ascontiguousarray(model_input))).numpy()


mlflow.models.set_model(RegisteredHead())
