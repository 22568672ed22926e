"""Laws of what is said from books that are not Markdown."""

from __future__ import annotations

import pytest
from fakes import ScriptedReader, make_passage
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rag.citations import resolve
from rag.generators.extractive import PLAIN_FORMATS, ExtractiveGenerator, as_markdown
from rag.generators.protocol import GenerationRequest, TextPiece
from rag.types import Citation

SENTENCE = "A __shared__ array a[i](x) of template<float> holds 2*n*m values, _unused ones and $5 too."


def ask(book_format: str, text: str) -> tuple[str, Citation]:
    """What is said of a text of a book, and its citation."""
    request = GenerationRequest("What does it hold?", "rag", (make_passage(text, format=book_format),))
    piece, _ = ExtractiveGenerator(ScriptedReader({"": 0.9}), "hash").stream(request)
    assert isinstance(piece, TextPiece) and piece.quoted is not None
    (citation,) = resolve(piece.text, request.passages, {len(piece.text): piece.quoted})
    return piece.text, citation


def rendered(markdown: str) -> str:
    """What a reader sees, and the tags around it."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)


@pytest.mark.parametrize("book_format", ["pdf", "text", "code"])
def test_plain_text_reads_the_same_through_a_markdown_client(book_format: str) -> None:
    answer, citation = ask(book_format, SENTENCE)
    shown = rendered(answer)
    assert "<strong>" not in shown and "<em>" not in shown and "<a " not in shown
    for seen in ("<code>__shared__</code>", "a[i](x)", "template&lt;float&gt;", "2*n*m", "<code>_unused</code>", "$5"):
        assert seen in shown
    assert citation.quote == SENTENCE and citation.verdict == "supported"


@pytest.mark.parametrize("book_format", ["html", "rst", "epub", "docx"])
def test_names_keep_their_underscores_where_a_reader_wrote_the_markup(book_format: str) -> None:
    answer, citation = ask(book_format, "A __shared__ array holds **many** values of `__half`.")
    assert answer == "A `__shared__` array holds **many** values of `__half`. [1]"
    assert citation.quote == "A __shared__ array holds **many** values of `__half`."


def test_a_markdown_book_keeps_its_markup() -> None:
    said = "A `__shared__` array holds __many__ *values*."
    assert ask("markdown", said)[0] == f"{said} [1]"


@example("[[]]()")
@example("\\a_")
@given(st.text(alphabet=st.sampled_from("ab _*`[]()<>#+-.1~$&;!\\"), max_size=40))
def test_every_plain_text_is_shown_as_it_is(text: str) -> None:
    text = " ".join(text.split())
    for book_format in PLAIN_FORMATS:
        said = f"So {as_markdown(text, book_format)}"
        tokens = MarkdownIt("commonmark", {"html": True}).enable("strikethrough").parse(said)
        shown = [child for token in tokens for child in token.children or ()]
        assert {child.type for child in shown} <= {"text", "text_special", "code_inline"}
        assert "".join(child.content for child in shown).replace("`", "") == f"So {text}".strip().replace("`", "")
