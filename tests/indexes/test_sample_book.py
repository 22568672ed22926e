"""The bundled book: its chapters' shape and length, and that every listing is what it claims to be."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from gpu.run_listings import (
    ARCHITECTURE,
    BOOK,
    FENCE,
    Listing,
    compile_all,
    digests_compiled,
    listings,
    why_not_compiled,
)

from indexes.sample import SAMPLE_PATH

CHAPTERS = sorted(SAMPLE_PATH.glob("*.md"))
LISTINGS = tuple(listings())
PYTHON = [listing for listing in LISTINGS if listing.language == "python"]
COMPILED = [listing for listing in LISTINGS if listing.compiles]


def prose_of(chapter: Path) -> str:
    return FENCE.sub("", chapter.read_text(encoding="utf-8"))


def headings_of(chapter: Path, level: int) -> list[str]:
    return re.findall(rf"^{'#' * level} (.+)$", prose_of(chapter), re.MULTILINE)


def test_fourteen_chapters_are_numbered_in_reading_order() -> None:
    assert [chapter.name[:3] for chapter in CHAPTERS] == [f"{number:02d}-" for number in range(1, 15)]
    assert BOOK == SAMPLE_PATH


def test_the_folder_names_the_licences_of_text_and_listings() -> None:
    licence = (SAMPLE_PATH / "LICENSE").read_text(encoding="utf-8")
    assert "CC BY 4.0" in licence
    assert "Apache" in licence


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_a_chapter_has_one_title_ten_sections_or_more_and_ends_with_a_summary(chapter: Path) -> None:
    sections = headings_of(chapter, 2)
    assert len(headings_of(chapter, 1)) == 1
    assert chapter.read_text(encoding="utf-8").startswith("# ")
    assert len(sections) >= 10
    assert len(set(sections)) == len(sections), "a heading stands twice"
    assert sections[-2:] == ["Pitfalls", "Summary"]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_a_chapter_holds_2000_to_3500_words_of_prose(chapter: Path) -> None:
    assert 2000 <= len(prose_of(chapter).split()) <= 3500


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_every_fence_is_closed_and_names_its_language(chapter: Path) -> None:
    text = chapter.read_text(encoding="utf-8")
    assert "```" not in FENCE.sub("", text)
    assert {language for language, _ in FENCE.findall(text)} <= {"cuda", "cpp", "python"}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_every_chapter_has_a_program_that_judges_itself(chapter: Path) -> None:
    programs = [listing for listing in LISTINGS if listing.name.startswith(chapter.stem) and listing.is_program]
    assert programs
    for program in programs:
        assert "PASS" in program.code
        assert "FAIL" in program.code


@pytest.mark.parametrize("listing", PYTHON, ids=lambda listing: listing.name)
def test_every_python_listing_runs(listing: Listing) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(listing.code, listing.name, "exec"), {"__name__": "__main__"})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_cuda_listing_compiles_by_itself_without_a_warning(tmp_path: Path) -> None:
    if missing := why_not_compiled():
        pytest.skip(missing)
    assert len(COMPILED) > 60
    assert compile_all(COMPILED, tmp_path, ARCHITECTURE) == {}


@pytest.mark.integration
def test_listings_that_changed_compile_without_a_warning_and_so_does_a_short_one(tmp_path: Path) -> None:
    if missing := why_not_compiled():
        pytest.skip(missing)
    known = digests_compiled()
    changed = [listing for listing in COMPILED if listing.digest not in known]
    shortest = min(COMPILED, key=lambda listing: len(listing.code))
    assert compile_all([*changed, shortest], tmp_path, ARCHITECTURE) == {}


@pytest.mark.integration
def test_a_listing_that_does_not_compile_is_named(tmp_path: Path) -> None:
    if missing := why_not_compiled():
        pytest.skip(missing)
    broken = Listing("broken-1", "cuda", "__global__ int not_void() { return 1; }\n")
    assert "must have a void return type" in compile_all([broken], tmp_path, ARCHITECTURE)["broken-1"]
