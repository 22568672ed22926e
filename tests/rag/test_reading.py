"""Reading on: parts keep every word, quotes are found in them, and headings become questions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import make_library

from indexes.errors import NotFound
from indexes.library import Library
from indexes.types import Section
from rag.reading import PART_CHARACTERS, Reading, find_part

LONG = "\n\n".join(f"Paragraph {n} says something of its own about tiles and warps." for n in range(900))
SECTIONS = (
    Section(("Memory",), "What this chapter is about.", 1, ((0, 7),)),
    Section(("Memory", "1.2 Bank conflicts"), "Two threads that want one bank wait.\n\nPadding helps them. " * 9, 1),
    Section(("Memory", "Summary"), "In short, use padding. " * 30, 1),
    Section(("Memory", "Coalescing"), "Neighbouring threads read neighbouring words. " * 9, 1),
    Section(("Tiles",), LONG, 2),
)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return make_library(tmp_path, *SECTIONS)


@pytest.fixture
def reading(library: Library) -> Reading:
    return Reading(lambda: library)


def test_parts_are_bounded_and_lose_no_word(reading: Reading) -> None:
    parts = reading.parts("book")
    assert "".join(s.text for part in parts for s in part.sections) == "".join(s.text for s in SECTIONS)
    assert all(sum(len(s.text) for s in part.sections) <= PART_CHARACTERS for part in parts)
    assert [(part.number, part.chapter, part.title) for part in parts] == [
        (1, 1, "Memory"), (2, 2, "Tiles"), (3, 2, "Tiles (2)")
    ]  # fmt: skip
    assert (parts[0].sections[0].page_start, parts[0].sections[0].page_label) == (7, "p7")
    assert [s.begins for part in parts[1:] for s in part.sections] == [True, False]
    assert find_part(parts, chapter=2).number == 2
    with pytest.raises(NotFound):
        find_part(parts, number=9)


def test_a_quote_is_found_where_it_stands_whatever_its_line_breaks(reading: Reading, library: Library) -> None:
    ids = [node.node_id for node in library.nodes_of("book")]
    place = reading.place("book", ids[1], "one bank\nwait. Padding helps")
    section = reading.parts("book")[place.part - 1].sections[place.section]
    assert section.section[-1] == "1.2 Bank conflicts"
    assert section.text[place.char_start : place.char_end] == "one bank wait.\n\nPadding helps"
    assert reading.place("book", ids[-1], "Paragraph 899 says").part == 3
    with pytest.raises(NotFound):
        reading.place("book", "gone")


@pytest.mark.parametrize("headings", [["Exercise 3"], ["Lab 1.1", "Lab 1.2"], ["习题 2"], ["Exercise: a blur"]])
def test_what_is_only_counted_is_not_asked_about(tmp_path: Path, headings: list[str]) -> None:
    sections = (Section(("Tiles", name), "Padding helps the banks. " * 20, 1) for name in [*headings, "FP8 formats"])
    reading = Reading(lambda library=make_library(tmp_path, *sections): library)
    assert [one.heading for one in reading.suggest(["book"])] == ["FP8 formats"]


def test_headings_that_say_something_become_questions(reading: Reading, library: Library) -> None:
    first = reading.suggest(["book"])
    assert [one.question for one in first] == ["Explain “Bank conflicts”", "Explain “Coalescing”", "Explain “Tiles”"]
    citation = SimpleNamespace(document_id="book", section=("Memory", "1.2 Bank conflicts"))
    answer: Any = SimpleNamespace(citations=(citation,), passages=(), question="And tiles?")
    assert [one.heading for one in reading.suggest_next(answer)] == ["Coalescing"]
    library.remove("book")
    assert reading.suggest_next(answer) == ()
