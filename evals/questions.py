"""Questions with reference answers: the schema, question files, the bundled bank, and the book that it asks about.

A question file is JSON Lines, or a table (CSV) for people who write questions in a spreadsheet. `evals/question_bank/`
holds the bank over the sample book, one file per chapter; `evals/question_sets/` holds sets over other texts; a file of
your own has the same schema and needs only `question` and `answer`. Every broken line is an error that names file and
line.

In a table, a choice has its options in `option_a` to `option_d` and its letter in `right`, or as the answer;
`key_facts` has one fact per line; `answerable` is `no` where no book answers; `source`, `section` and `quote` say where
a book answers.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, Field, StrictBool, ValidationError, ValidationInfo, model_validator
from pydantic.dataclasses import dataclass

from evals.errors import MalformedQuestions
from indexes.disk import disk_errors
from indexes.errors import Conflict, InvalidInput, NotFound
from indexes.jsonl import parse_jsonl, read_text, to_jsonl
from indexes.messages import msg
from indexes.sample import SAMPLE_PATH
from rag.question import reject_control_characters

QuestionType: TypeAlias = Literal["choice", "short", "why", "code"]
Split: TypeAlias = Literal["tune", "dev", "test"]
TYPES: tuple[str, ...] = get_args(QuestionType)
SPLITS: tuple[str, ...] = get_args(Split)
BANK_FOLDER = Path(__file__).parent / "question_bank"
JUDGED_FOLDER = Path(__file__).parent / "question_sets" / "judged"
NUM_CHOICES = 4
MOST_BY_DEFAULT = 60
"""Questions that are made from a book where no number is named."""
FACT_WORDS = 5
"""A made question's answer of so many words is one key fact; a longer one may be given in other words."""
FILE_ENDINGS = (".jsonl", ".csv")
_FILE_NAME = re.compile(r"[\w\-. ]{1,120}\.(?:jsonl|csv)")
_LARGEST_NUMBER = 1_000_000
_LETTERS = "abcd"
_COLUMNS = (
    "id", "chapter", "type", "question", "question_zh", *(f"option_{letter}" for letter in _LETTERS), "right", "answer",
    "key_facts", "difficulty", "answerable", "source", "section", "quote",
)  # fmt: skip
_DELIMITERS = ",;\t"
MOST_LEARNER_BYTES = 8 * 1024**2
LEAST_FILE_BYTES = 64 * 1024
"""What a smaller file is counted as, so that there are not thousands of them."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
"""How a cell begins that a spreadsheet runs."""
_CSV_TEXTS = ("id", "type", "question", "question_zh", "answer")
_CSV_NUMBERS = ("chapter", "difficulty")
_REASONS = {
    "missing": "is missing",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dataclass_type": "must be an object",
}
"""Reasons in the words of JSON, by pydantic's name of the fault."""


def _without_controls(text: str, info: ValidationInfo) -> str:
    return reject_control_characters(text, info.field_name or "text")


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank")
    return text


_Text = Annotated[str, AfterValidator(_without_controls)]
_NonBlank = Annotated[_Text, AfterValidator(_not_blank)]
_Number = Annotated[int, Field(strict=True, ge=-_LARGEST_NUMBER, le=_LARGEST_NUMBER)]


