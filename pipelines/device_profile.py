"""The latency profile of a device, as stages read it: a noisy one is named wherever its prices are used."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from predictors.latency.profile import LatencyProfile


def read_device_profile(folder: Path, device: str) -> "LatencyProfile":
    """The profile that stage ``latency`` left in ``folder`` for the device of that slug; says so on stderr where it is noisy.

    Raises
    ------
    ValueError
        If there is none, or it cannot be read.
    """
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
