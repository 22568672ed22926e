"""Markdown becomes headings and clean blocks, whatever dialect it is written in."""

import time
from pathlib import Path

import pytest

from indexes.readers import read_book
from indexes.readers.elements import Block, Heading
from indexes.readers.markdown import parse_markdown, read_markdown


def blocks(text: str) -> list[str]:
    return [element.text for element in parse_markdown(text).elements if isinstance(element, Block)]


def headings(text: str) -> list[tuple[int, str]]:
    return [(e.level, e.title) for e in parse_markdown(text).elements if isinstance(e, Heading)]


# fmt: off
CASES = [
    ("alerts are named by their title or kind",
     "> [!NOTE]\n> A warp.\n\n> [!tip]- Mine\n>\n> - a\n\n> plain [!x]",
     ["**Note**", "A warp.", "**Mine**", "- a", "plain [!x]"]),
    ("a rule between paragraphs is not front matter", "---\n\nFirst.\n\n---\n\nSecond.", ["First.", "Second."]),
    ("a rule between paragraphs is not front matter",
     "---\nNote: a.\n\nFirst.\n\n---\n\nSecond.", ["Note: a.", "First.", "Second."]),
    ("paragraph lines are joined and inline markup is kept",
     "A *warp* is\n32 `threads` of a **block**.", ["A *warp* is 32 `threads` of a **block**."]),
    ("links and images become their words",
     "See [the guide](https://x.y/z) and ![a roofline](r.png){width=50%}.", ["See the guide and a roofline."]),
    ("listings keep indentation and language",
     "```cuda\nint i;\n    if (i) {\n\n    }\n```", ["```cuda\nint i;\n    if (i) {\n\n    }\n```"]),
    ("a listing inside a list begins at the margin",
     "- first\n\n  ```c\n  a;\n    b;\n  ```\n\n- second", ["- first", "```c\na;\n  b;\n```", "- second"]),
    ("nested lists keep their numbers", "3. three\n   - inner\n4. four", ["3. three\n  - inner\n4. four"]),
    ("tables are kept", "| a | b |\n|---|---|\n| 1 | `x` |", ["| a | b |\n| --- | --- |\n| 1 | `x` |"]),
    ("a pipe inside a cell stays inside it",
     "| a | b |\n|---|---|\n| x \\| y | z |", ["| a | b |\n| --- | --- |\n| x \\| y | z |"]),
    ("backtick directives are unwrapped", "```{note}\nMind the `gap`.\n```", ["**Note**", "Mind the `gap`."]),
    ("backtick directives are unwrapped", "```{admonition} Beware\n:class: tip\nBody.\n```", ["**Beware**", "Body."]),
    ("backtick directives are unwrapped", "```{code-block} cuda\n:linenos:\nint i;\n```", ["```cuda\nint i;\n```"]),
    ("backtick directives are unwrapped", "```{math}\na = b\n```", ["$$\na = b\n$$"]),
    ("backtick directives are unwrapped", "```{toctree}\na\nb\n```", []),
    ("backtick directives are unwrapped", "```{figure} x.png\n:alt: y\n\nThe caption.\n```", ["The caption."]),
    ("colon fences of myst and pandoc are unwrapped",
     ":::{admonition} Title\n:class: x\n\nBody.\n:::", ["**Title**", "Body."]),
    ("colon fences of myst and pandoc are unwrapped", "::: callout\nMind.\n:::", ["**Note**", "Mind."]),
    ("colon fences of myst and pandoc are unwrapped",
     ":::::: {.columns}\n:::{.column width=50%}\nLeft.\n:::\n::::::", ["Left."]),
    ("colons inside a listing are code", "```\n::: x\n```", ["```\n::: x\n```"]),
    ("myst roles become their content",
     "See {ref}`the text <label>` and {math}`a_b` and {doc}`memory`.", ["See the text and $a_b$ and memory."]),
    ("names in myst roles are code without their mark",
     "Call {py:func}`~numba.cuda.grid` or {cpp:func}`the other <f>`.", ["Call `numba.cuda.grid` or `the other`."]),
    ("options of directives between rules are no text",
     "```{note}\n---\nclass: x\n---\nMind.\n```", ["**Note**", "Mind."]),
    ("options of directives between rules are no text",
     ":::{note}\n---\nclass: x\n---\nMind.\n:::", ["**Note**", "Mind."]),
    ("options of directives between rules are no text",
     "```{code-cell} python\n---\ncaption: Add\n---\nx = 1\n```", ["Add", "```python\nx = 1\n```"]),
    ("options of directives between rules are no text", "```{note}\n---\n\nFirst.\n\n---\n```", ["**Note**", "First."]),
    ("backslashes inside formulas belong to latex", r"Let $\{a\}$ and \*stars\*.", [r"Let $\{a\}$ and *stars*."]),
    ("html inside markdown becomes text and comments vanish", "a<br>b <kbd>c</kbd><!-- no -->", ["a\nb c"]),
    ("html inside markdown becomes text and comments vanish",
     '<p align="center"><img src="x"><br><b>Caption</b></p>\n\n<!-- gone -->', ["Caption"]),
    ("boxes and tabs of mkdocs are text and not code",
     'Before.\n\n!!! note "Mind"\n    First.\n\n    Second.\n\n=== "CUDA"\n\n    Tab.\n\n'
     "    ```c\n    a;\n      b;\n    ```\n\n??? warning\n    Third.\n\nAfter.",
     ["Before.", "**Mind**", "First.", "Second.", "**CUDA**", "Tab.", "```c\na;\n  b;\n```", "**Warning**", "Third.",
      "After."]),
    ("formulas in latex brackets become formulas", "\\[ x = 1 \\]", ["$$ x = 1 $$"]),
    ("tables written as lists and as commas are tables",
     "```{list-table} Sizes\n:header-rows: 1\n* - name\n  - size\n* - warp\n  - 32\n```",
     ["Sizes", "| name | size |\n| --- | --- |\n| warp | 32 |"]),
    ("tables written as lists and as commas are tables",
     '```{csv-table}\n:header: name, size\n"a, b", 1\n```', ["| name | size |\n| --- | --- |\n| a, b | 1 |"]),
    ("captions of listings stand before them",
     "```{code-block} c\n:caption: Add\nint a;\n```", ["Add", "```c\nint a;\n```"]),
    ("markdown right behind a tag is markdown",
     '<div class="column">\n- one\n    - two\n</div>\n<div>\n**bold**\n</div>\nAfter.',
     ["- one\n  - two", "**bold**", "After."]),
    ("markdown right behind a tag is markdown", "<div>\n  <p>html</p>\n    <p>more</p>\n</div>", ["html", "more"]),
    ("no node shows a link or the source of an image",
     '![An SM. See the [thread block](/glossary/thread-block) page](sm.svg) and [`warp`](/glossary/warp "w").',
     ["An SM. See the thread block page and `warp`."]),
    ("only captions stay of images",
     "![logo](a.png) ![](c.png) ![Two bars](d.png)", ["Two bars"]),
    ("links that markdown refuses lose their target all the same",
     "See [the dot product]((../03-dot-product) and k[g, b](x, y).", ["See the dot product and k[g, b](x, y)."]),
    ("links that markdown refuses lose their target all the same",
     "A [timer](\\ref af::timer) of [Overview](@id Over view), x[0](@ y) and f[i](a b).",
     ["A timer of Overview, x[0](@ y) and f[i](a b)."]),
    ("links that markdown refuses lose their target all the same",
     "<p>\n![](img/a.png){.center}\n[the guide](/guide)\n</p>", ["the guide"]),
    ("definitions and footnotes say what they explain", "warp\n: 32 threads\n", ["warp: 32 threads"]),
    ("definitions and footnotes say what they explain",
     "Fast[^1].\n\n[^1]: Since Volta.\n\nThen.", ["Fast.", "[1]: Since Volta.", "Then."]),
    ("formulas are taken as typed", "$$\na \\; b\n\\\\ c\n$$", ["$$\na \\; b\n\\\\ c\n$$"]),
    ("formulas are taken as typed",
     "\\begin{align}\na &= b\n\\end{align}", ["$$\n\\begin{align}\na &= b\n\\end{align}\n$$"]),
    ("formulas are taken as typed", "It costs $5 or $6.", ["It costs $5 or $6."]),
    ("formulas are taken as typed", "So $$k$$ of them.", ["So $$k$$ of them."]),
    ("words in angle brackets are words",
     "A `vector` or vector<float> in <folder>.", ["A `vector` or vector<float> in <folder>."]),
    ("code that holds backticks is still code", "Type `` `x` `` now.", ["Type `` `x` `` now."]),
    ("directives between colons hold code and tables too",
     ":::{code-block} cuda\nint i;\n\n  int j;\n:::", ["```cuda\nint i;\n\n  int j;\n```"]),
    ("directives between colons hold code and tables too", ":::{figure} x.png\nThe caption.\n:::", ["The caption."]),
    ("attributes of a code span are not read as code",
     "Call `recv`{.output} with `n`{#size .input}, not `f` {x}.\n", ["Call `recv` with `n`, not `f` {x}."]),
]
# fmt: on


