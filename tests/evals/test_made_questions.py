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
from evals.question_drafts import draft_questions, is_foreign_name
from evals.questions import BankQuestion
from evals.study_guide import guide_markdown, study_guide
from indexes.errors import Cancelled, Conflict
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


def test_a_made_question_carries_its_verbatim_quote_section_and_chapter_and_finds_its_own_passage_first(
    engine: AnswerEngine, nodes: list[StoredNode]
) -> None:
    by_heading = {node.heading_path[-1]: node for node in nodes}
    questions = made(engine)
    assert len({question.kind for question in questions}) >= 3
    for question in questions:
        (gold,) = question.gold
        node = by_heading[gold.heading]
        assert gold.evidence in node.text
        assert question.chapter == node.chapter
        assert question.answer.lower() in gold.evidence.lower()
        assert question.answer.lower() not in question.question.lower()
        assert gold.evidence in engine.search(question.question, 1)[0].text
    quotes = " ".join(draft.statement.quote for draft in draft_questions(nodes).drafts)
    for points_elsewhere in ("Figure 3", "It is fast", "What does it cost"):
        assert points_elsewhere not in quotes


# --- what is asked about a sentence


def test_an_everyday_word_a_fragment_and_what_the_text_before_has_named_are_not_asked_for() -> None:
    sentences = (
        "Most servers need the daemon for each visitor who sends more than one letter.",
        "Old clients hold the possibility of silent failure against whoever reads their logs.",
        "New clients read letters from the daemon and write their logs to a file.",
        "The visitor reads letters from the daemon for which his cookie has paid.",
        "Programs and scripts that a careful visitor needs before the *daemon*.",
        "A porter hands letters to the daemon ---------- where visitors wait for an answer.",
        "A careful porter opens the door for the daemon and for the keeper of it.",
    )
    filler = "Other words fill a section about the possibility of nothing. " * 3
    nodes = [make_node(text, place, heading_path=("B", f"S{place}")) for place, text in enumerate(sentences)]
    nodes += [make_node(filler, place, heading_path=("B", f"S{place}")) for place in range(7, 47)]
    asked = {(draft.answer, draft.statement.text.split()[0]) for draft in draft_questions(nodes).drafts}
    assert asked == {("daemon", "Most"), ("daemon", "New")}


def asked_about(*sentences: str) -> list[tuple[str, str]]:
    """Answers and questions on sentences in sections of their own, in a book that also emphasises what it tells of."""
    terms = [term for term in ("daemon", "private stack") if f"the {term}" in sentences[0].lower()]
    others = [f"Nobody has seen the *{term}*. Who has lost the {term}, or the {term}." for term in terms]
    texts = [*sentences, *others, *["Other words fill a section."] * 20]
    nodes = [make_node(text, place, heading_path=("B", f"S{place}")) for place, text in enumerate(texts)]
    return [(draft.answer, draft.question.partition(" (B, S")[0]) for draft in draft_questions(nodes).drafts]


PORTERS = "Careful porters must carry the heavy letters to individual mail daemons (MDs) at night."
CLIENT = "A careful client needs {} in the old terminal on every morning."
COUNTS = "Every careful porter carries 32 letters{}, whoever holds the lamp."
STACK = "The private stack holds local variables and return addresses of threads"
LETTERS = "A careful client needs {} letters about the daemon on every morning of the year."


