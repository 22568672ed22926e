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


def test_fourteen_chapters_are_numbered_in_reading_order() -> None:
    assert [chapter.name[:3] for chapter in CHAPTERS] == [f"{number:02d}-" for number in range(1, 15)]
    assert BOOK == SAMPLE_PATH


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_a_chapter_has_one_title_sections_that_differ_closed_fences_and_a_program_that_judges_itself(chapter):
    text = chapter.read_text(encoding="utf-8")
    prose, sections = FENCE.sub("", text), re.findall(r"^## (.+)$", FENCE.sub("", text), re.MULTILINE)
    assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1 and text.startswith("# ")
    assert len(sections) == len(set(sections)) >= 10
    assert sections[-2:] == ["Pitfalls", "Summary"]
    assert 2000 <= len(prose.split()) <= 3500
    assert "```" not in prose
    assert {language for language, _ in FENCE.findall(text)} <= {"cuda", "cpp", "python"}
    programs = [listing for listing in LISTINGS if listing.name.startswith(chapter.stem) and listing.is_program]
    assert programs and all("PASS" in program.code and "FAIL" in program.code for program in programs)


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
