"""Jupyter notebooks: Markdown and raw cells as text, code cells as numbered listings, outputs in brief."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from indexes.errors import UnreadableBook
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
        elements: list[Element] = []
        title: str | None = None
        for number, cell in enumerate(cells, 1):
            parsed = _cell(cell, number, language)
            elements.extend(parsed.elements)
            title = title or (parsed.title if number == 1 else None)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UnreadableBook(
            f"'{path.name}' is not a Jupyter notebook: {str(error)[:100]}.", hint="open and save it with Jupyter"
        ) from error
    return Parsed(tuple(elements), title, health=BookHealth(notes=source.notes))


def _cell(cell: dict[str, Any], number: int, language: str) -> Parsed:
    source = clean_text(_joined(cell.get("source", cell.get("input", ""))))
    kind = cell.get("cell_type")
    if kind == "raw":
        return _raw(source, cell.get("metadata", {}))
    if kind == "markdown":
        return parse_markdown(source)
    if kind == "heading":
        return Parsed((Heading(int(cell.get("level", 1)), source),))
    if kind != "code" or not source.strip():
        return Parsed(())
    magic = re.match(r"%%(\w+)[^\n]*\n", source)
    language = (
        {"cu": "cuda", "writefile": "", "bash": "bash", "sh": "bash"}.get(magic[1], language) if magic else language
    )
    elements: list[Element] = [Block(f"Cell {number}:\n{fence(source, language)}")]
    output = _output(cell.get("outputs", []))
    if output:
        elements.append(Block(f"Output of cell {number}:\n{fence(output)}"))
    return Parsed(tuple(elements))


def _raw(source: str, metadata: dict[str, Any]) -> Parsed:
    """A cell that is in the format its metadata names; where they name none, Quarto's front matter or plain words."""
    written_in = str(metadata.get("raw_mimetype") or metadata.get("format") or "")
    if written_in == "text/html":
        return Parsed(tuple(html_to_elements(source)))
    if written_in == "text/restructuredtext" and (html := rst_to_html(source, None, None, [])) is not None:
        return Parsed(tuple(html_to_elements(html)))
    return parse_markdown(source)


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