@pytest.mark.parametrize(
    ("sentences", "answer", "question"),
    [
        ("A daemon is a patient porter that carries letters of `post::Office` between careful clients.", "daemon",
         "Which term means “a patient porter that carries letters of `post::Office` between careful clients”?"),
        (CLIENT.format("the daemon"), "daemon", "Fill in the term"),
        (f"{PORTERS}|Nobody sees the MDs.", "mail daemons", "What do MDs stand for?"),
        (COUNTS.format(" of equal weight"), "32 letters", "Fill in the number"),
        ("The keyword `__lamp__` marks a door that opens from the hall; such a door is called a gate.", "__lamp__",
         "Which keyword marks a door that opens from the hall?"),
        ("The call to `waitForPorter()` makes the client stand there until the porter has come; nobody likes that.",
         "waitForPorter()", "Which function makes the client stand there until the porter has come?"),
        ("`ringBell(door, times)` wakes the porter of the night, so nobody waits at the gate.", "ringBell",
         "Which identifier wakes the porter of the night?"),
        ("The function ringBell() wakes the porter of the night and opens the gate.",  # as in a PDF
         "ringBell()", "Which function wakes the porter of the night and opens the gate?"),
        ("An *iron bell* wakes the oldest porter of the whole street, so nobody waits at night.", "iron bell",
         "Fill in the term: “A(n) ____ wakes the oldest porter of the whole street.”"),
        ("`hip_runtime.h` contains the declarations that every careful kernel needs at night.", "hip_runtime.h",
         "Which file contains"),
        (f"{STACK} that run on the oldest machine of the whole office at night.", "private stack", "Fill in the term"),
        (LETTERS.format("fresh"), "daemon", "Fill in the term"),
        (LETTERS.format("Rocket 3.0"), "daemon", "Fill in the term"),
    ],
)  # fmt: skip
def test_what_a_sentence_says_of_a_name_a_term_or_a_number_is_asked(sentences: str, answer: str, question: str) -> None:
    found = [one[: len(question)] for said, one in asked_about(*sentences.split("|")) if said == answer]
    assert set(found) == {question}


@pytest.mark.parametrize(
    ("sentence", "unasked"),
    [
        ("A daemon is the classic case: many letters meet a single patient porter before Sunday.", ": "),
        ("Parchment is one half of letters, and the fast porter is the other half.", ": "),
        (CLIENT.format("`call the daemon`"), "daemon:"),
        (PORTERS, "mail daemons:"),  # written once
        (COUNTS.format(": one for each of his uncles"), "number"),
        ("The `__sync` variants are left off by default to help with the move to wider masks.", "It variants"),
        ("The variable `ringBell` holds the porter of the night and nothing of the gate.", "ringBell"),  # of a listing
        ("`ringBell` fills a paper whose many columns include: the hour, the porter and the gate.", "ringBell"),
        ("`mail::open_the_gate` is the function that opens the last gate of the whole street.", "open_the_gate"),
        ("A `ringBell` porter wakes the whole house of the street and opens the gate.", "ringBell"),
        ("The `tcgen05.mma` class support the oldest numbers of every kind and the newest ones.", "identifier class"),
        ("The `tcgen05.mma` instructions support the oldest numbers of every kind.", "identifier instructions"),
        (f"{STACK}.", "private stack:"),  # short, and begins with 'the'
        (LETTERS.format("32"), "daemon:"),
    ],
)
def test_a_figure_of_speech_code_and_what_is_no_fact_are_not_asked(sentence: str, unasked: str) -> None:
    assert unasked not in "\n".join(map(": ".join, asked_about(sentence)))


@pytest.mark.parametrize(
    ("asks", "headings"),
    [
        (True, ["Memory", "Task parallelism", "Thread index", "Building blocks"]),
        (False, ["Acknowledgments", "Task 2", "Index", "Version 0.58.0", "Building HIP from source", "Debugging"]),
    ],
)
def test_only_what_teaches_is_asked_about(asks: bool, headings: list[str]) -> None:
    text = "`cudaFirst` returns the number of bytes that the caller has reserved so far."
    for heading in headings:
        assert bool(draft_questions([make_node(text, heading_path=("B", heading))]).drafts) is asks, heading


def test_a_question_to_which_the_book_has_two_answers_is_not_asked() -> None:
    described = "`{}` returns the number of bytes that the caller has reserved so far."
    nodes = [
        make_node(described.format(name), number, heading_path=("B", name))
        for number, name in enumerate(("cudaFirst", "cudaSecond", "cudaFirst"))
    ]
    assert not [draft for draft in draft_questions(nodes).drafts if draft.question.startswith("Which")]
    assert [draft for draft in draft_questions(nodes[::2]).drafts if draft.question.startswith("Which")]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (("Chapter", "Section"), " (Chapter, Section)"),
        (("Book", "The scheduler", "Post office"), " (The scheduler, Post office)"),
        (("3.2 Post office",), " (Post office)"),
        (("Post office", "Summary"), " (Post office)"),
        (("Post office", "Private stacks"), " (Post office)"),  # the answer
        (("Local variables", "Return addresses"), ""),  # said already
        (("Introduction", " ".join(f"Word{letter}" for letter in "abcdefghijk")), ""),
    ],
)
def test_a_question_has_no_link_to_the_sentence_before_and_the_headings_that_say_something_but_not_the_answer(
    path: tuple[str, ...], shown: str
) -> None:
    text = "However, each private stack holds the local variables and return addresses of one running thread."
    (draft,) = draft_questions([make_node(text, heading_path=path)]).drafts
    said = "Each ____ holds the local variables and return addresses of one running thread."
    assert draft.question == f"Fill in the term: “{said}”{shown}"


