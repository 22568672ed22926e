"""What a running server holds, composed: library, engine, jobs, and the services that REST and the page share.

Importing and loading models takes seconds and happens on a thread of its own; meanwhile the server answers `/healthz`,
and every other call says what it waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from api.answering import Answering
from api.chosen_generator import GeneratorChoice
from api.errors import NotReady
from api.generator import AdapterTuning, GeneratorSwitch, Tune
from api.jobs import Errand, Job, JobHandle, JobQueue
from api.metrics import Metrics
from api.questions import BookQuestions
from api.security import KeyGuesses, KeyRing
from api.settings import CoalesceSettings
from api.uploads import Books, Taken, uploads_of
from evals.study import Study, justify
from evals.study_store import StudyStore
from indexes.errors import Busy, Cancelled, CoalesceError, Conflict, HomeNotWritable, IndexMissing, NotFound
from indexes.messages import msg
from indexes.sample import add_sample
from rag.assemble import resolve_kind
from rag.conversations import Conversation, ConversationStore, Feedback
from rag.question import reject_control_characters
from rag.reading import Reading
from rag.settings import LANGUAGE_MODELS, LOADED_GENERATORS
from rag.types import Arm

if TYPE_CHECKING:
    from api.server_state import AnswersApart, AskedElsewhere
    from api.shared_files import SharedFiles
    from api.shared_runs import SharedRuns
    from evals.run import RunSpec
    from indexes.library import Library
    from indexes.settings import IndexSettings
    from indexes.types import AddProgress, ProgressListener
    from rag.engine import AnswerEngine
    from rag.settings import RagSettings

logger = logging.getLogger("coalesce.services")
DAY_S = 24 * 3600.0
CLOSE_S = 2.0
"""How long closing waits for what is heard from other servers."""
HEAR_S = 2.0
"""How often a server hears from the others of its database."""
SAMPLE_MARKER = "sample-book-added"
"""A file of the home: the sample book was added once, so a missing one was removed on purpose."""
READY_RETRY_S = 1.0
FETCHES_AT_ONCE = 8
REPORT_FILE = "report.json"
REPORT = "report"
"""The kind of the job that runs a comparison."""

OnStep = Callable[[str], None]
Loaded = TypeVar("Loaded")
Run = Callable[["RunSpec", "IndexSettings", "RagSettings", Path, Callable[[str, int, int], None]], Mapping[str, Any]]
"""Runs a comparison, as `evals.experiment.run_experiment` does."""


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


@dataclass(slots=True)
class Preparation:
    """How far the preparation is: the current step, with `done` of `total` when it is counted.

    Attributes:
        answering: the library is open and questions are answered, in the books' own sentences until `ready`.
        ready: what the settings name answers.
    """

    step: str = "starting"
    done: int = 0
    total: int = 0
    answering: bool = False
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
    return Study(StudyStore(settings.study_place), lambda question: justify(question, library()), judge=judge)


def _elsewhere(
    settings: CoalesceSettings,
) -> tuple[AskedElsewhere, AnswersApart, SharedRuns] | tuple[None, None, None]:
    """What links a server with the others of its database; nothing without one."""
    url = settings.index.database_url
    if url is None:
        return None, None, None
    from api.server_state import AnswersApart, AskedElsewhere
    from api.shared_runs import SharedRuns

    return AskedElsewhere(url), AnswersApart(url), SharedRuns(url)


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
        self.guesses = KeyGuesses(KeyRing(settings))
        self.jobs = job_queue(settings)
        apart: AnswersApart | None
        self._elsewhere: AskedElsewhere | None
        self._shared_runs: SharedRuns | None
        self._elsewhere, apart, self._shared_runs = _elsewhere(settings)
        self.answering = Answering(
            lambda: self.engine, settings, self.metrics, self._model_to_come, apart, self._shared_runs
        )
        self.questions = BookQuestions(settings, self.jobs, lambda: self.library, lambda: self.engine)
        self.books = Books(uploads_of(settings), lambda: self.library, self.jobs, self.questions.made.forget)
        self.generators = GeneratorSwitch(
            settings, self.jobs, lambda: self.library, lambda: self.engine, self.use_engine
        )
        self.adapters = AdapterTuning(settings, self.jobs, lambda: self.generators.running, lambda: self.engine, tune)
        self.jobs.does(REPORT, self._compare)
        self.reading = Reading(lambda: self.library)
        self.study = _study(settings, lambda: self.library)
        self._load = load
        self._run = compare
        self._add_sample = add_sample
        self._library: Library | None = None
        self._engine: AnswerEngine | None = None
        self._fetches = threading.BoundedSemaphore(FETCHES_AT_ONCE)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._prepare_and_sweep, name="coalesce-prepare", daemon=True)
        self.metrics.watch("coalesce_ready", "1 when questions are answered.", lambda: float(self.preparation.ready))
        self.metrics.watch(
            "coalesce_answers_inside", "Answers in work or waiting.", lambda: float(self.answering.limit.inside)
        )

    @property
    def library(self) -> Library:
        """The library; raises NotReady until it is open."""
        if self._library is None or not self.preparation.answering:
            raise self._not_ready()
        return self._library

    @property
    def engine(self) -> AnswerEngine:
        """The engine; raises NotReady until it can answer."""
        if self._engine is None or not self.preparation.answering:
            raise self._not_ready()
        return self._engine

    def conversations(self, owner: str | None) -> ConversationStore:
        """The conversations that `owner` may see; None sees everyone's, "" those without one. Raises NotReady."""
        return self.engine.conversations.of(owner)

    def runtime_info(self) -> dict[str, Any]:
        """What a ready server runs with: generator, model, arms, embedder and counts of books; raises NotReady."""
        if not self.preparation.ready:
            raise self._not_ready()
        engine, library = self.engine, self.library
        documents = library.documents()
        return {
            "status": "ready",
            "generator": engine.generator.name,
            "model": engine.generator.model_name,
            "adapters": list(engine.generator.adapters),
            "arms": list(engine.arms),
            "answers": engine.answers,
            "quantization": self.generators.now().quantization,
            "embedder": library.embedder_name,
            "faiss_device": library.faiss_device,
            "documents": len(documents),
            "nodes": sum(document.nodes for document in documents),
            "seconds_to_ready": round(self.preparation.seconds, 3),
        }

    def rename_conversation(self, conversation_id: str, title: str, owner: str | None) -> Conversation:
        """Gives a conversation another title; raises NotFound, and InvalidInput for control characters."""
        return self.conversations(owner).rename(conversation_id, reject_control_characters(title, "title"))

    def delete_conversation(self, conversation_id: str, owner: str | None) -> None:
        """Removes a conversation, and stops an answer that is being written in it; raises NotFound."""
        self.conversations(owner).delete(conversation_id)
        self.answering.forget(conversation_id)

    def delete_conversations(self, owner: str | None, *, of_the_page: bool = False) -> None:
        """Removes every conversation of `owner`, or those without one, and stops answers being written in them."""
        self.conversations(owner or "").delete_all(of_the_page=of_the_page)
        for conversation_id in self.answering.conversations():
            try:
                self.engine.conversations.get(conversation_id)
            except NotFound:
                self.answering.forget(conversation_id)

    def give_feedback(self, answer_id: str, rating: str, comment: str, owner: str | None) -> Feedback:
        """Keeps a thumb up or down; raises NotFound, and InvalidInput for a comment that cannot be kept."""
        comment = reject_control_characters(comment.strip(), "comment")
        return self.conversations(owner).give_feedback(answer_id, rating, comment)

    def use_engine(self, engine: AnswerEngine) -> None:
        """Makes another engine the one that answers; the old generator is freed after its last answer."""
        old, self._engine = self.engine, engine
        self.answering.when_unused(old, old.generator.close)

    @cached_property
    def _shared_reports(self) -> SharedFiles | None:
        from api.shared_files import SharedFiles

        url = self.settings.uploads_url
        return None if url is None else SharedFiles(f"{url.rstrip('/')}/.reports")

    def reports_folder(self) -> Path:
        """The folder of comparisons, with those that were run elsewhere. Raises StorageUnavailable."""
        if self._shared_reports is not None:
            self._shared_reports.mirror(self.settings.reports_folder, REPORT_FILE)
        return self.settings.reports_folder

    def run_comparison(self, document_id: str | None = None) -> Job:
        """Queues the quick comparison with what answers now; the job's last message is the id of the report.

        Args:
            document_id: the book whose made questions are asked in place of the bank's.

        Raises:
            NotReady, NotFound.
            Conflict: a comparison runs already, or no questions were made from the book.
        """
        source = "bank:test"
        if document_id is not None and not self.library.document(document_id).sample:
            self.questions.on([document_id])
            source = f"book:{document_id}"
        compared = {"source": source, "arms": list(self.engine.arms)}
        return self.jobs.submit_alone(
            REPORT,
            Errand(REPORT, compared, here=not self.books.folder.shared),
            lambda _: Conflict("a comparison is running already", hint="Wait for its report, or cancel its job."),
            document_id=document_id if source.startswith("book:") else None,
        )

    def _compare(self, handle: JobHandle, source: str, arms: Sequence[Arm]) -> str:
        from evals.experiment import plan_run, run_experiment

        def tell(step: str, done: int, total: int) -> None:
            if handle.cancelled():
                raise Cancelled("the comparison was cancelled")
            handle.progress(done, total, step)

        rag = self.settings.measured(self.generators.rag)
        spec = plan_run(
            source,
            rag.generator,
            arms=tuple(arms) if resolve_kind(rag.generator) in LANGUAGE_MODELS else None,
            of_book=lambda book: self.questions.on([book]),
            quick=True,
            command=f"coalesce eval --quick --questions {source}",
        )
        folder = self.settings.reports_folder / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
        (self._run or run_experiment)(spec, self.settings.index, rag, folder, tell)
        if self._shared_reports is not None:
            self._shared_reports.put(folder, folder.name, REPORT_FILE)
        return folder.name

    def fetch_book(self, url: str) -> Taken:
        """Adds a page of the web, or those of a sitemap; raises as `Books.fetch` does, and Busy."""
        if not self._fetches.acquire(blocking=False):  # a silent host must not take every thread of the server
            raise Busy(
                msg("{} pages are being fetched", FETCHES_AT_ONCE), hint="Try again in a moment.", retry_after_s=10.0
            )
        try:
            return self.books.fetch(url, self.settings.max_upload_bytes, private=self.settings.private_urls)
        finally:
            self._fetches.release()

    def start(self) -> None:
        """Begins to prepare; returns at once.

        Raises:
            HomeNotWritable: the home cannot be created or written.
        """
        check_home(self.settings.home, read_only=True)
        try:
            self.jobs.start()
        except CoalesceError as error:
            self.preparation.error = error
            self.preparation.report("failed")
            return
        if self._shared_runs is not None:
            self._shared_runs.start()
        self._thread.start()

    def close(self) -> None:
        """Stops answers and jobs and frees the models."""
        self._closing.set()
        if self._elsewhere is not None and self.preparation.ready and self._thread.is_alive():
            self._thread.join(CLOSE_S)  # it may be at the database, which is closed here
        self.answering.close()
        if self._shared_runs is not None:
            self._shared_runs.close()
        self.jobs.close()
        self.study.close()
        self.questions.made.close()
        if self._engine is not None:
            self._engine.close()
        if self._library is not None:
            self._library.close()

    def _not_ready(self) -> NotReady:
        error = self.preparation.error
        message = f"preparation failed: {error}" if error is not None else f"waiting for: {self.preparation.step}"
        return NotReady(message, hint="Try again in a moment; GET /readyz says when.", retry_after_s=READY_RETRY_S)

    def sweep(self) -> None:
        """Removes what the settings keep no longer, and what interrupted uploads left a day ago."""
        now = datetime.now(UTC)
        if self.settings.keep_conversations_days is not None:
            self.engine.conversations.delete_before(now - timedelta(days=self.settings.keep_conversations_days))
        if self.settings.keep_jobs_days is not None:
            self.jobs.forget_before(now - timedelta(days=self.settings.keep_jobs_days))
        self.books.sweep()

    def _prepare_and_sweep(self) -> None:
        """Prepares, then sweeps at once and each day; over a database hears from the other servers meanwhile."""
        self._prepare()
        sweep_at = 0.0
        while self.preparation.ready:
            if time.monotonic() >= sweep_at:
                sweep_at = time.monotonic() + DAY_S
                try:
                    self.sweep()
                except Exception:  # the disk may be full today and free tomorrow
                    logger.exception("what is not kept any longer could not be removed")
            if self._elsewhere is not None:
                with suppress(CoalesceError):  # it may be back soon
                    self.generators.follow()
                    if self.settings.rate_limit_per_minute:
                        self.answering.rate.share(self._elsewhere.exchange)
            if self._closing.wait(DAY_S if self._elsewhere is None else HEAR_S):
                return

    def _model_to_come(self) -> NotReady | None:
        """What to say of an arm that runs once the language model is loaded; None where none is being loaded."""
        return self._not_ready() if self.generators.loading else None

    def _prepare(self) -> None:
        started = time.perf_counter()
        preparation = self.preparation
        try:
            self.books.folder.check()
            slow = resolve_kind(self.generators.running) in LOADED_GENERATORS
            if slow:
                self._or_without_choice(self.generators.check_there)
                slow = resolve_kind(self.generators.running) in LOADED_GENERATORS
            self._library, self._engine = self._load_quoting() if slow else self._load_chosen()
            self._add_sample_once(self._library)
            self.generators.loading = slow
            preparation.answering = True
            if slow:
                preparation.report("loading the language model")
                self._or_without_choice(lambda: self.use_engine(self.generators.load(preparation.report)))
                self.generators.loading = False
        except Exception as error:  # noqa: BLE001  every caller hears of it, and the server ends
            preparation.error = error
            preparation.report("failed")
            return
        preparation.seconds = time.perf_counter() - started
        preparation.ready = True
        if self.settings.worker:
            self.jobs.take_errands()
        self.books.renew_outdated()
        preparation.report("ready")

    def _load_quoting(self) -> tuple[Library, AnswerEngine]:
        """Library and engine that answer in the books' own sentences, in seconds, while a language model is loaded."""
        return self._load(self.settings.choosing(GeneratorChoice(generator="extractive")), self.preparation.report)

    def _load_chosen(self) -> tuple[Library, AnswerEngine]:
        return self._or_without_choice(
            lambda: self._load(self.settings.choosing(self.generators.choice), self.preparation.report)
        )

    def _or_without_choice(self, load: Callable[[], Loaded]) -> Loaded:
        """What `load` gives; tried once more by the settings where a generator chosen on the page cannot load."""
        try:
            return load()
        except CoalesceError as error:
            if self.generators.choice is None:
                raise
            self.preparation.report(f"going on without the chosen generator: {error}")
            self.generators.forget(error)
            return load()

    def _add_sample_once(self, library: Library) -> None:
        marker = self.settings.home / SAMPLE_MARKER
        at_home = self.settings.database_url is None
        if (at_home and marker.exists()) or library.documents():
            return

        def tell(progress: AddProgress) -> None:
            self.preparation.report(f"adding the sample book: {progress.stage}", progress.done, progress.total)

        self.preparation.report("adding the sample book")
        library.once(partial(self._add_sample, library, tell))
        if at_home:
            marker.touch()


def job_queue(settings: CoalesceSettings) -> JobQueue:
    """The jobs of the home, or of the database that the settings name. Raises InvalidInput for its address."""
    if (url := settings.index.database_url) is None:
        return JobQueue(settings.home, settings.reading_processes)
    from api.shared_jobs import SharedJobQueue

    return SharedJobQueue(settings.home, url, settings.reading_processes)


def check_home(home: Path, *, read_only: bool = False) -> None:
    """Makes the home and proves that files can be made in it.

    Args:
        read_only: a home that holds a library need not be writable: questions are answered from it.

    Raises:
        HomeNotWritable: they cannot.
    """
    if read_only and (home / "library.sqlite3").exists():
        return
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
