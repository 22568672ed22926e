"""Questions as training rows: closed book, or to be answered from passages as serving shows them.

A choice question is asked with its options, in random order, and answered with a letter, as it is when it is scored;
its other wordings are asked openly.

A row with passages shows what the engine finds for the question, in random order, so that the place of the right
passage is no hint. If the right passage was not found, it takes the place of the last one. Every sentence of the
answer cites the passage that supports it. Some questions are shown a second time, without the right passage and with a
refusal as the answer, as in RAFT (Zhang et al. 2024); what the books do not answer is refused too. Refusals are a
tenth of the rows: one is worded like the next, so a model that sees more of them refuses whatever it is unsure of, and
the search has already refused what the books do not hold.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from evals.arms import GoldPassages
from evals.errors import LeakageFound
from evals.experiment import CACHE_FOLDER
from evals.questions import JUDGED_FOLDER, BankQuestion, Split, load_bank, load_questions
from evals.text_match import fact_met, normalize
from indexes.errors import InvalidInput
from indexes.library import Library, open_library
from indexes.readers import find_books
from indexes.sample import SAMPLE_PATH, SAMPLE_TITLE
from indexes.sentences import split_spans
from indexes.settings import IndexSettings
from indexes.types import StoredNode
from rag.assemble import build_engine
from rag.citations import support_of
from rag.generators.prompts import CHOICE_LETTERS, REFUSAL
from rag.retrieval import PassageBudget
from rag.settings import GeneratorSettings, RagSettings
from rag.tuning.data import INFO_FILE, Format, RowPassage, TrainingRow, write_dataset
from rag.types import Passage, SearchableLibrary

REFUSALS = 0.1
"""Share of the rows with passages whose answer is a refusal."""
_WITHOUT_GOLD = 0.2
"""Share of the answerable questions that are also shown without the right passage, before refusals are drawn from."""


@dataclass(frozen=True, slots=True)
class Source:
    """Questions, the name of their rows, and the books that they are about."""

    name: str
    questions: tuple[BankQuestion, ...]
    books: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class RowsReport:
    """Rows that were written.

    Attributes:
        data_file: the rows; info_file: `dataset_info.json` beside them, which names their layout.
        questions: used; rows: one for each wording of a question, and more where it is also refused.
        refusals: rows whose answer is a refusal.
        left_out: questions whose passages do not fit, or cannot be found in the books.
    """

    data_file: Path
    info_file: Path
    questions: int
    rows: int
    refusals: int
    left_out: int


def bank_source(split: Split, *, allow_test: bool = False) -> Source:
    """One split of the bundled bank.

    Raises:
        LeakageFound: a split other than `tune` without `allow_test`: a model that trained on the questions that measure
            it can no longer be measured.
    """
    if split != "tune" and not allow_test:
        raise LeakageFound(
            f"a model trained on the {split} questions can no longer be measured with them",
            hint="export --split tune, or add --allow-test if nothing will be compared with these questions",
        )
    return Source(f"coalesce_{split}", load_bank(split=split), (SAMPLE_PATH,))


def file_source(file: Path, books: Sequence[Path], *, allow_test: bool = False) -> Source:
    """The questions of a file that can be understood alone; follow-ups are left out.

    Raises:
        MalformedQuestions: a line is broken; file and line are named.
        LeakageFound: the file is one of those that are only reported on, without `allow_test`.
    """
    if JUDGED_FOLDER in file.resolve().parents and not allow_test:
        raise LeakageFound(
            f"{file.name} is only for measuring: a model trained on it can no longer be measured with it",
            hint="take a file of evals/question_sets/fit, or add --allow-test if nothing will be compared with it",
        )
    return Source(file.stem, tuple(question for question in load_questions(file) if not question.after), tuple(books))


def some_of(source: Source, limit: int | None, seed: int) -> Source:
    """The source with at most `limit` of its questions, drawn at random."""
    if limit is None or limit >= len(source.questions):
        return source
    drawn = sorted(random.Random(seed).sample(range(len(source.questions)), limit))
    return replace(source, questions=tuple(source.questions[place] for place in drawn))


def closed_book_rows(
    questions: Iterable[BankQuestion], *, wordings: int | None = None, seed: int = 0
) -> list[TrainingRow]:
    """A row for every wording of every answerable question; its section keeps wordings in one split.

    Args:
        wordings: of a question, at most; None takes all.
    """
    return [
        _asked(question, wording, TrainingRow(wording, question.answer, section=_section(question)), seed)
        for question in questions
        if question.answerable
        for wording in _wordings(question)[:wordings]
    ]


def write_closed_book(
    source: Source, folder: Path, *, wordings: int | None = None, file_format: Format = "messages", seed: int = 0
) -> RowsReport:
    """Writes a source's closed-book rows as `NAME` into `folder`.

    Raises:
        MalformedTrainingData: no question is answerable, or the folder's `dataset_info.json` cannot be read.
    """
    rows = closed_book_rows(source.questions, wordings=wordings, seed=seed)
    return _write(source.name, rows, folder, file_format, sum(question.answerable for question in source.questions), 0)


def write_with_passages(
    source: Source,
    folder: Path,
    index: IndexSettings,
    rag: RagSettings,
    *,
    shown: int,
    wordings: int | None = None,
    file_format: Format = "messages",
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> RowsReport:
    """Writes a source's rows with passages as `NAME_passages` into `folder`; indexes its books in the home's cache.

    Args:
        shown: passages in a row.
        wordings: of a question, at most; None takes all.
        progress: called with the name of a step, and how much of it is done of how much.

    Raises:
        InvalidInput: the source names no books.
        UnreadableBook, UnsupportedFormat, TooLarge: a book cannot be read.
        MalformedTrainingData: no row could be made.
    """
    if not source.books:
        raise InvalidInput(
            "passages cannot be shown without the books", hint="name the books that the questions are about, as PATH…"
        )
    with closing(_open_books(source.books, index, progress)) as library:
        searching = replace(rag, home=library_home(source.books, index), generator=GeneratorSettings("extractive"))
        with closing(build_engine(searching, library)) as engine:
            budget = PassageBudget.of_tokens(rag.retrieval.passage_budget_tokens)
            nodes = [node for document in library.documents() for node in library.nodes_of(document.document_id)]
            maker = ReadingRows(engine.search, library, nodes, shown=shown, budget=budget, wordings=wordings, seed=seed)
            rows: list[TrainingRow] = []
            used = 0
            for number, question in enumerate(source.questions, 1):
                made = list(maker.of(question))
                rows += made
                used += bool(made)
                progress("searching passages", number, len(source.questions))
    left_out = len(source.questions) - used
    return _write(f"{source.name}_passages", few_refusals(rows, seed), folder, file_format, used, left_out)


class ReadingRows:
    """Makes rows with passages.

    Args:
        search: (query, how many) to the passages that serving would show.
        library, nodes: the books that the questions are about.
        shown: passages in a row; budget: of them together.
        wordings: of a question, at most; None takes all.
    """

    def __init__(
        self,
        search: Callable[[str, int], Sequence[Passage]],
        library: SearchableLibrary,
        nodes: Sequence[StoredNode],
        *,
        shown: int,
        budget: PassageBudget,
        wordings: int | None = None,
        seed: int = 0,
    ) -> None:
        self._search = search
        self._gold = GoldPassages(library, nodes, replace(budget, most_each=max(budget.most // shown, 1)))
        self._shown = shown
        self._budget = budget
        self._wordings = wordings
        self._seed = seed

    def of(self, question: BankQuestion) -> Iterator[TrainingRow]:
        """The rows of a question; none if its passages do not fit or cannot be found."""
        for wording in _wordings(question)[: self._wordings]:
            found = self._search(wording, self._shown)
            if not question.answerable:
                yield self._row(question, wording, REFUSAL, self._within_budget((), found))
                continue
            gold = self._right_passages(question, found)
            if not gold or len(gold) > self._shown:
                return
            others = [passage for passage in found if passage not in gold and not _tells(passage, question)]
            shown = self._within_budget(gold, others)
            self._rng(wording).shuffle(shown)
            row = self._row(question, wording, cited(question.answer, shown, gold), shown)
            asked = _asked(question, wording, row, self._seed)
            yield asked
            if others and not asked.choices and self._rng(f"refuse:{wording}").random() < _WITHOUT_GOLD:
                yield self._row(question, wording, REFUSAL, self._within_budget((), others))

    def _right_passages(self, question: BankQuestion, found: Sequence[Passage]) -> list[Passage]:
        """A passage for each part that the answer needs: the found one that holds it, else the book's."""
        right: list[Passage] = []
        for part in question.parts:
            wanted = replace(question, gold=tuple(gold for gold in question.gold if gold.part == part))
            held = next((passage for passage in (*right, *found) if _holds(passage, wanted)), None)
            held = held or next(iter(self._gold.gold(wanted, 1)), None)
            if held is None:
                return []
            if held not in right:
                right.append(held)
        return right

    def _within_budget(self, first: Sequence[Passage], others: Sequence[Passage]) -> list[Passage]:
        """`first` and as many of the others, the best first, as may be shown."""
        chosen = list(first)
        size = sum(self._budget.count(passage.text) for passage in first)
        for passage in others:
            size += self._budget.count(passage.text)
            if len(chosen) >= self._shown or size > self._budget.most:
                break
            chosen.append(passage)
        return chosen

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed}:{purpose}")

    def _row(self, question: BankQuestion, wording: str, answer: str, passages: Sequence[Passage]) -> TrainingRow:
        shown = tuple(RowPassage(passage.title, passage.section, passage.text) for passage in passages)
        return TrainingRow(wording, answer, passages=shown, section=_section(question))


