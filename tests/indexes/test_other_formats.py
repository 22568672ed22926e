"""HTML, notebooks, EPUB, plain text and code, each with its own traps."""

import json
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import pytest

from indexes.errors import TooLarge, UnreadableBook
from indexes.readers import read_book
from indexes.readers.elements import Block, Element, Heading
from indexes.readers.html import html_to_elements
from indexes.readers.source import clean_text
from indexes.readers.text import parse_plain_text


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def words(found: Sequence[Element]) -> list[str | Heading]:
    return [element.text if isinstance(element, Block) else element for element in found]


# --- HTML

# fmt: off
HTML = [
    ("entities hide no identifiers",
     "<p>cuda&shy;Malloc&#8203;Async</p><pre>if&nbsp;(a)\n&nbsp;&nbsp;b;</pre>",
     ["cudaMallocAsync", "```\nif (a)\n  b;\n```"]),
    ("listings keep indentation and language",
     '<div class="highlight-cuda notranslate"><pre><span>int</span> a;\n  b;</pre></div>',
     ["```cuda\nint a;\n  b;\n```"]),
    ("listings without pre are listings",
     '<p>So:</p><div class="fragment"><div class="line"><a name="l1"></a><span class="lineno">    1</span>'
     '<span class="keywordflow">for</span> (;;)</div>\n<div class="line">&#160; f(a&lt;b);</div>\n'
     '<div class="line"></div>\n<div class="line">g();</div></div><!-- fragment --><p>Then.</p>',
     ["So:", "```\nfor (;;)\n  f(a<b);\n\ng();\n```", "Then."]),
    ("lists tables and formulas",
     "<ul><li>one<ul><li>inner</li></ul></li><li>two</li></ul><table><tr><th>a</th><th>b</th></tr>"
     "<tr><td>1</td><td>2</td></tr></table><dl><dt>warp</dt><dd>32 threads</dd></dl>"
     '<p><math><mi>x</mi><annotation encoding="application/x-tex">x^2</annotation></math></p>',
     ["- one\n  - inner\n- two", "| a | b |\n| --- | --- |\n| 1 | 2 |", "warp: 32 threads", "$x^2$"]),
    ("cells that span keep the columns",
     "<table><tr><th>kind</th><th>name</th><th>size</th></tr>"
     "<tr><td rowspan=2>memory</td><td>shared</td><td>48</td></tr><tr><td>constant</td><td>64</td></tr>"
     "<tr><td colspan=2>other</td><td>1</td></tr></table>",
     ["| kind | name | size |\n| --- | --- | --- |\n| memory | shared | 48 |\n| memory | constant | 64 |\n"
      "| other |  | 1 |"]),
    ("formulas cut no sentence",
     "<p>Let <math><semantics><mi>n</mi><annotation encoding='application/x-tex'>n</annotation></semantics></math> be"
     " <math><msup><mn>2</mn><mn>16</mn></msup></math> or <math><mfrac><mrow><mn>2</mn><mi>n</mi></mrow><mi>B</mi>"
     "</mfrac></math>, at <m:math xmlns:m='x'><m:msup><m:mi>b</m:mi><m:mrow><m:mi>n</m:mi><m:mo>+</m:mo><m:mn>1</m:mn>"
     "</m:mrow></m:msup></m:math> and <math><mn>2</mn><mn>3</mn></math>:<math display='block'><msqrt><mi>x</mi></msqrt>"
     "<mo>=</mo><munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover><msub><mi>a</mi><mi>i</mi></msub></math>.</p>",
     ["Let $n$ be 2^16 or 2n/B, at b^(n + 1) and 2 3:", "√x = ∑_i^n a_i", "."]),
    ("no number is read as another",
     "<p>2<sup>16</sup> 10<sup>12345</sup> 2<sup>n+1</sup> 2<sup>2<sup>n</sup></sup> log<sub>2</sub>8"
     " x<sup>see there</sup> <code>2<sup>16</sup></code></p><pre>1 &lt;&lt; 2<sup>4</sup></pre>",
     ["2^16 10^(12345) 2^(n+1) 2^(2^n) log_2 8 xsee there `2^16`", "```\n1 << 2^4\n```"]),
    ("lines of listings are tags",
     "<pre class='language-cuda'><code><div>one();</div><div>  two();</div></code></pre><pre><ol><li>a<li>b</ol></pre>"
     "<pre><div>a</div>\n<div>b</div></pre>",
     ["```cuda\none();\n  two();\n```", "```\na\nb\n```", "```\na\nb\n```"]),
    ("formulas that are pictures are read from their words",
     "<p>So <img alt='$a=b^2$'> and <img alt='icon'>.</p>", ["So $a=b^2$ and ."]),
    ("what is hidden is not said twice", "<p>A <span>b</span><span aria-hidden='true'>b</span>.</p>", ["A b."]),
    ("numbers of headings stand apart", "<h2><a><span>3.2</span><span>Occupancy</span></a></h2><h2><b>C</b>UDA 3</h2>",
     [Heading(2, "3.2 Occupancy"), Heading(2, "CUDA 3")]),
    ("scripts say nothing", "<p>So.</p><script>run()</script>", ["So."]),
    ("pages of sphinx keep formulas labels and verse",
     '<div class="admonition note"><p class="admonition-title">Note</p>'
     '<p>So <span class="math">\\(a_1\\)</span>.</p></div>'
     '<div class="math notranslate">\n\\[x = y\\]</div>'
     '<div class="line-block"><div class="line">one</div><div class="line">two</div></div>',
     ["**Note**", "So $a_1$.", "$$\nx = y\n$$", "one\ntwo"]),
    ("tables that only frame keep what they frame",
     "<table><tr><td><p>So:</p><pre>a;\n  b;</pre></td></tr></table>", ["So:", "```\na;\n  b;\n```"]),
    ("lists begin where they say", "<ol start=3><li>three<li>four</ol>", ["3. three\n4. four"]),
    ("lists begin where they say", f"<ol start={'9' * 5_000}><li>one</ol>", ["1. one"]),
]
# fmt: on


