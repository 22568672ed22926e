"""An answer on the page: its text as it is written, then with its markers as buttons that open the passage.

Everything from a book, a question or a model goes into elements as text; nothing is ever read as HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from nicegui import ui

from rag.types import Answer, Citation

_PIECE = re.compile(r"(\[\d+\])")
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```[^\n]*$", re.DOTALL | re.MULTILINE)
CitationOpener = Callable[[Citation], None]


def show_answer(answer: Answer, open_citation: CitationOpener) -> None:
    """Draws a finished answer into the current slot."""
    seen: dict[int, int] = {}
    position = 0
    for fence in _FENCE.finditer(answer.answer):
        _show_text(answer.answer[position : fence.start()], answer, open_citation, seen)
        ui.label(fence.group(1)).classes("font-mono text-sm whitespace-pre overflow-x-auto w-full p-3 border rounded")
        position = fence.end()
    _show_text(answer.answer[position:], answer, open_citation, seen)
    ui.label(_figures(answer)).classes("text-xs opacity-70")


def _show_text(text: str, answer: Answer, open_citation: CitationOpener, seen: dict[int, int]) -> None:
    for paragraph in re.split(r"\n{2,}", text.strip()):
        if not paragraph:
            continue
        with ui.element("p").classes("leading-7 m-0"):
            for piece in _PIECE.split(paragraph):
                citation = _citation_of(piece, answer, seen)
                if citation is None:
                    ui.label(piece).classes("inline whitespace-pre-wrap")
                else:
                    _marker(piece, citation, open_citation)


def _marker(text: str, citation: Citation, open_citation: CitationOpener) -> None:
    button = ui.button(text, on_click=lambda: open_citation(citation))
    button.props(f'flat dense no-caps size=sm padding="0 2px" aria-label="Open source {citation.marker}"')
    button.tooltip(" › ".join((citation.title, *citation.section)) + page_text(citation))


def _citation_of(piece: str, answer: Answer, seen: dict[int, int]) -> Citation | None:
    """The n-th `[marker]` of an answer belongs to the n-th citation with that marker."""
    if not _PIECE.fullmatch(piece):
        return None
    marker = int(piece[1:-1])
    of_marker = [citation for citation in answer.citations if citation.marker == marker]
    if not of_marker:
        return None
    index = seen.get(marker, 0)
    seen[marker] = index + 1
    return of_marker[min(index, len(of_marker) - 1)]


def page_text(citation: Citation) -> str:
    """`, page xii` by its printed label, or by the file's page when nothing is printed; empty without pages."""
    if citation.page_start is None:
        return ""
    return f", page {citation.page_label or citation.page_start}"


def _figures(answer: Answer) -> str:
    timings = answer.timings
    speed = f" · {answer.tokens_per_s:.1f} tokens/s" if answer.tokens_per_s else ""
    return f"{answer.generator} · {answer.model} · first text {timings.ttft_s:.2f} s · {timings.total_s:.2f} s{speed}"
