"""Sections and tables in Markdown, for the docs."""

from collections.abc import Iterable, Sequence

from pipelines.reporting.section import Section, Table
from pipelines.reporting.text import shown


def markdown(section: Section, level: int = 2) -> str:
    """A section without its pictures, under a heading of that ``level``."""
    parts = [f"{'#' * level} {section.title}", section.finding, *section.notes]
    return "\n\n".join([*parts, *(markdown_table(table) for table in section.tables)]) + "\n"


def markdown_table(table: Table) -> str:
    """A table; marked rows are bold."""
    lines = [[column.name for column in table.columns], ["---"] * len(table.columns)]
    for number, row in enumerate(table.rows):
        cells = [shown(cell, column.unit).replace("|", "\\|") for cell, column in zip(row, table.columns, strict=True)]
        lines.append([f"**{cell}**" for cell in cells] if number in table.marked else cells)
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table.caption}\n\n{rows}" if table.caption else rows


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of cells below a header."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