@pytest.mark.parametrize(("law", "page", "expected"), HTML, ids=[case[0] for case in HTML])
def test_html_becomes_clean_blocks(law: str, page: str, expected: list[str | Heading]) -> None:
    assert words(html_to_elements(page)) == expected


def test_html_keeps_text_and_drops_navigation(tmp_path: Path) -> None:
    page = (
        "<html><head><title>Warps</title></head><body><nav>Home</nav><div class='TOC'>Contents</div>"
        "<main><h1>Warps</h1><p>A warp is\n 32 threads.</p><script>evil()</script><h2>Size</h2><p>Fixed.</p>"
        "<h2>Use</h2><p>Many.</p></main></body></html>"
    )
    book = read_book(write(tmp_path / "a.html", page))
    assert book.title == "Warps"
    assert [(s.heading_path, s.text) for s in book.sections] == [
        (("Warps",), "A warp is 32 threads."), (("Size",), "Fixed."), (("Use",), "Many."),
    ]  # fmt: skip


def test_html_of_several_articles_or_in_a_form_is_read_whole(tmp_path: Path) -> None:
    page = "<body><article><h2>A</h2><p>x</p><article>inner</article></article><article><h2>B</h2><p>y</p></article>"
    sections = read_book(write(tmp_path / "a.html", page)).sections
    assert [(s.heading_path[-1], s.text) for s in sections] == [("A", "x\n\ninner"), ("B", "y")]
    form = "<body><form><input name=a value=b><p>Text.</p><button>Go</button></form>"
    assert read_book(write(tmp_path / "b.html", form)).sections[0].text == "Text."


