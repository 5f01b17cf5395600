"""The JSON file of stage ``device``, read."""

import json
from pathlib import Path
from typing import Any


def read_device(path: Path) -> dict[str, Any]:
    """The machine's description; its ``slug`` names folders.

    Raises
    ------
    ValueError
        If ``path`` is missing, is no JSON, or describes no machine.
    """
    remedy = f"Describe this machine again: draftwright device {path}"
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}). {remedy}") from error
    slug = record.get("slug") if isinstance(record, dict) else None
    if not isinstance(slug, str) or not slug or Path(slug).name != slug:
        raise ValueError(f"{path} describes no machine: its slug is {slug!r}. {remedy}")
    device: dict[str, Any] = record
    return device