@dataclass(frozen=True, slots=True)
class Gold:
    """Where the book answers a question.

    Attributes:
        file: file of the sample book, or of a folder of text files.
        heading: the section's heading.
        part: which of the needed facts this is, from 1; entries with one part are alternatives.
        evidence: verbatim stretch of that section.
    """

    file: _NonBlank
    heading: _Text = ""
    part: _Number = 1
    evidence: _Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BankQuestion:
    """A question with its reference answer. `evals/question_bank/README.md` explains each field.

    Attributes:
        kind, style: of a question set (`evals/question_sets/README.md`).
        after: the question that this one follows up.
        book: the question set it was read from, which is named like its text; of a made question, the book's id.
        made_by: of a made question, `rules` or the language model that wrote it.
        checked: false where a made question did not pass every check against its book.
        accepted: a person has looked at it; it stays when its book is read again, or asked again.
    """

    id: _Text
    chapter: _Number = 0
    type: QuestionType = "short"
    question: _NonBlank
    question_zh: _Text = ""
    choices: tuple[_NonBlank, ...] = ()
    answer_index: _Number | None = None
    answer: _NonBlank
    key_facts: tuple[_NonBlank, ...] = ()
    gold: tuple[Gold, ...] = ()
    answerable: StrictBool = True
    difficulty: _Number = 1
    split: Split = "test"
    section: _Text | None = None
    seen: StrictBool = False
    paraphrases: tuple[_NonBlank, ...] = ()
    needs_two_passages: StrictBool = False
    identifier: StrictBool = False
    kind: _Text = ""
    style: _Text = ""
    after: _Text = ""
    book: _Text = ""
    made_by: _Text = ""
    checked: StrictBool = True
    accepted: StrictBool = False

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if self.type == "choice" and self.answerable and not self.choices:
            raise ValueError("choices are missing from a choice question")
        if not self.choices:
            return self
        if len(self.choices) != NUM_CHOICES:
            raise ValueError(f"choices must be {NUM_CHOICES} options, found {len(self.choices)}")
        if len(set(self.choices)) != NUM_CHOICES:
            raise ValueError("choices hold the same option twice")
        if self.answer_index is None or not 0 <= self.answer_index < NUM_CHOICES:
            raise ValueError(f"answer_index must be 0 to {NUM_CHOICES - 1}, found {self.answer_index}")
        return self

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts that all have to be found, ascending."""
        return tuple(sorted({gold.part for gold in self.gold}))

    @property
    def cluster(self) -> str:
        """Where it is answered, `file#heading`: questions on one section are not independent."""
        if self.section or not self.gold:
            return self.section or self.id
        return f"{self.book}/{self.gold[0].file}#{self.gold[0].heading}"


def parse_question(record: Mapping[str, Any], *, where: str) -> BankQuestion:
    """Makes a question of a record. A field that is null counts as missing; unknown fields are ignored.

    Args:
        where: `file:line`, for errors and as the id of a question without one.

    Raises:
        MalformedQuestions: a field breaks the schema; the message names it and its value.
    """
    fields = {"id": where} | {name: value for name, value in record.items() if value is not None}
    if not fields.get("choices"):
        fields.pop("answer_index", None)
    try:
        return BankQuestion(**fields)
    except (ValidationError, InvalidInput) as error:
        reason = _fault(error) if isinstance(error, ValidationError) else error.message
        raise MalformedQuestions(
            msg("{}: {}", where, reason), hint="See evals/question_bank/README.md for the fields."
        ) from None


def _fault(error: ValidationError) -> str:
    """The first fault as a clause that names the field."""
    fault = error.errors()[0]
    reason = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if not fault["loc"]:
        return reason
    name = ".".join(map(str, fault["loc"]))
    found = "" if fault["type"] == "missing" else f", found {fault['input']!r:.60}"
    return f"{name} {_REASONS.get(fault['type'], reason)}{found}"


def own_question(
    question: str, answer: str, quote: str = "", *, title: str = "", document_id: str = "", section: str = ""
) -> BankQuestion:
    """An open question of a learner's own, such as one that was asked; the same text has the same id.

    Raises:
        InvalidInput: a text is blank or holds control characters.
    """
    record: dict[str, Any] = {"question": question, "answer": answer, "book": document_id, "section": section or None}
    if quote.strip():
        record |= {"gold": [{"file": title or "Own card", "heading": section, "evidence": quote}]}
    digest = hashlib.sha256(f"{document_id}\n{question}".encode()).hexdigest()[:16]
    try:
        return parse_question(record | {"id": f"own-{digest}"}, where="card")
    except MalformedQuestions as error:
        raise InvalidInput(error.message, hint="give a question and an answer") from None


def load_questions(path: Path, *, book: str = "") -> tuple[BankQuestion, ...]:
    """Reads a question file.

    Args:
        book: what every question's `book` becomes.

    Raises:
        MalformedQuestions: the file is missing, is not UTF-8, holds no question, breaks the schema in a line, or uses
            an id twice; the message names file and line.
    """
    return parse_questions(read_text(path, MalformedQuestions), path.name, book=book)


def parse_questions(text: str, name: str, *, book: str = "") -> tuple[BankQuestion, ...]:
    """As `load_questions`, for the text of a file called `name`."""
    is_table = name.lower().endswith(".csv")
    rows = _read_csv(text, name) if is_table else parse_jsonl(text, name, MalformedQuestions)
    questions = tuple(parse_question({**record, "book": book}, where=where) for where, record in rows)
    if not questions:
        raise MalformedQuestions(
            msg("question file {} holds no question", name), hint="write one question on each line"
        )
    _refuse_duplicates(questions, name)
    return questions


def questions_file(questions: Iterable[BankQuestion], ending: str) -> str:
    """A question file: JSON Lines (`.jsonl`) with every field, or a table (`.csv`) of those that people write."""
    records = [_record(question) for question in questions]
    return _write_csv(records) if ending == ".csv" else to_jsonl(records)


def _record(question: BankQuestion) -> dict[str, Any]:
    """The fields of a question that say something."""
    record = asdict(question)
    usual = {each.name: each.default for each in fields(question)}
    return {name: value for name, value in record.items() if name == "type" or value != usual[name]}


def load_question_set(path: Path) -> tuple[BankQuestion, ...]:
    """As `load_questions`; each question knows the set that it is from."""
    return load_questions(path, book=path.stem)


def load_judged() -> tuple[BankQuestion, ...]:
    """The question sets on books that nothing is fitted on."""
    questions = [question for path in sorted(JUDGED_FOLDER.glob("*.jsonl")) for question in load_question_set(path)]
    _refuse_duplicates(questions, JUDGED_FOLDER.name)
    return tuple(questions)


@lru_cache
def load_bank(*, split: Split | None = None, chapter: int | None = None) -> tuple[BankQuestion, ...]:
    """The bundled bank in chapter order, or one split or chapter of it."""
    questions = [question for path in sorted(BANK_FOLDER.glob("*.jsonl")) for question in load_questions(path)]
    _refuse_duplicates(questions, BANK_FOLDER.name)
    return tuple(
        question
        for question in questions
        if (split is None or question.split == split) and (chapter is None or question.chapter == chapter)
    )


class QuestionFolder:
    """A home's own question files, beside the bundled bank.

    Args:
        most_bytes: what all files together may have; None is no limit.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def of(self, learner: str | None) -> QuestionFolder:
        """The files that a learner brought, of whom nobody else reads or counts any; None are the teacher's."""
        if learner is None:
            return self
        digest = hashlib.sha256(learner.encode()).hexdigest()[:32]  # a name may hold what no file name may
        return QuestionFolder(self._folder / "learners" / digest, MOST_LEARNER_BYTES)

    def names(self) -> tuple[str, ...]:
        """Names of the question files, in order."""
        files = (path for path in self._folder.glob("*") if path.suffix in FILE_ENDINGS and path.is_file())
        return tuple(sorted(path.name for path in files))

    def load(self, name: str | None) -> tuple[BankQuestion, ...]:
        """The questions of a file; of the bank when None is named.

        Raises:
            InvalidInput: the name is not that of a `.jsonl` or `.csv` file.
            NotFound: there is no such file.
            MalformedQuestions: a line is broken.
        """
        if name is None:
            return load_bank()
        path = self._folder / _checked_name(name)
        if not path.is_file():
            raise NotFound(msg("there is no question file {}", repr(name)), hint="add it first")
        return load_questions(path)

    def add(self, name: str, content: bytes) -> tuple[BankQuestion, ...]:
        """Keeps a question file and returns its questions.

        Raises:
            InvalidInput: the name is not that of a `.jsonl` or `.csv` file.
            MalformedQuestions: a line is broken; nothing is kept.
            Conflict: another file has this name, with other questions in it, or there is no room for one more.
        """
        path = self._folder / _checked_name(name)
        questions = read_upload(name, content)
        self._folder.mkdir(parents=True, exist_ok=True)
        held = sum(max(one.stat().st_size, LEAST_FILE_BYTES) for one in self._folder.glob("*") if one.is_file())
        new = max(len(content), LEAST_FILE_BYTES)
        if self._most_bytes is not None and not path.exists() and held + new > self._most_bytes:
            raise Conflict(
                msg("your question files have {} bytes; {} more is too much", f"{held:,}", f"{new:,}"),
                hint="remove one of them first",
            )
        with disk_errors(path), tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", suffix=".part") as part:
            part.write(content)
            part.flush()
            try:
                os.link(part.name, path)  # whole or not at all, and never over another upload's
            except FileExistsError:
                if path.read_bytes() != content:
                    raise Conflict(
                        msg("there is a question file {} with other questions in it", repr(name)),
                        hint="give yours another name",
                    ) from None
        return questions

    def remove(self, name: str) -> None:
        """Removes a question file; exams that were drawn from it keep their questions. Raises as `load`."""
        try:
            (self._folder / _checked_name(name)).unlink()
        except FileNotFoundError:
            raise NotFound(msg("there is no question file {}", repr(name)), hint="list them first") from None