def test_pictures_in_sentences_that_say_nothing_are_named(tmp_path: Path) -> None:
    page = "<body><p>Let <img src=a.png> be <b>less <img src=b.png></b>.</p><p><img src=photo.png></p></body>"
    (tmp_path / "a.html").write_text(page)
    epub(tmp_path / "a.epub", {"OEBPS/c1.xhtml": page}, spine=("c1",))
    for name in ("a.html", "a.epub"):
        assert [note.split(": ")[-2][:8] for note in read_book(tmp_path / name).health.notes] == ["2 images"]


def test_only_what_can_be_scanned_is_told_to_be_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("![](a.png)")
    with pytest.raises(UnreadableBook) as caught:
        read_book(tmp_path / "a.md")
    assert "OCR" not in caught.value.hint


@pytest.mark.parametrize("opening", ["<title>T</title>", "<html><head><title>T</title>"])
def test_html_without_a_body_that_begins_with_a_section_is_read_whole(opening: str, tmp_path: Path) -> None:
    page = f"{opening}<section><h2>A</h2><p>x</p></section><section><h2>B</h2><p>y</p></section>"
    book = read_book(write(tmp_path / "a.html", page))
    assert [(s.heading_path[-1], s.text) for s in book.sections] == [("A", "x"), ("B", "y")]
    assert book.title == "T"


@pytest.mark.parametrize("tag", ["div", "table", "ul", "span", "dl", "blockquote"])
def test_html_nested_without_end_is_read_in_linear_time(tag: str) -> None:
    started = time.process_time()
    assert "deep" in str(html_to_elements(f"<{tag}>" * 10_000 + "<p>deep</p>"))
    assert time.process_time() - started < 10


def test_markdown_in_a_page_of_slides_is_read_as_markdown(tmp_path: Path) -> None:
    page = (
        "<title>Lesson</title><body><section data-markdown><textarea data-template>\n"
        "  ## Streams\n\n  * one\n  * two\n\n"
        "  ```cpp\n  queue<int> q;\n  ```\n</textarea></section><section data-markdown>"
        "<script type='text/template'>## Events\n\nOne.</script></section><section><h2>End</h2><p>x<textarea>"
    )
    sections = read_book(write(tmp_path / "a.html", page)).sections
    assert [(one.heading_path, one.text) for one in sections] == [
        (("Streams",), "- one\n- two\n\n```cpp\nqueue<int> q;\n```"), (("Events",), "One."), (("End",), "x"),
    ]  # fmt: skip


@pytest.mark.parametrize("line", ['<p class="a"><code>{}</code></p>', '<p><span class="m">{}</span></p>',
                                  "<div style='font: 9pt Courier New'>{}</div>"])  # fmt: skip
def test_paragraphs_of_code_are_one_listing(line: str, tmp_path: Path) -> None:
    lines = "\n".join(line.format(code) for code in ("for (;;) {", "    a();", "}"))
    page = (
        f"<style>p {{color: red}} span.m {{font-family: monospace}}</style><p>So:</p>{lines}<p>Then <code>a</code>.</p>"
    )
    assert read_book(write(tmp_path / "a.html", page)).sections[0].text == (
        "So:\n\n```\nfor (;;) {\n    a();\n}\n```\n\nThen `a`."
    )


# --- notebooks


def notebook(cells: list[dict[str, object]]) -> str:
    return json.dumps({"cells": cells, "metadata": {"kernelspec": {"language": "python"}}, "nbformat": 4})


def test_notebook_cells_are_numbered_and_outputs_cut(tmp_path: Path) -> None:
    cells: list[dict[str, object]] = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"text": [f"line {i}\n" for i in range(100_000)]}]},
        {"cell_type": "code", "source": "%%cu\nint a;", "outputs": [{"data": {"image/png": "A" * 10_000}}]},
    ]
    book = read_book(write(tmp_path / "a.ipynb", notebook(cells)))
    assert book.title == "Title"
    text = book.sections[0].text
    assert "Cell 2:\n```python\nprint(1)\n```" in text
    assert "line 11\n...\n```" in text and "line 12" not in text
    assert "```cuda\n%%cu\nint a;\n```" in text
    assert len(text) < 2000


