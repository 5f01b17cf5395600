"""Sections as one HTML page with its images inside, readable offline, and as Markdown beside the images' files."""

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pipelines.report.section import Cell, Picture, Section, Table
from pipelines.report.text import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = "page.html"


def html(front: Section, sections: Sequence[Section], images: dict[str, bytes]) -> str:
    """The page, above the fold `pipelines.report.release`; ``images`` are the pictures by name, as PNG."""
    folder = Path(__file__).with_name("templates")
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.globals |= {"cell": _cell, "image": lambda picture: _image(picture, images[picture.name])}
    return environment.get_template(TEMPLATE).render(front=front, sections=sections)


def _cell(value: Cell, unit: str) -> Markup:
    """A cell whose interval stays on one line."""
    text = shown(value, unit)
    start = text.rfind(" (") if isinstance(value, dict) else -1
    return escape(text) if start < 0 else Markup("{} <span>{}</span>").format(text[:start], text[start + 1 :])


def _image(picture: Picture, data: bytes) -> Markup:
    encoded = base64.b64encode(data).decode()
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(picture.caption or picture.name, encoded)


def markdown(section: Section, level: int = 2) -> str:
    """A section under a heading of that ``level``, and each of its tables under one below."""
    parts = [f"{'#' * level} {section.title}", section.finding, *section.notes]
    for made in section.tables:
        parts += [f"{'#' * (level + 1)} {made.caption}"] if made.caption else []
        parts.append(markdown_table(made))
    parts += [f"```\n{section.printed}\n```"] if section.printed else []
    return "\n\n".join([*parts, *(f"![{one.caption}]({one.name}.png)" for one in section.pictures)]) + "\n"


def markdown_table(made: Table) -> str:
    """A table's lines; marked rows are bold."""
    rows = []
    for row in made.rows:
        form = "**{}**" if made.is_marked(row) else "{}"
        rows.append([form.format(shown(row.get(name), made.unit_of(name))) for name in made.filled])
    return lines(made.filled, rows)


def lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of cells below a header."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (header, *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [cells[0], ["---"] * len(header), *cells[1:]])


def write_pictures(folder: Path, pictures: Iterable[Picture]) -> dict[str, bytes]:
    """The pictures by name, as PNG, and as files of these names."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {picture.name: png(picture.figure) for picture in pictures}
    for name, image in images.items():
        (folder / f"{name}.png").write_bytes(image)
    return images


def png(figure: "Figure") -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
