"""Questions about the library's books: those a job makes from a book, the bank's, and what is read off them."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from api.jobs import Errand, Job, JobHandle, JobQueue
from api.settings import CoalesceSettings
from evals.made_store import MadeQuestions, is_for_tuning
from evals.questions import BankQuestion, QuestionFolder, chapter_titles, load_bank, read_upload
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
        self.made = MadeQuestions(settings.made_questions_place)
        self.files = QuestionFolder(settings.questions_folder)
        self._jobs = jobs
        jobs.does(MAKING, self._make)
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
        books = self._library().documents()
        made = self.made.counts(books)
        return [book for book in books if book.document_id in made]

    def counts(self, documents: Sequence[Document]) -> dict[str, int]:
        """How many questions an exam on each of some books can ask, by its id; books without any are left out."""
        sample = [document.document_id for document in documents if document.sample]
        return self.made.counts(documents) | dict.fromkeys(sample, sum(one.answerable for one in load_bank()))

    def draw_choice(self, asked: Asked) -> BankQuestion | None:
        """A choice question about one of the books, at random; None where there is none. It has its answer in it.

        Args:
            asked: questions that are left out.
        """
        books = self._library().documents()
        counts: dict[str, float] = dict(self.made.counts(books))
        sample = [question for question in load_bank(split="test") if question.choices]
        counts |= {book.document_id: len(sample) for book in books if book.sample}
        left = [book for book in books if book.document_id in counts]
        while left:  # of one book after the other: all together may be tens of thousands
            (book,) = random.choices(left, [counts[one.document_id] for one in left])
            found = [one for one in (sample if book.sample else self.made.of(book)) if one.choices and one not in asked]
            if found:
                return random.choice(found)
            left.remove(book)
        return None

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
        return known[1] if study is None else without_entries(known[1], study.asked_of_class().rests_on)

    def make(self, document_id: str, count: int | None, types: Sequence[str]) -> Job:
        """Queues the job that makes questions from a book, in place of those made before.

        Raises:
            NotFound: no such book.
            Conflict: it is the bundled book, which has its bank, or a job makes some already.
        """
        document = self._made_from(document_id)
        return self._jobs.submit_alone(
            MAKING,
            Errand(MAKING, {"document_id": document_id, "count": count, "types": list(types)}),
            lambda other: Conflict(
                msg("questions are being made from '{}'", document.title),
                hint=msg("see GET {}", f"/v1/jobs/{other.id}"),
            ),
            about=document_id,
            title=document.title,
        )

    def _make(self, handle: JobHandle, document_id: str, count: int | None, types: Sequence[str]) -> str:
        from evals.made_questions import make_questions, why_few
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
        one = len(questions) == 1
        number = f"{len(questions):,}"
        made = msg("1 question was made") if one else msg("{} questions were made", number)
        if few := why_few(self._library().nodes_of(document_id), len(questions)):
            return msg("{}: {}", made, few) if questions else few
        if "base" not in engine.generator.arms or (types and "short" not in types):
            return made
        written = sum(question.made_by != RULES for question in questions)
        model = engine.generator.model_name
        if written:
            return msg("{}, {} of them by {}", made, written, model)
        return msg("{}, none of them by {}: it wrote none that holds", made, model)

    def change(self, question_id: str, change: Mapping[str, Any]) -> BankQuestion:
        """Changes a made question as `MadeQuestions.change`; one of the bank or of a file is a Conflict."""
        self._refuse_others(question_id)
        return self.made.change(question_id, change)

    def drop(self, question_id: str) -> None:
        """Removes a made question as `MadeQuestions.drop`; one of the bank or of a file is a Conflict."""
        self._refuse_others(question_id)
        self.made.drop(question_id)

    def add(self, document_id: str, name: str, content: bytes) -> int:
        """Adds the questions of a file to those on a book; says how many.

        Raises:
            NotFound: no such book. MalformedQuestions, InvalidInput: as `evals.questions.read_upload`.
        """
        questions = read_upload(name, content)
        self.made.add(self._made_from(document_id), questions)
        return len(questions)

    def _made_from(self, document_id: str) -> Document:
        """A book that questions are made from. Raises NotFound, and Conflict for the bundled one."""
        document = self._library().document(document_id)
        if document.sample:
            raise Conflict(
                f"'{document.title}' has a question bank", hint="start an exam on it; nothing needs to be made"
            )
        return document

    def _refuse_others(self, question_id: str) -> None:
        if any(question.id == question_id for question in load_bank()):
            raise Conflict(
                msg("question {} is in the question bank, which stays as it is", question_id),
                hint="export it with GET /v1/questions/export.jsonl, and add your own file",
            )

    def passages(self, questions: Sequence[BankQuestion]) -> dict[str, str]:
        """The text that proves each made question, by its id: of its own section, where one there holds the proof."""
        library = self._library()
        named = {question.book for question in questions if question.book and question.gold}
        texts: dict[str, dict[str, list[str]]] = {}
        for book in named & {document.document_id for document in library.documents()}:
            sections = texts.setdefault(book, defaultdict(list))
            for node in library.nodes_of(book):
                sections[node.heading_path[-1] if node.heading_path else ""].append(node.text)
        found = {}
        for question in questions:
            if question.gold and (sections := texts.get(question.book, {})):
                gold = question.gold[0]
                for text in chain(sections.get(gold.heading, ()), *sections.values()):
                    if gold.evidence in text:
                        found[question.id] = text
                        break
        return found


@contextmanager
def opened(settings: CoalesceSettings, book: str) -> Iterator[tuple[Library, MadeQuestions, Document]]:
    """The library, the made questions and a book of a home, for the command line.

    Args:
        book: its id or title.

    Raises:
        NotFound, IndexMissing: there is no such book.
    """
    from indexes.library import open_library

    with (
        closing(open_library(settings.index, create=False)) as library,
        closing(MadeQuestions(settings.made_questions_place)) as made,
    ):
        yield library, made, library.document(book_id(book, [(o.document_id, o.title) for o in library.documents()]))


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
    with opened(settings, book) as (library, made, document):
        if step is not None and not document.sample and not made.of(document):
            _make_here(settings, library, made, document, step)
        return made.about([document])


def make_on(
    settings: CoalesceSettings,
    book: str,
    step: Callable[[str, int, int], None],
    count: int | None = None,
    types: Sequence[str] = (),
) -> tuple[tuple[BankQuestion, ...], str | None]:
    """Makes the questions on a book of a home in place of those made before, for the command line.

    Returns:
        All questions on it, and why there are few, where there are.

    Raises:
        as `questions_on`; Conflict too where the book is the bundled one.
    """
    from evals.made_questions import why_few

    with opened(settings, book) as (library, made, document):
        if document.sample:
            raise Conflict(f"'{document.title}' has a question bank", hint="see `coalesce questions export`")
        found = _make_here(settings, library, made, document, step, count, types)
        return made.of(document), why_few(library.nodes_of(document.document_id), len(found))


def _make_here(
    settings: CoalesceSettings,
    library: Library,
    made: MadeQuestions,
    document: Document,
    step: Callable[[str, int, int], None],
    count: int | None = None,
    types: Sequence[str] = (),
) -> Sequence[BankQuestion]:
    from evals.made_questions import make_questions, why_few
    from rag.assemble import build_engine

    step("loading the embedder", 0, 0)
    library.load()
    with closing(build_engine(settings.rag, library)) as engine:
        found = make_questions(
            engine,
            document.document_id,
            count=count,
            types=types,
            progress=lambda at: step("making questions", at.done, at.total),
        )
    if not found:
        raise Conflict(
            why_few(library.nodes_of(document.document_id), 0) or "no question was made",
            hint="choose a book with more English text",
        )
    made.keep(document, found)
    return found
