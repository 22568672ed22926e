"""Laws of the one path from question to answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import FakeLibrary, ScriptedGenerator, make_node, make_passage, signals_only

from indexes.errors import Cancelled, InvalidInput, NotFound, TooLarge
from indexes.types import Filters
from indexes.words import terms_of
from rag.assemble import check_before_loading
from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.errors import ArmUnavailable, GenerationFailed
from rag.evidence import EvidenceJudge
from rag.generators.extractive import ExtractiveGenerator
from rag.retrieval import HybridRetriever, PassageBudget
from rag.sentence_reader import LearnedReader, ScoredUnit, units_of
from rag.settings import GeneratorSettings, RagSettings, RetrievalSettings
from rag.types import AnswerDone, Arm, PassagesFound, Question, TextDelta

NODES = [
    make_node("A warp is a group of 32 threads that run in lockstep.", 0),
    make_node("Occupancy is the share of resident warps.", 1, heading_path=("Chapter", "Occupancy")),
    make_node("Streams order commands of a device.", 2, chapter=2, heading_path=("Streams",)),
]


class ByTerms:
    """A reader that counts the question's words in a sentence."""

    def read(self, question: str, passages):
        asked = terms_of(question).pieces
        units = [unit for unit in units_of(passages) if unit.kind != "heading"]
        return sorted((ScoredUnit(unit, len(asked & unit.pieces)) for unit in units), key=lambda item: -item.score)


def make_engine(home: Path, generator=None, nodes=NODES, threshold: float | None = 0.0) -> AnswerEngine:
    library = FakeLibrary(nodes)
    generator = generator or ScriptedGenerator()
    return AnswerEngine(
        library,
        HybridRetriever(library, RetrievalSettings()),
        generator,
        ConversationStore(home / "conversations.sqlite3"),
        chooser=generator if isinstance(generator, ScriptedGenerator) else ScriptedGenerator(),
        judge=EvidenceJudge(LearnedReader(signals_only), threshold),
    )


@pytest.mark.parametrize("threshold", [0.0, 1.1])
@pytest.mark.parametrize("pieces", [("One ", "two. [", "1] and [9]."), ()])
def test_events_come_in_order_and_the_deltas_are_the_answer(tmp_path: Path, threshold: float, pieces) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(pieces), threshold=threshold)
    events = list(engine.stream(Question("What is a warp?")))
    assert isinstance(events[0], PassagesFound) and isinstance(events[-1], AnswerDone)
    assert len(events) > 2 and all(isinstance(event, TextDelta) for event in events[1:-1])
    answer = events[-1].answer
    assert "".join(event.text for event in events[1:-1]) == answer.answer != ""
    assert answer.passages == events[0].passages != ()
    assert answer.refused is (threshold > 1 or not pieces)
    assert "[9]" not in answer.answer


@pytest.mark.parametrize("pieces", [(), ("\n", " ", "\n\n"), ("[9]", "\n")])
def test_an_answer_without_a_word_is_a_refusal_and_says_what_is_true(tmp_path: Path, pieces) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(pieces))
    rag, base = (engine.ask(Question("What is a warp?", arm=arm)) for arm in ("rag", "base"))
    assert rag.refused and rag.answer.startswith("The library does not answer")
    assert base.refused and base.answer == "The model gave no answer."
    assert engine.ask(Question("什么是线程束？", arm="base")).answer == "模型没有给出回答。"


def test_an_answer_cut_off_before_its_first_word_says_so_and_is_not_a_refusal(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["\n"], finish="length"))
    answer = engine.ask(Question("What is a warp?"))
    assert (answer.answer, answer.refused) == ("The model was cut off before its first word.", False)
    assert engine.ask(Question("什么是线程束？")).answer == "模型还没写出第一个字就被截断了。"


def test_an_answer_shows_the_passages_that_were_read(tmp_path: Path) -> None:
    """A generator drops the lowest passages when its context is short; the answer does not show them."""
    engine = make_engine(tmp_path, ScriptedGenerator(["It runs in lockstep [1]. And [2]."], passages_used=1))
    events = list(engine.stream(Question("What is a warp of threads?")))
    assert isinstance(events[0], PassagesFound) and isinstance(events[-1], AnswerDone)
    assert len(events[0].passages) > 1
    assert events[-1].answer.passages == events[0].passages[:1]
    assert {citation.marker for citation in events[-1].answer.citations} <= {1}


