"""Laws of answers made of the book's own sentences. What the reader likes is given, best first, by beginnings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fakes import ScriptedReader, make_passage
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from indexes.errors import Cancelled
from rag.citations import resolve
from rag.generators.extractive import BUDGETS, PLAIN_FORMATS, ExtractiveGenerator, as_markdown
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.query import english_query
from rag.sentence_reader import CrossEncoder, LearnedReader
from rag.types import Citation, Passage, PassagePart

BANKS = make_passage("Shared memory is divided into 32 banks. Cats sleep in the sun. Conflicts of banks serialise.")
LETTERS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau".split()


def stream(
    question: str, liked: tuple[str, ...], *passages: Passage, **fields: object
) -> Iterator[TextPiece | GenerationDone]:
    reader = ScriptedReader({sentence: 0.9 - 0.1 * place for place, sentence in enumerate(liked)})
    request = GenerationRequest(question, "rag", passages, query=english_query(question))
    return ExtractiveGenerator(reader, "hash").stream(replace(request, **fields))  # type: ignore[arg-type]


def said(question: str, liked: tuple[str, ...], *passages: Passage, **fields: object) -> str:
    return "".join(piece.text for piece in stream(question, liked, *passages, **fields) if isinstance(piece, TextPiece))


def said_of(text: str, *liked: str, question: str = "Why does it wait?", **fields: object) -> str:
    """What is said of one passage, without its markers."""
    answer = said(question, liked, make_passage(text), **fields)
    assert "[1]" in answer
    return re.sub(r"\s+\[1\]", "", answer)


def test_the_best_sentence_comes_first_and_each_is_the_books_own_and_marked() -> None:
    other = make_passage("Nothing here. A warp  has\n32 threads.", node_id="book-1")
    answer = said("How many banks?", ("A warp", "Shared memory", "Conflicts"), BANKS, other)
    assert (
        answer
        == "A warp has 32 threads. [2] Shared memory is divided into 32 banks. [1] Conflicts of banks serialise. [1]"
    )


def test_a_sentence_far_worse_than_the_best_is_left_out_unless_it_is_the_best() -> None:
    reader = ScriptedReader({"Shared": 0.9, "Cats": 0.1})
    request = GenerationRequest("Why?", "rag", (BANKS,))
    units = ExtractiveGenerator(reader, "hash").choose(english_query("Why?"), request.passages)
    assert [unit.text for unit in units] == ["Shared memory is divided into 32 banks."]
    assert said("Why?", ("Cats",), BANKS) == "Cats sleep in the sun. [1]"


@pytest.mark.integration
def test_the_reader_that_ships_says_first_what_answers() -> None:
    text = (
        "With a stride of two floats the warp touches eight sectors. All threads of a warp run one instruction. "
        "The next chapter shows how to use the profiler. If threads of a warp diverge, both paths run one by one."
    )
    request = GenerationRequest("What happens where the threads of a warp diverge?", "rag", (make_passage(text),))
    first, *_ = ExtractiveGenerator(LearnedReader(CrossEncoder(device="cpu").score), "MiniLM").stream(request)
    assert isinstance(first, TextPiece) and first.text.startswith("If threads of a warp diverge, both paths run")


# --- what is said of a passage

WHY, LIST = "Why does it wait?", "List what limits warps"
LIMITS = "Four things count:\n- Registers limit warps.\n- Blocks.\n- Shared memory.\n- Barriers of a block."
TYPICAL = "- Typical bottlenecks\n  - Too many transfers\n  - Too little work\n  - Slow access"
TABLE = "| memory | cycles |\n|---|---|\n| register | 1 |\n| global | 400 |"
LONG_LIST = "\n".join(f"- Limit {name} is one of the many limits that there are." for name in LETTERS)
BOUND = "The bound is this, with bandwidth $B$:\n\n$$\nP = I B\n$$"
BY_HAND = "To avoid transfers, copy by hand:\n\n```python\nto_device(a)\n```"
BOTH = "From both follows\n\n$$\ns = a / b\n$$"
BUFFERED = "- Small messages are buffered\n  - by MPI\n  - in memory"
REMARKS = {
    "a sentence brings what 'this' is": (WHY, "Hits one bank. This serialises them.", "This",
                                         "Hits one bank. This serialises them."),
    "and nothing that it does not need": (WHY, "Hits one bank. Sharing serialises.", "Sharing", "Sharing serialises."),
    "no listing before 'however'": (WHY, "```c\nwait();\n```\n\nHowever, it waits.", "However", "However, it waits."),
    "a sentence brings its formula": (WHY, f"{BOUND}\n\nCats sleep.", "The bound", BOUND),
    "a formula brings its sentence": (WHY, f"Cats sleep.\n\n{BOTH}\n\nDogs bark.", "$$", BOTH),
    "a sentence brings its listing": (WHY, f"{BY_HAND}\n\nCats sleep.", "To avoid", BY_HAND),
    "an item brings the list below it": (WHY, f"- Cats sleep.\n{BUFFERED}\n- Dogs bark.", "Small", BUFFERED),
    "what 'this' is cannot come along": (WHY, "# Banks\n\nThis makes it wait.\n\nA warp waits.", "This;A warp",
                                         "A warp waits."),
    "what follows cannot come along": (WHY, "Copy as follows:\n\nA warp waits.", "Copy;A warp", "A warp waits."),
    "what stands together is said together": (WHY, "Cats sleep. Nobody knows. Dogs bark. Fish swim. Nobody cares.",
                                              "Dogs;Cats;Fish", "Dogs bark. Fish swim. Cats sleep."),
    "where there is no code, sentences answer": ("Show me the code", "Call add for it. Cats sleep.", "Call",
                                                 "Call add for it."),
    "a table stays whole": (WHY, f"Cats sleep.\n\n{TABLE}\n\nDogs bark.", "| memory", TABLE),
    "a list that is asked for comes whole": (LIST, f"{LIMITS}\n\nDogs bark.".replace(":\n", ":\n\n"), "Shared", LIMITS),
    "the innermost list, by its head": (LIST, f"- Profile first\n{TYPICAL}\n- Do not guess", "Typical", TYPICAL),
    "the innermost list, by an item": (LIST, f"- Profile first\n{TYPICAL}\n- Do not guess", "Too little", TYPICAL),
    "a list too long is not said whole": (LIST, f"Limits:\n\n{LONG_LIST}", "Limit beta",
                                          "- Limit beta is one of the many limits that there are."),
    "a sentence after a list is not in it": (WHY, "- Registers limit.\n- Blocks limit.\n\nCats sleep.\n\nSo.",
                                             "Reg;Blocks;Cats",
                                             "- Registers limit.\n- Blocks limit.\n\nCats sleep."),
    "a link is its text": (WHY, 'A [block](/glossary/(block).md) runs on one `a[i](x)`, see ![a core](c.png "Core").',
                           "A [block", "A block runs on one `a[i](x)`, see a core."),
}  # fmt: skip


@pytest.mark.parametrize(("question", "text", "liked", "answer"), REMARKS.values(), ids=REMARKS)
def test_what_is_said_of_a_passage(question: str, text: str, liked: str, answer: str) -> None:
    assert said_of(text, *liked.split(";"), question=question) == answer


# --- kinds of questions


def test_a_definition_comes_before_what_the_reader_likes_better_and_the_fuller_one_first() -> None:
    text = "The warp waits at a stride. Warps are a means. A warp is a group of threads that run together."
    fuller, liked, *_ = re.split(r"(?<=\.) ", said_of(text, "The warp", "Warps", "A warp", question="What is a warp?"))
    assert (fuller, liked) == ("A warp is a group of threads that run together.", "The warp waits at a stride.")
    assert said_of(text, "The warp", "Warps", "A warp", question="Is a warp slow?").startswith("The warp waits")


def test_who_quotes_the_name_of_a_section_is_told_how_it_begins() -> None:
    text = "# Warps\n\nCats sleep.\n\n# How warps wait\n\nA warp stalls. Then it waits."
    passage = make_passage(text)
    parts = tuple(
        PassagePart(start, end, "n", (name,))
        for start, end, name in ((0, text.index("# How"), "Warps"), (text.index("# How"), len(text), "How warps wait"))
    )
    passage = replace(passage, parts=parts)
    assert said("Explain “How warps wait”", ("Cats",), passage).startswith("A warp stalls. [1]")
    assert said("Explain how warps wait", ("Cats",), passage).startswith("Cats sleep. [1]")


@pytest.mark.parametrize("question", ["How many threads?", "What is a warp?", "Why does it wait?", "Is it slow?"])
def test_the_kind_of_question_bounds_the_answer(question: str) -> None:
    text = " ".join(f"Warp {name} holds threads of kind {name} and waits for {name}." for name in LETTERS)
    answer = said_of(text, "Warp", question=question)
    budget = BUDGETS[english_query(question).kind]
    assert answer.count(".") <= budget.groups and 10 < len(answer.split()) <= budget.words
    assert len(said_of(text, "Warp", question=question, max_tokens=16).split()) <= 12


ADD = "```cuda\n__global__ void add(float *a) {\n    a[0] += 1;\n}\n```"


def test_a_listing_stays_whole_where_code_is_asked_for_and_comes_with_what_announces_it() -> None:
    passage = make_passage(f"Vectors are added by this kernel:\n\n{ADD}\n\nDone.\n\n```c\nint other;\n```")
    answer = said("Show the code of vector addition", ("Vectors", "```cuda"), BANKS, passage)
    assert answer == f"Vectors are added by this kernel: [2]\n\n{ADD}\n\n[2]"
    assert "```" not in said("Why are vectors added?", ("Done",), BANKS, passage)


# --- nothing twice


@pytest.mark.parametrize(
    "text",
    [
        "A warp holds 32 threads.\n\nA warp holds 32 threads.\n\nBlocks hold warps.",
        "The rules are these:\n\n- A warp holds 32 threads.\n- Blocks.\n\nCats.\n\n- A warp holds 32 threads.",
        f"A warp holds 32 threads and is added so:\n\n{ADD}\n\n{ADD}",
    ],
)
def test_nothing_is_said_twice(text: str) -> None:
    answer = said_of(text, "The rules", "A warp", "```", "Blocks", question="Show the code of a warp")
    assert answer.count("A warp holds 32 threads") == 1 >= answer.count("__global__")


def test_who_asks_for_more_is_not_told_what_was_said_while_there_is_more() -> None:
    liked = ("Shared", "Cats")
    earlier = said("Why?", liked[:1], BANKS)
    assert said("Why?", liked, BANKS, said=earlier) == "Cats sleep in the sun. [1]"
    assert said("Why?", liked[:1], BANKS, said=earlier) == earlier


# --- form


def test_a_stop_string_ends_the_answer() -> None:
    *pieces, done = stream("How many banks?", ("Shared",), BANKS, stop=("into", "32"))
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == "Shared memory is divided "
    assert isinstance(done, GenerationDone) and not done.refused


# --- what cannot be answered


def test_no_passages_means_refused() -> None:
    (done,) = stream("What is a warp?", ("A warp",))
    assert isinstance(done, GenerationDone) and done.refused


def test_a_cancelled_answer_stops() -> None:
    with pytest.raises(Cancelled):
        said("How many banks?", ("Shared",), BANKS, cancelled=lambda: True)


# --- books that are not Markdown


SENTENCE = "A __shared__ array a[i](x) of template<float> holds 2*n*m values, _unused ones and $5 too."


def ask_of(book_format: str, text: str) -> tuple[str, Citation]:
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
    answer, citation = ask_of(book_format, SENTENCE)
    shown = rendered(answer)
    assert "<strong>" not in shown and "<em>" not in shown and "<a " not in shown
    for seen in ("<code>__shared__</code>", "a[i](x)", "template&lt;float&gt;", "2*n*m", "<code>_unused</code>", "$5"):
        assert seen in shown
    assert citation.quote == SENTENCE and citation.verdict == "supported"


@pytest.mark.parametrize("book_format", ["html", "rst", "epub", "docx"])
def test_names_keep_their_underscores_where_a_reader_wrote_the_markup(book_format: str) -> None:
    answer, citation = ask_of(book_format, "A __shared__ array holds **many** values b_(n+1) of `__half`.")
    assert answer == "A `__shared__` array holds **many** values b_(n+1) of `__half`. [1]"
    assert citation.quote == "A __shared__ array holds **many** values b_(n+1) of `__half`."


def test_a_markdown_book_keeps_its_markup() -> None:
    said = "A `__shared__` array holds __many__ *values*."
    assert ask_of("markdown", said)[0] == f"{said} [1]"


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
