"""Where files are: a pair's below ``data/PAIR``, unless the command line says otherwise; traces on object storage, too. And what
later stages read of this machine: its description and its latency profile."""

import argparse
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.outputs import read_json

if TYPE_CHECKING:
    from predictors.latency.profile import LatencyProfile


def add_place_arguments(parser: argparse.ArgumentParser, places: Mapping[str, str]) -> None:
    """``--data``, ``--device``, and an option for each of ``places``: folders below the pair's own."""
    parser.add_argument("--data", type=Path, default=Path("data"), help="data folder (default: %(default)s)")
    parser.add_argument("--device", type=Path, help="JSON file of the device stage (default: device.json there)")
    for name, place in places.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=place_of, help=f"default: {place} below the pair's folder")


def place_of(text: str) -> Path:
    """A path, or the folder on object storage that a URL such as ``s3://bucket/traces`` names, with a path's methods."""
    if "://" not in text:
        return Path(text)
    try:
        from upath import UPath

        folder: Any = UPath(text, use_listings_cache=False)
        folder.fs.ls(folder.drive or folder.path)
    except ImportError as error:
        raise ArgumentTypeError(f"{text} needs {error.name}: pip install 'draftwright[s3]'.") from error
    except Exception as error:  # each storage has errors of its own
        remedy = (
            "Name a bucket that exists, and credentials in the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …)."
        )
        raise ArgumentTypeError(f"{text} cannot be reached ({type(error).__name__}: {error}). {remedy}") from error
    return folder


def fill_in(args: argparse.Namespace, places: Mapping[str, str]) -> None:
    """Set what the command line left out; `ValueError` if this machine was never described."""
    for name, place in places.items():
        if getattr(args, name) is None:
            setattr(args, name, args.data / args.pair / place)
    args.device = args.device or args.data / "device.json"
    if not args.device.is_file():
        raise ValueError(f"{args.device} is missing: run dvc repro (or make repro) first.")


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