def test_a_refusal_cites_nothing_in_the_questions_language(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, threshold=1.1)
    english, chinese = engine.ask(Question("What is a warp?")), engine.ask(Question("什么是线程束？"))
    assert english.citations == chinese.citations == ()
    assert "does not answer" in english.answer and "没有" in chinese.answer
    assert english.passages


def test_a_refusal_names_the_nearest_sections_and_has_no_note(tmp_path: Path) -> None:
    answer = make_engine(tmp_path, threshold=1.1).ask(Question("What is occupancy of resident warps?"))
    assert answer.refused and answer.evidence == "none" and answer.note is None
    assert "“Chapter › Occupancy”" in answer.answer


def test_a_question_for_the_chapter_is_answered_and_its_note_names_where_to_read(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["It runs in lockstep [1]."]))
    asked = {text: engine.ask(Question(text)) for text in ("Which chapter talks about occupancy?", "哪一章讲占用率？")}
    assert [answer.refused for answer in asked.values()] == [False, False]
    english, chinese = (answer.note or "" for answer in asked.values())
    assert english.startswith("Read in “Chapter › Occupancy”") and chinese.startswith("可阅读：“Chapter › Occupancy”")


def test_a_refused_question_is_answered_anyway_with_a_note(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["It runs in lockstep [1]."]), threshold=1.1)
    found, *_, done = engine.stream(Question("What is a warp?", answer_anyway=True))
    assert isinstance(found, PassagesFound) and isinstance(done, AnswerDone)
    answer = done.answer
    assert not answer.refused and answer.evidence == "none" and answer.citations
    assert answer.note == found.note and "does not seem to answer" in answer.note
    assert answer.note not in answer.answer


def test_weak_evidence_is_answered_with_a_note_and_strong_without(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["It runs in lockstep [1]."]))
    strong = engine.ask(Question("What is a warp of threads in lockstep?"))
    weak = engine.ask(Question("Who won the football cup of 1966?"))
    chinese = engine.ask(Question("谁赢得了足球世界杯？"))
    assert (strong.evidence, strong.note) == ("strong", None)
    assert weak.evidence == "weak" and "may not say" in weak.note and not weak.refused
    assert chinese.evidence == "weak" and "可能没有" in chinese.note


@pytest.mark.parametrize(("arms", "asked"), [(("base", "rag"), True), (("rag",), False)])
def test_a_language_model_is_asked_although_no_passage_holds_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arms: tuple[Arm, ...], asked: bool
) -> None:
    signals = {"read": 0.3, "coverage_all": 0.6, "unknown": 0.0, "unnamed": 1.0}
    monkeypatch.setattr(EvidenceJudge, "signals", lambda *_: signals)
    generator = ScriptedGenerator(["It runs in lockstep [1]."], arms=arms)
    engine = make_engine(tmp_path, generator, threshold=None)
    answer = engine.ask(Question("What is a warp?"))
    assert (answer.refused, answer.evidence) == ((False, "weak") if asked else (True, "none"))
    assert len(generator.requests) == asked
    signals |= {"read": 0.0, "coverage_all": 0.0}
    assert engine.ask(Question("What is a warp?")).refused
    assert len(generator.requests) == asked


def test_a_generators_own_refusal_needs_no_doubt_beside_it(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["The books do not say."], refused=True))
    answer = engine.ask(Question("Who won the football cup of 1966?"))
    assert answer.refused and answer.evidence == "weak" and answer.note is None


def test_an_answer_that_names_no_passage_has_a_note(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["It runs in lockstep."]))
    answer = engine.ask(Question("What is a warp of threads in lockstep?"))
    assert not answer.refused and "names no passage" in answer.note
    alone = engine.ask(Question("What is a warp of threads in lockstep?", arm="base"))
    assert (alone.evidence, alone.note) == (None, None)


