"""The report as one HTML page with its images inside, readable offline."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pipelines.reporting.section import Cell, Picture, Section
from pipelines.reporting.text import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = "page.html"


@dataclass(frozen=True)
class Front:
    """What stands above the fold: the ``decision`` in one sentence, its ``picture``, and ``code`` to paste."""

    pair: str
    machine: str
    decision: str
    picture: Picture
    code: str = ""
    warnings: tuple[str, ...] = ()


def html(front: Front, sections: Sequence[Section], images: dict[str, bytes]) -> str:
    """The page; ``images`` are the pictures by name, as PNG."""
    folder = Path(__file__).with_name("templates")
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.globals |= {"cell": _cell, "image": lambda picture: _image(picture, images[picture.name])}
    return environment.get_template(TEMPLATE).render(front=front, sections=sections)


def _cell(value: Cell, unit: str) -> Markup:
    """A cell whose interval stays on one line."""
    text = shown(value, unit)
    start = text.rfind(" (") if isinstance(value, dict) else -1
    return escape(text) if start < 0 else Markup("{} <span>{}</span>").format(text[:start], text[start + 1 :])


def png(figure: "Figure") -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _image(picture: Picture, data: bytes) -> Markup:
    encoded = base64.b64encode(data).decode()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(picture.caption or picture.name, encoded)
