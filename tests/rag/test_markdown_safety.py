"""Laws of what is said from books that are not Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import FakeLibrary, make_node, signals_only
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.evidence import EvidenceJudge
from rag.generators.extractive import PLAIN_FORMATS, ExtractiveGenerator, as_markdown
from rag.retrieval import HybridRetriever
from rag.sentence_reader import LearnedReader
from rag.settings import RetrievalSettings
from rag.types import Answer, Question

SENTENCE = "A __shared__ array a[i](x) of template<float> holds 2*n*m values, _unused ones and $5 too."


def ask(home: Path, book_format: str, text: str) -> Answer:
    library = FakeLibrary([make_node(text)], book_format=book_format)
    generator = ExtractiveGenerator(LearnedReader(signals_only), "hash")
    engine = AnswerEngine(
        library,
        HybridRetriever(library, RetrievalSettings()),
        generator,
        ConversationStore(home / "conversations.sqlite3"),
        chooser=generator,  # type: ignore[arg-type]  # no choice question is asked
        judge=EvidenceJudge(LearnedReader(signals_only), 0.0),
    )
    return engine.ask(Question("What does a __shared__ array hold?"))


def rendered(markdown: str) -> str:
    """What a reader sees, and the tags around it."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)


@pytest.mark.parametrize("book_format", ["pdf", "text", "code"])
def test_plain_text_reads_the_same_through_a_markdown_client(tmp_path: Path, book_format: str) -> None:
    answer = ask(tmp_path, book_format, SENTENCE)
    shown = rendered(answer.answer)
    assert "<strong>" not in shown and "<em>" not in shown and "<a " not in shown
    for seen in ("<code>__shared__</code>", "a[i](x)", "template&lt;float&gt;", "2*n*m", "<code>_unused</code>", "$5"):
        assert seen in shown
    (citation,) = answer.citations
    assert citation.quote == SENTENCE and citation.verdict == "supported"


@pytest.mark.parametrize("book_format", ["html", "rst", "epub", "docx"])
def test_names_keep_their_underscores_where_a_reader_wrote_the_markup(tmp_path: Path, book_format: str) -> None:
    answer = ask(tmp_path, book_format, "A __shared__ array holds **many** values of `__half`.")
    assert answer.answer == "A `__shared__` array holds **many** values of `__half`. [1]"
    assert answer.citations[0].quote == "A __shared__ array holds **many** values of `__half`."


def test_a_markdown_book_keeps_its_markup(tmp_path: Path) -> None:
    answer = ask(tmp_path, "markdown", "A `__shared__` array holds __many__ *values*.")
    assert answer.answer == "A `__shared__` array holds __many__ *values*. [1]"


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