def test_a_name_of_another_world_is_foreign() -> None:
    assert [is_foreign_name(term) for term in ("Tensor Core", "Central Park", "daemon")] == [False, True, False]


@pytest.mark.parametrize(
    ("path", "off_topic"),
    [
        (("Porters", "Letters"), False),
        (("Letters and clients", "Other things"), False),
        (("Letters", "Porters", "Other things"), True),
    ],
)
def test_a_sentence_that_says_nothing_of_the_two_headings_over_it_is_off_topic(
    path: tuple[str, ...], off_topic: bool
) -> None:
    text = "Every careful client needs 32 letters of equal weight on every morning."
    (draft,) = [each for each in draft_questions([make_node(text, heading_path=path)]).drafts if each.kind == "number"]
    assert draft.is_off_topic is off_topic


def test_the_same_book_gives_the_same_questions_and_a_count_is_kept(engine: AnswerEngine) -> None:
    assert made(engine) == made(engine)
    assert len(made(engine, count=2)) == 2
    assert {question.type for question in made(engine, types=["short"])} == {"short"}


def test_a_thin_book_gives_no_question_and_no_error(engine_of: Any) -> None:
    assert made(engine_of(section("See above.\n\n```\nint x;\n```"))) == ()


def test_making_reports_and_stops_when_cancelled(engine: AnswerEngine) -> None:
    told: list[MakingProgress] = []
    with pytest.raises(Cancelled):
        made(engine, progress=told.append, cancelled=lambda: len(told) == 3)
    assert [at.tried for at in told] == [1, 2, 3]


def test_numbers_are_offered_once_each_and_written_as_the_right_one_is(engine_of: Any) -> None:
    sizes = {
        "Adders": "Every adder of the old core works on 16-bit integers without any help.",
        "Multipliers": "A multiplier takes 32 bits of each operand and drops the rest of them.",
        "Registers": "Any register of the new machine keeps 32-bit values between two instructions.",
        "Buses": "Between chips the narrow bus carries 8 bits in each direction at a time.",
        "Timers": "An interval timer counts upwards in 64 bits and never returns to zero.",
        "Addresses": "Older devices give 48-bit addresses to whatever the host has reserved.",
    }
    sections = [section(text, "Book", heading) for heading, text in sizes.items()]
    questions = [one for one in made(engine_of(*sections), types=["choice"]) if one.kind == "number"]
    assert questions
    for question in questions:
        numbers = [re.match(r"\d+", choice)[0] for choice in question.choices]  # type: ignore[index]
        assert len(set(numbers)) == 4
        assert len({choice.lstrip("0123456789") for choice in question.choices}) == 1


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
        if options is not None:
            drawer.keep(options)
            assert len(set(options.texts)) == 4
            drawn.append((name, options.texts))
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
    assert drawn is not None and set(drawn.texts) == {"answer", "near-1", "near-2", "near-3"}
    assert drawer.draw("answer", [text for text in wrong if text != "near-3"], Random(0)) is None


