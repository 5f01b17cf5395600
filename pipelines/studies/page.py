"""What a study writes: a page in Markdown, its record and its pictures."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.outputs import write_json
from pipelines.reporting.markdown import markdown, markdown_table
from pipelines.reporting.page import png
from pipelines.reporting.section import Section


def write_page(folder: Path, section: Section, record: Mapping[str, Any]) -> None:
    """``NAME.md`` with a heading for every table, ``NAME.json`` with the ``record``, and the pictures."""
    tables = [f"## {table.caption}\n\n{markdown_table(replace(table, caption=''))}" for table in section.tables]
    shown = [f"![{picture.caption}]({picture.name}.png)" for picture in section.pictures]
    folder.mkdir(parents=True, exist_ok=True)
    for picture in section.pictures:
        (folder / f"{picture.name}.png").write_bytes(png(picture.figure))
    write_json(folder / f"{section.name}.json", record)
    path = folder / f"{section.name}.md"
    path.write_text("\n\n".join([markdown(replace(section, tables=()), level=1).strip(), *tables, *shown]) + "\n")
    print(f"{path}\n{section.finding}")
