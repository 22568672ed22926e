"""Answers and passages become HTML that cannot run, with markers, formulas and listings in their places."""

from __future__ import annotations

import re

import pytest
from fakes import make_passage
from hypothesis import given
from hypothesis import strategies as st

from api.pages.markup import Markers, answer_html, passage_html
from rag.citations import resolve

HARMLESS = re.compile(
    r"<(/?)(p|h[1-6]|em|strong|code|pre|ul|ol|li|a|button|span|div|blockquote|hr|br|table|thead|tbody|tr|th|td|s|mark)"
    r"( (class|type|data-cite|data-passage|aria-label|href|title|target|rel|tabindex|start|style)=\"[^\"<>]*\")*( /)?>"
)


def html(text: str, passages: int = 3) -> str:
    return answer_html(text, Markers((), passages))


@given(st.text(alphabet=st.sampled_from("<>&\"'`$[]()1!*_\\\n aimgscriptonerror=/:x")))
def test_no_text_makes_an_element_of_its_own(text: str) -> None:
    for made in (html(text), passage_html(text, 1, max(1, len(text) - 1))):
        assert "<" not in HARMLESS.sub("", made)
        assert 'href="javascript' not in made.lower()


@given(st.text(alphabet=st.sampled_from("ab`$*#\n <&"), max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_a_passage_keeps_its_letters_whatever_is_marked(text: str, start: int, end: int) -> None:
    shown = re.sub(r"<[^>]*>", "", passage_html(text, start, end))
    plain = re.sub(r"[`$*#\s]", "", text).replace("&", "&amp;").replace("<", "&lt;")
    assert re.sub(r"[`$*#\s]", "", shown) == plain


@pytest.mark.parametrize("name", ["__shared__", "__global__", "__launch_bounds__"])
def test_a_name_keeps_its_underscores(name: str) -> None:
    assert f"Use <code>{name}</code> memory" in html(f"Use {name} memory. [1]")
    assert f"Use {name} memory" in passage_html(f"Use {name} memory.")
    assert "<strong>note</strong>" in html("A **note**.")


def test_a_passage_of_a_book_without_markup_shows_its_signs() -> None:
    text = "# 2 *a* and $x$ with `code`"
    assert passage_html(text, plain=True) == '<div class="prose"># 2 *a* and $x$ with <code>code</code></div>'
    assert "<em>a</em>" in passage_html("An *a*.")


@pytest.mark.parametrize("text", ["a[1] = b;", "`x [1]`", "[4] and [0]", "[1](https://example.org)", "\\[1\\]"])
def test_brackets_that_are_not_markers_stay(text: str) -> None:
    assert "cite" not in html(text)


def test_money_is_not_a_formula_and_formulas_are_not_markdown() -> None:
    assert "formula" not in html("It costs $5 and then $6.")
    assert '<span class="formula">a_i * b_i</span>' in html("The sum of $a_i * b_i$ is taken.")
    assert '<span class="formula display">x &lt; y</span>' in html("$$\nx < y\n$$")
    assert '<span class="formula display">x</span>' in html("\\[x\\]")
    assert '<span class="formula display">a\n- b</span>' in html("So\n\\[\na\n- b\n\\]")
    within = html("With \\(n\\), $$m$$ and \\[k\\].")
    assert 'With <span class="formula">n</span>, <span class="formula display">m</span> and' in within
    assert '<span class="formula display">k</span>.' in within
    assert '<span class="formula display">\\begin{align}' in html("\\begin{align} a &= b \\end{align}")


def test_pictures_are_not_loaded_and_links_leave_nothing_behind() -> None:
    made = html("![pixel](http://example.org/p.png) [site](https://example.org) [file](chapter.md)")
    assert "<img" not in made
    assert 'rel="noopener noreferrer"' in made
    assert "[file](chapter.md)" in made


def test_a_listing_that_is_not_finished_yet_is_a_listing() -> None:
    assert "<pre" in html("Look:\n```cuda\n__global__ void f(")


def test_a_listing_that_began_before_the_passage_is_code_to_its_end() -> None:
    cut = "    sum += a[i];\n}\n```\n\nThe `sum` is $n$ long."
    html = passage_html(cut, cut.index("The"), cut.index(" is"))
    assert html.startswith('<pre tabindex="0"><code>    sum += a[i];\n}\n</code></pre>')
    assert "<mark>The </mark><mark><code>sum</code></mark>" in html
    again = passage_html(cut + "\n\n```cpp\nint x;\n```\n")
    assert again.count("<pre") == 2
    assert passage_html("Prose.\n\n```\ncode;\n```\n").startswith('<div class="prose">Prose.')
    assert passage_html("Prose;\n\n```\ncode;\n").count("<pre") == 1


def test_a_marker_opens_its_citation_and_equal_ones_in_a_row_become_one_numbered_as_they_come() -> None:
    passages = (make_passage("One. Two. Three."), make_passage("Four. Five."))
    text = "Four. [2] One. [1] Two. [1]\n\nThree. [1] Five. [2]"
    made = answer_html(text, Markers(resolve(text, passages), 2))
    assert re.findall(r'data-cite="([\d,-]+)" data-passage="(\d)"[^>]*>(\d)<', made) == [
        ("0", "2", "1"), ("1,2", "1", "2"), ("3", "1", "2"), ("4", "2", "1")
    ]  # fmt: skip
    marked = passage_html("One. Two. Three.", also=((0, 4), (10, 16)))
    assert re.findall("<mark>(.*?)</mark>", marked) == ["One.", "Three."]
