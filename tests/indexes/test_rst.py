"""reStructuredText is read with Sphinx's words tolerated, and nothing in it is carried out."""

from pathlib import Path

import pytest

from indexes.readers.elements import Block, Heading
from indexes.readers.rst import parse_rst, read_rst


def elements(text: str, folder: Path = Path("/nowhere")) -> list[object]:
    return list(parse_rst(text, folder / "a.rst", folder).elements)


def blocks(text: str) -> list[str]:
    return [element.text for element in elements(text) if isinstance(element, Block)]


def test_sections_become_headings_of_their_level() -> None:
    assert elements("Top\n===\n\nText.\n\nSub\n---\n\nMore.") == [
        Heading(1, "Top"), Block("Text."), Heading(2, "Sub"), Block("More."),
    ]  # fmt: skip


def test_code_blocks_keep_their_language_and_indentation() -> None:
    assert blocks(".. code-block:: c++\n   :linenos:\n   :caption: add\n\n   int a;\n     b;") == [
        "add", "```c++\nint a;\n  b;\n```",
    ]  # fmt: skip


def test_captions_of_listings_are_read_as_text() -> None:
    text = ".. code-block:: c\n   :caption: See :ref:`foo <x>` and ``y``\n\n   int a;\n"
    assert blocks(text) == ["See foo and `y`", "```c\nint a;\n```"]


def test_unknown_directives_and_roles_leave_their_words() -> None:
    text = ".. challenge:: What is ``x``?\n\n   Think.\n\nSee :func:`~numba.cuda.grid` and :ref:`this <label>`."
    assert blocks(text) == ["**What is `x`?**", "Think.", "See `numba.cuda.grid` and this."]


def test_api_directives_name_what_they_describe() -> None:
    assert blocks(".. function:: numba.cuda.grid(ndim)\n\n   Gives the index.\n") == [
        "`numba.cuda.grid(ndim)`", "Gives the index.",
    ]  # fmt: skip


def test_undefined_substitutions_become_identifiers() -> None:
    assert blocks("Call |cudaMalloc| first.") == ["Call `cudaMalloc` first."]


def test_tables_and_definitions_are_kept() -> None:
    table = ".. list-table:: Devices\n   :header-rows: 1\n\n   * - Name\n     - SMs\n   * - A\n     - 1\n"
    assert blocks(table) == ["Devices", "| Name | SMs |\n| --- | --- |\n| A | 1 |"]
    assert blocks("warp\n  32 threads.\n") == ["warp: 32 threads."]


def test_math_is_kept_as_text() -> None:
    assert blocks("So :math:`a^2`.\n\n.. math::\n\n   x = y") == ["So $a^2$.", "$$\nx = y\n$$"]


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
    assert "word" in " ".join(blocks("word `unclosed\n\n=====\nodd\n==\n\n.. figure::\n\n.. [1 broken\n"))


def test_a_described_class_keeps_its_members() -> None:
    text = ".. class :: Array(shape, dtype)\n\n   Holds data.\n\n   .. method :: __len__()\n\n      Leading one.\n"
    assert blocks(text) == ["`Array(shape, dtype)`", "Holds data.", "`__len__()`", "Leading one."]


def test_a_style_class_leaves_no_words() -> None:
    assert blocks(".. class:: centered\n\nText.") == ["Text."]


def test_a_directive_that_docutils_refuses_keeps_its_words() -> None:
    text = ".. list-table:: Limits\n   :header-rows: 1\n\n   Threads a block: 1024.\n\n   Warps: 32.\n\nAfter."
    assert blocks(text) == ["Limits", "Threads a block: 1024.", "Warps: 32.", "After."]


def test_included_parts_stand_where_they_are_included(tmp_path: Path) -> None:
    (tmp_path / "part.inc").write_text("Sub\n---\n\n.. custom:: Lead\n\n   Part.\n\n.. include:: part.inc\n")
    (tmp_path / "own.rst").write_text("Read alone.\n")
    text = "Top\n===\n\nText.\n\n.. include:: part.inc\n\n.. include:: own.rst\n\nAfter."
    found = [element.text for element in elements(text, tmp_path) if isinstance(element, Block)]
    assert found[:3] == ["Text.", "Lead", "Part."]
    assert found[-1] == "After."
    assert "Read alone." not in found


def test_versions_say_what_happened_and_conditions_say_nothing() -> None:
    text = ".. versionadded:: 3.2\n   Streams.\n\n.. deprecated:: 4\n\n.. only:: html\n\n   Shown."
    assert blocks(text) == ["New in version 3.2: Streams.", "Deprecated since version 4", "Shown."]


def test_notes_lists_and_code_are_as_in_markdown() -> None:
    assert blocks(".. note::\n\n   Mind ``a`` *much*.") == ["**Note**", "Mind `a` *much*."]
    assert blocks("0. zero\n1. one\n\n   - in\n") == ["0. zero\n1. one\n  - in"]
    assert blocks("See [1]_.\n\n.. [1] The guide.") == ["See .", "[1]: The guide."]
    assert blocks("-v  verbose") == ["`-v`: verbose"]


def test_headings_keep_the_underscores_of_identifiers() -> None:
    assert elements("``__global__`` *now*\n====================\n\nx")[0] == Heading(1, "__global__ now")
