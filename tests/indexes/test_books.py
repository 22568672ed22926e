"""What is a book, which files are its chapters, and what is refused."""

import json
import os
import time
from pathlib import Path

import pytest

from indexes.errors import TooLarge, UnreadableBook, UnsupportedFormat
from indexes.readers import book_files, content_digest, find_books, read_book, source
from indexes.readers.elements import Block, Heading, Parsed
from indexes.types import BookHealth


def folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def chapters(root: Path) -> list[str]:
    titles: dict[int, str] = {}
    for section in read_book(root).sections:
        titles.setdefault(section.chapter, section.heading_path[0])
    assert list(titles) == list(range(1, len(titles) + 1))
    return list(titles.values())


def test_a_folder_is_a_book_whose_files_are_chapters(tmp_path: Path) -> None:
    root = folder(tmp_path / "cuda-notes", {
        "10-late.md": "# Late\nx", "2.10.md": "# Tenth\nx", "2.9.md": "# Ninth\nx",
        "2-early.md": "# Early\nx\n## Part\ny", "deep/3-c.rst": "Third\n=====\n\nz",
        "LICENSE.md": "# MIT\nx", "LICENSES/a.txt": "legal", "NOTICE.txt": "n", "COPYING.txt": "c", "a.png": "no",
        ".hidden/x.md": "# no\nx", "empty.md": "",
    })  # fmt: skip
    assert chapters(root) == ["Early", "Ninth", "Tenth", "Late", "Third"]
    book = read_book(root)
    assert (book.title, book.format, book.pages) == ("CUDA notes", "folder", None)
    assert book.sections[1].heading_path == ("Early", "Part")
    assert book.health.skipped_files == ("empty.md",)


def test_code_of_a_folder_raises_no_doubts_about_the_book(tmp_path: Path) -> None:
    root = folder(tmp_path / "b", {"a.md": "# A\nx", "blank.cu": ""})
    (root / "b.c").write_bytes("// la clé\nint main(void) { return 0; }\n".encode("latin-1"))
    assert read_book(root).health == BookHealth()


def test_the_index_comes_first_and_names_the_book(tmp_path: Path) -> None:
    root = folder(tmp_path / "b", {"a.md": "# A\nx", "index.md": "# The Guide\nx", "README.md": "x"})
    assert chapters(root)[0] == "The Guide"
    assert read_book(root).title == "The Guide"


@pytest.mark.parametrize("name", ["README", "index", "(anonymous)", "Untitled"])
def test_what_nobody_meant_as_a_title_names_no_book(name: str, tmp_path: Path) -> None:
    root = folder(tmp_path / "gpu_course-notes", {"readme.md": f"# {name}\nx", "a.md": "# A\nx"})
    assert read_book(root).title == "GPU course notes"
    assert chapters(root) == ["GPU course notes", "A"]
    named = folder(tmp_path / "named", {"README.md": f"---\ntitle: {name}\n---\n# {name}\n\n## GPUs by Example\nx"})
    assert read_book(named).title == "GPUs by Example"
    assert read_book(folder(tmp_path, {"my-notes.md": f"# {name}\nx"}) / "my-notes.md").title == "My notes"


def test_a_toctree_gives_the_order(tmp_path: Path) -> None:
    index = "Guide\n=====\n\nHi.\n\n.. toctree::\n   :maxdepth: 1\n\n   zeta\n   Named <sub/index>\n   alpha\n"
    root = folder(tmp_path / "b", {
        "index.rst": index, "alpha.rst": "Alpha\n=====\n\nx", "zeta.rst": "Zeta\n====\n\nx",
        "sub/index.rst": "Sub\n===\n\nx\n\n.. toctree::\n\n   two\n   one\n", "sub/one.rst": "One\n===\n\nx",
        "sub/two.rst": "Two\n===\n\nx", "sub/odd.rst": "Odd\n===\n\nx",
    })  # fmt: skip
    assert chapters(root) == ["Guide", "Zeta", "Sub", "Two", "One", "Odd", "Alpha"]


def test_the_order_of_a_long_chain_of_toctrees_is_found_and_in_a_time_that_the_text_allows(tmp_path: Path) -> None:
    chain = {f"{number}.rst": f".. toctree::\n\n   {number + 1}\n" for number in range(1, 1200)}
    folder(tmp_path, {"index.rst": "   .. toctree::\n" * 3000 + "\n   1\n", **chain, "1200.rst": "x"})
    begun = time.process_time()
    files = book_files(tmp_path)
    assert time.process_time() - begun < 5
    assert [file.stem for file in files] == ["index", *map(str, range(1, 1201))]


