"""Laws of the check of what a language model writes, and of the answers that are made with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import ScriptedGenerator, ScriptedReader, make_engine, make_passage, section

from indexes.errors import CoalesceError
from indexes.library import Library
from rag.engine import AnswerEngine
from rag.errors import EngineUnreachable, GenerationFailed
from rag.generators.extractive import ExtractiveGenerator
from rag.types import Answer, AnswerDone, Answers, PassagesFound, Question, QuotesFound, TextDelta
from rag.written import DIVIDER, WrittenCheck, in_digits

BOOK = (
    "A warp is a group of 32 threads that run in lockstep. Two warps never share registers. "
    "The host launches a kernel with a grid of blocks. It returns before the kernel ends.\n\n"
    "There are three memories:\n\n- Global memory is large and slow.\n- Shared memory is small and fast.\n"
    "- Constant memory is cached.\n\n```cuda\nsaxpy<<<grid, block>>>(n, a, x, y);\n```"
)
PASSAGES = (make_passage("Occupancy is the share of resident warps."), make_passage(BOOK))


def shown(text: str, *, size: int = 7, whole: bool = True, **how: object) -> str:
    """What is let through of a text that comes in pieces."""
    check = WrittenCheck(PASSAGES, **how)  # type: ignore[arg-type]
    pieces = [piece for start in range(0, len(text), size) for piece in check.feed(text[start : start + size])]
    return "".join(piece.text for piece in (*pieces, *check.finish(whole=whole)))


@pytest.mark.parametrize(
    ("written", "held"),
    [
        ("A warp is a group of 32 threads.", "A warp is a group of 32 threads. [2]"),
        ("A warp is a group of thirty-two threads [1].", "A warp is a group of thirty-two threads. [2]"),
        ("[1] A warp has 32 threads. [2] Warps share 64 registers.", "A warp has 32 threads. [2]"),
        ("A warp is a group of sixty-four threads.", ""),
        ("A warp is not a group of 32 threads.", ""),
        ("Two warps share registers.", ""),
        ("A warp runs `cudaFoo` in lockstep with a group of threads.", ""),
        (
            "Dogs bark. It returns before the kernel ends. The host launches a kernel.",
            "The host launches a kernel. [2]",
        ),
        ("The host launches a kernel with a grid of", ""),
        ("A warp is a group of 32 threads. A warp is a group of 32 threads.", "A warp is a group of 32 threads. [2]"),
        ("# Warps\n\nWarps. Yes. No.", ""),
        ("Yes, a warp is a group of 32 threads.", ""),
        ("The passages do not answer this question.", ""),
        ("线程束是 32 个线程。", ""),
    ],
)
def test_a_sentence_holds_when_a_passage_supports_it_with_equal_negation_and_numbers(written: str, held: str) -> None:
    assert {shown(written, size=size) for size in (1, 7, 1000)} == {held}


@pytest.mark.parametrize(
    ("written", "held"),
    [
        (
            "There are three memories:\n- Global memory is large and slow\n- Shared memory is huge and purple\n",
            "There are three memories: [2]\n- Global memory is large and slow [2]",
        ),
        (
            "There are four memories:\n- Global memory is large and slow.\n\nA warp has 32 threads.",
            "A warp has 32 threads. [2]",
        ),
        ("There are three memories:\n- Purple memory is a lie.", ""),
        ("- Dogs bark at warps. They share memory.\n- Constant memory is cached.", "- Constant memory is cached. [2]"),
        (
            "```cuda\nsaxpy<<<grid, block>>>(n, a, x, y);\n```",
            "```cuda\nsaxpy<<<grid, block>>>(n, a, x, y);\n```\n\n[2]",
        ),
        ("```cuda\nsaxpy<<<block, grid>>>(n, a, x, y);\n```", ""),
    ],
)
def test_lists_hold_with_what_announces_them_and_listings_line_by_line(written: str, held: str) -> None:
    assert {shown(written, size=size) for size in (1, 1000)} == {held}


def test_what_is_cut_off_holds_only_up_to_its_last_whole_sentence() -> None:
    text = "A warp is a group of 32 threads. There are three memories:\n- Global memory is large"
    assert shown(text, whole=False) == "A warp is a group of 32 threads. [2]"
    assert shown(text, whole=True).endswith("- Global memory is large [2]")


def test_what_stands_below_is_said_only_first_or_where_a_sentence_leans_on_it() -> None:
    first, second, other = "A warp has 32 threads.", "The host launches a kernel.", "Two warps never share registers."
    quotes = [first, second]
    assert shown(first, quotes=quotes) == shown("A warp is a group of 32 threads.", quotes=quotes) == ""
    assert shown(f"{first} {other}", quotes=quotes) == f"{first} [2] {other} [2]"
    assert shown(f"{second} {first} {other}", quotes=quotes) == f"{second} [2] {other} [2]"
    assert shown(f"{other} {second} It returns before the kernel ends.", quotes=quotes) == (
        f"{other} [2] {second} [2] It returns before the kernel ends. [2]"
    )


def test_an_item_that_stands_below_comes_behind_what_announces_it() -> None:
    text = "There are three memories:\n- Global memory is large and slow.\n- Constant memory is cached."
    whole = "There are three memories: [2]\n- Global memory is large and slow. [2]\n- Constant memory is cached. [2]"
    assert shown(text, quotes=["Global memory is large and slow."]) == whole


def test_a_free_text_is_whole_and_only_what_holds_is_marked() -> None:
    assert shown("# Warps\n\nDogs bark. A warp has 32 threads", keep_all=True) == (
        "# Warps\n\nDogs bark. A warp has 32 threads [2]"
    )


def test_numbers_in_words_are_numbers() -> None:
    said = "one of two hundred and fifty-six, Sixty-Four thousand and one thousand, of someone"
    assert in_digits(said) == "one of 256, 64000 and 1000, of someone"
    said = "between one hundred and two hundred, two thousand and forty-eight, two hundred and fifty-six thousand"
    assert in_digits(said) == "between 100 and 200, 2048, 256000"


# --- the engine

Make = Callable[..., AnswerEngine]
READER = ScriptedReader({"A warp": 0.99, "Streams": 0.2})
WARP = Question("What is a warp of threads?")
QUOTES = "A warp is a group of 32 threads that run in lockstep. [1]"
HOLDS = "The scheduler picks a ready warp in each cycle."
REFUSES = "The passages do not answer this question."


@pytest.fixture(scope="module")
def library(library_of: Callable[..., Library]) -> Library:
    text = "A warp is a group of 32 threads that run in lockstep. In each cycle the scheduler picks a ready warp."
    return library_of(section(text, "Warps"))


@pytest.fixture
def make(tmp_path: Path, library: Library) -> Make:
    def made(*pieces: str, answers: Answers = "both", threshold: float = 0.0, **how: object) -> AnswerEngine:
        scripted = ScriptedGenerator(pieces, **how)  # type: ignore[arg-type]
        return make_engine(tmp_path, library, scripted, reader=READER, threshold=threshold, answers=answers)

    return made


def test_the_quotes_come_first_and_stay_below_the_written_sentences_that_hold(make: Make) -> None:
    found, quotes, *deltas, done = make(HOLDS, " A warp has 64 threads.").stream(WARP)
    assert isinstance(found, PassagesFound) and isinstance(quotes, QuotesFound) and isinstance(done, AnswerDone)
    answer = done.answer
    assert "".join(one.text for one in deltas if isinstance(one, TextDelta)) == answer.answer
    assert answer.answer == f"{HOLDS} [1]{DIVIDER}{QUOTES}" and answer.quotes == quotes.text == QUOTES
    assert [one.verdict for one in answer.citations] == ["supported"] * 2 and quotes.citations == answer.citations[1:]
    assert (answer.written, answer.refused) == (True, False) and answer.note


@pytest.mark.parametrize("written", ["Dogs bark at 64 warps.", REFUSES, "", "<b>", "线程束是 32 个线程。"])
def test_where_nothing_holds_the_answer_is_the_quotes(make: Make, written: str) -> None:
    answer = make(written, refused=written == REFUSES).ask(WARP)
    assert (answer.answer, answer.quotes, answer.written, answer.refused) == (QUOTES, QUOTES, False, False)
    assert (answer.note is None) == (written == REFUSES)


class Breaks(ScriptedGenerator):
    """Writes its pieces and fails."""

    def __init__(self, *pieces: str, error: CoalesceError) -> None:
        super().__init__(pieces)
        self._error = error

    def stream(self, request: object) -> Iterator[object]:  # type: ignore[override]
        yield from list(super().stream(request))[:-1]  # type: ignore[arg-type]
        raise self._error


@pytest.mark.parametrize("error", [GenerationFailed("it only thought"), EngineUnreachable("it is dead")])
@pytest.mark.parametrize("answers", ["both", "free"])
def test_the_quotes_stand_where_the_model_fails_and_say_why(
    tmp_path: Path, library: Library, error: CoalesceError, answers: Answers
) -> None:
    engine = make_engine(
        tmp_path, library, Breaks(f"{HOLDS} A warp", " is", error=error), reader=READER, answers=answers
    )
    if answers == "free":
        with pytest.raises(type(error)):
            engine.ask(WARP)
        return
    answer = engine.ask(WARP)
    assert answer.answer == f"{HOLDS} [1]{DIVIDER}{QUOTES}" and error.message in (answer.note or "")


def test_a_free_answer_is_the_written_text_alone_and_may_refuse(make: Make) -> None:
    said = f"{HOLDS} Dogs bark."
    answer, refusal = make(said, answers="free").ask(WARP), make(REFUSES, answers="free", refused=True).ask(WARP)
    assert (answer.answer, answer.quotes, answer.written) == (f"{HOLDS} [1] Dogs bark.", "", True) and answer.note
    assert (refusal.answer, refusal.refused, refusal.written, refusal.note) == (REFUSES, True, False, None)


@pytest.mark.parametrize(
    ("answers", "threshold", "asked"),
    [("quotes", 0.0, 0), ("both", 1.1, 0), ("free", 1.1, 0), ("both", 0.0, 1)],
)
def test_the_model_is_asked_only_where_it_may_write(make: Make, answers: Answers, threshold: float, asked: int) -> None:
    engine = make(HOLDS, threshold=threshold, answers=answers)
    answer = engine.ask(WARP)
    assert len(engine.generator.requests) == asked  # type: ignore[attr-defined]
    assert (answer.refused, answer.written) == (threshold > 1, asked == 1)


def test_a_question_says_what_its_answer_is_made_of(make: Make, library: Library, tmp_path: Path) -> None:
    quoting = ExtractiveGenerator(READER, "hash")
    by_default = make_engine(tmp_path, library, quoting, reader=READER).ask(WARP)
    quoted, free = (make(HOLDS).ask(Question(WARP.text, answers=how)) for how in ("quotes", "free"))
    tuned = make(HOLDS, arms=("base", "rag", "rag+tuned"), adapters=("qa",)).ask(Question(WARP.text, arm="rag+tuned"))
    assert (tuned.answer, tuned.adapter) == (f"{HOLDS} [1]{DIVIDER}{QUOTES}", "qa")
    assert (quoted.answer, quoted.generator) == (by_default.answer, "extractive")
    assert free.answer == f"{HOLDS} [1]"


def test_a_question_in_another_language_than_the_books_is_answered_by_quotes(make: Make) -> None:
    engine = make("线程束是 32 个线程。")
    answer = engine.ask(Question("什么是线程束（warp）？"))
    assert (answer.written, engine.generator.requests, bool(answer.quotes)) == (False, [], True)  # type: ignore[attr-defined]
    assert answer.note


def test_other_words_for_an_answer_are_checked_over_its_passages(make: Make) -> None:
    engine = make(HOLDS)
    first = engine.ask(WARP)
    again = engine.ask(Question("shorter", conversation_id=first.conversation_id))
    assert (again.answer, again.passages) == (first.answer, first.passages)


def test_what_was_quoted_before_may_be_said_in_other_words(make: Make) -> None:
    engine = make(again := "A warp is a group of 32 threads.")
    first = engine.ask(WARP)
    shorter = engine.ask(Question("shorter", conversation_id=first.conversation_id))
    assert (first.answer, shorter.answer) == (QUOTES, f"{again} [1]{DIVIDER}{QUOTES}")


def test_what_was_quoted_before_is_not_said_again_in_the_same_words(make: Make) -> None:
    engine = make(QUOTES)
    first = engine.ask(WARP)
    shorter = engine.ask(Question("shorter", conversation_id=first.conversation_id))
    assert (first.answer, shorter.answer, shorter.note) == (QUOTES, QUOTES, None)


def test_a_measurement_takes_the_text_as_it_comes(make: Make) -> None:
    answer: Answer = make("Dogs bark [1].", answers="unchecked").ask(WARP)
    assert (answer.answer, answer.quotes, answer.written) == ("Dogs bark [1].", "", True)
