"""What stages read of a device: its description, and its latency profile, named as noisy wherever its prices are used."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.outputs import read_json

if TYPE_CHECKING:
    from predictors.latency.profile import LatencyProfile


def read_device(path: Path) -> dict[str, Any]:
    """The machine's description; its ``slug`` names folders. `ValueError` if ``path`` is missing, is no JSON, or
    describes no machine."""
    remedy = f"Describe this machine again: draftwright device {path}"
    device: dict[str, Any] = read_json(path, remedy)
    slug = device.get("slug")
    if not isinstance(slug, str) or not slug or Path(slug).name != slug:
        raise ValueError(f"{path} describes no machine: its slug is {slug!r}. {remedy}")
    return device


def read_device_profile(folder: Path, device: str) -> "LatencyProfile":
    """The profile that stage ``latency`` left in ``folder`` for the device of that slug; says so on stderr where it is
    noisy. `ValueError` if there is none, or it cannot be read."""
    from predictors.latency.profile import read_profile

    profile = read_profile(folder / f"{device}.json")
    warn_of_noise(profile)
    return profile


def warn_of_noise(profile: "LatencyProfile") -> None:
    """One line on stderr for a noisy profile."""
    from predictors.latency.soundness import noise_warning

    warning = noise_warning(profile)
    if warning is not None:
        print(f"warning: {warning}", file=sys.stderr)