def _asked(question: BankQuestion, wording: str, row: TrainingRow, seed: int) -> TrainingRow:
    """The row as it is, or with options in random order where the question is a choice in its own words."""
    if question.type != "choice" or wording != question.question or question.answer_index is None:
        return row
    order = random.Random(f"{seed}:options:{question.id}").sample(range(len(question.choices)), len(question.choices))
    choices = tuple(question.choices[place] for place in order)
    return replace(row, choices=choices, answer=CHOICE_LETTERS[order.index(question.answer_index)])


def few_refusals(rows: Sequence[TrainingRow], seed: int = 0) -> list[TrainingRow]:
    """The rows in their order, with as many of the refusals, drawn at random, as make `REFUSALS` of all."""
    refusals = [place for place, row in enumerate(rows) if row.answer == REFUSAL]
    wanted = round((len(rows) - len(refusals)) * REFUSALS / (1 - REFUSALS))
    kept = set(random.Random(seed).sample(refusals, min(wanted, len(refusals))))
    return [row for place, row in enumerate(rows) if row.answer != REFUSAL or place in kept]


def cited(answer: str, shown: Sequence[Passage], right: Sequence[Passage]) -> str:
    """The answer with a marker after each sentence, of the right passage that supports it best."""
    marked, last = [], 0
    for span in split_spans(answer):
        best = max(right, key=lambda passage: support_of(answer[span.start : span.end], passage.text).recall)
        marked.append(f"{answer[last : span.end]} [{shown.index(best) + 1}]")
        last = span.end
    return "".join(marked) + answer[last:]


