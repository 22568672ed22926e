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


def test_front_matter_gives_the_title_and_is_not_text() -> None:
    parsed = parse_markdown('---\ntitle: "Shared Memory"\ntags: [a, b]\n---\n\nBody.\n')
    assert parsed.title == "Shared Memory"
    assert parsed.elements == (Block("Body."),)


@pytest.mark.parametrize(
    ("front", "title"),
    [
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


def test_a_rule_between_paragraphs_is_not_front_matter() -> None:
    assert blocks("---\n\nFirst.\n\n---\n\nSecond.") == ["First.", "Second."]
    assert blocks("---\nNote: a.\n\nFirst.\n\n---\n\nSecond.") == ["Note: a.", "First.", "Second."]


def test_paragraph_lines_are_joined_and_inline_markup_is_kept() -> None:
    assert blocks("A *warp* is\n32 `threads` of a **block**.") == ["A *warp* is 32 `threads` of a **block**."]


def test_links_and_images_become_their_words() -> None:
    assert blocks("See [the guide](https://x.y/z) and ![a roofline](r.png){width=50%}.") == [
        "See the guide and a roofline."
    ]


def test_listings_keep_indentation_and_language() -> None:
    assert blocks("```cuda\nint i;\n    if (i) {\n\n    }\n```") == ["```cuda\nint i;\n    if (i) {\n\n    }\n```"]


def test_a_listing_inside_a_list_begins_at_the_margin() -> None:
    assert blocks("- first\n\n  ```c\n  a;\n    b;\n  ```\n\n- second") == [
        "- first",
        "```c\na;\n  b;\n```",
        "- second",
    ]


def test_nested_lists_keep_their_numbers() -> None:
    assert blocks("3. three\n   - inner\n4. four") == ["3. three\n  - inner\n4. four"]


def test_tables_are_kept() -> None:
    assert blocks("| a | b |\n|---|---|\n| 1 | `x` |") == ["| a | b |\n| --- | --- |\n| 1 | `x` |"]


def test_backtick_directives_are_unwrapped() -> None:
    assert blocks("```{note}\nMind the `gap`.\n```") == ["**Note**", "Mind the `gap`."]
    assert blocks("```{admonition} Beware\n:class: tip\nBody.\n```") == ["**Beware**", "Body."]
    assert blocks("```{code-block} cuda\n:linenos:\nint i;\n```") == ["```cuda\nint i;\n```"]
    assert blocks("```{math}\na = b\n```") == ["$$\na = b\n$$"]
    assert blocks("```{toctree}\na\nb\n```") == []
    assert blocks("```{figure} x.png\n:alt: y\n\nThe caption.\n```") == ["The caption."]


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


def test_colon_fences_of_myst_and_pandoc_are_unwrapped() -> None:
    assert blocks(":::{admonition} Title\n:class: x\n\nBody.\n:::") == ["**Title**", "Body."]
    assert blocks("::: callout\nMind.\n:::") == ["**Note**", "Mind."]
    assert blocks(":::::: {.columns}\n:::{.column width=50%}\nLeft.\n:::\n::::::") == ["Left."]


def test_a_label_gives_way_to_the_heading_inside() -> None:
    parsed = parse_markdown("::: challenge\n## Try it\nDo.\n:::")
    assert parsed.elements == (Heading(2, "Try it"), Block("Do."))


def test_colons_inside_a_listing_are_code() -> None:
    assert blocks("```\n::: x\n```") == ["```\n::: x\n```"]


def test_myst_roles_become_their_content() -> None:
    assert blocks("See {ref}`the text <label>` and {math}`a_b` and {doc}`memory`.") == [
        "See the text and $a_b$ and memory."
    ]


def test_names_in_myst_roles_are_code_without_their_mark() -> None:
    assert blocks("Call {py:func}`~numba.cuda.grid` or {cpp:func}`the other <f>`.") == [
        "Call `numba.cuda.grid` or `the other`."
    ]


def test_options_of_directives_between_rules_are_no_text() -> None:
    assert blocks("```{note}\n---\nclass: x\n---\nMind.\n```") == ["**Note**", "Mind."]
    assert blocks(":::{note}\n---\nclass: x\n---\nMind.\n:::") == ["**Note**", "Mind."]
    assert blocks("```{code-cell} python\n---\ncaption: Add\n---\nx = 1\n```") == ["Add", "```python\nx = 1\n```"]
    assert blocks("```{note}\n---\n\nFirst.\n\n---\n```") == ["**Note**", "First."]


def test_backslashes_inside_formulas_belong_to_latex() -> None:
    assert blocks(r"Let $\{a\}$ and \*stars\*.") == [r"Let $\{a\}$ and *stars*."]


def test_html_inside_markdown_becomes_text_and_comments_vanish() -> None:
    assert blocks("a<br>b <kbd>c</kbd><!-- no -->") == ["a\nb c"]
    assert blocks('<p align="center"><img src="x"><br><b>Caption</b></p>\n\n<!-- gone -->') == ["Caption"]


def test_heading_attributes_and_marks_are_dropped() -> None:
    assert headings("# Using `cudaMalloc` {.section}\n\n## A **bold** _one_") == [
        (1, "Using cudaMalloc"),
        (2, "A bold _one_"),
    ]


def test_boxes_and_tabs_of_mkdocs_are_text_and_not_code() -> None:
    text = (
        'Before.\n\n!!! note "Mind"\n    First.\n\n    Second.\n\n=== "CUDA"\n\n    Tab.\n\n'
        "    ```c\n    a;\n      b;\n    ```"
        "\n\n??? warning\n    Third.\n\nAfter."
    )
    assert blocks(text) == [
        "Before.", "**Mind**", "First.", "Second.", "**CUDA**", "Tab.", "```c\na;\n  b;\n```", "**Warning**", "Third.",
        "After.",
    ]  # fmt: skip


def test_marks_of_templates_are_text_only_in_listings() -> None:
    marks = "{% raw %}\n\n(a/target here)=\nText.\n{: .note }\n\n% a comment"
    text = f"{marks}\n\nAbout 30\n% of all.\n\n```\n{{% raw %}}\n```"
    assert blocks(text) == ["Text.", "About 30 % of all.", "```\n{% raw %}\n```"]


def test_formulas_in_latex_brackets_become_formulas() -> None:
    assert blocks("\\[ x = 1 \\]") == ["$$ x = 1 $$"]


def test_tables_written_as_lists_and_as_commas_are_tables() -> None:
    listed = "```{list-table} Sizes\n:header-rows: 1\n* - name\n  - size\n* - warp\n  - 32\n```"
    assert blocks(listed) == ["Sizes", "| name | size |\n| --- | --- |\n| warp | 32 |"]
    commas = '```{csv-table}\n:header: name, size\n"a, b", 1\n```'
    assert blocks(commas) == ["| name | size |\n| --- | --- |\n| a, b | 1 |"]


def test_a_pipe_inside_a_cell_stays_inside_it() -> None:
    assert blocks("| a | b |\n|---|---|\n| x \\| y | z |")[0].endswith("| x \\| y | z |")


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


def test_captions_of_listings_stand_before_them() -> None:
    assert blocks("```{code-block} c\n:caption: Add\nint a;\n```") == ["Add", "```c\nint a;\n```"]


def test_markdown_right_behind_a_tag_is_markdown() -> None:
    text = '<div class="column">\n- one\n    - two\n</div>\n<div>\n**bold**\n</div>\nAfter.'
    assert blocks(text) == ["- one\n  - two", "**bold**", "After."]
    assert blocks("<div>\n  <p>html</p>\n    <p>more</p>\n</div>") == ["html", "more"]


def test_odd_tables_and_boxes_without_end_are_read() -> None:
    assert blocks("```{list-table}\n*\n* - a\n  -\n```") == ["| a |  |\n| --- | --- |"]
    assert "x" in blocks("```{csv-table}\n" + "x" * 200_000 + "\n```")[0]
    nested = "\n".join(" " * 4 * depth + "!!! note" for depth in range(1_100)) + "\n" + " " * 4_400 + "deep"
    assert "deep" in "".join(blocks(nested))


def test_no_node_shows_a_link_or_the_source_of_an_image() -> None:
    text = '![An SM. See the [thread block](/glossary/thread-block) page](sm.svg) and [`warp`](/glossary/warp "w").'
    assert blocks(text) == ["An SM. See the thread block page and `warp`."]


def test_only_captions_stay_of_images() -> None:
    assert blocks("![logo](a.png) ![fig/roof line.png](b.png) ![](c.png) ![Two bars](d.png)") == ["Two bars"]


def test_links_that_markdown_refuses_lose_their_target_all_the_same() -> None:
    assert blocks("See [the dot product]((../03-dot-product) and k[g, b](x, y).") == [
        "See the dot product and k[g, b](x, y)."
    ]
    assert blocks("<p>\n![](img/a.png){.center}\n[the guide](/guide)\n</p>") == ["the guide"]


def test_an_open_tag_swallows_nothing_behind_its_block() -> None:
    for tag in ("script", "select", "ul", "table", "textarea", "!--"):
        assert blocks(f"<div><{tag}></div>\n\n-->\n\n# One\n\nText.")[-1] == "Text."


def test_text_between_boxes_of_html_is_markdown() -> None:
    assert blocks("<div>\n<p>\n- a\n</div>\n<div>\n- b\n  - c\n</div>")[-1] == "- b\n  - c"
    assert blocks("<center>\n\ntext\n</center>\n:::\n::::::\n\nAfter.") == ["text", "After."]


def test_a_table_in_html_with_blank_lines_is_one_table() -> None:
    assert blocks("<table>\n<tr><th>a</th><th>b</th></tr>\n\n<tr><td>1</td><td>2</td></tr>\n\n</table>") == [
        "| a | b |\n| --- | --- |\n| 1 | 2 |"
    ]


def test_definitions_and_footnotes_say_what_they_explain() -> None:
    assert blocks("warp\n: 32 threads\n") == ["warp: 32 threads"]
    assert blocks("Fast[^1].\n\n[^1]: Since Volta.\n\nThen.") == ["Fast.", "[1]: Since Volta.", "Then."]


def test_formulas_are_taken_as_typed() -> None:
    assert blocks("$$\na \\; b\n\\\\ c\n$$") == ["$$\na \\; b\n\\\\ c\n$$"]
    assert blocks("\\begin{align}\na &= b\n\\end{align}") == ["$$\n\\begin{align}\na &= b\n\\end{align}\n$$"]
    assert blocks("It costs $5 or $6.") == ["It costs $5 or $6."]
    assert blocks("So $$k$$ of them.") == ["So $$k$$ of them."]


def test_words_in_angle_brackets_are_words() -> None:
    assert blocks("A `vector` or vector<float> in <folder>.") == ["A `vector` or vector<float> in <folder>."]


def test_code_that_holds_backticks_is_still_code() -> None:
    assert blocks("Type `` `x` `` now.") == ["Type `` `x` `` now."]


def test_directives_between_colons_hold_code_and_tables_too() -> None:
    assert blocks(":::{code-block} cuda\nint i;\n\n  int j;\n:::") == ["```cuda\nint i;\n\n  int j;\n```"]
    assert blocks(":::{figure} x.png\nThe caption.\n:::") == ["The caption."]


def test_headings_keep_the_underscores_of_identifiers() -> None:
    assert headings("# The `__shared__` space\n\n## __global__ functions") == [
        (1, "The __shared__ space"),
        (2, "__global__ functions"),
    ]


def test_hostile_markdown_is_read_in_linear_time() -> None:
    started = time.process_time()
    for text in ("\\[\n" * 8_000, "<p>\n" + "<div>\n" * 4_000, "\\begin{align}\n" * 2_000):
        blocks(text)
    assert time.process_time() - started < 10


def test_attributes_of_a_code_span_are_not_read_as_code() -> None:
    assert blocks("Call `recv`{.output} with `n`{#size .input}, not `f` {x}.\n") == [
        "Call `recv` with `n`, not `f` {x}."
    ]