@pytest.mark.parametrize(("law", "text", "expected"), CASES, ids=[case[0] for case in CASES])
def test_markdown_becomes_clean_blocks(law: str, text: str, expected: list[str]) -> None:
    assert blocks(text) == expected


@pytest.mark.parametrize(
    ("front", "title"),
    [
        ('---\ntitle: "Shared Memory"\ntags: [a, b]\n---', "Shared Memory"),
        ("---\ntitle: >-\n  Shared\n  Memory\nlang: en\n---", "Shared Memory"),
        ("---\ntitle: What is 'occupancy'\n---", "What is 'occupancy'"),
        ("---\ntitle: 'It''s a warp'\n---", "It's a warp"),
        ("---\ntitle: Warps # and lanes\n---", "Warps"),
        ('+++\ntitle = "Warps"\ndate = 2024-01-01\n+++', "Warps"),
        ("---\ntitle: \nlang: en\n---", None),
        ("---\ntitle: # to be written\n---", None),
    ],
)
def test_titles_of_front_matter_are_read_as_yaml_and_toml_write_them(front: str, title: str | None) -> None:
    parsed = parse_markdown(f"{front}\n\nBody.\n")
    assert (parsed.title, parsed.elements) == (title, (Block("Body."),))


def test_front_matter_behind_a_licence_comment_is_still_front_matter() -> None:
    parsed = parse_markdown("<!--\nSPDX: CC-BY-4.0\n-->\n\n---\ntitle: Interop\n---\n# One\ntext")
    assert parsed.title == "Interop"
    assert parsed.elements == (Heading(1, "One"), Block("text"))