def test_raw_cells_are_read_in_the_format_that_they_name(tmp_path: Path) -> None:
    raw: list[dict[str, object]] = [
        {"cell_type": "raw", "source": "---\ntitle: Scans\n---"},
        {"cell_type": "raw", "metadata": {"raw_mimetype": "text/restructuredtext"}, "source": ".. note::\n\n   One."},
        {"cell_type": "raw", "metadata": {"format": "text/html"}, "source": "<p>Two <i>words</i>.</p>"},
        {"cell_type": "raw", "metadata": {}, "source": "Three."},
    ]
    book = read_book(write(tmp_path / "a.ipynb", notebook(raw)))
    assert book.title == "Scans"
    text = "\n".join(section.text for section in book.sections)
    assert [word in text for word in ("One.", "Two", "words", "Three.", "title:", "<p>")] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("content", ["{}", "[]", "not json", '{"cells": 3}', '{"cells": [1]}', '{"cells": "ab"}'])
def test_what_is_not_a_notebook_is_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableBook):
        read_book(write(tmp_path / "a.ipynb", content))


# --- EPUB


def epub(path: Path, members: dict[str, str | bytes], *, spine: tuple[str, ...] = ("c1", "c2")) -> Path:
    manifest = "".join(f'<item id="{i}" href="{i}.xhtml" media-type="application/xhtml+xml"/>' for i in spine)
    refs = "".join(f'<itemref idref="{i}"/>' for i in spine)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>A Book</dc:title></metadata><manifest>{manifest}"
        '<item id="nav" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'
        '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/></manifest>'
        f"<spine>{refs}</spine></package>"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("mimetype", "application/epub+zip")
        file.writestr(
            "META-INF/container.xml",
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/p.opf"/></rootfiles></container>',
        )
        file.writestr("OEBPS/p.opf", package)
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_epub_follows_its_spine_and_contents(tmp_path: Path) -> None:
    book = read_book(
        epub(
            tmp_path / "a.epub",
            {
                "OEBPS/nav.xhtml": '<nav><a href="c1.xhtml">Memory</a><a href="c2.xhtml#x">Warps</a></nav>',
                "OEBPS/c2.xhtml": "<html><body><h1>Warps</h1><p>Two.</p><h2>Size</h2><p>32.</p></body></html>",
                "OEBPS/c1.xhtml": "<html><body><p>One.</p></body></html>",
            },
        )
    )
    assert (book.title, book.format, book.pages) == ("A Book", "epub", None)
    assert [(s.chapter, s.heading_path, s.text) for s in book.sections] == [
        (1, ("Memory",), "One."), (2, ("Warps",), "Two."), (2, ("Warps", "Size"), "32."),
    ]  # fmt: skip


NCX = (
    "<ncx><navMap><navPoint><navLabel><text>1. Warps</text></navLabel><content src='c1.xhtml#c1'/><navPoint><navLabel>"
    "<text>Lanes</text></navLabel><content src='c1.xhtml#s'/></navPoint></navPoint><navPoint><navLabel><text>2. Blocks"
    "</text></navLabel><content src='c1.xhtml#c2'/></navPoint></navMap></ncx>"
)
NAV = (
    '<nav epub:type="toc"><ol><li><a href="c1.xhtml#c1">1. Warps</a><ol><li><a href="c1.xhtml#s">Lanes</a></li></ol>'
    '</li><li><a href="c1.xhtml#c2"><span>2.</span><span>Blocks</span></a></li></ol></nav>'
    '<nav epub:type="page-list"><ol><li><a href="c1.xhtml#s">7</a></li></ol></nav>'
)


