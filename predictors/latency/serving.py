"""How a pair's models are served on a device: number format and forward, decided once, in stage ``latency``.

The decision stands in the device's latency profile and on the cards of bundles that were priced by it; measuring, tuning and
serving read it there, so that no process decides anew.
"""

from dataclasses import asdict, dataclass
from typing import Any

KEY = "serving"  # in a profile and on a bundle's card


@dataclass(frozen=True)
class ModelServing:
    """How one model is served."""

    dtype: str  # number format: float32, …
    forward: str  # of `runtime.causal_model.ForwardPath`
    config_hash: str | None = None  # of the shape it was decided for: other weights cost the same; None: unknown

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.forward}"


@dataclass(frozen=True)
class Serving:
    """How target and draft, if there is one, are served."""

    target: ModelServing
    draft: ModelServing | None = None
    device: str = ""  # its slug

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def on_card(serving: Serving | None) -> dict[str, Any]:
    """What a bundle's card says of it: nothing where it is unknown."""
    return {} if serving is None else {KEY: serving.to_record()}