def test_a_table_of_contents_file_gives_the_order(tmp_path: Path) -> None:
    root = folder(tmp_path / "b", {
        "_quarto.yml": "book:\n  chapters:\n    - index.qmd\n    - zeta.qmd\n    - alpha.qmd\n",
        "index.qmd": "# I\nx", "alpha.qmd": "# A\nx", "zeta.qmd": "# Z\nx",
    })  # fmt: skip
    assert chapters(root) == ["I", "Z", "A"]


def test_pdfs_and_epubs_in_a_folder_are_books_of_their_own(tmp_path: Path) -> None:
    folder(tmp_path, {"a.md": "# A\nx", "sub/b.pdf": "%PDF-", "c.epub": "PK"})
    assert find_books(tmp_path) == [tmp_path, tmp_path / "c.epub", tmp_path / "sub" / "b.pdf"]
    assert find_books(tmp_path / "sub") == [tmp_path / "sub" / "b.pdf"]
    assert find_books(tmp_path / "a.md") == [tmp_path / "a.md"]


def test_links_that_lead_nowhere_and_pipes_do_not_lose_the_folder(tmp_path: Path) -> None:
    folder(tmp_path, {"a.md": "# A\nx"})
    (tmp_path / "gone.md").symlink_to("nowhere.md")
    (tmp_path / "ring.md").symlink_to("ring.md")
    os.mkfifo(tmp_path / "pipe.md")
    assert content_digest(tmp_path)
    assert chapters(tmp_path) == ["A"]


def test_words_too_long_for_a_name_are_no_file(tmp_path: Path) -> None:
    long = "x" * 260
    folder(tmp_path, {
        "_toc.yml": f"root: a\nkey: {long}\n",
        "index.rst": f"Guide\n=====\n\nx\n\n.. toctree::\n\n   {long}\n\n.. include:: {long}\n",
        "a.md": f"# A\nx\n\n```{{literalinclude}} {long}\n```\n\n"
        f"```{{literalinclude}} k.cu\n:lines: 0-1,{'9' * 5_000}\n```\n",
        "k.cu": "int a;\nint b;\n",
    })  # fmt: skip
    assert chapters(tmp_path) == ["Guide", "A", "k.cu"]
    assert read_book(tmp_path).health.skipped_files == (long, long)
    assert "```cu\nint a;\n```" in read_book(tmp_path).sections[1].text


@pytest.mark.parametrize(
    ("name", "text", "title", "sections"),
    [
        ("a.md", "# Title\nlead\n## One\nx\n### Deep\ny\n## Two\nz", "Title",
         [(0, ("Title",)), (1, ("One",)), (1, ("One", "Deep")), (2, ("Two",))]),
        ("my_notes.txt", "Just words.", "My notes", [(1, ("My notes",))]),
    ],
)  # fmt: skip
def test_one_file_is_a_book_of_its_headings(
    name: str, text: str, title: str, sections: list[object], tmp_path: Path
) -> None:
    book = read_book(folder(tmp_path, {name: text}) / name)
    assert (book.title, [(s.chapter, s.heading_path) for s in book.sections]) == (title, sections)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.md", b"%PDF-1.7 binary"), ("a.txt", b"\x89PNG\r\n\x1a\n" + bytes(range(256))),
        ("a.rst", b"PK\x03\x04" + bytes(100)), ("a.md", bytes(range(256)) * 10), ("a.pdf", b"just text"),
        ("a.epub", b"just text"), ("a.txt", b""), ("a.md", b"\n \n"), ("a.md", b"---\n---\n"), ("a.ipynb", b"%PDF-1.4"),
    ],
)  # fmt: skip
def test_files_that_are_empty_or_not_what_their_ending_says_are_refused(
    name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableBook):
        read_book(tmp_path / name)


@pytest.mark.parametrize("name", ["a.odt", "a", "a.exe", "a.md.zip"])
def test_other_formats_are_refused_with_those_that_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x")
    for use in (read_book, find_books):
        with pytest.raises(UnsupportedFormat) as caught:
            use(tmp_path / name)
        assert ".pdf" in caught.value.hint


def test_nothing_there_is_a_clear_error(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "gone", "does not exist"), (Path("x" * 300), "too long")):
        with pytest.raises(UnreadableBook, match=said):
            find_books(path)
    with pytest.raises(UnsupportedFormat, match="no book"):
        find_books(tmp_path)