def read_upload(name: str, content: bytes) -> tuple[BankQuestion, ...]:
    """The questions of a file that somebody sends.

    Raises:
        InvalidInput: the name is not that of a `.jsonl` or `.csv` file.
        MalformedQuestions: a line is broken.
    """
    return parse_questions(_decode(content, _checked_name(name)), name)


def _checked_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise InvalidInput(
            msg("{} is not the name of a question file", f"{name!r:.80}"),
            hint="name it like my-questions.jsonl or my-questions.csv",
        )
    return name


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedQuestions(msg("{} cannot be read: {}", name, error), hint="save it as UTF-8") from None


def _refuse_duplicates(questions: Iterable[BankQuestion], name: str) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise MalformedQuestions(
                msg("{}: id {} is used twice", name, repr(question.id)), hint="give each question its own id"
            )
        seen.add(question.id)


def _read_csv(text: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """`(file:line, record)` of every row of a table whose columns comma, semicolon or tab divide.

    Raises:
        MalformedQuestions: a column is missing, a row has more cells than the header, or the table cannot be read.
    """
    header = text.partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(_DELIMITERS, key=header.count), strict=True)
    try:
        columns = [column.strip().lower() for column in rows.fieldnames or ()]
        rows.fieldnames = columns
        if missing := [column for column in ("question", "answer") if column not in columns]:
            raise MalformedQuestions(
                msg("{}: no column is named {}", name, repr(missing[0])),
                hint=msg("Columns are {}.", ", ".join(_COLUMNS)),
            )
        for row in rows:
            where = f"{name}:{rows.line_num}"
            if None in row:
                raise MalformedQuestions(
                    msg("{}: more cells than the header has", where), hint="Put text with commas in quotes."
                )
            cells = {column: _read_cell(cell.strip()) for column, cell in row.items() if cell and cell.strip()}
            if cells:
                yield where, _record_of_cells(cells)
    except csv.Error as error:
        raise MalformedQuestions(
            msg("{}:{}: {}", name, rows.line_num, error), hint="Save the table as CSV in UTF-8."
        ) from None


