"""Making training questions: every rule throws away what breaks it, nothing finished is done twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ScriptedGenerator

from indexes.errors import Cancelled, InvalidInput
from indexes.types import Book, Section
from rag.errors import ArmUnavailable, GenerationFailed, PromptTooLong
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.tuning.data import RowPassage, read_dataset
from rag.tuning.synthesis import (
    LOG_FILE,
    QuestionsSeen,
    SynthesisSettings,
    SynthesizedPair,
    cut_passages,
    fault_of,
    parse_pairs,
    same_answer,
    synthesize,
)
from rag.types import Usage

PASSAGE = (
    "A warp is a group of 32 threads that execute the same instruction. "
    "The function __syncthreads() makes every thread of a block wait at a barrier."
)
GOOD = SynthesizedPair(
    "How many threads does a warp hold?", "A warp holds a group of 32 threads.", "A warp is a group of 32 threads"
)
BARRIER = SynthesizedPair(
    "Which function makes all threads of a block wait?",
    "__syncthreads() makes every thread wait at a barrier.",
    "The function __syncthreads() makes every thread of a block wait at a barrier.",
)
PASSAGES = [RowPassage("Book", ("One",), PASSAGE), RowPassage("Book", ("Two",), PASSAGE + " It is cheap.")]


def written(*pairs: SynthesizedPair) -> str:
    return "\n".join(json.dumps({"question": p.question, "answer": p.answer, "evidence": p.evidence}) for p in pairs)


class Author(ScriptedGenerator):
    """Writes the same pairs about every passage, and answers every question from the pairs."""

    def __init__(self, *pairs: SynthesizedPair, fails_at: int = 0, answers: bool = True) -> None:
        super().__init__()
        self.pairs = pairs
        self.fails_at = fails_at
        self.answers = answers

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        self.requests.append(request)
        if len(self.requests) == self.fails_at:
            raise GenerationFailed("planted")
        if request.passages:
            known = next(pair for pair in self.pairs if pair.question == request.question)
            yield TextPiece(known.answer + " [1]" if self.answers else "The passages do not say.")
        else:
            yield TextPiece(written(*self.pairs))
        yield GenerationDone(Usage(), 0.0, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"question": "Tell me about warps of threads"}, "malformed"),
        ({"question": "Why?"}, "malformed"),
        ({"answer": ""}, "malformed"),
        ({"question": "According to the passage, how many threads are in a warp?"}, "names_its_source"),
        ({"question": "How many threads does the warp in Figure 3 hold?"}, "names_its_source"),
        ({"question": "How many threads has the warp described above?"}, "names_its_source"),
        ({"question": "本章中线程束 warp 有多少个线程 threads？"}, "names_its_source"),
        ({"answer": "A group of 32 threads, as shown in the table."}, "names_its_source"),
        ({"evidence": "A warp is a group of 64 threads"}, "evidence_not_in_passage"),
        ({"evidence": ""}, "evidence_not_in_passage"),
        ({"question": "Which city hosts the largest yearly conference?"}, "off_topic"),
        ({"answer": "A warp holds 64 threads."}, "not_in_passage"),
        ({"answer": "Call cudaWarpSize() for the group."}, "not_in_passage"),
        ({"question": "Is a warp a group of 32 threads?", "answer": "A group of 32 threads."}, "gives_itself_away"),
    ],
)
def test_each_rule_throws_away_what_breaks_it(change: dict[str, str], reason: str | None) -> None:
    assert fault_of(replace(GOOD, **change), PASSAGE) == reason


@pytest.mark.parametrize(
    "text",
    [
        written(GOOD, BARRIER),
        "Here you are:\n```json\n" + written(GOOD, BARRIER) + "\n```",
        "[" + written(GOOD) + ",\n" + written(BARRIER) + "]",
        json.dumps(json.loads(written(GOOD)), indent=2) + "\n" + written(BARRIER),
    ],
)
def test_pairs_are_read_however_the_model_lays_them_out(text: str) -> None:
    assert parse_pairs(text) == ([GOOD, BARRIER], 0)


@pytest.mark.parametrize(
    ("text", "unreadable"),
    [("", 1), ("I cannot.", 1), ('{"question": "x"}', 1), ('{"question": "half', 1), ("{oops}\n" + written(GOOD), 1)],
)
def test_what_cannot_be_read_is_counted(text: str, unreadable: int) -> None:
    assert parse_pairs(text)[1] == unreadable


def test_questions_that_were_asked_before_are_recognised() -> None:
    seen = QuestionsSeen()
    assert seen.add("How many threads does a warp hold?")
    assert not seen.add("How many threads does one warp hold?")
    assert seen.add("What is a thread block?")


def test_an_answer_is_the_same_when_names_and_numbers_are_there() -> None:
    assert same_answer("It holds a group of 32 threads [1].", "A group of 32 threads.")
    assert not same_answer("It holds a group of 64 threads [1].", "A group of 32 threads.")


def test_good_pairs_become_rows_and_the_rest_is_counted(tmp_path: Path) -> None:
    bad = replace(GOOD, question="What does the passage say about a warp?")
    report = synthesize(PASSAGES, Author(GOOD, BARRIER, bad), tmp_path)
    rows = read_dataset(tmp_path)
    assert [row.question for row in rows] == [GOOD.question, BARRIER.question]
    assert rows[0].section == "Book > One"
    assert (report.passages, report.rows, report.written) == (2, 2, 6)
    assert report.thrown_away == {"names_its_source": 2, "near_duplicate": 2}


def test_a_question_the_model_cannot_answer_from_its_passage_is_thrown_away(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="1 not answered"):
        synthesize(PASSAGES[:1], Author(GOOD, answers=False), tmp_path / "a")
    kept = synthesize(PASSAGES[:1], Author(GOOD, answers=False), tmp_path / "b", SynthesisSettings(verify=False))
    assert kept.rows == 1


def test_an_interrupted_run_does_nothing_twice(tmp_path: Path) -> None:
    whole = synthesize(PASSAGES, Author(GOOD, BARRIER), tmp_path / "whole")
    broken = Author(GOOD, BARRIER, fails_at=4)  # three calls per passage
    with pytest.raises(GenerationFailed):
        synthesize(PASSAGES, broken, tmp_path / "parts")
    with (tmp_path / "parts" / LOG_FILE).open("a") as log:
        log.write('{"key": "cut sho')
    again = Author(GOOD, BARRIER)
    report = synthesize(PASSAGES, again, tmp_path / "parts")
    assert len(again.requests) == 3
    assert replace(report, data_file="") == replace(whole, data_file="")
    assert read_dataset(tmp_path / "parts") == read_dataset(tmp_path / "whole")
    finished = Author(GOOD, BARRIER)
    synthesize(PASSAGES, finished, tmp_path / "parts")
    assert finished.requests == []


def test_stopping_keeps_what_is_done(tmp_path: Path) -> None:
    author = Author(GOOD)
    with pytest.raises(Cancelled, match="after 1 of 2"):
        synthesize(PASSAGES, author, tmp_path, cancelled=lambda: len(author.requests) >= 2)
    assert len((tmp_path / LOG_FILE).read_text("utf-8").splitlines()) == 1


def test_rows_can_show_their_passage_among_others(tmp_path: Path) -> None:
    settings = SynthesisSettings(shown_passages=2)
    synthesize(PASSAGES, Author(GOOD, BARRIER), tmp_path, settings)
    for row in read_dataset(tmp_path):
        assert {passage.text for passage in row.passages} == {passage.text for passage in PASSAGES}


def test_passages_longer_than_the_context_are_skipped_and_counted(tmp_path: Path) -> None:
    class Narrow(Author):
        def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
            if "It is cheap" in request.question:
                raise PromptTooLong("too long")
            yield from super().stream(request)

    assert synthesize(PASSAGES, Narrow(GOOD), tmp_path).skipped_passages == 1


def test_a_generator_without_language_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArmUnavailable, match="cannot write questions"):
        synthesize(PASSAGES, ScriptedGenerator(arms=("rag",)), tmp_path)
    with pytest.raises(InvalidInput, match="no passages"):
        synthesize([], Author(GOOD), tmp_path)


def test_books_are_cut_between_paragraphs() -> None:
    paragraph = "word " * 100
    section = Section(("One",), "\n\n".join([paragraph.strip()] * 5), 1)
    short = Section(("Two",), "Too short.", 1)
    passages = cut_passages(Book("B", "text", (section, short)))
    assert [len(passage.text.split()) for passage in passages] == [200, 200, 100]
    assert {passage.section for passage in passages} == {("One",)}
