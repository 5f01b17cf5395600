"""Sections and tables in Markdown, for the docs."""

from collections.abc import Iterable, Sequence

from pipelines.reporting.section import Section, Table
from pipelines.reporting.text import shown


def markdown(section: Section, level: int = 2) -> str:
    """A section without its pictures, under a heading of that ``level``."""
    parts = [f"{'#' * level} {section.title}", section.finding, *section.notes]
    return "\n\n".join([*parts, *(markdown_table(table) for table in section.tables)]) + "\n"


def markdown_table(made: Table) -> str:
    """A table; marked rows are bold."""
    form = {True: "**{}**", False: "{}"}
    rows = [
        [form[made.is_marked(row)].format(shown(cell, unit)) for cell, unit in made.cells(row)] for row in made.rows
    ]
    lines = table(made.columns, rows)
    return f"{made.caption}\n\n{lines}" if made.caption else lines


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of cells below a header."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (header, *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [cells[0], ["---"] * len(header), *cells[1:]])