def test_wrong_options_are_of_the_answers_kind_and_none_stands_in_its_sentence(
    engine_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evals.made_questions.MOST_ALIKE", 0.9)  # the fakes see nothing but words
    monkeypatch.setattr("evals.made_questions.BESIDE_SHARE", 2.0)
    scales = ("spring", "platform", "kitchen", "letter", "pocket", "laboratory")
    says = "A *{} scale* weighs {} for the porters of the {} office before noon."
    what = ("coins", "stamps", "flowers", "parcels", "needles", "crystals")
    where = ("northern", "southern", "eastern", "western", "upper", "lower")
    texts = [says.format(*each) for each in zip(scales, what, where, strict=True)]
    texts += [f"Whoever has lost the {scale} scale must pay for a new {scale} scale at once." for scale in scales]
    sections = [section(text, "Book", f"Weighing {number}") for number, text in enumerate(texts)]
    questions = [one for one in made(engine_of(*sections), types=["choice"]) if one.kind == "definition"]
    assert questions
    for question in questions:
        assert question.answer_index is not None and question.choices[question.answer_index] == question.answer
        assert set(question.choices) <= {f"{scale} scale" for scale in scales}
        assert sum(choice in question.gold[0].evidence.replace("*", "") for choice in question.choices) == 1


def test_made_questions_go_with_their_book_and_with_its_content(tmp_path: Path, engine: AnswerEngine) -> None:
    store = MadeQuestions(tmp_path / "questions.sqlite3")
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
    store.forget(document.document_id)
    assert store.of(document) == ()


def test_a_guide_says_in_the_books_own_words_what_each_chapter_defines_counts_and_names(
    engine: AnswerEngine, nodes: list[StoredNode]
) -> None:
    held = {node.node_id: node for node in nodes}
    chapters = study_guide(nodes, {1: "Threads", 2: "Work"}, made(engine))
    assert [chapter.chapter for chapter in chapters] == sorted({node.chapter for node in nodes})
    terms = {name: [e.term.lower() for c in chapters for e in getattr(c, name)] for name in ("definitions", "names")}
    assert {"warp", "stream priority hint"} <= set(terms["definitions"])
    assert {"cudamemcpyasync", "__syncthreads()"} <= set(terms["names"])
    assert "32 threads" in [entry.term for chapter in chapters for entry in chapter.numbers]
    for chapter in chapters:
        for _, entries in chapter.groups:
            assert len({entry.term.lower() for entry in entries}) == len(entries)
            for entry in entries:
                assert entry.quote in held[entry.node_id].text
                assert held[entry.node_id].chapter == chapter.chapter
    assert any(entry.asked for chapter in chapters for _, entries in chapter.groups for entry in entries)
    names = {"definitions": "Definitions", "numbers": "Numbers", "names": "Names"}
    text = guide_markdown("A Book", chapters, names, "/book/b")
    assert (
        "## 1. Threads" in text
        and "- **warp**: A warp is a group" in text
        and f"(/book/b?node={nodes[0].node_id})" in text
    )


class Writer(ScriptedGenerator):
    """A model that writes one good pair about each passage, and one whose evidence is invented."""

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        sentence = next((s for s in LONG if request.question in (s, ASKED[s]) or s in request.question), LONG[0])
        pairs = [
            {"question": ASKED[sentence], "answer": sentence, "evidence": sentence},
            {"question": "What is invented here?", "answer": "Nothing.", "evidence": "It is invented."},
        ]
        writes = request.question.startswith("Write")
        self.pieces = ("\n".join(map(json.dumps, pairs)) if writes else sentence,)
        yield from super().stream(request)


ASKED = {
    "A mailbox carries commands from the host to the chip in small fixed slots.": "What carries commands to the chip?",
    "The arbiter grants the bus to the requester that waited longest.": "Who is granted the bus by the arbiter?",
}
LONG = tuple(ASKED)


def test_a_language_model_writes_verified_questions_that_are_marked_as_its_own(engine_of: Any) -> None:
    filler = " ".join(f"Further remark {number} follows without any claim." for number in range(12))
    texts = [f"{text} {filler}" for text in LONG]
    sections = [section(text, "GPU Book", f"Long {number}", chapter=9) for number, text in enumerate(texts)]
    engine = engine_of(*BOOK, *sections, generator=Writer())
    questions = made(engine)
    written = [question for question in questions if question.made_by == "script"]
    assert {question.question for question in written} == set(ASKED.values())
    assert {question.made_by for question in questions} == {"script", "rules"}
    for question in written:
        assert (question.type, question.kind, question.chapter) == ("short", "written", 9)
        assert question.gold[0].evidence in "".join(texts)
    assert "script" not in {question.made_by for question in made(engine, types=["choice"])}
