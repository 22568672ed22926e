"""What a running server holds: library, engine, jobs, and the services that REST and the page share.

Importing and loading models takes seconds and happens on a thread of its own; meanwhile the server answers `/healthz`,
and every other call says what it waits for.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.adapter_tuning import AdapterTuning, Tune
from api.answering import Answering
from api.comparisons import Comparisons, Run
from api.errors import NotReady
from api.generator_switch import GeneratorSwitch
from api.job_store import Job
from api.jobs import JobHandle, JobQueue
from api.metrics import Metrics
from api.settings import CoalesceSettings
from api.uploads import Books, Taken
from evals.made_store import MadeQuestions, is_for_tuning
from evals.questions import BankQuestion, QuestionFolder, chapter_titles, load_bank
from evals.study import Asked, Progress, Study, justify
from evals.study_guide import GuideChapter, study_guide
from evals.study_store import StudyStore
from indexes.errors import CoalesceError, Conflict, HomeNotWritable, IndexMissing, InvalidInput, NotFound
from indexes.sample import add_sample
from rag.conversations import Conversation, ConversationStore, Feedback, Vote
from rag.question import reject_control_characters
from rag.reading import Reading
from rag.types import TUNED_ARMS, Answer, Arm

if TYPE_CHECKING:
    from indexes.library import Library
    from indexes.types import AddProgress, Document, ProgressListener
    from rag.engine import AnswerEngine
    from rag.explanation import Explanation

SAMPLE_MARKER = "sample-book-added"
"""A file of the home: the sample book was added once, so a missing one was removed on purpose."""
MAKING = "questions"
"""The kind of the job that makes questions."""
NONE_HOLDS = "it wrote none that holds"
"""Why a language model has no share in the questions made."""
BANK_TUNE = "bank:tune"
READY_RETRY_S = 1.0
MOST_EXPLAINED = 6
"""Nodes of one section that are explained."""

OnStep = Callable[[str], None]


def load_engine(settings: CoalesceSettings, on_step: OnStep) -> tuple[Library, AnswerEngine]:
    """Opens the home's library and builds the engine over it, models loaded.

    Args:
        on_step: called with the name of each step.
    """
    from indexes.library import open_library
    from rag.assemble import build_engine

    on_step("opening the library and loading the embedder")
    library = open_library(settings.index, create=True)
    try:
        library.load()
        on_step("loading the generator")
        engine = build_engine(settings.rag, library)
        engine.load()
    except BaseException:
        library.close()
        raise
    return library, engine


@dataclass(frozen=True, slots=True)
class Pick:
    """The option that an arm took, by its index, and the score of each."""

    arm: Arm
    picked: int
    scores: tuple[float, ...]


@dataclass(slots=True)
class Preparation:
    """How far the preparation is: the current step, with `done` of `total` when it is counted."""

    step: str = "starting"
    done: int = 0
    total: int = 0
    ready: bool = False
    error: BaseException | None = None
    seconds: float = 0.0
    listener: Callable[[Preparation], None] = field(default=lambda _: None)

    def report(self, step: str, done: int = 0, total: int = 0) -> None:
        """Sets the current step and calls the listener."""
        self.step, self.done, self.total = step, done, total
        self.listener(self)


@contextmanager
def open_study(settings: CoalesceSettings) -> Iterator[Study]:
    """Exams and cards without a server, for the command line and for assistants."""
    from indexes.library import open_library

    library: Library | None = None
    with suppress(IndexMissing):  # without one, the bundled book's own sections justify its questions
        library = open_library(settings.index, create=False)
    study = _study(settings, lambda: library)
    try:
        yield study
    finally:
        study.close()
        if library is not None:
            library.close()


def _study(settings: CoalesceSettings, library: Callable[[], Library | None]) -> Study:
    from evals.judge import ExamJudge

    judge = ExamJudge(settings.judge) if settings.judge is not None else None
    return Study(StudyStore(settings.study_path), lambda question: justify(question, library()), judge=judge)


class Services:
    """Everything of one server; REST and the page are two entry points to it.

    Args:
        settings: the settings of the process.
        listener: called at every step of the preparation, on the preparing thread.
        load: opens library and engine.
        add_sample: adds the sample book to an empty library.
        compare: runs a comparison; tune: trains an adapter; None is the real one.
    """

    def __init__(
        self,
        settings: CoalesceSettings,
        *,
        listener: Callable[[Preparation], None] = lambda _: None,
        load: Callable[[CoalesceSettings, OnStep], tuple[Library, AnswerEngine]] = load_engine,
        add_sample: Callable[[Library, ProgressListener], object] = add_sample,
        compare: Run | None = None,
        tune: Tune | None = None,
    ) -> None:
        self.settings = settings
        self.preparation = Preparation(listener=listener)
        self.metrics = Metrics()
        self.jobs = JobQueue(settings.home)
        self.answering = Answering(lambda: self.engine, settings, self.metrics)
        self.made = MadeQuestions(settings.made_questions_path)
        self.books = Books(settings.home, lambda: self.library, self.jobs, self.made.forget)
        self.generators = GeneratorSwitch(
            settings, self.jobs, lambda: self.library, lambda: self.engine, self.use_engine
        )
        self.comparisons = Comparisons(
            settings, self.jobs, lambda: self.generators.rag, lambda: self.engine.arms, compare
        )
        self.adapters = AdapterTuning(settings, self.jobs, lambda: self.generators.running, lambda: self.engine, tune)
        self.reading = Reading(lambda: self.library)
        self.question_files = QuestionFolder(settings.questions_folder)
        self.study = _study(settings, lambda: self.library)
        self._load = load
        self._add_sample = add_sample
        self._library: Library | None = None
        self._engine: AnswerEngine | None = None
        self._making = threading.Lock()
        self._guides: dict[str, tuple[tuple[str, int], tuple[GuideChapter, ...]]] = {}
        self._reading_guide = threading.Lock()
        self._first: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._prepare, name="coalesce-prepare", daemon=True)
        self.metrics.watch("coalesce_ready", "1 when questions are answered.", lambda: float(self.preparation.ready))
        self.metrics.watch(
            "coalesce_answers_inside", "Answers in work or waiting.", lambda: float(self.answering.limit.inside)
        )

    @property
    def library(self) -> Library:
        """The library; raises NotReady until it is open."""
        if self._library is None or not self.preparation.ready:
            raise self._not_ready()
        return self._library

    @property
    def engine(self) -> AnswerEngine:
        """The engine; raises NotReady until it can answer."""
        if self._engine is None or not self.preparation.ready:
            raise self._not_ready()
        return self._engine

    def conversations(self, owner: str | None) -> ConversationStore:
        """The conversations that `owner` may see; None sees everyone's. Raises NotReady."""
        return self.engine.conversations.of(owner)

    def runtime_info(self) -> dict[str, Any]:
        """What a ready server runs with: generator, model, arms, embedder and counts of books; raises NotReady."""
        engine, library = self.engine, self.library
        documents = library.documents()
        return {
            "status": "ready",
            "generator": engine.generator.name,
            "model": engine.generator.model_name,
            "adapters": list(engine.generator.adapters),
            "arms": list(engine.arms),
            "quantization": self.generators.now().quantization,
            "embedder": library.embedder_name,
            "faiss_device": library.faiss_device,
            "documents": len(documents),
            "nodes": sum(document.nodes for document in documents),
            "seconds_to_ready": round(self.preparation.seconds, 3),
        }

    def explain(
        self, question: str, document_id: str, *, page: int | None = None, section: Sequence[str] = ()
    ) -> Explanation:
        """Why a page or a section of a book was not found: the ranks of its nodes for `question`.

        Args:
            section: the heading path.

        Raises:
            InvalidInput: neither page nor section is given, or both, or the question cannot be used.
            NotFound: the book, the page or the section does not exist.
        """
        document = self.library.document(document_id)
        if (page is None) == (not section):
            raise InvalidInput("give either a page or a section", hint="Use `page`, or the heading path as `section`.")
        if page is not None:
            return self.engine.explain(question, document_id, page=page)
        path = tuple(section)
        node_ids = [node.node_id for node in self.library.nodes_of(document_id) if node.heading_path == path]
        if not node_ids:
            raise NotFound(
                f"the book {document.title!r} has no section {' › '.join(path)!r:.200}",
                hint="Use the heading path of a passage.",
            )
        return self.engine.explain(question, document_id, node_ids=node_ids[:MOST_EXPLAINED])

    def choose(
        self,
        question: str,
        choices: Sequence[str],
        arms: Sequence[Arm] | None = None,
        *,
        adapter: str | None = None,
        top_k: int = 5,
    ) -> tuple[Pick, ...]:
        """Which option of a choice question each arm takes, by default each arm that can choose; raises as `choose`."""
        engine = self.engine
        picks = []
        for arm in dict.fromkeys(arms or engine.chooser.arms):
            named = adapter if arm in TUNED_ARMS else None
            scores = engine.choose(question, choices, arm, adapter=named, top_k=top_k).scores
            picks.append(Pick(arm, max(range(len(scores)), key=scores.__getitem__), scores))
        return tuple(picks)

    def draw_choice_question(self, asked: Asked) -> BankQuestion | None:
        """A choice question about one of the books, at random; None where there is none. It has its answer in it.

        Args:
            asked: questions that are left out.
        """
        books = self.library.documents()
        found = [question for book in books for question in self.made.of(book) if question.choices]
        if any(book.sample for book in books):
            found += [question for question in load_bank(split="test") if question.choices]
        found = [question for question in found if question not in asked]
        return random.choice(found) if found else None

    def answer(self, answer_id: str, owner: str | None) -> Answer:
        """A finished answer: one that has just ended, or one that a conversation keeps; raises NotFound."""
        try:
            run = self.answering.find(answer_id, owner)
        except NotFound:
            return self.conversations(owner).answer(answer_id)
        return run.done or self.conversations(owner).answer(answer_id)

    def vote(self, answer_ids: Sequence[str], preferred: str | None, owner: str | None, *, blind: bool = True) -> Vote:
        """Keeps a vote between answers of one question; `preferred` is None when none is better.

        Raises:
            InvalidInput: fewer than two answers, answers of several questions, or a preferred one that is not theirs.
            NotFound: no answer has one of the ids.
        """
        answers = [self.answer(answer_id, owner) for answer_id in dict.fromkeys(answer_ids)]
        if preferred is not None and preferred not in answer_ids:
            raise InvalidInput(
                f"the preferred answer {preferred!r:.80} is not among the answers", hint="Name one of them, or null."
            )
        if len({answer.question for answer in answers}) > 1:
            raise InvalidInput("the answers belong to several questions", hint="Vote between answers to one question.")
        winner = next((answer.name for answer in answers if answer.id == preferred), "")
        return self.engine.conversations.vote(answers, winner, blind=blind)

    def rename_conversation(self, conversation_id: str, title: str, owner: str | None) -> Conversation:
        """Gives a conversation another title; raises NotFound, and InvalidInput for control characters."""
        return self.conversations(owner).rename(conversation_id, reject_control_characters(title, "title"))

    def delete_conversation(self, conversation_id: str, owner: str | None) -> None:
        """Removes a conversation, and stops an answer that is being written in it; raises NotFound."""
        self.conversations(owner).delete(conversation_id)
        self.answering.forget(conversation_id)

    def delete_conversations(self, owner: str | None, *, of_the_page: bool = False) -> None:
        """Removes every conversation that `owner` may see, and stops answers that are being written in them."""
        store = self.conversations(owner)
        for conversation in store.list(of_the_page=of_the_page):
            self.answering.forget(conversation.id)
        store.delete_all(of_the_page=of_the_page)

    def give_feedback(self, answer_id: str, rating: str, comment: str, owner: str | None) -> Feedback:
        """Keeps a thumb up or down; raises NotFound, and InvalidInput for a comment that cannot be kept."""
        comment = reject_control_characters(comment.strip(), "comment")
        return self.conversations(owner).give_feedback(answer_id, rating, comment)

    def use_engine(self, engine: AnswerEngine) -> None:
        """Makes another engine the one that answers; the old generator is freed after its last answer."""
        old, self._engine = self.engine, engine
        self.answering.when_unused(old, old.generator.close)

    def make_questions(self, document_id: str, count: int | None, types: Sequence[str]) -> Job:
        """Queues the job that makes questions from a book, in place of those made before.

        Raises:
            NotFound: no such book.
            Conflict: it is the bundled book, which has its bank, or a job makes some already.
        """
        document = self.library.document(document_id)
        if document.sample:
            raise Conflict(
                f"'{document.title}' has a question bank", hint="start an exam on it; nothing needs to be made"
            )
        with self._making:
            running = self.jobs.unfinished(MAKING, document_id)
            if running is not None:
                raise Conflict(
                    f"questions are being made from '{document.title}'", hint=f"see GET /v1/jobs/{running.id}"
                )
            work = partial(self._make_questions, document, count, tuple(types))
            return self.jobs.submit(MAKING, work, document_id=document_id, title=document.title)

    def _make_questions(self, document: Document, count: int | None, types: Sequence[str], handle: JobHandle) -> str:
        from evals.made_questions import RULES, make_questions

        engine = self.engine
        handle.progress(0, 0, "finding what can be asked")
        questions = make_questions(
            engine,
            document.document_id,
            count=count,
            types=types,
            progress=lambda at: handle.progress(at.done, at.total, MAKING),
            cancelled=handle.cancelled,
        )
        self.made.keep(self.library.document(document.document_id), questions)
        if not questions:
            return "the book has no sentence that a question can be made from"
        made = "1 question was made" if len(questions) == 1 else f"{len(questions)} questions were made"
        if "base" not in engine.generator.arms or (types and "short" not in types):
            return made
        written = sum(question.made_by != RULES for question in questions)
        model = engine.generator.model_name
        return f"{made}, {written} of them by {model}" if written else f"{made}, none of them by {model}: {NONE_HOLDS}"

    def books_with_questions(self) -> list[Document]:
        """The books that questions were made from."""
        made = self.made.counts()
        return [book for book in self.library.documents() if made.get((book.document_id, book.sha256))]

    def questions_on(self, document_ids: Sequence[str]) -> tuple[BankQuestion, ...]:
        """The questions on some books; raises NotFound, and Conflict where none were made yet."""
        return self.made.about([self.library.document(document_id) for document_id in document_ids])

    def progress(
        self, study: Study, learner: str, document_id: str | None = None
    ) -> tuple[Progress, dict[tuple[str, int], str]]:
        """A learner's progress with the titles of its chapters: in one book, or in all that was ever asked.

        Args:
            study: as the reader may see it.

        Raises:
            NotFound, Conflict: as `questions_on`.
        """
        if document_id is not None:
            found = study.progress(learner, self.questions_on([document_id]))
            return found, {("", chapter.ordinal): chapter.title for chapter in self.library.chapters(document_id)}
        made = [question for book in self.library.documents() for question in self.made.of(book)]
        found = study.progress(learner, made=made)
        titles = {("", number): title for number, title in chapter_titles().items()}
        for book in {chapter.book for chapter in found.chapters} - {""}:
            titles |= {(book, chapter.ordinal): chapter.title for chapter in self.library.chapters(book)}
        return found, titles

    def tune_adapter(self, name: str, epochs: float, document_ids: Sequence[str] = (), source: str = BANK_TUNE) -> Job:
        """Queues the tuning of an adapter on the questions about some books, or of a source.

        Of the questions made from a book, those of half of its sections are learnt; comparisons ask the others.

        Args:
            source: where no book is named: `bank:tune`, or the name of a question file of the home.

        Raises:
            NotFound, InvalidInput, Conflict: as `questions_on` and `AdapterTuning.start`.
        """
        if document_ids:
            questions = tuple(question for question in self.questions_on(document_ids) if is_for_tuning(question))
        elif source == BANK_TUNE:
            questions = load_bank(split="tune")
        elif source.startswith("bank:"):
            raise InvalidInput(
                f"{source!r:.80} is only for measuring", hint=f"Tune on {BANK_TUNE}, a book or a question file."
            )
        else:
            questions = tuple(question for question in self.question_files.load(source) if not question.after)
        return self.adapters.start(name, questions, epochs)

    def run_comparison(self, document_id: str | None = None) -> Job:
        """Queues the quick comparison: on the bank, or on the questions made from a book.

        Raises:
            NotReady, NotFound.
            Conflict: a comparison runs already, or no questions were made from the book.
        """
        if document_id is None or self.library.document(document_id).sample:
            return self.comparisons.run_quick()
        self.questions_on([document_id])
        return self.comparisons.run_quick(document_id, lambda book: self.questions_on([book]))

    def guide(self, document_id: str) -> tuple[GuideChapter, ...]:
        """The study guide of a book, kept until the book or its questions change; raises NotFound."""
        document = self.library.document(document_id)
        made = self.made.of(document)
        key = (document.sha256, hash(made))
        with self._reading_guide:  # the page and its download ask at once; a large book takes seconds
            known = self._guides.get(document_id)
            if known is None or known[0] != key:
                titles = {chapter.ordinal: chapter.title for chapter in self.library.chapters(document_id)}
                known = self._guides[document_id] = (key, study_guide(self.library.nodes_of(document_id), titles, made))
        return known[1]

    def fetch_book(self, url: str) -> Taken:
        """Adds a page of the web, or those of a sitemap; raises as `Books.fetch` does."""
        return self.books.fetch(url, self.settings.max_upload_bytes, private=self.settings.private_urls)

    def start(self, first: Callable[[], None] | None = None) -> None:
        """Begins to prepare; returns at once.

        Args:
            first: imports that the preparing thread does before its own, so that no two threads import at once.

        Raises:
            HomeNotWritable: the home cannot be created or written.
        """
        check_home(self.settings.home)
        self._first = first
        self.jobs.start()
        self._thread.start()

    def close(self) -> None:
        """Stops answers and jobs and frees the models."""
        self.answering.close()
        self.jobs.close()
        self.study.close()
        self.made.close()
        if self._engine is not None:
            self._engine.close()
        if self._library is not None:
            self._library.close()

    def _not_ready(self) -> NotReady:
        error = self.preparation.error
        message = f"preparation failed: {error}" if error is not None else f"waiting for: {self.preparation.step}"
        return NotReady(message, hint="Try again in a moment; GET /readyz says when.", retry_after_s=READY_RETRY_S)

    def _prepare(self) -> None:
        started = time.perf_counter()
        preparation = self.preparation
        try:
            if self._first is not None:
                preparation.report("loading the page")
                self._first()
            # Before the sample book: a model that cannot load must say so at once, not after a minute of indexing.
            self._library, self._engine = self._load_chosen()
            self._add_sample_once(self._library)
        except Exception as error:  # noqa: BLE001  every caller hears of it, and the server ends
            preparation.error = error
            preparation.report("failed")
            return
        preparation.seconds = time.perf_counter() - started
        preparation.ready = True
        self.books.renew_outdated()
        preparation.report("ready")

    def _load_chosen(self) -> tuple[Library, AnswerEngine]:
        """Library and engine, with what the settings say where the generator chosen on the page cannot load."""
        report = self.preparation.report
        if self.settings.chosen is not None:
            try:
                return self._load(self.settings, report)
            except CoalesceError as error:
                report(f"going on without the chosen generator: {error}")
                self.generators.forget(error)
        return self._load(self.settings.choosing(None), report)

    def _add_sample_once(self, library: Library) -> None:
        marker = self.settings.home / SAMPLE_MARKER
        if marker.exists() or library.documents():
            return

        def tell(progress: AddProgress) -> None:
            self.preparation.report(f"adding the sample book: {progress.stage}", progress.done, progress.total)

        self.preparation.report("adding the sample book")
        self._add_sample(library, tell)
        marker.touch()


def check_home(home: Path) -> None:
    """Makes the home and proves that files can be made in it.

    Raises:
        HomeNotWritable: they cannot.
    """
    probe = home / ".write-probe"
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise HomeNotWritable(
            f"the home {home} cannot be written: {error.strerror or error}",
            hint="Make it writable, or name another folder: COALESCE_HOME=/path coalesce …",
        ) from error