@pytest.mark.parametrize("contents", [NAV, NCX], ids=["nav", "ncx"])
def test_contents_that_lead_into_a_file_cut_it(contents: str, tmp_path: Path) -> None:
    chapter = (
        "<p id='c1'><b>1. Warps</b></p><p>A warp.</p><div><p><a name='s'></a>Lanes</p><p>A lane.</p></div>"
        "<p id='c2'>2. Blocks</p><p>A block.</p>"
    )
    name = "nav.xhtml" if contents == NAV else "toc.ncx"
    members = {"OEBPS/c1.xhtml": f"<body>{chapter}</body>", f"OEBPS/{name}": contents}
    path = epub(tmp_path / "a.epub", members, spine=("c1", "c1"))
    assert [(one.chapter, one.heading_path, one.text) for one in read_book(path).sections] == [
        (1, ("1. Warps",), "A warp."), (1, ("1. Warps", "Lanes"), "A lane."), (2, ("2. Blocks",), "A block."),
    ]  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1", "utf-8-sig"])
def test_epub_chapters_are_read_in_their_own_encoding(encoding: str, tmp_path: Path) -> None:
    chapter = f"<?xml version='1.0' encoding='{encoding}'?><html><body><p>café, one of many words</p></body></html>"
    path = epub(tmp_path / "a.epub", {"OEBPS/c1.xhtml": chapter.encode(encoding)}, spine=("c1",))
    assert read_book(path).sections[0].text == "café, one of many words"


def test_epub_path_tricks_reach_no_file_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "secret.xhtml").write_text("<p>the secret</p>")
    path = epub(tmp_path / "a.epub", {"OEBPS/c1.xhtml": "<p>Fine.</p>"}, spine=("c1", "../../secret"))
    book = read_book(path)
    assert "secret" not in str(book.sections)
    assert book.health.skipped_files


def test_zip_bombs_are_refused(tmp_path: Path) -> None:
    bomb = b"<p>" + b"a" * (31 * 1024 * 1024) + b"</p>"
    with pytest.raises(TooLarge):
        read_book(epub(tmp_path / "a.epub", {"OEBPS/c1.xhtml": bomb}, spine=("c1",)))


@pytest.mark.parametrize("keep", [4, 100, 400])
def test_truncated_epubs_are_refused(keep: int, tmp_path: Path) -> None:
    path = epub(tmp_path / "a.epub", {"OEBPS/c1.xhtml": "<p>Text.</p>"}, spine=("c1",))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UnreadableBook):
        read_book(path)


def test_a_zip_that_is_not_an_epub_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.epub", "w") as file:
        file.writestr("hello.txt", "x")
    with pytest.raises(UnreadableBook, match="not an EPUB"):
        read_book(tmp_path / "a.epub")


# --- plain text and code

# fmt: off
PLAIN = [
    ("radicals are the characters they look like", clean_text("⼀个线程束包含三⼗⼆个线程，⽹格很⻓。x² ﬁ"),
     ["一个线程束包含三十二个线程，网格很长。x² ﬁ"]),
    ("plain text undoes hard line breaks",
     "1 Warps\n\nA warp is a group of threads that march together through\nthe code.\n\n1.1 Size\n\n"
     "- one\n- two\n",
     [Heading(1, "1 Warps"), "A warp is a group of threads that march together through the code.",
      Heading(2, "1.1 Size"), "- one\n- two"]),
    ("plain text finds listings",
     "Look:\n\n    for (;;) {\n        x();\n\n    }\n\nDone.",
     ["Look:", "```\nfor (;;) {\n    x();\n\n}\n```", "Done."]),
    ("a fence in plain text holds code, whatever stands in it",
     "So:\n\n```c\na\n===\n\nb\n```\nThen.\n\n```\n \n```\n\n```\nleft open",
     ["So:", "```c\na\n===\n\nb\n```", "Then.", "```\nleft open"]),
]
# fmt: on


