"""How a pair is served, read from where stage ``latency`` left it: a device's latency profile, or a bundle's card."""

from pathlib import Path

from predictors.bundle import read_bundle
from predictors.config import parse_config
from predictors.latency.profile import read_profile
from predictors.latency.serving import KEY, Serving


def read_serving(record: str | Path) -> Serving:
    """What a latency profile's file, or a bundle's folder, says.

    Raises
    ------
    ValueError
        If it is missing, damaged or says nothing: names the file and the remedy.
    """
    path = Path(record)
    if path.is_dir():
        found = read_bundle(path).card.get(KEY)
        serving = None if found is None else parse_config(Serving, found, f"{path}: card.json: {KEY}")
        remedy = "Export it again (dvc repro), or name this machine's latency profile instead."
    else:
        serving = read_profile(path).serving
        remedy = "Measure the profile again (dvc repro)."
    if serving is None:
        raise ValueError(f"{path} does not say in which number format and by which forward to serve. {remedy}")
    return serving
