"""What learned controllers share: they are made of an exported bundle, and a row of features has outputs without any decoding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from predictors.bundle import Bundle, read_bundle
from predictors.config import parse_config
from predictors.controllers.base import Controller, Recorder, Rerun

Learned = TypeVar("Learned", bound="LearnedController")


@dataclass(frozen=True)
class BundleConfig:
    """``bundle``: folder of an exported controller."""

    bundle: str = ""

    def __post_init__(self) -> None:
        if not self.bundle:
            raise ValueError(
                "no bundle is named, and a learned controller needs one: name the folder of an exported one."
            )


class LearnedController(Controller):
    """The controller of an exported bundle (`predictors.bundle`)."""

    _recorder: Recorder | None = None
    _asked: tuple[torch.device, Rerun] | None = None  # where its network was asked the last time

    def __init__(self, bundle: Bundle) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Without what a process cannot give to another one, and would make again."""
        return {name: value for name, value in vars(self).items() if name not in ("_recorder", "_asked")}

    def record_with(self, recorder: Recorder) -> None:
        self._recorder, self._asked = recorder, None

    def said(self, features: Tensor) -> Tensor:
        """What the network says of raw ``features``, on the host: one read, wherever they are."""
        device = features.device
        if self._asked is None or self._asked[0] != device:
            recorder = self._recorder
            if recorder is not None and recorder.device != device:
                recorder = None  # another device's would miss all of it
            self._asked = device, Rerun(self.serve(device), recorder)
        return self._asked[1](features).cpu()

    def serve(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """The network on ``device`` as a function of raw features, all that is read of it in one row."""
        raise NotImplementedError

    @property
    def num_features(self) -> int:
        """Raw features of a decision."""
        raise NotImplementedError

    @property
    def num_outputs(self) -> int:
        """Numbers that the network says of them."""
        raise NotImplementedError

    def outputs(self, features: Tensor) -> Tensor:
        """What the network says [B, num_outputs] of raw features [B, num_features]."""
        raise NotImplementedError

    @classmethod
    def from_config(cls: type[Learned], values: Mapping[str, Any]) -> Learned:
        return cls(read_bundle(parse_config(BundleConfig, values, f"controller {cls.kind}").bundle))

    @classmethod
    def from_bundle(cls: type[Learned], bundle: Bundle) -> Learned:
        return cls(bundle)
