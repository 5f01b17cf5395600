"""The registered form of a controller bundle: an MLflow model from code. Weights come from safetensors, nothing is unpickled.

Rows of raw features [B, S + C] in, calibrated class probabilities [B, L] out. MLflow runs this file when it loads the model.
"""

from typing import Any

import mlflow
import numpy as np
from mlflow.pyfunc import PythonModel


class RegisteredHead(PythonModel):
    """Probabilities of how much of the next draft is accepted, in the classes of the bundle's kind."""

    def load_context(self, context: Any) -> None:
        from predictors.bundle import read_bundle
        from predictors.controllers import learned_controller

        self.controller = learned_controller(read_bundle(context.artifacts["bundle"]))

    def predict(self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None) -> np.ndarray:
        import torch

        with torch.inference_mode():
            logits = self.controller.network(torch.from_numpy(np.ascontiguousarray(model_input)))
            return self.controller.calibration.probabilities(logits).numpy()


mlflow.models.set_model(RegisteredHead())
