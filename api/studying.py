"""The door to studying: questions from the bank and the home, and what learners do with them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.schemas.answers import PassageOut
from api.services import Services
from api.settings import CoalesceSettings
from api.uploads import PARTIAL_PREFIX, file_name
from evals.justification import justify
from evals.questions import BankQuestion, load_bank, load_questions
from evals.study import Study
from evals.study_store import StudyStore
from indexes.errors import Conflict, InvalidInput, NotFound

if TYPE_CHECKING:
    from indexes.library import Library

QUESTION_FOLDER = "questions"
STUDY_FILE = "study.sqlite3"
REPORT_FOLDER = "reports"
_FILE_NAME = re.compile(r"[\w\-. ]{1,120}\.jsonl")


class Studying:
    """Exams, cards and progress over a server's library."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.store = StudyStore(services.settings.home / STUDY_FILE)
        self.study = Study(self.store, bank, self._passage)

    @property
    def _question_folder(self) -> Path:
        return self._services.settings.home / QUESTION_FOLDER

    @property
    def reports(self) -> Path:
        """The folder that comparisons write their reports to."""
        return self._services.settings.home / REPORT_FOLDER

    def questions(self, name: str | None) -> tuple[BankQuestion, ...]:
        """The bank, or a question file that the user put into the home.

        Raises:
            InvalidInput: a name that is no plain file name.
            NotFound: there is no such file.
            MalformedQuestions: a broken line, by number.
        """
        if name is None:
            return bank()
        if not _FILE_NAME.fullmatch(name):
            raise InvalidInput(f"question file {name!r:.80} is no name of a .jsonl file", hint="name it plainly")
        path = self._question_folder / name
        if not path.is_file():
            raise NotFound(f"there is no question file {name!r}", hint=f"put it into {path.parent}")
        return load_questions(path)

    def question_files(self) -> tuple[str, ...]:
        """Names of the question files in the home."""
        return tuple(sorted(path.name for path in self._question_folder.glob("*.jsonl") if path.is_file()))

    def add_question_file(self, given_name: str, content: bytes) -> tuple[str, int]:
        """Keeps a question file in the home once every line of it has been read: its name, and how many questions.

        Raises:
            InvalidInput: a name that is no plain name of a .jsonl file.
            MalformedQuestions: a broken line, by number; nothing is kept.
            Conflict: another file has this name, with other questions in it.
        """
        name = file_name(given_name)
        if not _FILE_NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r:.80} is no plain name of a .jsonl file", hint="name it like my-questions.jsonl"
            )
        self._question_folder.mkdir(parents=True, exist_ok=True)
        path = self._question_folder / name
        with tempfile.TemporaryDirectory(prefix=PARTIAL_PREFIX, dir=self._question_folder) as folder:
            arrived = Path(folder) / name
            arrived.write_bytes(content)
            questions = load_questions(arrived)
        try:
            with path.open("xb") as kept:  # two uploads at once cannot overwrite each other
                kept.write(content)
        except FileExistsError:
            if path.read_bytes() != content:
                raise Conflict(
                    f"there is a question file {name!r} with other questions in it", hint="give yours another name"
                ) from None
        return name, len(questions)

    def close(self) -> None:
        """Closes the store."""
        self.store.close()

    def _passage(self, question: BankQuestion) -> Mapping[str, Any] | None:
        passage = justify(question, self._services.library)
        return PassageOut.of(passage).model_dump() if passage is not None else None


@contextmanager
def open_study(settings: CoalesceSettings) -> Iterator[Study]:
    """Studying without a server: the command line's and the assistants' door to the same store."""
    from indexes.errors import IndexMissing
    from indexes.library import open_library

    store = StudyStore(settings.home / STUDY_FILE)
    library: Library | None = None
    with suppress(IndexMissing):  # without one, the bundled book's own sections justify its questions
        library = open_library(settings.index, create=False)

    def find(question: BankQuestion) -> Mapping[str, Any] | None:
        passage = justify(question, library)
        return PassageOut.of(passage).model_dump() if passage is not None else None

    try:
        yield Study(store, bank, find)
    finally:
        store.close()
        if library is not None:
            library.close()


@lru_cache(maxsize=1)
def bank() -> tuple[BankQuestion, ...]:
    """The bundled bank, read once."""
    return load_bank()
