"""Laws of the one path from question to answer, through the real library over hashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ScriptedGenerator, ScriptedReader, make_engine, make_passage, section

from indexes.errors import (
    Busy,
    Cancelled,
    CoalesceError,
    HomeNotWritable,
    IndexCorrupt,
    InvalidInput,
    NotFound,
    StorageFull,
    TooLarge,
)
from indexes.library import Library
from indexes.types import Filters
from rag.assemble import check_before_loading
from rag.engine import AnswerEngine
from rag.errors import ArmUnavailable, GenerationFailed
from rag.evidence import EvidenceJudge
from rag.generators.extractive import ExtractiveGenerator
from rag.retrieval import HybridRetriever, PassageBudget
from rag.settings import GeneratorSettings, RagSettings
from rag.types import Answer, AnswerDone, Arm, PassagesFound, Question, TextDelta, Variant

WARP = Question("What is a warp of threads?")
CHINESE = Question("什么是线程束？")
READER = ScriptedReader({"A warp": 0.99, "Occupancy": 0.5, "Streams": 0.2})
NOTHING = ScriptedReader({})
QUOTED = "It runs in lockstep [1]."
Make = Callable[..., AnswerEngine]


@pytest.fixture(scope="module")
def library(library_of: Callable[..., Library]) -> Library:
    return library_of(
        section("A warp is a group of 32 threads that run in lockstep.", "Warps", page=7),
        section("Occupancy is the share of resident warps. Registers limit it.", "Warps", "Occupancy", page=8),
        section("Streams order commands of a device.", "Streams", chapter=2, page=9),
    )


@pytest.fixture
def make(tmp_path: Path, library: Library) -> Make:
    """An engine whose generator writes pieces of text; `None` quotes sentences."""

    def made(
        *pieces: str | None, threshold: float | None = 0.0, reader: ScriptedReader = READER, **fields: object
    ) -> AnswerEngine:
        scripted = ScriptedGenerator([piece or "" for piece in pieces] or [QUOTED], **fields)  # type: ignore[arg-type]
        generator = ExtractiveGenerator(reader, "hash") if pieces == (None,) else scripted
        return make_engine(tmp_path, library, generator, reader=reader, threshold=threshold)

    return made


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HybridRetriever, "search", lambda *_, **__: pytest.fail("it searches"))


@pytest.mark.parametrize("threshold", [0.0, 1.1])
@pytest.mark.parametrize("pieces", [("One ", "two. [", "1] and [9]."), ("", "\n", "[9]")])
def test_events_come_in_order_and_the_deltas_are_the_answer(make: Make, threshold: float, pieces: tuple[str]) -> None:
    found, *deltas, done = make(*pieces, threshold=threshold).stream(WARP)
    assert isinstance(found, PassagesFound) and isinstance(done, AnswerDone)
    assert "".join(event.text for event in deltas if isinstance(event, TextDelta)) == done.answer.answer != ""
    assert done.answer.passages == found.passages != ()
    assert done.answer.refused is (threshold > 1 or pieces[0] == "")
    assert "[9]" not in done.answer.answer


def test_an_answer_without_a_word_is_a_refusal_and_one_cut_off_before_it_is_not(make: Make) -> None:
    for question in (WARP, CHINESE, Question("What is a warp?", arm="base")):
        silent, cut = make("\n", "[9]").ask(question), make("\n", finish="length").ask(question)
        assert (silent.refused, cut.refused, silent.citations) == (True, False, ())
        assert silent.answer.strip() != cut.answer.strip() != ""


def test_an_answer_shows_the_passages_that_were_read(make: Make) -> None:
    """A generator drops the lowest passages when its context is short; the answer does not show them."""
    found, *_, done = make("It runs in lockstep [1]. And [2].", passages_used=1).stream(Question("Streams of warps?"))
    assert isinstance(found, PassagesFound) and isinstance(done, AnswerDone)
    assert done.answer.passages == found.passages[:1] != found.passages
    assert {citation.marker for citation in done.answer.citations} == {1}


# --- evidence


@pytest.mark.parametrize(("question", "language"), [(WARP, "does not answer"), (CHINESE, "没有")])
def test_a_refusal_cites_nothing_and_names_the_nearest_sections(make: Make, question: Question, language: str) -> None:
    answer = make(threshold=1.1).ask(question)
    assert (answer.refused, answer.evidence, answer.citations) == (True, "none", ())
    assert language in answer.answer and "Warps" in answer.answer and answer.passages


def test_a_refused_question_is_answered_anyway_with_a_note(make: Make) -> None:
    found, *_, done = make(threshold=1.1).stream(Question(WARP.text, answer_anyway=True))
    assert isinstance(found, PassagesFound) and isinstance(done, AnswerDone)
    answer = done.answer
    assert (answer.refused, answer.evidence, answer.answer) == (False, "none", QUOTED)
    assert answer.citations and answer.note == found.note != ""


def test_weak_evidence_is_answered_with_a_note_and_strong_without(make: Make) -> None:
    weak, strong = make(reader=NOTHING).ask(Question("Who won the football cup?")), make().ask(WARP)
    assert (strong.evidence, strong.note, weak.evidence, weak.refused) == ("strong", None, "weak", False)
    assert weak.note
    refused = make("They do not say [1].", refused=True, reader=NOTHING).ask(Question("Who won the football cup?"))
    assert (refused.refused, refused.evidence, refused.note, refused.citations) == (True, "weak", None, ())
    assert make("It runs in lockstep.").ask(WARP).note, "it names no passage"


@pytest.mark.parametrize("arms", [("base", "rag"), ("rag",)])
def test_no_model_is_asked_where_the_default_refuses_unless_it_must(
    make: Make, monkeypatch: pytest.MonkeyPatch, arms: tuple[Arm, ...]
) -> None:
    signals = {"read": 0.3, "coverage_all": 0.6, "unknown": 0.0, "unnamed": 1.0}
    monkeypatch.setattr(EvidenceJudge, "signals", lambda *_: signals)
    engine = make(threshold=None, arms=arms)
    answers = [engine.ask(replace(WARP, answer_anyway=anyway)) for anyway in (False, True)]
    assert [(answer.refused, answer.evidence) for answer in answers] == [(True, "none"), (False, "none")]
    assert len(engine.generator.requests) == 1  # type: ignore[attr-defined]


def test_a_true_quote_beside_the_question_supports_no_answer(make: Make) -> None:
    said = "A warp is a group of 32 threads [1]. Streams order commands of a device [1]."
    passages = [make_passage("A warp is a group of 32 threads. Dogs bark. Streams order commands of a device.")]
    citations = make(said).ask(WARP, passages=passages).citations
    assert [citation.verdict for citation in citations] == ["supported", "partial"]


def test_evidence_does_not_depend_on_how_much_the_generator_reads(tmp_path: Path, library: Library) -> None:
    few, many = (make_engine(tmp_path, library, budget=PassageBudget(words, words)) for words in (3, 1500))
    answers = [engine.ask(Question("Do streams run?", top_k=top_k)) for engine, top_k in ((few, 1), (many, 5))]
    assert len({answer.evidence for answer in answers}) == 1 < len({answer.passages for answer in answers})


def test_an_empty_library_and_filters_without_a_match_are_told_apart(
    make: Make, tmp_path: Path, library_of: Callable[..., Library]
) -> None:
    empty = make_engine(tmp_path, library_of()).ask(WARP)
    assert empty.refused and "coalesce add PATH" in empty.answer
    assert "filters" in make().ask(Question(WARP.text, filters=Filters(pages=(90, 91)))).answer


# --- what is not a question for the books


@pytest.mark.parametrize("message", ["hello", "谢谢", "who are you?", "in Chinese please"])
def test_talk_is_answered_without_search_and_never_refused(make: Make, no_search: None, message: str) -> None:
    answer = make(None, threshold=1.1).ask(Question(message))
    assert (answer.refused, answer.evidence, answer.passages) == (False, None, ()) and answer.answer
    assert ("Book" in answer.answer) is (message == "who are you?"), "it names its books"


def test_other_words_need_a_language_model_which_gets_the_last_passages(make: Make) -> None:
    engine = make("线程束 [1]。")
    first = engine.ask(WARP)
    engine._retriever = None  # type: ignore[assignment]  # nothing is searched
    second = engine.ask(Question("in Chinese please", conversation_id=first.conversation_id))
    assert second.answer == "线程束 [1]。" and second.passages == first.passages and second.evidence is None
    asked = engine.generator.requests[-1]  # type: ignore[attr-defined]
    assert asked.turns[0].question == WARP.text and WARP.text in asked.question and "in Chinese" in asked.question
    brought = engine.ask(Question("shorter please", turns=((WARP.text, first.answer),)))  # no answer of it is kept here
    assert (brought.answer, brought.passages, brought.refused) == ("线程束。", (), False)


@pytest.mark.parametrize(("wish", "asked"), [("summarise chapter 2", 2), ("总结第二章", 2), ("Chapter 1, shorter", 1)])
def test_a_wish_about_a_chapter_gets_its_passages(make: Make, wish: str, asked: int) -> None:
    engine = make("All is well.")
    first = engine.ask(WARP)
    answer = engine.ask(Question(wish, conversation_id=first.conversation_id))
    assert {each.section[0] for each in answer.passages} == {("Warps", "Streams")[asked - 1]}
    with pytest.raises(NotFound):
        engine.ask(Question("summarise chapter 9", conversation_id=first.conversation_id))


@pytest.mark.parametrize(
    "message", ["Why is a warp slow?\nint lane = threadIdx.x % 32;", "What is a warp? And what are streams?"]
)
def test_what_only_a_language_model_can_do_is_said_beside_an_answer_without_one(make: Make, message: str) -> None:
    assert make(None).ask(Question(message)).note and make().ask(Question(message)).note is None


def test_the_option_that_fits_is_named_beside_an_answer_with_strong_evidence(make: Make) -> None:
    """A language model weighs the options itself."""

    class OfOption(ScriptedReader):
        def read(self, query, passages):
            return super().read(query, passages) if "32" in query.english else []

    def note(engine: AnswerEngine, strong: float) -> str:
        engine._judge.strong = strong
        return engine.ask(Question("How many threads has a warp?\nA. 16\nB. 32\nC. 64")).note or ""

    reader = OfOption({"A warp": 0.99})
    assert "B (“32”)" in note(make(None, reader=reader), 0.0)
    assert "“32”" not in note(make(reader=reader), 0.0) + note(make(None, reader=reader), 2.0)


# --- what cannot be asked


@pytest.mark.parametrize(
    ("question", "error"),
    [
        *((Question(text), InvalidInput) for text in ("  \n\x00", "\ud800 half", "a\x1b", "!?…", "🦀🦀", "()[]")),
        *((Question("x" * length), TooLarge) for length in (20_001, 100_000)),
        (Question("q", top_k=0), InvalidInput),
        (Question("q", top_k=51), InvalidInput),
        (Question("q", arm="else"), InvalidInput),  # type: ignore[arg-type]
        (Question("q", max_tokens=0), InvalidInput),
        (Question("q", filters=Filters(pages=(3, 1))), InvalidInput),
        (Question("q", conversation_id="nobody"), NotFound),
        (Question("q", filters=Filters(chapters=(99,))), NotFound),
        (Question("q", filters=Filters(document_ids=("nobody",))), NotFound),
        (Question("q", arm="tuned"), ArmUnavailable),
        (Question("q", adapter="x"), InvalidInput),
    ],
)
def test_bad_questions_are_refused_before_any_search(
    make: Make, no_search: None, question: Question, error: type[Exception]
) -> None:
    engine = make()
    with pytest.raises(error):
        engine.ask(question)
    assert engine.conversations.list() == ()


def test_invisible_characters_are_taken_out(make: Make) -> None:
    assert make().ask(Question("What\u200b is a\ufeff warp?")).question == "What is a warp?"


@pytest.mark.parametrize(
    ("question", "generator", "error", "message"),
    [
        (Question("q", arm="base"), {}, ArmUnavailable, "needs a language model"),
        (Question("q", arm="tuned"), {"kind": "local", "model": "m"}, ArmUnavailable, "LoRA adapter"),
        (Question("q", arm="tuned"), {"kind": "local", "model": "m", "adapters": {"a": "x", "b": "y"}},
         ArmUnavailable, "a, b"),
        (Question("q", filters=Filters(document_ids=("nope",))), {}, NotFound, "nope"),
        (Question("q", filters=Filters(chapters=(99,))), {}, NotFound, "no chapter 99; this book has 2"),
        (Question("q\x1b"), {}, InvalidInput, r"U\+001B at position 1"),
        (WARP, {}, NotFound, "empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_before_any_model_loads(
    tmp_path: Path, library: Library, library_of: Callable[..., Library], question: Question,
    generator: dict[str, object], error: type, message: str,
) -> None:  # fmt: skip
    settings = RagSettings(tmp_path, generator=GeneratorSettings(**generator))  # type: ignore[arg-type]
    with pytest.raises(error, match=message) as caught:
        check_before_loading(settings, library_of() if message == "empty" else library, question)
    assert caught.value.hint


# --- arms


def test_the_adapter_is_the_named_one_or_the_only_one(make: Make) -> None:
    arms = ("base", "tuned", "rag", "rag+tuned")
    assert make(arms=arms, adapters=("qa",)).ask(Question("warp?", arm="tuned")).adapter == "qa"
    two = make(arms=arms, adapters=("qa", "raft"))
    for adapter in (None, "other"):
        with pytest.raises(ArmUnavailable, match="qa, raft"):
            two.ask(Question("warp?", arm="rag+tuned", adapter=adapter))
    asked = [(question.arm, question.adapter) for question in two.comparison(Question("warp?", adapter="raft"))]
    assert asked == [("base", None), ("tuned", "raft"), ("rag", None), ("rag+tuned", "raft")]


def test_base_searches_nothing_and_shows_no_marker(make: Make, no_search: None) -> None:
    answer = make("So it is [1].").ask(Question("What is a warp?", arm="base"))
    assert (answer.answer, answer.passages, answer.evidence, answer.note) == ("So it is.", (), None, None)


def test_given_passages_replace_the_search_and_are_never_refused(make: Make, no_search: None) -> None:
    answer = make("Gold words. [1]", threshold=1.1).ask(WARP, passages=[make_passage("Gold words.")])
    assert not answer.refused and answer.citations[0].quote == "Gold words."


def test_a_comparison_runs_all_arms_or_none(make: Make) -> None:
    engine = make()
    questions = engine.comparison(WARP, ["base", "rag"])
    assert [question.arm for question in questions] == ["base", "rag"]
    with pytest.raises(ArmUnavailable):
        engine.comparison(WARP, ["rag", "tuned"])
    (varied,) = engine.comparison(WARP, variants=[Variant(top_k=3, retrieval="dense")])
    assert (varied.top_k, varied.retrieval, varied.variant) == (3, "dense", "rag retrieval=dense top_k=3")
    kept = engine.keep_together([engine.ask(question, keep=False) for question in questions])
    assert engine.conversations.answers(kept[0].conversation_id) == kept


# --- conversations


@pytest.mark.parametrize("piece", [None, QUOTED])
def test_a_follow_up_is_searched_for_and_answered_with_the_question_before_it(make: Make, piece: str | None) -> None:
    engine = make(piece)
    first = engine.ask(Question("What is occupancy?"))
    follow_up = Question("And what limits it?", conversation_id=first.conversation_id)
    second = engine.ask(follow_up)
    assert second.conversation_id == first.conversation_id and second.passages[0].node_id == first.passages[0].node_id
    assert "What is occupancy?" in (second.note or "") and second.question == follow_up.text
    assert engine.conversations.answers(first.conversation_id) == (first, second)
    if isinstance(engine.generator, ScriptedGenerator):
        request = engine.generator.requests[-1]
        assert request.question == follow_up.text and request.turns[0].question == "What is occupancy?"
        assert request.query is not None and request.query.standalone == "And what limits occupancy?"
    third = engine.ask(Question("tell me more", conversation_id=first.conversation_id, replaces=second.id))
    assert [answer.id for answer in engine.conversations.answers(first.conversation_id)] == [first.id, third.id]


def test_a_note_names_only_the_beginning_of_a_long_earlier_question(make: Make) -> None:
    engine = make(None)
    first = engine.ask(Question(f"What is occupancy? {'I have read about it before. ' * 50}"))
    note = engine.ask(Question("And what limits it?", conversation_id=first.conversation_id)).note or ""
    assert "What is occupancy?" in note and len(note) < 300


def test_an_answer_that_is_not_kept_or_not_finished_leaves_no_trace(make: Make) -> None:
    engine = make("One. ", "Two. ", "Three.")
    assert engine.ask(WARP, keep=False).conversation_id == ""
    events = engine.stream(WARP)
    next(events), next(events)
    events.close()  # type: ignore[attr-defined]
    assert engine.generator.closed_streams == 2  # type: ignore[attr-defined]
    with pytest.raises(Cancelled):
        engine.ask(WARP, lambda: True)
    assert engine.conversations.list() == ()


def test_a_generator_that_never_finishes_is_a_failure(tmp_path: Path, library: Library) -> None:
    class Cut(ScriptedGenerator):
        def stream(self, request):
            yield from list(super().stream(request))[:-1]

    with pytest.raises(GenerationFailed):
        make_engine(tmp_path, library, Cut(["half"])).ask(WARP)


# --- beside answering


def test_search_gives_what_ask_would_be_given(make: Make) -> None:
    assert make().search(WARP.text, 2) == make().ask(Question(WARP.text, top_k=2)).passages


def test_choosing_scores_every_option_with_passages(make: Make) -> None:
    engine = make()
    assert engine.choose("How many threads?", ["32", "sixty-four"]).scores == (2.0, 10.0)
    assert engine.chooser.requests[-1].passages  # type: ignore[attr-defined]
    for bad in ([], ["one"], ["a", " "]):
        with pytest.raises(InvalidInput):
            engine.choose("How many?", bad)


def test_explaining_needs_a_page_or_a_node_that_is_there(make: Make, library: Library) -> None:
    node_id = library.nodes_of("book")[0].node_id
    for there in ({"node_ids": [node_id]}, {"page": 7}):
        assert [node.node_id for node in make().explain(WARP.text, "book", **there).nodes] == [node_id]
    for wrong, error in ({}, InvalidInput), ({"page": 77}, NotFound):
        with pytest.raises(error):
            make().explain("q", "book", **wrong)


def test_quotes_are_verbatim_on_their_page_in_the_language_of_the_book(make: Make) -> None:
    for question in (WARP, CHINESE):
        answer: Answer = make(None).ask(question)
        citation = answer.citations[0]
        passage = answer.passages[citation.marker - 1]
        assert passage.text[citation.char_start : citation.char_end] == citation.quote
        assert answer.answer.startswith("A warp is a group of 32 threads") and citation.verdict == "supported"
        assert (citation.page_start, citation.page_end, citation.section) == (7, 7, ("Warps",))
        assert ("线程束 = warp" in (answer.note or "")) is (question is CHINESE)


@pytest.mark.parametrize("error", [Busy, HomeNotWritable, StorageFull, IndexCorrupt])
def test_an_answer_that_cannot_be_kept_is_given_and_says_so(error: type[CoalesceError], make: Make) -> None:
    engine = make()

    def refuse(*_: object, **__: object) -> None:
        raise error("no room for it")

    engine.conversations.append = refuse  # type: ignore[method-assign]
    answer = engine.ask(WARP)
    (compared,) = engine.keep_together([answer])
    for given in (answer, compared):
        assert given.answer == QUOTED and "no room for it" in (given.note or "")
