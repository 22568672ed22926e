"""Jupyter notebooks: Markdown and raw cells as text, code cells as numbered listings, outputs in brief."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from indexes.errors import UnreadableBook
from indexes.messages import msg
from indexes.readers.elements import Block, Element, Heading, Parsed, fence
from indexes.readers.html import html_to_elements
from indexes.readers.markdown import parse_markdown
from indexes.readers.rst import rst_to_html
from indexes.readers.source import clean_text, read_text
from indexes.types import BookHealth

MAX_OUTPUT_LINES = 12
MAX_OUTPUT_CHARS = 1_000
"""Longer outputs are cut: a training log of a million lines would bury the book."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[[0-9;]+m")


def read_notebook(path: Path) -> Parsed:
    """Read an .ipynb file. Raises UnreadableBook if it is not a notebook."""
    source = read_text(path)
    try:
        notebook = json.loads(source.text)
        cells = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
        language = str(notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python"))
        found = [_cell(cell) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UnreadableBook(
            msg("'{}' is not a Jupyter notebook: {}.", path.name, str(error)[:100]),
            hint="open and save it with Jupyter",
        ) from error
    parsed = [_parsed(cell, number, language) for number, cell in enumerate(found, 1)]
    elements = tuple(element for one in parsed for element in one.elements)
    return Parsed(elements, parsed[0].title if parsed else None, health=BookHealth(notes=source.notes))


class _Cell(NamedTuple):
    """A cell; `written_in` is the format that a raw one names, `level` that of a heading in old notebooks."""

    kind: str
    source: str
    output: str
    written_in: str
    level: int


def _cell(cell: dict[str, Any]) -> _Cell:
    kind = str(cell.get("cell_type"))
    metadata = cell.get("metadata", {}) if kind == "raw" else {}
    return _Cell(
        kind,
        clean_text(_joined(cell.get("source", cell.get("input", "")))),
        _output(cell.get("outputs", [])) if kind == "code" else "",
        str(metadata.get("raw_mimetype") or metadata.get("format") or ""),
        int(cell.get("level", 1)) if kind == "heading" else 1,
    )


def _parsed(cell: _Cell, number: int, language: str) -> Parsed:
    if cell.kind == "raw":
        return _raw(cell)
    if cell.kind == "markdown":
        return parse_markdown(cell.source)
    if cell.kind == "heading":
        return Parsed((Heading(cell.level, cell.source),))
    if cell.kind != "code" or not cell.source.strip():
        return Parsed(())
    magic = re.match(r"%%(\w+)[^\n]*\n", cell.source)
    language = (
        {"cu": "cuda", "writefile": "", "bash": "bash", "sh": "bash"}.get(magic[1], language) if magic else language
    )
    elements: list[Element] = [Block(f"Cell {number}:\n{fence(cell.source, language)}")]
    if cell.output:
        elements.append(Block(f"Output of cell {number}:\n{fence(cell.output)}"))
    return Parsed(tuple(elements))


def _raw(cell: _Cell) -> Parsed:
    """A cell that is in the format its metadata names; where they name none, Quarto's front matter or plain words."""
    if cell.written_in == "text/html":
        return Parsed(tuple(html_to_elements(cell.source)))
    if cell.written_in == "text/restructuredtext" and (html := rst_to_html(cell.source, None, None, [])) is not None:
        return Parsed(tuple(html_to_elements(html)))
    return parse_markdown(cell.source)


def _output(outputs: list[dict[str, Any]]) -> str:
    """Text of a cell's outputs, cut to a few lines; pictures and HTML are left out."""
    texts: list[str] = []
    size = 0
    for output in outputs:
        data = output.get("data", output)
        text = output.get("text") or data.get("text/plain") or output.get("evalue") or ""
        if size <= MAX_OUTPUT_CHARS:
            texts.append(_joined(text)[: 4 * MAX_OUTPUT_CHARS])
            size += len(texts[-1])
    lines = clean_text(_ESCAPES.sub("", "\n".join(texts))).strip("\n").split("\n")
    cut = "\n".join(lines[:MAX_OUTPUT_LINES])[:MAX_OUTPUT_CHARS].rstrip()
    whole = len(lines) <= MAX_OUTPUT_LINES and len("\n".join(lines)) <= MAX_OUTPUT_CHARS
    return cut if whole or not cut else f"{cut}\n..."


def _joined(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