def test_a_quote_beside_the_question_supports_no_answer(tmp_path: Path) -> None:
    """The sentence is the book's own, and true, but about something else than what was asked."""
    said = "A warp is a group of 32 threads [1]. Cats sleep on warm cards [1]."
    nodes = [make_node("A warp is a group of 32 threads. Dogs bark. Cats sleep on warm cards.")]
    library = FakeLibrary(nodes)
    engine = AnswerEngine(
        library,
        HybridRetriever(library, RetrievalSettings()),
        ScriptedGenerator([said]),
        ConversationStore(tmp_path / "conversations.sqlite3"),
        chooser=ScriptedGenerator(),
        judge=EvidenceJudge(ByTerms(), 0.0),
    )
    citations = engine.ask(Question("How many threads is a warp a group of?")).citations
    assert [citation.verdict for citation in citations] == ["supported", "partial"]


def test_evidence_does_not_depend_on_how_much_the_generator_reads(tmp_path: Path) -> None:
    library = FakeLibrary(NODES)
    verdicts = set()
    for words, top_k in ((3, 1), (1500, 5)):
        engine = AnswerEngine(
            library,
            HybridRetriever(library, RetrievalSettings()),
            ScriptedGenerator(),
            ConversationStore(tmp_path / f"{words}.sqlite3"),
            chooser=ScriptedGenerator(),
            judge=EvidenceJudge(LearnedReader(signals_only)),
            budget=PassageBudget(words, words),
        )
        answer = engine.ask(Question("Is a stream of commands resident in lockstep warps?", top_k=top_k))
        verdicts.add(answer.evidence)
    assert len(verdicts) == 1


def test_an_empty_library_says_to_add_a_book(tmp_path: Path) -> None:
    answer = make_engine(tmp_path, nodes=[]).ask(Question("What is a warp?"))
    assert answer.refused and "coalesce add PATH" in answer.answer and answer.passages == ()


def test_filters_without_a_match_read_unlike_an_empty_library(tmp_path: Path) -> None:
    answer = make_engine(tmp_path).ask(Question("What is a warp?", filters=Filters(pages=(90, 91))))
    assert answer.refused and "filters" in answer.answer


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (Question("  \n\x00"), InvalidInput),
        (Question("x" * 20_001), TooLarge),
        (Question("x" * 100_000), TooLarge),
        (Question("\ud800 half"), InvalidInput),
        (Question("q", top_k=0), InvalidInput),
        (Question("q", top_k=51), InvalidInput),
        (Question("q", arm="else"), InvalidInput),
        (Question("q", max_tokens=0), InvalidInput),
        (Question("q", filters=Filters(pages=(3, 1))), InvalidInput),
        (Question("q", conversation_id="nobody"), NotFound),
        (Question("q", filters=Filters(chapters=(99,))), NotFound),
        (Question("q", filters=Filters(document_ids=("nobody",))), NotFound),
        (Question("q", arm="tuned"), ArmUnavailable),
        (Question("q", adapter="x"), InvalidInput),
    ],
)
def test_bad_questions_are_refused_before_any_search(tmp_path: Path, question: Question, error: type) -> None:
    engine = make_engine(tmp_path)
    with pytest.raises(error):
        engine.ask(question)
    assert engine.library.searches == 0
    assert engine.conversations.list() == ()


def test_control_characters_are_rejected_and_invisible_ones_taken_out(tmp_path: Path) -> None:
    """Every entry point asks the engine, so none can forget it."""
    engine = make_engine(tmp_path)
    assert engine.ask(Question("What\u200b is a\ufeff warp?")).question == "What is a warp?"
    for ask in (lambda text: engine.ask(Question(text)), engine.search):
        with pytest.raises(InvalidInput, match=r"U\+001B at position 4"):
            ask("What\x1b is a warp?")


