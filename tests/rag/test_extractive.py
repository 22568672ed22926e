"""Laws of answers made of the book's own sentences. What the reader likes is given, best first, by beginnings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fakes import ScriptedReader, make_passage

from indexes.errors import Cancelled
from rag.generators.extractive import BUDGETS, ExtractiveGenerator
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.query import english_query
from rag.sentence_reader import CrossEncoder, LearnedReader
from rag.types import Passage

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
    assert answer == "A warp has 32 threads. [2] Shared memory is divided into 32 banks. [1]"


def test_a_sentence_far_worse_than_the_best_is_left_out_unless_it_is_the_best() -> None:
    reader = ScriptedReader({"Shared": 0.9, "Cats": 0.1})
    request = GenerationRequest("Why?", "rag", (BANKS,))
    units = ExtractiveGenerator(reader, "hash").choose(english_query("Why?"), request.passages)
    assert [unit.text for unit in units] == ["Shared memory is divided into 32 banks."]
    assert said("Why?", ("Cats",), BANKS) == "Cats sleep in the sun. [1]"


def test_each_piece_names_the_stretch_that_it_quotes() -> None:
    passage = make_passage("A warp holds 32 threads.\n\n- All run  in lockstep.\n- They share *one* scheduler.")
    *pieces, done = stream("How?", ("A warp", "All run"), passage)
    assert len(pieces) > 1 and isinstance(done, GenerationDone) and not done.refused
    for piece in pieces:
        assert isinstance(piece, TextPiece) and piece.quoted is not None and piece.text.endswith("[1]")
        quote = passage.text[piece.quoted.start : piece.quoted.end]
        assert " ".join(quote.split()) in piece.text


@pytest.mark.integration
def test_the_reader_that_ships_says_first_what_answers() -> None:
    text = (
        "With a stride of two floats the warp touches eight sectors. All threads of a warp run one instruction. "
        "The next chapter shows how to use the profiler. If threads of a warp diverge, both paths run one by one."
    )
    request = GenerationRequest("What happens where the threads of a warp diverge?", "rag", (make_passage(text),))
    first, *_ = ExtractiveGenerator(LearnedReader(CrossEncoder(device="cpu").score), "MiniLM").stream(request)
    assert isinstance(first, TextPiece) and first.text.startswith("If threads of a warp diverge, both paths run")


# --- a sentence brings what it needs


@pytest.mark.parametrize(
    ("text", "liked", "answer"),
    [
        ("Accesses hit one bank. This serialises them.", "This", "Accesses hit one bank. This serialises them."),
        ("Accesses hit one bank. Sharing serialises.", "Sharing", "Sharing serialises."),
        ("```c\nwait();\n```\n\nHowever, banks serialise.", "However", "However, banks serialise."),
        ("The bound is this, with bandwidth $B$:\n\n$$\nP = I B\n$$\n\nCats sleep.", "The bound",
         "The bound is this, with bandwidth $B$:\n\n$$\nP = I B\n$$"),
        ("Cats sleep.\n\nFrom both follows\n\n$$\ns = a / b\n$$\n\nDogs bark.", "$$",
         "From both follows\n\n$$\ns = a / b\n$$"),
        ("To avoid transfers, copy by hand:\n\n```python\nto_device(a)\n```\n\nCats sleep.", "To avoid",
         "To avoid transfers, copy by hand:\n\n```python\nto_device(a)\n```"),
        ("- Cats sleep.\n- Small messages are buffered\n  - by MPI\n  - in memory\n- Dogs bark.", "Small",
         "- Small messages are buffered\n  - by MPI\n  - in memory"),
    ],
    ids=["this", "nothing", "however", "formula", "before a formula", "listing", "list below"],
)  # fmt: skip
def test_a_sentence_brings_what_it_cannot_be_read_without(text: str, liked: str, answer: str) -> None:
    assert said_of(text, liked) == answer


@pytest.mark.parametrize("alone", ["# Banks\n\nThis makes it wait.", "Copy them as follows:"])
def test_a_sentence_whose_neighbour_cannot_come_along_is_left_out(alone: str) -> None:
    liked = ("This makes", "Copy them", "A warp waits")
    assert said_of(f"{alone}\n\nA warp waits for memory.", *liked) == "A warp waits for memory."


def test_sentences_that_stand_together_are_said_together_in_the_books_order() -> None:
    text = "Cats sleep. Nobody knows. Dogs bark. Fish swim. Nobody cares."
    assert said_of(text, "Dogs", "Cats", "Fish") == "Dogs bark. Fish swim. Cats sleep."


# --- kinds of questions


def test_a_definition_comes_before_what_the_reader_likes_better_and_the_fuller_one_first() -> None:
    text = "The warp waits at a stride. Warps are a means. A warp is a group of threads that run together."
    fuller, liked, *_ = re.split(r"(?<=\.) ", said_of(text, "The warp", "Warps", "A warp", question="What is a warp?"))
    assert (fuller, liked) == ("A warp is a group of threads that run together.", "The warp waits at a stride.")
    assert said_of(text, "The warp", "Warps", "A warp", question="Is a warp slow?").startswith("The warp waits")


@pytest.mark.parametrize("question", ["How many threads?", "What is a warp?", "Why does it wait?", "Is it slow?"])
def test_the_kind_of_question_bounds_the_answer(question: str) -> None:
    text = " ".join(f"Warp {name} holds threads of kind {name} and waits for {name}." for name in LETTERS)
    answer = said_of(text, "Warp", question=question)
    budget = BUDGETS[english_query(question).kind]
    assert answer.count(".") <= budget.groups and 10 < len(answer.split()) <= budget.words
    assert len(said_of(text, "Warp", question=question, max_tokens=16).split()) <= 12


LIMITS = ["- Registers limit warps.", "- Blocks.", "- Shared memory.", "- Barriers of a block."]
TYPICAL = ["- Typical bottlenecks", "  - Too many transfers", "  - Too little work", "  - Slow access"]


@pytest.mark.parametrize(
    ("text", "liked", "lines"),
    [
        ("\n".join(["Four things count:", "", *LIMITS, "", "Dogs bark."]), "Shared", ["Four things count:", *LIMITS]),
        ("\n".join(["- Profile first", *TYPICAL, "- Do not guess"]), "Typical", TYPICAL),
        ("\n".join(["- Profile first", *TYPICAL, "- Do not guess"]), "Too little", TYPICAL),
    ],
)
def test_a_list_that_is_asked_for_comes_whole_the_innermost_one(text: str, liked: str, lines: list[str]) -> None:
    assert said_of(text, liked, question="List what limits warps") == "\n".join(lines)


def test_a_list_too_long_is_not_said_whole() -> None:
    items = "\n".join(f"- Limit {name} is one of the many limits that there are." for name in LETTERS)
    answer = said_of(f"Limits:\n\n{items}", "Limit beta", question="List what limits warps")
    assert answer == "- Limit beta is one of the many limits that there are."


ADD = "```cuda\n__global__ void add(float *a) {\n    a[0] += 1;\n}\n```"


def test_a_listing_stays_whole_where_code_is_asked_for_and_comes_with_what_announces_it() -> None:
    passage = make_passage(f"Vectors are added by this kernel:\n\n{ADD}\n\nDone.\n\n```c\nint other;\n```")
    answer = said("Show the code of vector addition", ("Vectors", "```cuda"), BANKS, passage)
    assert answer == f"Vectors are added by this kernel: [2]\n\n{ADD}\n\n[2]"
    assert "```" not in said("Why are vectors added?", ("Done",), BANKS, passage)


def test_where_code_is_asked_for_and_there_is_none_sentences_answer() -> None:
    assert said_of("Call add for it. Cats sleep.", "Call", question="Show me the code") == "Call add for it."


def test_a_table_that_is_the_answer_stays_whole() -> None:
    table = "| memory | cycles |\n|---|---|\n| register | 1 |\n| global | 400 |"
    assert said_of(f"Cats sleep.\n\n{table}\n\nDogs bark.", "| memory") == table


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


def test_a_sentence_after_a_list_is_not_part_of_its_last_item() -> None:
    """In Markdown a line right below an item belongs to it."""
    answer = said_of("- Registers limit.\n- Blocks limit.\n\nCats sleep.\n\nSo does memory.", "Reg", "Blocks", "Cats")
    assert answer == "- Registers limit.\n- Blocks limit.\n\nCats sleep."


def test_links_appear_as_their_text() -> None:
    passage = 'A [thread block](/glossary/(block).md) runs on one `a[i](x)` core, see ![a core](img/core.png "Core").'
    assert said_of(passage, "A [thread") == "A thread block runs on one `a[i](x)` core, see a core."


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