def test_restructuredtext_inside_markdown_is_read_in_its_place(tmp_path: Path) -> None:
    rst = ".. note::\n\n   Warps run in *lockstep*; see :func:`cudaMalloc`.\n\n.. code-block:: cuda\n\n   int i = 0;\n"
    for fence in ("```", ":::"):
        said = blocks(f"# Warps\n\nBefore.\n\n{fence}{{eval-rst}}\n{rst}{fence}\n\nAfter.")
        assert (said[0], said[-1]) == ("Before.", "After.")
        assert "Warps run in *lockstep*; see `cudaMalloc`." in said
        assert "```cuda\nint i = 0;\n```" in said
    (tmp_path / "kernel.cu").write_text("__global__ void scan();\n")
    (tmp_path / "a.md").write_text(
        "# A\n\n```{eval-rst}\n.. literalinclude:: kernel.cu\n.. literalinclude:: gone.cu\n```\n"
    )
    book = read_book(tmp_path / "a.md")
    assert "void scan();" in book.sections[0].text
    assert book.health.skipped_files == ("gone.cu",)
    assert blocks("```{eval-rst}\n.. literalinclude:: pyproject.toml\n```") == [], "no path, no files"


def test_headings_lose_attributes_and_marks_and_keep_the_underscores_of_identifiers() -> None:
    assert headings("# Using `cudaMalloc` {.section}\n\n## A **bold** _one_\n\n# `__shared__`\n\n## __global__") == [
        (1, "Using cudaMalloc"), (2, "A bold _one_"), (1, "__shared__"), (2, "__global__"),
    ]  # fmt: skip


