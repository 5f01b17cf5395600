"""The report as one HTML page with its images inside, readable offline, and sections as Markdown for the docs."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipelines.reporting.section import Picture, Section, Table
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
    environment.globals |= {"shown": shown, "image": lambda picture: _image(picture, images[picture.name])}
    return environment.get_template(TEMPLATE).render(front=front, sections=sections)


def markdown(section: Section, level: int = 2) -> str:
    """A section without its pictures, under a heading of that ``level``."""
    parts = [f"{'#' * level} {section.title}", section.finding, *section.notes]
    return "\n\n".join([*parts, *(markdown_table(table) for table in section.tables)]) + "\n"


def markdown_table(table: Table) -> str:
    """A table; marked rows are bold."""
    lines = [[column.name for column in table.columns], ["---"] * len(table.columns)]
    for number, row in enumerate(table.rows):
        cells = [shown(cell, column.unit) for cell, column in zip(row, table.columns, strict=True)]
        lines.append([f"**{cell}**" for cell in cells] if number in table.marked else cells)
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table.caption}\n\n{rows}" if table.caption else rows


def png(figure: "Figure") -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _image(picture: Picture, data: bytes) -> Markup:
    encoded = base64.b64encode(data).decode()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(picture.caption or picture.name, encoded)
