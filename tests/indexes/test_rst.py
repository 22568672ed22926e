"""reStructuredText is read with Sphinx's words tolerated, and nothing in it is carried out."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from indexes.readers import read_book
from indexes.readers.elements import Block, Element, Heading
from indexes.readers.rst import parse_rst, read_rst, rst_to_html


def elements(text: str, folder: Path = Path("/nowhere")) -> list[Element]:
    return list(parse_rst(text, folder / "a.rst", folder).elements)


def words(found: Sequence[Element]) -> list[str | Heading]:
    return [element.text if isinstance(element, Block) else element for element in found]


# fmt: off
CASES = [
    ("sections become headings of their level",
     "Top\n===\n\nText.\n\nSub\n---\n\nMore.", [Heading(1, "Top"), "Text.", Heading(2, "Sub"), "More."]),
    ("code blocks keep their language and indentation",
     ".. code-block:: c++\n   :linenos:\n   :caption: add\n\n   int a;\n     b;", ["add", "```c++\nint a;\n"
     "  b;\n```"]),
    ("captions of listings are read as text",
     ".. code-block:: c\n   :caption: See :ref:`foo <x>` and ``y``\n\n   int a;\n",
     ["See foo and `y`", "```c\nint a;\n```"]),
    ("unknown directives and roles leave their words",
     ".. challenge:: What is ``x``?\n\n   Think.\n\nSee :func:`~numba.cuda.grid` and :ref:`this <label>`.",
     ["**What is `x`?**", "Think.", "See `numba.cuda.grid` and this."]),
    ("api directives name what they describe",
     ".. function:: numba.cuda.grid(ndim)\n\n   Gives the index.\n", ["`numba.cuda.grid(ndim)`", "Gives the index."]),
    ("undefined substitutions become identifiers", "Call |cudaMalloc| first.", ["Call `cudaMalloc` first."]),
    ("tables and definitions are kept",
     ".. list-table:: Devices\n   :header-rows: 1\n\n   * - Name\n     - SMs\n   * - A\n     - 1\n",
     ["Devices", "| Name | SMs |\n| --- | --- |\n| A | 1 |"]),
    ("tables and definitions are kept", "warp\n  32 threads.\n", ["warp: 32 threads."]),
    ("math is kept as text", "So :math:`a^2`.\n\n.. math::\n\n   x = y", ["So $a^2$.", "$$\nx = y\n$$"]),
    ("a described class keeps its members",
     ".. class :: Array(shape, dtype)\n\n   Holds data.\n\n   .. method :: __len__()\n\n      Leading one.\n",
     ["`Array(shape, dtype)`", "Holds data.", "`__len__()`", "Leading one."]),
    ("a directive that docutils refuses keeps its words",
     ".. list-table:: Limits\n   :header-rows: 1\n\n   Threads a block: 1024.\n\n   Warps: 32.\n\nAfter.",
     ["Limits", "Threads a block: 1024.", "Warps: 32.", "After."]),
    ("versions say what happened",
     ".. versionadded:: 3.2\n   Streams.\n\n.. deprecated:: 4\n",
     ["New in version 3.2: Streams.", "Deprecated since version 4"]),
    ("notes lists and code are as in markdown",
     ".. note::\n\n   Mind ``a`` *much*.", ["**Note**", "Mind `a` *much*."]),
    ("notes lists and code are as in markdown", "0. zero\n1. one\n\n   - in\n", ["0. zero\n1. one\n  - in"]),
    ("notes lists and code are as in markdown", "See [1]_.\n\n.. [1] The guide.", ["See.", "[1]: The guide."]),
    ("notes lists and code are as in markdown", "-v  verbose", ["`-v`: verbose"]),
]
# fmt: on


@pytest.mark.parametrize(("law", "text", "expected"), CASES, ids=[case[0] for case in CASES])
def test_rst_becomes_clean_blocks(law: str, text: str, expected: list[str | Heading]) -> None:
    assert words(elements(text)) == expected


@pytest.mark.parametrize("directive", ["include", "literalinclude", "raw"])
def test_files_outside_the_book_are_never_read(directive: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    book = tmp_path / "book"
    book.mkdir()
    option = "html\n   :file:" if directive == "raw" else ""
    (book / "a.rst").write_text(f"Text.\n\n.. {directive}:: {option} ../secret.txt\n\n.. {directive}:: {secret}\n")
    assert "secret" not in str(read_rst(book / "a.rst", book).elements)


def test_literalinclude_inside_the_book_is_followed(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("// a\nint b;\nint c;\n")
    (tmp_path / "a.rst").write_text(".. literalinclude:: k.cu\n   :language: cuda\n   :lines: 2-3\n")
    assert read_rst(tmp_path / "a.rst", tmp_path).elements == (Block("```cuda\nint b;\nint c;\n```"),)


def test_a_missing_listing_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "a.rst").write_text(
        "Text.\n\n.. literalinclude:: gone.cu\n\n.. literalinclude:: gone.cu\n   :lines: 2-3\n"
    )
    assert read_rst(tmp_path / "a.rst", tmp_path).health.skipped_files == ("gone.cu",)


def test_broken_markup_is_read_all_the_same() -> None:
    assert "word" in str(elements("word `unclosed\n\n=====\nodd\n==\n\n.. figure::\n\n.. [1 broken\n"))


@pytest.mark.parametrize("order", [1, -1], ids=["outermost first", "innermost first"])
def test_replacements_of_replacements_end(order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexes.readers.rst.MAX_SUBSTITUTED", 500)
    chain = [f".. |s{n}| replace:: |s{n + 1}| |s{n + 1}|\n" for n in range(12)] + [".. |s12| replace:: x\n"]
    (tmp_path / "a.rst").write_text("".join(chain[::order]) + "\nWords |s0|\n")
    book = read_book(tmp_path / "a.rst")
    assert "Words" in book.sections[0].text
    assert book.health.notes


def test_included_parts_stand_where_they_are_included(tmp_path: Path) -> None:
    (tmp_path / "part.inc").write_text("Sub\n---\n\n.. custom:: Lead\n\n   Part.\n\n.. include:: part.inc\n")
    (tmp_path / "own.rst").write_text("Read alone.\n")
    text = "Top\n===\n\nText.\n\n.. include:: part.inc\n\n.. include:: own.rst\n\nAfter."
    found = [word for word in words(elements(text, tmp_path)) if isinstance(word, str)]
    assert (found[:3], found[-1]) == (["Text.", "Lead", "Part."], "After.")
    assert "Read alone." not in found


def test_headings_keep_the_underscores_of_identifiers() -> None:
    assert elements("``__global__`` *now*\n====================\n\nx")[0] == Heading(1, "__global__ now")


@pytest.mark.parametrize("piece", ["a_ ", "====\n\n"])
def test_many_references_or_rules_are_read_in_linear_time(piece: str) -> None:
    started = time.process_time()
    rst_to_html(piece * (40_000 // len(piece)), None, None, [])
    assert time.process_time() - started < 8