def test_a_label_gives_way_to_the_heading_inside() -> None:
    parsed = parse_markdown("::: challenge\n## Try it\nDo.\n:::")
    assert parsed.elements == (Heading(2, "Try it"), Block("Do."))


def test_marks_of_templates_are_text_only_in_listings() -> None:
    marks = "{% raw %}\n\n(a/target here)=\nText.\n{: .note }\n\n% a comment"
    text = f"{marks}\n\nAbout 30\n% of all.\n\n```\n{{% raw %}}\n```"
    assert blocks(text) == ["Text.", "About 30 % of all.", "```\n{% raw %}\n```"]


def test_included_listings_of_myst_are_read_inside_the_book_only(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    (tmp_path / "secret.cu").write_text("int secret;\n")
    (tmp_path / "book" / "a.cu").write_text("int x;\nint y;\nint z;\n")
    text = "```{literalinclude} a.cu\n:lines: 2-\n:caption: Two\n```\n\n```{literalinclude} ../secret.cu\n```\n"
    (tmp_path / "book" / "a.md").write_text(text)
    parsed = read_markdown(tmp_path / "book" / "a.md", tmp_path / "book")
    assert [element.text for element in parsed.elements if isinstance(element, Block)] == [
        "Two", "```cu\nint y;\nint z;\n```",
    ]  # fmt: skip
    assert parsed.health.skipped_files == ("../secret.cu",)


@pytest.mark.parametrize("ending", ["qmd", "Rmd"])
def test_cells_of_quarto_and_r_markdown_are_listings_without_their_options(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    cell = "```{r}\n#| echo: false\n#| fig-alt: |\n#|   Two bars.\nx <- 1\n# 2\n\ny\n```"
    path.write_text(f"# A\n\n{cell}\n\n```{{r a, echo=FALSE}}\nz\n```\n\n```{{python}}\n#| eval: false\n```\n\nDone.")
    with path.open("a") as more:
        more.write("\n\n```{mermaid}\ngraph TD\n```\n\n```{=html}\n<br>\n```\n")
    assert read_book(path).sections[0].text == "```r\nx <- 1\n# 2\n\ny\n```\n\n```r\nz\n```\n\nDone."


def test_items_in_a_cell_are_words_apart() -> None:
    assert blocks("| a |\n| --- |\n| <ul><li>x</li><li>**y**</li></ul> |") == ["| a |\n| --- |\n| x **y** |"]


def test_odd_tables_and_boxes_without_end_are_read() -> None:
    assert blocks("```{list-table}\n*\n* - a\n  -\n```") == ["| a |  |\n| --- | --- |"]
    assert "x" in blocks("```{csv-table}\n" + "x" * 200_000 + "\n```")[0]
    nested = "\n".join(" " * 4 * depth + "!!! note" for depth in range(1_100)) + "\n" + " " * 4_400 + "deep"
    assert "deep" in "".join(blocks(nested))


def test_an_open_tag_swallows_nothing_behind_its_block() -> None:
    for tag in ("script", "select", "ul", "table", "textarea", "!--"):
        assert blocks(f"<div><{tag}></div>\n\n-->\n\n# One\n\nText.")[-1] == "Text."


def test_text_between_boxes_of_html_is_markdown() -> None:
    assert blocks("<div>\n<p>\n- a\n</div>\n<div>\n- b\n  - c\n</div>")[-1] == "- b\n  - c"
    assert blocks("<center>\n\ntext\n</center>\n:::\n::::::\n\nAfter.") == ["text", "After."]


def test_hostile_markdown_is_read_in_linear_time() -> None:
    started = time.process_time()
    brackets = ("![" * 30_000, "`a" * 30_000, "*a " * 30_000)
    for text in ("\\[\n" * 8_000, "<p>\n" + "<div>\n" * 4_000, "\\begin{align}\n" * 2_000, *brackets):
        blocks(text)
    assert time.process_time() - started < 10
