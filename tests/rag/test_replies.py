"""Laws of what is said to talk, follow-ups, chapters and several questions, through the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeLibrary, ScriptedGenerator, make_node, signals_only

from indexes.errors import InvalidInput
from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.evidence import EvidenceJudge
from rag.generators.extractive import ExtractiveGenerator
from rag.replies import _listing
from rag.retrieval import HybridRetriever
from rag.sentence_reader import LearnedReader
from rag.settings import RetrievalSettings
from rag.types import Answer, Question

WARPS, STREAMS = ("Warps", "Scheduling"), ("Streams", "Ordering")
NODES = [
    make_node("A warp is a group of 32 threads. Warps run in lockstep.", 0, heading_path=WARPS),
    make_node("The warp kernel:\n\n```\nint lane = threadIdx.x % 32;\n```", 1, heading_path=WARPS),
    make_node("Warps hide latency. A scheduler picks a ready warp.", 2, heading_path=("Warps", "Summary")),
    make_node("A stream orders commands of a device. Events time streams.", 3, chapter=2, heading_path=STREAMS),
    make_node("Is order kept? Default streams wait for all.", 4, chapter=2, heading_path=("Streams", "Default")),
]


def make_engine(home: Path, generator=None, nodes=NODES, threshold: float = 0.0) -> AnswerEngine:
    library = FakeLibrary(nodes)
    return AnswerEngine(
        library,
        HybridRetriever(library, RetrievalSettings()),
        generator or ExtractiveGenerator(LearnedReader(signals_only), "hash"),
        ConversationStore(home / "conversations.sqlite3"),
        chooser=ScriptedGenerator(),
        judge=EvidenceJudge(LearnedReader(signals_only), threshold),
    )


def talk(engine: AnswerEngine, *messages: str, max_tokens: int = 40) -> list[Answer]:
    """The answers of one conversation."""
    answers: list[Answer] = []
    for message in messages:
        conversation_id = answers[0].conversation_id if answers else None
        answers.append(engine.ask(Question(message, conversation_id=conversation_id, max_tokens=max_tokens)))
        check_quotes(answers[-1])
    return answers


def check_quotes(answer: Answer) -> None:
    for citation in answer.citations:
        passage = answer.passages[citation.marker - 1]
        assert passage.text[citation.char_start : citation.char_end] == citation.quote
        assert f"[{citation.marker}]" in answer.answer


@pytest.mark.parametrize(
    "message", ["hello", "谢谢", "who are you?", "what did I ask first?", "shorter please", "show the code"]
)
def test_talk_is_answered_without_search_and_never_refused(tmp_path: Path, message: str) -> None:
    engine = make_engine(tmp_path, threshold=1.1)
    answer = engine.ask(Question(message))
    assert not answer.refused and answer.evidence is None and answer.answer
    assert engine.library.searches == 0


def test_a_shorter_answer_is_its_first_sentence_with_its_citation(tmp_path: Path) -> None:
    first, shorter = talk(make_engine(tmp_path), "What is a warp of threads?", "Summarise that in one sentence, please")
    assert first.answer.startswith(shorter.answer) and shorter.answer.count("[") == 1
    assert shorter.citations == first.citations[:1]


def test_the_code_comes_from_the_sections_of_the_last_answer(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    _, _, listing = talk(engine, "What is a warp of threads?", "thanks", "show the code", max_tokens=15)
    assert "threadIdx.x" in listing.answer and not listing.refused and listing.evidence is None
    assert "last answer" in listing.note and listing.citations[-1].section == WARPS


def test_a_listing_that_goes_on_behind_its_passage_is_shown_whole(tmp_path: Path) -> None:
    code = "```\n" + "\n".join(f"a[{n}] = {n};" for n in range(4))
    nodes = [make_node(f"A warp of threads stores.\n\n{code}", 0), make_node("b[9] = 9;\n```", 1)]
    engine = make_engine(tmp_path, nodes=nodes)
    first = engine.ask(Question("What is a warp of threads?"))
    cut = replace(first, passages=(replace(first.passages[0], text=first.passages[0].text.split("b[9]")[0] + "```"),))
    found = _listing(cut, engine.library)
    assert found is not None and "b[9] = 9;" in found.pieces[-1].text


def test_who_asks_for_the_page_gets_quotes_with_their_places(tmp_path: Path) -> None:
    """One for each page."""
    nodes = [
        make_node(
            "A warp is a group of 32 threads. Warps run in lockstep.", 0, heading_path=WARPS, page_marks=((0, 7),)
        ),
        make_node("A warp of fewer threads is padded.", 1, heading_path=WARPS, page_marks=((0, 9),)),
    ]
    asked = ("What is a warp?", "what page is that on?", "are you sure?", "在哪一页？")
    first, places, doubt, chinese = talk(make_engine(tmp_path, nodes=nodes), *asked)
    assert len(first.citations) == 3
    assert places.answer.splitlines() == [
        "- A warp is a group of 32 threads. [1] (A Book › Warps › Scheduling, page 7)",
        "- A warp of fewer threads is padded. [1] (A Book › Warps › Scheduling, page 9)",
    ]
    assert doubt.answer.startswith("The sentences are the book's own")
    assert "，第 7 页)" in chinese.answer
    assert talk(make_engine(tmp_path / "other"), "which page?")[0].answer.startswith("There is no answer")


def test_earlier_questions_are_listed_from_the_conversation(tmp_path: Path) -> None:
    answers = talk(make_engine(tmp_path), "What is a warp?", "What is a stream?", "what did I ask first?")
    assert "What is a warp?" in answers[-1].answer
    brought = (("What is a warp?", "32 threads."),)
    assert "warp" in make_engine(tmp_path).ask(Question("what was my last question?", turns=brought)).answer


def test_other_words_need_a_language_model_and_one_gets_the_last_passages(tmp_path: Path) -> None:
    plain = talk(make_engine(tmp_path), "What is a warp of threads?", "in Chinese please")[-1]
    assert "language model" in plain.answer and not plain.refused
    model = ScriptedGenerator(["线程束有 32 个线程 [1]。"], arms=("base", "rag"))
    engine = make_engine(tmp_path / "model", model)
    first, second = talk(engine, "What is a warp of threads?", "in Chinese please")
    assert second.answer.startswith("线程束") and second.passages == first.passages and second.evidence is None
    assert engine.library.searches == 1 and model.requests[-1].turns[0].question == "What is a warp of threads?"


def test_a_follow_up_is_answered_with_a_note(tmp_path: Path) -> None:
    answer = talk(make_engine(tmp_path), "What is a warp of threads?", "and who picks it?")[-1]
    assert "picks a ready warp" in answer.answer and "What is a warp of threads?" in answer.note


def test_a_follow_up_without_words_of_its_own_is_not_answered_with_what_was_said(tmp_path: Path) -> None:
    first, more = talk(make_engine(tmp_path), "What is a warp of threads?", "tell me more")
    assert not more.refused and more.citations
    assert not {citation.quote for citation in first.citations} & {citation.quote for citation in more.citations}


@pytest.mark.parametrize(
    "message", ["summarise chapter 1", "第一章讲了什么？", "what does the chapter on warps cover?"]
)
def test_a_chapter_is_described_by_its_summary_and_headings(tmp_path: Path, message: str) -> None:
    answer = make_engine(tmp_path).ask(Question(message))
    assert answer.answer.startswith("Warps hide latency. [1] A scheduler picks a ready warp. [1]")
    assert "Scheduling" in answer.answer and not answer.refused
    check_quotes(answer)


def test_a_chapter_without_summary_is_described_by_first_sentences_of_its_sections(tmp_path: Path) -> None:
    answer = make_engine(tmp_path).ask(Question("what is chapter 2 about?"))
    assert "A stream orders commands of a device. [1] Default streams wait for all. [2]" in answer.answer
    check_quotes(answer)


def test_a_missing_chapter_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    answer = make_engine(tmp_path).ask(Question("summarise chapter 99"))
    assert "2 chapters" in answer.answer and "99" in answer.answer and "2 Streams" in answer.answer


def test_of_several_books_one_has_to_be_named(tmp_path: Path) -> None:
    other = make_node("HIP runs on AMD.", 0, document_id="hip", title="HIP Handbook", heading_path=("HIP", "Summary"))
    engine = make_engine(tmp_path, nodes=[*NODES, other])
    assert "HIP Handbook" in engine.ask(Question("summarise chapter 1")).answer
    named = engine.ask(Question("summarise chapter 1 #hip-handbook"))
    assert named.answer.startswith("HIP runs on AMD. [1]") and named.citations[0].document_id == "hip"
    assert "HIP runs on AMD" in engine.ask(Question("what is this book about? #hip-handbook")).answer


@pytest.mark.parametrize("message", ["Which books are there?", "有哪些书？"])
def test_who_asks_which_books_there_are_gets_their_titles(tmp_path: Path, message: str) -> None:
    answer = make_engine(tmp_path).ask(Question(message))
    assert "Book" in answer.answer and not answer.passages


def test_several_questions_are_answered_in_parts_with_their_own_citations(tmp_path: Path) -> None:
    answer = make_engine(tmp_path).ask(Question("What is a warp? And what orders commands of a device?"))
    first, second = answer.answer.split("**2.**")
    assert first.startswith("**1.** A warp is") and "A stream orders commands" in second
    assert {citation.section for citation in answer.citations} >= {WARPS, STREAMS}
    check_quotes(answer)


def test_a_part_that_refers_to_another_part_is_not_called_a_follow_up(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    answer = engine.ask(Question("What is a warp and what orders it?"))
    assert "**2.**" in answer.answer and "earlier question" not in (answer.note or "")
    earlier = engine.ask(Question("What is a stream?"))
    asked = engine.ask(Question("And what orders it?", conversation_id=earlier.conversation_id))
    assert "earlier question: “What is a stream?”" in asked.note


def test_a_language_model_gets_several_questions_at_once(tmp_path: Path) -> None:
    model = ScriptedGenerator(["Both [1]."])
    message = "What is a warp? And what orders commands of a device?"
    answer = make_engine(tmp_path, model).ask(Question(message))
    assert answer.answer == "Both [1]." and len(model.requests) == 1
    assert {passage.chapter for passage in model.requests[0].passages} == {1, 2}


def test_a_question_of_unknown_words_is_refused_with_these_words(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, threshold=1.1)
    nonsense = engine.ask(Question("asdf qwerz"))
    assert nonsense.refused and "asdf, qwerz" in nonsense.answer
    known = engine.ask(Question("asdf warp"))
    assert known.refused and "asdf" not in known.answer


@pytest.mark.parametrize("text", ["???", "!?…", "🦀🦀", "()[]"])
def test_a_message_without_words_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match="no words"):
        make_engine(tmp_path).ask(Question(text))


def test_a_question_about_ones_own_code_says_what_was_left_undone(tmp_path: Path) -> None:
    code = "what does this code do?\nint lane = threadIdx.x % 32;\nout[lane] = 1;"
    answer = make_engine(tmp_path).ask(Question(code))
    assert "threadIdx.x" in answer.note and "needs a language model" in answer.note