def test_the_adapter_is_the_named_one_or_the_only_one(tmp_path: Path) -> None:
    arms = ("base", "tuned", "rag", "rag+tuned")
    one = make_engine(tmp_path, ScriptedGenerator(arms=arms, adapters=("qa",)))
    assert one.ask(Question("What is a warp?", arm="tuned")).adapter == "qa"
    two = make_engine(tmp_path, ScriptedGenerator(arms=arms, adapters=("qa", "raft")))
    for ask in (
        lambda: two.ask(Question("What is a warp?", arm="rag+tuned")),
        lambda: two.comparison(Question("warp?")),
    ):
        with pytest.raises(ArmUnavailable, match="qa, raft"):
            ask()
    with pytest.raises(ArmUnavailable, match=r"'other'.*qa, raft"):
        two.ask(Question("What is a warp?", arm="tuned", adapter="other"))
    compared = two.comparison(Question("What is a warp?", adapter="raft"))
    assert [(question.arm, question.adapter) for question in compared] == [
        ("base", None),
        ("tuned", "raft"),
        ("rag", None),
        ("rag+tuned", "raft"),
    ]


def settings_of(home: Path, **generator: object) -> RagSettings:
    return RagSettings(home, generator=GeneratorSettings(**generator))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("question", "generator", "error", "message"),
    [
        (Question("q", arm="base"), {}, ArmUnavailable, "needs a language model"),
        (Question("q", arm="tuned"), {"kind": "local", "model": "m"}, ArmUnavailable, "LoRA adapter"),
        (
            Question("q", arm="tuned"),
            {"kind": "local", "model": "m", "adapters": {"a": "x", "b": "y"}},
            ArmUnavailable,
            "a, b",
        ),
        (Question("q", filters=Filters(document_ids=("nope",))), {}, NotFound, "nope"),
        (Question("q", filters=Filters(chapters=(99,))), {}, NotFound, "no chapter 99; this book has 2"),
        (Question("q"), {}, InvalidInput, "control character"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_any_model_loads(
    tmp_path: Path, question: Question, generator: dict[str, object], error: type, message: str
) -> None:
    library = FakeLibrary(NODES)
    with pytest.raises(error, match=message) as caught:
        check_before_loading(settings_of(tmp_path, **generator), library, question)
    assert caught.value.hint
    assert library.searches == 0


def test_an_empty_library_is_refused_before_any_model_loads(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="empty") as caught:
        check_before_loading(settings_of(tmp_path), FakeLibrary(), Question("What is a warp?"))
    assert "coalesce add" in caught.value.hint
    local = settings_of(tmp_path, kind="local", model="m")
    check_before_loading(local, FakeLibrary(), Question("What is a warp?", arm="base"))
    check_before_loading(settings_of(tmp_path), FakeLibrary(NODES), Question("q", filters=Filters(chapters=(2,))))


def test_a_follow_up_reads_the_conversation(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    first = engine.ask(Question("What is a warp?"))
    second = engine.ask(Question("How large is it?", conversation_id=first.conversation_id))
    request = engine.generator.requests[-1]
    assert request.turns[0].question == "What is a warp?"
    assert second.conversation_id == first.conversation_id
    assert second.passages[0].node_id == "book-0"
    assert [answer.id for answer in engine.conversations.answers(first.conversation_id)] == [first.id, second.id]


def test_a_follow_up_is_answered_as_it_was_searched(tmp_path: Path) -> None:
    nodes = [
        make_node("Occupancy is limited by registers. Streams order commands.", 0),
        make_node("A stream is limited by nothing. Dogs bark.", 1),
    ]
    engine = make_engine(tmp_path, ExtractiveGenerator(LearnedReader(signals_only), "hash"), nodes)
    first = engine.ask(Question("What is occupancy?"))
    second = engine.ask(Question("And what limits it?", conversation_id=first.conversation_id, max_tokens=8))
    assert second.answer.startswith("Occupancy is limited by registers.")
    scripted = make_engine(tmp_path / "b", nodes=nodes)
    first = scripted.ask(Question("What is occupancy?"))
    scripted.ask(Question("And what limits it?", conversation_id=first.conversation_id))
    request = scripted.generator.requests[-1]
    assert request.question == "And what limits it?"
    assert request.standalone_question == "And what limits occupancy?"


@pytest.mark.parametrize("given", [False, True])
def test_a_chinese_question_is_answered_with_english_quotes(tmp_path: Path, given: bool) -> None:
    node = make_node("Cats sleep all day. Shared memory is divided into 32 banks. Dogs bark at night.")
    engine = make_engine(tmp_path, ExtractiveGenerator(LearnedReader(signals_only), "hash"), [node])
    passages = [make_passage(node.text)] if given else None
    answer = engine.ask(Question("共享内存有多少个存储体？", max_tokens=12), passages=passages)
    assert answer.answer == "Shared memory is divided into 32 banks. [1]"
    assert given or "共享内存 = shared memory，存储体 = bank" in answer.note


def test_an_answer_that_is_not_kept_leaves_no_trace(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    assert engine.ask(Question("What is a warp?"), keep=False).conversation_id == ""
    assert engine.conversations.list() == ()


def test_base_searches_nothing_and_shows_no_marker(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["So it is [1]."]))
    answer = engine.ask(Question("What is a warp?", arm="base"))
    assert (answer.answer, answer.passages, engine.library.searches) == ("So it is.", (), 0)


def test_given_passages_replace_the_search_and_are_never_refused(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["Gold words. [1]"]), threshold=1.1)
    answer = engine.ask(Question("What is a warp?"), passages=[make_passage("Gold words.")])
    assert engine.library.searches == 0
    assert not answer.refused and answer.citations[0].quote == "Gold words."


def test_a_comparison_runs_all_arms_or_none(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    questions = engine.comparison(Question("What is a warp?"), ["base", "rag"])
    assert [question.arm for question in questions] == ["base", "rag"]
    with pytest.raises(ArmUnavailable):
        engine.comparison(Question("What is a warp?"), ["rag", "tuned"])
    kept = engine.keep_together([engine.ask(question, keep=False) for question in questions])
    assert len({answer.conversation_id for answer in kept}) == 1
    assert engine.conversations.answers(kept[0].conversation_id) == kept


def test_leaving_a_stream_stops_the_generator_and_keeps_nothing(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ScriptedGenerator(["One. ", "Two. ", "Three."]))
    events = engine.stream(Question("What is a warp?"))
    next(events), next(events)
    events.close()
    assert engine.generator.closed_streams == 1
    assert engine.conversations.list() == ()


def test_a_withdrawn_question_is_cancelled(tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        make_engine(tmp_path).ask(Question("What is a warp?"), lambda: True)


def test_a_generator_that_never_finishes_is_a_failure(tmp_path: Path) -> None:
    class Cut(ScriptedGenerator):
        def stream(self, request):
            yield from list(super().stream(request))[:-1]

    with pytest.raises(GenerationFailed):
        make_engine(tmp_path, Cut(["half"])).ask(Question("What is a warp?"))


def test_inline_filters_leave_the_question_that_is_answered(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    answer = engine.ask(Question("@2 what orders commands?"))
    assert engine.generator.requests[-1].question == "what orders commands?"
    assert {passage.chapter for passage in answer.passages} == {2}


def test_search_gives_what_ask_would_be_given(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    assert engine.search("What is a warp?", 3) == engine.ask(Question("What is a warp?", top_k=3)).passages


def test_choosing_scores_every_option(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    assert engine.choose("How many threads?", ["32", "sixty-four"]).scores == (2.0, 10.0)
    assert engine.chooser.requests[-1].passages
    for bad in ([], ["one"], ["a", " "]):
        with pytest.raises(InvalidInput):
            engine.choose("How many?", bad)


def test_explaining_needs_a_page_or_a_node(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    assert engine.explain("What is a warp?", "book", node_ids=["book-0"]).nodes[0].fused_rank == 1
    with pytest.raises(InvalidInput):
        engine.explain("q", "book")
    with pytest.raises(NotFound):
        engine.explain("q", "book", page=7)


def test_extractive_citations_are_verbatim_through_the_engine(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ExtractiveGenerator(LearnedReader(signals_only), "hash"))
    answer = engine.ask(Question("How many threads are in a warp?"))
    assert answer.citations
    for citation in answer.citations:
        passage = answer.passages[citation.marker - 1]
        assert passage.text[citation.char_start : citation.char_end] == citation.quote
        assert citation.verdict == "supported"