def library_home(books: Sequence[Path], index: IndexSettings) -> Path:
    """The folder of the cached library that holds these books alone."""
    names = "\n".join(sorted(str(path.resolve()) for path in books))
    return index.home / CACHE_FOLDER / f"rows-{hashlib.sha256(names.encode()).hexdigest()[:12]}"


def _open_books(books: Sequence[Path], index: IndexSettings, progress: Callable[[str, int, int], None]) -> Library:
    library = open_library(index.in_folder(library_home(books, index)))
    try:
        library.load()
        for book in (found for path in books for found in find_books(path)):
            title = SAMPLE_TITLE if book == SAMPLE_PATH else None
            library.add(book, title=title, progress=lambda now: progress(f"indexing: {now.stage}", now.done, now.total))
    except BaseException:
        library.close()
        raise
    return library


def _wordings(question: BankQuestion) -> tuple[str, ...]:
    return (question.question, *question.paraphrases)


def _section(question: BankQuestion) -> str:
    """The topic that keeps rows on one side of a split; a question without one is its own topic."""
    if question.section:
        return question.section
    return f"{question.gold[0].file}#{question.gold[0].heading}" if question.gold else question.id


def _holds(passage: Passage, question: BankQuestion) -> bool:
    text = normalize(passage.text)
    return any(gold.evidence and normalize(gold.evidence) in text for gold in question.gold)


def _tells(passage: Passage, question: BankQuestion) -> bool:
    """Whether a passage may answer the question: it holds its evidence, a key fact, or is of a right section."""
    headings = {normalize(heading) for heading in passage.section}
    return (
        _holds(passage, question)
        or any(normalize(gold.heading) in headings for gold in question.gold)
        or any(fact_met(fact, passage.text) for fact in question.key_facts)
    )


def _write(
    name: str, rows: Sequence[TrainingRow], folder: Path, file_format: Format, questions: int, left_out: int
) -> RowsReport:
    data_file = write_dataset(rows, folder, name=name, file_format=file_format)
    refusals = sum(row.answer == REFUSAL for row in rows)
    return RowsReport(data_file, folder / INFO_FILE, questions, len(rows), refusals, left_out)