CODE = "```c\nfor (int i = 0; i < 100; i++) sum += data[i] * weights[i];\n```\n\n"


@pytest.mark.parametrize(
    ("encoding", "words", "code"),
    [
        *(
            (encoding, "线程束是三十二个线程,它们一起执行同一条指令。", "")
            for encoding in ("utf-8-sig", "utf-16", "gb18030")
        ),
        ("cp1252", "café naïve – “quoted” ", ""),
        ("gbk", "线程束是三十二个线程。\n\n", CODE * 2),
        ("cp1251", "Варп это тридцать две нити.\n\n", CODE * 2),
    ],
)
def test_encodings_are_recognised_also_between_much_code(encoding: str, words: str, code: str, tmp_path: Path) -> None:
    text = f"{words}{code}" * 20
    (tmp_path / "a.md").write_bytes(text.encode(encoding))
    assert read_book(tmp_path / "a.md").sections[0].text.startswith((words if code else text).strip())


def test_a_few_foreign_bytes_spoil_only_their_lines(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes("线程束\n\n合并访问\n\n".encode() + b"caf\xe9 \x96 x\n")
    book = read_book(tmp_path / "a.md")
    assert book.sections[0].text == "线程束\n\n合并访问\n\ncafé – x"
    assert "1 lines are not UTF-8" in book.health.notes[0]


def test_zero_width_characters_do_not_hide_identifiers() -> None:
    assert source.clean_text("__device__ \u200bcuda\u200bMalloc\r\nx\x00y") == "__device__ cudaMalloc\nxy"


def test_a_text_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_TEXT_BYTES", 10)
    (tmp_path / "a.txt").write_text("more than ten bytes")
    with pytest.raises(TooLarge):
        read_book(tmp_path / "a.txt")


def test_a_long_book_without_headings_is_several_sections(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join("word " * 200 for _ in range(200)))
    assert all(len(section.text) <= 61_000 for section in read_book(tmp_path / "a.txt").sections)


def test_a_book_of_more_text_than_a_book_has_is_refused_whatever_its_file_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("indexes.readers.book.MAX_TEXT_BYTES", 10)
    folder(tmp_path, {"a.md": "# A\n\nMore than ten."})
    for path in (tmp_path, tmp_path / "a.md"):
        with pytest.raises(TooLarge, match="up to 10"):
            read_book(path)


def test_a_file_that_is_broken_or_on_which_its_reader_fails_is_refused_by_name_and_does_not_lose_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unforeseen_errors: list[Exception]
) -> None:
    def fail(path: Path, **_: object) -> None:
        raise ValueError("a fault of the program")

    folder(tmp_path, {"a.txt": "x", "b.md": "# B\nx"})
    (tmp_path / "c.md").write_bytes(bytes(range(256)))
    monkeypatch.setattr("indexes.readers.text.read_text_file", fail)
    with pytest.raises(UnreadableBook, match=r"'a\.txt'.*ValueError"):
        read_book(tmp_path / "a.txt")
    book = read_book(tmp_path)
    assert [section.heading_path[0] for section in book.sections] == ["B"]
    assert book.health.skipped_files == ("a.txt", "c.md")
    assert len(unforeseen_errors) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "a.ipynb",
            json.dumps({"cells": [{"cell_type": "markdown", "source": "# T\ud835\nWarp \ud835 x"}], "nbformat": 4}),
        ),
        ("a.html", "<h1>T&#xD835;</h1><p>Warp &#xD835; x</p>"),
        ("a.md", "# T&#xD835;\nWarp &#xD835; x"),
        ("a.rst", "T\n=\nWarp |p| x\n\n.. |p| unicode:: 0xD835"),
    ],
)
def test_no_reader_hands_on_half_a_surrogate_pair(name: str, content: str, tmp_path: Path) -> None:
    book = read_book(folder(tmp_path, {name: content}) / name)
    assert repr(book).encode() and "Warp" in book.sections[0].text
    assert all((section.text + "".join(section.heading_path)).encode() for section in book.sections)


def test_half_a_surrogate_pair_becomes_one_letter() -> None:
    parsed = Parsed((Heading(1, "\ud835"), Block("a\udc5db", ((0, 1), (2, 2)))), "t\ud835", 2, ("\udfff", None))
    assert parsed == Parsed((Heading(1, "\ufffd"), Block("a\ufffdb", ((0, 1), (2, 2)))), "t\ufffd", 2, ("\ufffd", None))
