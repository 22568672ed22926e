"""Questions made from a small book by rule, over fakes: each is answered by its own passage, and in one way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from fakes import ScriptedGenerator, make_engine, make_node, section, signals_only
from numpy.typing import NDArray

from evals.exam import ExamPlan, draw_exam
from evals.made_questions import MakingProgress, OptionDrawer, make_questions
from evals.made_store import MadeQuestions
from evals.question_drafts import draft_questions
from evals.questions import BankQuestion
from evals.study_guide import GROUPS, GuideChapter, guide_markdown, study_guide
from indexes.errors import Busy, Cancelled, Conflict, NotFound
from indexes.types import Section, StoredNode
from rag.engine import AnswerEngine
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.sentence_reader import LearnedReader

SECTIONS = {
    "Warps": "A warp is a group of neighbouring threads that a scheduler issues together. "
    "Every warp on NVIDIA hardware holds 32 threads in hardware order. It is fast.",
    "Shared memory": "Shared memory allows the threads of one block to exchange data without leaving the chip. "
    "This is shown in Figure 3. The scratchpad is divided into 64 banks of equal width.",
    "Streams": "A stream is an ordered queue of work that the device performs in sequence. "
    "The Stream Priority Hint (SPH) decides which queue goes first when both are ready.",
    "Barriers": "A barrier is a point in a kernel that all members must reach before any goes on. "
    "The `__syncthreads()` function waits until all members of the block have arrived.",
    "Copies": "`cudaMemcpyAsync` queues a transfer and gives control back to the host at once. "
    "To reserve page-locked host storage, use `cudaMallocHost`. What does it cost? An SPH is free.",
    "Events": "`cudaEventRecord` notes the moment at which earlier work in a queue has ended. "
    "`cudaEventElapsedTime` gives the milliseconds between two recorded moments.",
    "Caches": "A cache line on the second level holds 128 bytes in four sectors. Figure 3: A cache line.",
    "Textures": "Texture memory suits reads that are near one another in two dimensions. "
    "A sampler is a fixed piece of hardware that interpolates between neighbouring texels.",
}


BOOK = [
    section(text, "GPU Book", heading, chapter=number // 3 + 1)
    for number, (heading, text) in enumerate(SECTIONS.items())
]


@pytest.fixture
def engine_of(tmp_path: Path, library_of: Any) -> Callable[..., AnswerEngine]:
    """An engine over a book of these sections."""

    def get(*sections: Section, generator: object = None) -> AnswerEngine:
        return make_engine(tmp_path, library_of(*sections), generator, reader=LearnedReader(signals_only))

    return get


@pytest.fixture
def engine(engine_of: Callable[..., AnswerEngine]) -> AnswerEngine:
    return engine_of(*BOOK)


@pytest.fixture
def nodes(engine: AnswerEngine) -> list[StoredNode]:
    return engine.library.nodes_of("book")


def made(engine: AnswerEngine, **options: object) -> tuple[BankQuestion, ...]:
    return make_questions(engine, "book", **options)  # type: ignore[arg-type]


def test_a_made_question_carries_its_verbatim_quote_section_and_chapter_and_a_checked_one_finds_its_passage(
    engine: AnswerEngine, nodes: list[StoredNode]
) -> None:
    by_heading = {node.heading_path[-1]: node for node in nodes}
    questions = made(engine)
    assert len({question.kind for question in questions}) >= 3
    assert any(question.checked for question in questions)
    for question in questions:
        (gold,) = question.gold
        node = by_heading[gold.heading]
        assert gold.evidence in node.text
        assert question.chapter == node.chapter
        if question.checked:
            assert gold.evidence in "".join(passage.text for passage in engine.search(question.question, 5))
        if question.checked and question.kind != "statement":
            assert question.answer.lower() in gold.evidence.lower()
            assert question.answer.lower() not in question.question.lower()


def test_what_passed_every_check_comes_before_what_did_not(engine_of: Any) -> None:
    leaning = "This is shown in Figure 3, and it also holds for the other warps below."
    marks = [question.checked for question in made(engine_of(*BOOK, section(leaning, "GPU Book", "Asides")))]
    assert marks == sorted(marks, reverse=True) and not marks[-1]


# --- what is asked about a sentence


@pytest.mark.parametrize(
    ("sentence", "kind", "question", "answer"),
    [
        ("A daemon is a patient porter that carries letters.", "definition", "What is a daemon?",
         "a patient porter that carries letters"),
        ("Careful porters carry letters to mail daemons (MDs).", "abbreviation", "What do MDs stand for?",
         "mail daemons"),
        ("Random Access Memory (RAM) holds letters.", "abbreviation", "What does RAM stand for?",
         "Random Access Memory"),
        ("`ring_bell()` wakes the porter of the night and opens the gate.", "name",
         "Fill in the name: “____ wakes the porter of the night and opens the gate.” (S)", "ring_bell()"),
        ("Every careful porter carries 32 letters of equal weight.", "number",
         "Fill in the number: “Every careful porter carries ____ letters of equal weight.”", "32"),
        ("The daemon carries every letter of the street before noon.", "term",
         "Fill in the term: “The ____ carries every letter of the street before noon.”", "daemon"),
        ("The protégé carries every letter of the street before noon.", "term",
         "Fill in the term: “The ____ carries every letter of the street before noon.”", "protégé"),
        ("The daemon carries every letter of the street before noon.", "statement",
         "True or false? “The daemon carries every letter of the street before noon.”", "True"),
    ],
)  # fmt: skip
def test_what_a_sentence_says_of_a_term_a_name_or_a_number_is_asked(
    sentence: str, kind: str, question: str, answer: str
) -> None:
    texts = [sentence, "Nobody has seen the daemon, or a protégé."]
    drafts = draft_questions([make_node(text, at, heading_path=("B", "S")) for at, text in enumerate(texts)]).drafts
    found = {(draft.kind, draft.question.removesuffix(" (S)"), draft.answer) for draft in drafts}
    assert (kind, question.removesuffix(" (S)"), answer) in found


@pytest.mark.parametrize(
    "leaning",
    [
        "It carries 32 letters of equal weight before noon.",
        "Before noon it carries 32 letters of equal weight.",
        "We carry 32 letters of equal weight before noon.",
        "A porter, as shown in the figure, carries 32 letters.",
        "Carry the 32 letters of equal weight to the porter.",
        "The function carries 32 letters of equal weight.",
        "A porter with 32 children of equal weight and two sacks.",
    ],
)
def test_a_sentence_that_leans_on_others_or_is_none_is_worth_less_and_does_not_stand_alone(leaning: str) -> None:
    plain = "A porter carries 32 letters of equal weight before noon."
    texts = (leaning, plain, "Nobody has seen the letters or the weight.")
    drafts = draft_questions([make_node(text, at) for at, text in enumerate(texts)]).drafts
    asked = [draft for draft in drafts if draft.kind == "term" and draft.statement.text != texts[2]]
    assert {(draft.statement.text, draft.stands_alone) for draft in asked} == {(plain, True), (leaning, False)}
    assert asked[0].statement.text == plain and asked[-1].statement.text == leaning
    assert [draft.statement.text for draft in drafts if draft.kind == "number"] == [plain]


@pytest.mark.parametrize(
    "sentence",
    [
        "A careful porter carries 32 letters in 4 bags before noon.",
        "A careful porter carries letters for Porter 2 before noon.",
    ],
)
def test_a_number_beside_others_or_at_the_end_of_a_name_is_not_left_out(sentence: str) -> None:
    drafts = draft_questions([make_node(sentence, 0)]).drafts
    assert "number" not in {draft.kind for draft in drafts}


def street(words: int) -> Section:
    """Prose about porters who handle things, of so many words at least."""
    verbs = ("carries", "reads", "opens", "sorts")
    things = "letter gate lamp bell book door coat boat drum flag knife ladder mirror needle oven plate rope".split()
    texts = (
        f"A porter{number} {verbs[number % 4]} the {things[number % 17]} of house{number} before anybody looks."
        for number in range(words // 10 + 1)
    )
    return section(" ".join(texts), "Street", "Porters")


@pytest.mark.parametrize(("words", "least"), [(300, 3), (1500, 8)])
def test_any_english_text_gives_questions(engine_of: Any, words: int, least: int) -> None:
    assert len(made(engine_of(street(words)))) >= least


def test_the_same_book_gives_the_same_questions_and_a_count_is_kept(engine: AnswerEngine) -> None:
    assert made(engine) == made(engine)
    assert len(made(engine, count=2)) == 2
    assert {question.type for question in made(engine, types=["short"])} == {"short"}


def test_a_book_without_sentences_gives_no_question_and_no_error(engine_of: Any) -> None:
    assert made(engine_of(section("```\nint x;\n```"))) == ()


def test_making_reports_and_stops_when_cancelled(engine: AnswerEngine) -> None:
    told: list[MakingProgress] = []
    with pytest.raises(Cancelled):
        made(engine, progress=told.append, cancelled=lambda: len(told) == 3)
    assert [at.tried for at in told] == [1, 2, 3]


def scattered(texts: Sequence[str]) -> NDArray[np.float32]:
    """Unit vectors of which two have a cosine of about a half."""
    rows = np.array([np.random.default_rng(crc32(text.encode())).normal(1.0, 1.0, 16) for text in texts], np.float32)
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def test_neither_place_nor_size_nor_meaning_tells_the_right_option() -> None:
    names = [f"cuda{'x' * (number % 9)}{number:03}" for number in range(600)]
    drawer = OptionDrawer(scattered)
    drawn: list[tuple[str, tuple[str, ...]]] = []
    for name in names:
        lots = Random(name)
        options = drawer.draw(name, lots.sample([other for other in names if other != name], 14), lots)
        if options:
            assert len(set(options)) == 4
            drawn.append((name, options))
    assert len(drawn) > 450

    def nearness(options: tuple[str, ...]) -> dict[str, float]:
        vectors = scattered(options)
        return dict(zip(options, (vectors @ vectors.sum(axis=0)).tolist(), strict=True))

    for rule in (
        lambda options: options[0],
        lambda options: max(options, key=len),
        lambda options: min(options, key=len),
        lambda options: sorted(options, key=len)[1],
        lambda options: max(options, key=lambda option: [len(other) for other in options].count(len(option)) == 1),
        lambda options: max(options, key=nearness(options).__getitem__),
        lambda options: min(options, key=nearness(options).__getitem__),
    ):
        share = sum(rule(options) == name for name, options in drawn) / len(drawn)
        assert abs(share - 0.25) < 2.69 * (0.25 * 0.75 / len(drawn)) ** 0.5  # 95 % for the seven rules together


def test_wrong_options_are_neither_of_another_world_nor_the_same_by_another_name() -> None:
    near = {"answer": 0.0, "same": 0.1, "far": 1.5, "near-1": 0.9, "near-2": 1.0, "near-3": 1.1}
    drawer = OptionDrawer(lambda texts: np.array([[np.cos(near[t]), np.sin(near[t])] for t in texts], np.float32))
    wrong = [text for text in near if text != "answer"]
    drawn = drawer.draw("answer", wrong, Random(0))
    assert set(drawn) == {"answer", "near-1", "near-2", "near-3"}
    assert drawer.draw("answer", [text for text in wrong if text != "near-3"], Random(0)) == ()


def test_wrong_options_are_of_the_answers_kind_and_none_stands_in_its_sentence(engine: AnswerEngine) -> None:
    questions = [one for one in made(engine, types=["choice"]) if one.choices]
    assert questions
    for question in questions:
        assert question.answer_index is not None and question.choices[question.answer_index] == question.answer
        assert len(set(question.choices)) == 4
        assert not [c for c in question.choices if c != question.answer and c in question.gold[0].evidence]
        if question.kind == "number":
            assert all(re.fullmatch(r"[\d,.]+", choice) for choice in question.choices)


@pytest.mark.parametrize(
    ("sentence", "opposite"),
    [
        ("The daemon carries letters before noon.", "The daemon carries letters after noon."),
        ("The daemon can carry letters.", "The daemon cannot carry letters."),
        ("The daemon is not a porter.", "The daemon is a porter."),
        ("The daemon is not always a porter.", "The daemon is always a porter."),
        ("The daemon doesn’t carry letters.", "The daemon carries letters."),
        ("Daemons have been porters.", "Daemons have not been porters."),
        ("All daemons are porters.", None),
        ("A daemon is only a porter.", None),
        ("The daemon is no longer a porter.", None),
        ("How often must the daemon carry letters before noon?", None),
    ],
)
def test_a_statements_opposite_is_a_sentence_that_says_so(sentence: str, opposite: str | None) -> None:
    drafts = [draft for draft in draft_questions([make_node(sentence, 0)]).drafts if draft.kind == "statement"]
    assert [draft.opposite for draft in drafts] == ([f"True or false? “{opposite}”"] if opposite else [])


def test_statements_are_about_as_often_true_as_false_and_a_false_one_says_what_is_right(engine_of: Any) -> None:
    things = "letter gate lamp bell book door coat boat drum flag knife ladder mirror needle oven plate rope".split()
    texts = [
        f"The {a} of the {b} is carried before a {c} can."
        for a, b, c in zip(things, things[5:], things[9:], strict=False)
    ]
    statements = [one for one in made(engine_of(section(" ".join(texts)))) if one.kind == "statement"]
    true = [question for question in statements if question.answer == "True"]
    assert len(statements) > 2 and abs(2 * len(true) - len(statements)) <= 1
    for question in statements:
        said = question.question.partition("“")[2].removesuffix("”")
        assert (said == question.gold[0].evidence) is (question in true)
        assert question in true or question.answer == f"False: {question.gold[0].evidence}"


def test_made_questions_go_with_their_book_and_with_its_content(store_place: Path | str, engine: AnswerEngine) -> None:
    store = MadeQuestions(store_place)
    (document,) = engine.library.documents()
    with pytest.raises(Conflict, match="no questions have been made"):
        store.about([document])
    questions = made(engine)
    store.keep(document, questions)
    assert store.about([document]) == store.of(document) == questions
    assert len(draw_exam(questions, ExamPlan())) == min(10, len(questions))
    assert store.of(replace(document, sha256="other")) == ()
    store.keep(document, questions[:1])
    assert store.of(document) == questions[:1]
    changed = store.change(questions[0].id, {"question": "What is it?"})
    assert store.of(replace(document, sha256="other")) == (changed,)
    store.drop(changed.id)
    with pytest.raises(NotFound):
        store.drop(changed.id)
    store.forget(document.document_id)
    assert store.of(document) == ()


def test_a_guide_says_in_the_books_own_words_what_each_chapter_defines_counts_and_names(
    engine: AnswerEngine, nodes: list[StoredNode]
) -> None:
    held = {node.node_id: node for node in nodes}
    questions = made(engine)
    chapters = study_guide(nodes, {1: "Threads", 2: "Work"}, questions)
    assert [chapter.chapter for chapter in chapters] == sorted({node.chapter for node in nodes})
    terms = {name: {e.term.lower() for c in chapters for e in getattr(c, name)} for name in GROUPS}
    assert {"warp", "stream priority hint"} <= terms["definitions"]
    assert {"cudamemcpyasync", "__syncthreads()"} <= terms["names"]
    assert "32" in terms["numbers"]
    for chapter in chapters:
        told = {entry.quote for name in GROUPS[:-1] for entry in getattr(chapter, name)}
        assert not told & {entry.quote for entry in chapter.sentences}
        for _, entries in chapter.groups:
            assert len({entry.quote for entry in entries}) == len(entries)
            for entry in entries:
                assert entry.quote in held[entry.node_id].text
                assert held[entry.node_id].chapter == chapter.chapter
    marked = {entry.quote for chapter in chapters for _, entries in chapter.groups for entry in entries if entry.asked}
    assert marked == {question.gold[0].evidence for question in questions}
    text = guide_markdown("A Book", chapters, {name: name.title() for name in GROUPS}, "/book/b")
    assert (
        "## 1. Threads" in text
        and "- **warp**: A warp is a group" in text
        and f"(/book/b?node={nodes[0].node_id})" in text
    )


def test_a_guides_headings_say_a_chapters_number_once() -> None:
    chapters = [GuideChapter(0, ""), GuideChapter(1, "Threads"), GuideChapter(2, "2 Blocks"), GuideChapter(3, "")]
    headings = [line for line in guide_markdown("B", chapters, {}, "/b").splitlines() if line.startswith("##")]
    assert headings == ["## 1. Threads", "## 2 Blocks", "## 3."]


def test_the_guide_has_an_entry_of_a_glossary_under_its_term() -> None:
    text = "**Shared memory**: Every block has a small store that all of its threads can read and write."
    (chapter,) = study_guide([make_node(text, 0, heading_path=("B", "Section"))], {})
    assert [entry.term for entry in chapter.definitions] == ["Shared memory"]


@pytest.mark.parametrize(
    "text",
    [
        "线程束是一组线程。它们一起执行。",
        "no sentence",
        "See above.",
        "```c\nint x;\n```",
        "| a | b |\n|---|---|\n| 1 | 2 |",
    ],
)
def test_the_guide_of_a_chapter_with_text_is_never_empty(text: str) -> None:
    (chapter,) = study_guide([make_node(text, 0, heading_path=("B", "Section"))], {})
    assert [entry.term for _, entries in chapter.groups for entry in entries] == ["Section"]


class Writer(ScriptedGenerator):
    """A model that asks about one sentence, and answers itself: in the book's way, in another, or not at all."""

    asks = "Which function queues a transfer and gives control back to the host at once?"

    def __init__(self, answers: str) -> None:
        super().__init__()
        self.answers = answers

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        if not self.answers:
            raise Busy("others are answered")
        about_copies = "queues a transfer" in request.question
        asked = json.dumps({"question": self.asks if about_copies else "Which of them?"})
        self.pieces = (asked if request.schema else self.answers,)
        yield from super().stream(request)


@pytest.mark.parametrize(("answers", "kept"), [("cudaMemcpyAsync", True), ("cudaMallocHost", False), ("", False)])
def test_a_question_that_a_language_model_wrote_and_answers_as_the_book_does_takes_the_place_of_the_rules_own(
    engine_of: Any, answers: str, kept: bool
) -> None:
    questions = made(engine_of(*BOOK, generator=Writer(answers)))
    assert {question.question for question in questions if question.made_by == "script"} == (
        {Writer.asks} if kept else set()
    )
    about = [question for question in questions if "queues a transfer" in question.gold[0].evidence]
    assert [question.made_by for question in about] == (["script"] if kept else ["rules"])
