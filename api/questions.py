"""Questions about the library's books: those a job makes from a book, the bank's, and what is read off them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from api.jobs import Job, JobHandle, JobQueue
from api.settings import CoalesceSettings
from evals.made_store import MadeQuestions, is_for_tuning
from evals.questions import BankQuestion, QuestionFolder, chapter_titles, load_bank
from evals.study import Asked, Progress, Study
from evals.study_guide import GuideChapter, study_guide, without_entries
from indexes.errors import Conflict, InvalidInput
from indexes.messages import msg
from indexes.types import book_id

if TYPE_CHECKING:
    from indexes.library import Library
    from indexes.types import Document
    from rag.engine import AnswerEngine

MAKING = "questions"
"""The kind of the job that makes questions."""
BANK_TUNE = "bank:tune"


class BookQuestions:
    """The questions of a running server: of its books, and in the files of its home.

    Args:
        library, engine: of the server; they raise NotReady until they are there.

    Attributes:
        made: those made from books; files: the question files of the home.
    """

    def __init__(
        self,
        settings: CoalesceSettings,
        jobs: JobQueue,
        library: Callable[[], Library],
        engine: Callable[[], AnswerEngine],
    ) -> None:
        self.made = MadeQuestions(settings.made_questions_path)
        self.files = QuestionFolder(settings.questions_folder)
        self._jobs = jobs
        self._library = library
        self._engine = engine
        self._guides: dict[str, tuple[tuple[str, int], tuple[GuideChapter, ...]]] = {}
        self._reading_guide = threading.Lock()

    def on(self, document_ids: Sequence[str]) -> tuple[BankQuestion, ...]:
        """The questions on some books; raises NotFound, and Conflict where none were made yet."""
        return self.made.about([self._library().document(document_id) for document_id in document_ids])

    def named(
        self, document_ids: Sequence[str], file: str | None, learner: str | None = None
    ) -> tuple[BankQuestion, ...]:
        """Those on some books where they are named and no file is, else those of a question file or, without one, the
        bank's; raises as `on`.

        Args:
            learner: who brought the file; None is the teacher.
        """
        return self.on(document_ids) if document_ids and file is None else self.files.of(learner).load(file)

    def books(self) -> list[Document]:
        """The books that questions were made from."""
        made = self.made.counts()
        return [book for book in self._library().documents() if made.get((book.document_id, book.sha256))]

    def draw_choice(self, asked: Asked) -> BankQuestion | None:
        """A choice question about one of the books, at random; None where there is none. It has its answer in it.

        Args:
            asked: questions that are left out.
        """
        books = self._library().documents()
        found = [question for book in books for question in self.made.of(book) if question.type == "choice"]
        if any(book.sample for book in books):
            found += [question for question in load_bank(split="test") if question.type == "choice"]
        found = [question for question in found if question not in asked]
        return random.choice(found) if found else None

    def for_tuning(self, document_ids: Sequence[str] = (), source: str = BANK_TUNE) -> tuple[BankQuestion, ...]:
        """Those that an adapter may learn: of some books, where they are named, or of a source.

        Of the questions made from a book, those of half of its sections are learnt; comparisons ask the others.

        Args:
            source: `bank:tune`, or the name of a question file of the home.

        Raises:
            InvalidInput: the source is only for measuring.
            NotFound, Conflict: as `on`.
        """
        if document_ids:
            return tuple(question for question in self.on(document_ids) if is_for_tuning(question))
        if source == BANK_TUNE:
            return load_bank(split="tune")
        if source.startswith("bank:"):
            raise InvalidInput(
                f"{source!r:.80} is only for measuring", hint=f"Tune on {BANK_TUNE}, a book or a question file."
            )
        return tuple(question for question in self.files.load(source) if not question.after)

    def progress(
        self, study: Study, learner: str, document_id: str | None = None
    ) -> tuple[Progress, dict[tuple[str, int], str]]:
        """A learner's progress with the titles of its chapters: in one book, or in all that was ever asked.

        Args:
            study: as the caller may see it.

        Raises:
            NotFound, Conflict: as `on`.
        """
        library = self._library()
        if document_id is not None:
            found = study.progress(learner, self.on([document_id]))
            return found, {("", chapter.ordinal): chapter.title for chapter in library.chapters(document_id)}
        found = study.progress(
            learner, made=[question for book in library.documents() for question in self.made.of(book)]
        )
        titles = {("", number): title for number, title in chapter_titles().items()}
        for book in {chapter.book for chapter in found.chapters} - {""}:
            titles |= {(book, chapter.ordinal): chapter.title for chapter in library.chapters(book)}
        return found, titles

    def guide(self, document_id: str, study: Study | None = None) -> tuple[GuideChapter, ...]:
        """The study guide of a book, kept until the book or its questions change; raises NotFound.

        Args:
            study: as the caller may see it: what an open exam of a class asks is left out.
        """
        library = self._library()
        document = library.document(document_id)
        made = self.made.of(document)
        key = (document.sha256, hash(made))
        with self._reading_guide:  # the page and its download ask at once; a large book takes seconds
            known = self._guides.get(document_id)
            if known is None or known[0] != key:
                titles = {chapter.ordinal: chapter.title for chapter in library.chapters(document_id)}
                known = self._guides[document_id] = (key, study_guide(library.nodes_of(document_id), titles, made))
        return known[1] if study is None else without_entries(known[1], study.hides)

    def make(self, document_id: str, count: int | None, types: Sequence[str]) -> Job:
        """Queues the job that makes questions from a book, in place of those made before.

        Raises:
            NotFound: no such book.
            Conflict: it is the bundled book, which has its bank, or a job makes some already.
        """
        document = self._library().document(document_id)
        if document.sample:
            raise Conflict(
                f"'{document.title}' has a question bank", hint="start an exam on it; nothing needs to be made"
            )
        return self._jobs.submit_alone(
            MAKING,
            partial(self._make, document_id, count, tuple(types)),
            lambda other: Conflict(
                msg("questions are being made from '{}'", document.title),
                hint=msg("see GET {}", f"/v1/jobs/{other.id}"),
            ),
            about=document_id,
            title=document.title,
        )

    def _make(self, document_id: str, count: int | None, types: Sequence[str], handle: JobHandle) -> str:
        from evals.made_questions import make_questions
        from evals.question_drafts import RULES

        engine = self._engine()
        handle.progress(0, 0, "finding what can be asked")
        questions = make_questions(
            engine,
            document_id,
            count=count,
            types=types,
            progress=lambda at: handle.progress(at.done, at.total, MAKING),
            cancelled=handle.cancelled,
        )
        self.made.keep(self._library().document(document_id), questions)
        if not questions:
            return "the book has no sentence that a question can be made from"
        one = len(questions) == 1
        number = f"{len(questions):,}"
        made = msg("1 question was made") if one else msg("{} questions were made", number)
        if "base" not in engine.generator.arms or (types and "short" not in types):
            return made
        written = sum(question.made_by != RULES for question in questions)
        model = engine.generator.model_name
        if written:
            return msg("{}, {} of them by {}", made, written, model)
        return msg("{}, none of them by {}: it wrote none that holds", made, model)


def questions_on(
    settings: CoalesceSettings, book: str, step: Callable[[str, int, int], None] | None = None
) -> tuple[BankQuestion, ...]:
    """The questions on a book of a home, for the command line.

    Args:
        book: its id or title.
        step: where it is given, questions are made and kept where there are none; called with what is done.

    Raises:
        NotFound, IndexMissing: there is no such book.
        Conflict: no questions were made from it, or none can be.
    """
    from indexes.library import open_library

    with (
        closing(open_library(settings.index, create=False)) as library,
        closing(MadeQuestions(settings.made_questions_path)) as made,
    ):
        document = library.document(book_id(book, [(one.document_id, one.title) for one in library.documents()]))
        if step is not None and not document.sample and not made.of(document):
            found = _make_here(settings, library, document.document_id, step)
            if not found:
                raise Conflict(
                    f"no question can be made from '{document.title}'", hint="choose a book with more running text"
                )
            made.keep(document, found)
        return made.about([document])


def _make_here(
    settings: CoalesceSettings, library: Library, document_id: str, step: Callable[[str, int, int], None]
) -> Sequence[BankQuestion]:
    from evals.made_questions import make_questions
    from rag.assemble import build_engine

    step("loading the embedder", 0, 0)
    library.load()
    with closing(build_engine(settings.rag, library)) as engine:
        return make_questions(engine, document_id, progress=lambda at: step("making questions", at.done, at.total))