def _write_csv(records: Iterable[Mapping[str, Any]]) -> str:
    """The records as a table with a header; of several places where a book answers, the first."""
    rows: list[Sequence[object]] = [_COLUMNS]
    for record in records:
        choices, index = record.get("choices") or (), record.get("answer_index")
        gold: Mapping[str, str] = next(iter(record.get("gold") or ()), {})
        cells = (
            {name: record[name] for name in (*_CSV_TEXTS, *_CSV_NUMBERS) if name in record}
            | {f"option_{letter}": choice for letter, choice in zip(_LETTERS, choices, strict=False)}
            | ({"right": _LETTERS[index].upper()} if choices and index is not None else {})
            | ({"answerable": "no"} if record.get("answerable") is False else {})
            | {"key_facts": "\n".join(record.get("key_facts") or ())}
            | {"source": gold.get("file", ""), "section": gold.get("heading", ""), "quote": gold.get("evidence", "")}
        )
        rows.append([cells.get(column, "") for column in _COLUMNS])
    return csv_table(rows)


def csv_table(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV; a text that a spreadsheet would run as a formula has an apostrophe before it."""
    out = io.StringIO()
    writer = csv.writer(out)
    for row in rows:
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in row])
    return out.getvalue()


def _read_cell(cell: str) -> str:
    """The text of a cell without the apostrophe that `csv_table` gives a formula."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def _record_of_cells(cells: Mapping[str, str]) -> dict[str, Any]:
    record: dict[str, Any] = {name: cells[name] for name in _CSV_TEXTS if name in cells}
    record |= {name: _number(cells[name]) for name in _CSV_NUMBERS if name in cells}
    if cells.get("answerable", "yes").lower() in ("no", "false", "0"):
        record["answerable"] = False
    if "key_facts" in cells:
        record["key_facts"] = [fact.strip() for fact in cells["key_facts"].splitlines() if fact.strip()]
    if "quote" in cells or "source" in cells:
        gold = {"heading": cells.get("section", ""), "evidence": cells.get("quote", "")}
        record["gold"] = [{"file": cells.get("source", "source"), **gold}]
    choices = [cells[f"option_{letter}"] for letter in _LETTERS if f"option_{letter}" in cells]
    if choices:
        right = cells.get("right", cells.get("answer", ""))
        record |= {"type": record.get("type", "choice"), "choices": choices, "answer_index": _place(right, choices)}
        if record.get("answer", "").lower() in _LETTERS and record["answer_index"] is not None:
            record["answer"] = choices[record["answer_index"]]
    return record


def _place(right: str, choices: list[str]) -> int | None:
    if right in choices:
        return choices.index(right)
    place = _LETTERS.find(right.lower()) if len(right) == 1 else -1
    return place if 0 <= place < len(choices) else None


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def sections_of(chapter: Path) -> dict[str, str]:
    """The `##` sections of a chapter's Markdown source by heading; headings inside code fences do not count."""
    sections: dict[str, list[str]] = defaultdict(list)
    heading, fenced = "", False
    for line in chapter.read_text(encoding="utf-8").split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if line.startswith("## ") and not fenced:
            heading = line[3:].strip()
        else:
            sections[heading].append(line)
    return {name: "\n".join(lines) for name, lines in sections.items()}


@lru_cache(maxsize=1)
def chapter_titles() -> dict[int, str]:
    """Titles of the bundled book's chapters, by number from 1."""
    titles = {}
    for number, path in enumerate(sorted(SAMPLE_PATH.glob("*.md")), start=1):
        lines = path.read_text(encoding="utf-8").split("\n")
        titles[number] = next((line[2:].strip() for line in lines if line.startswith("# ")), path.stem)
    return titles