@pytest.mark.parametrize(("law", "text", "expected"), PLAIN, ids=[case[0] for case in PLAIN])
def test_plain_text_becomes_clean_blocks(law: str, text: str, expected: list[str | Heading]) -> None:
    assert words(parse_plain_text(text)) == expected


def test_code_is_cut_at_its_definitions(tmp_path: Path) -> None:
    source = (
        "// Copyright 2020 Somebody\n// SPDX-License-Identifier: MIT\n\n#include <cstdio>\n\n"
        "// Adds.\n__global__ void add(float *a)\n{\n    a[0] += 1;\n}\n\nint main()\n{\n    if (1) {\n    }\n}\n"
    )
    book = read_book(write(tmp_path / "k.cu", source))
    assert book.format == "code"
    assert [(s.heading_path[-1], s.text) for s in book.sections] == [
        ("k.cu", "```cuda\n#include <cstdio>\n```"),
        ("add", "```cuda\n// Adds.\n__global__ void add(float *a)\n{\n    a[0] += 1;\n}\n```"),
        ("main", "```cuda\nint main()\n{\n    if (1) {\n    }\n}\n```"),
    ]


def test_what_a_file_is_about_is_not_dropped_with_its_licence(tmp_path: Path) -> None:
    source = (
        "/* Copyright (c) 2022, Somebody.\n *\n * Redistribution is permitted.\n */\n\n"
        "/*\n * Multiplies matrices.\n */\n\n// By tiles.\n\n#include <cstdio>\n"
    )
    assert read_book(write(tmp_path / "k.cu", source)).sections[0].text == (
        "```cuda\n/*\n * Multiplies matrices.\n */\n\n// By tiles.\n\n#include <cstdio>\n```"
    )


@pytest.mark.parametrize(("name", "line"), [("a.c", "a(" * 50_000 + ";"), ("a.txt", f"```{'a' * 200_000}`")])
def test_one_long_line_is_read_in_linear_time(tmp_path: Path, name: str, line: str) -> None:
    started = time.process_time()
    assert read_book(write(tmp_path / name, line + "\n")).sections
    assert time.process_time() - started < 10


_TABLES: dict[str, Callable[[int], str]] = {
    "pipe.md": lambda rows: "|a|b|c|\n|-|-|-|\n" + f"|{'c|' * 3}\n" * rows,
    "list.md": lambda rows: "```{list-table}\n" + "* - a\n  - b\n  - c\n" * rows + "```\n",
    "comma.md": lambda rows: "```{csv-table}\n" + "a,b,c\n" * rows + "```\n",
    "tags.html": lambda rows: f"<table>{'<tr><td>a<td>b<td>c' * rows}</table>",
    "spans.html": lambda rows: f"<table>{'<tr><td rowspan=9>a<td colspan=9>b<td>c' * rows}</table>",
    "list.rst": lambda rows: ".. list-table::\n\n" + "   * - a\n     - b\n     - c\n" * rows,
    "comma.rst": lambda rows: ".. csv-table::\n\n" + "   a,b,c\n" * rows,
    "grid.rst": lambda rows: "+---+---+\n" + "| a | b |\n+---+---+\n" * rows,
    "simple.rst": lambda rows: "=== ===\n" + "a   b\n" * rows + "=== ===\n",
}


@pytest.mark.parametrize("name", _TABLES)
def test_a_table_of_twice_the_rows_takes_twice_the_steps(tmp_path: Path, name: str) -> None:
    def steps(rows: int) -> int:
        """Calls of functions while it is read: the same at every run, whatever else the machine does."""
        (tmp_path / name).write_text(_TABLES[name](rows))
        counted = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            read_book(tmp_path / name)
        finally:
            sys.setprofile(before)
        return counted

    steps(1)  # what is imported and compiled at first
    few, twice, again = steps(40), steps(80), steps(160)
    assert few < twice
    assert again - twice < 2.1 * (twice - few)
