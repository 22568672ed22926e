"""The bundled book's Markdown by `##` section, as the question bank names them."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from pathlib import Path

from indexes.sample import SAMPLE_PATH


def sections_of(chapter: Path) -> dict[str, str]:
    """The `##` sections of a chapter's Markdown source by heading; headings inside fences do not count."""
    sections: dict[str, list[str]] = defaultdict(list)
    heading, fenced = "", False
    for line in chapter.read_text(encoding="utf-8").split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if line.startswith("## ") and not fenced:
            heading = line[3:].strip()
        else:
            sections[heading].append(line)
    return {name: "\n".join(lines) for name, lines in sections.items()}


@lru_cache(maxsize=1)
def chapter_titles() -> dict[int, str]:
    """Titles of the bundled book's chapters, by number from 1."""
    titles = {}
    for number, path in enumerate(sorted(SAMPLE_PATH.glob("*.md")), start=1):
        lines = path.read_text(encoding="utf-8").split("\n")
        titles[number] = next((line[2:].strip() for line in lines if line.startswith("# ")), path.stem)
    return titles
