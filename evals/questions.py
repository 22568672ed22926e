"""The question bank: what a question is, and reading files of them.

One JSON object a line (JSONL). `evals/question_bank/` holds the bank over the sample book, one file a chapter; a user's
own file has the same schema, of which only `question` and `answer` are needed. Every broken line is reported by file
and number, none is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from evals.errors import MalformedQuestions

QuestionType: TypeAlias = Literal["choice", "short", "why", "code"]
Split: TypeAlias = Literal["tune", "dev", "test"]
TYPES: tuple[str, ...] = get_args(QuestionType)
SPLITS: tuple[str, ...] = get_args(Split)
BANK_FOLDER = Path(__file__).parent / "question_bank"
NUM_CHOICES = 4
LARGEST_NUMBER = 1_000_000
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Gold:
    """Where the book answers a question.

    Attributes:
        file: file of the sample book, or of a folder of text files.
        heading: the section's heading.
        part: which of the needed facts this is, from 1; entries with one part are alternatives.
        evidence: verbatim stretch of that section.
    """

    file: str
    heading: str
    part: int
    evidence: str


@dataclass(frozen=True, slots=True)
class BankQuestion:
    """A question with its reference answer. See `evals/question_bank/README.md` for each field."""

    id: str
    chapter: int
    type: QuestionType
    question: str
    question_zh: str
    choices: tuple[str, ...]
    answer_index: int | None
    answer: str
    key_facts: tuple[str, ...]
    gold: tuple[Gold, ...]
    answerable: bool
    difficulty: int
    split: Split
    section: str | None
    seen: bool
    paraphrases: tuple[str, ...]
    needs_two_passages: bool
    identifier: bool

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts that all have to be found, ascending."""
        return tuple(sorted({gold.part for gold in self.gold}))


def parse_question(record: Mapping[str, Any], *, where: str) -> BankQuestion:
    """Checks one record and makes a question of it.

    Args:
        where: `file:line`, for the error.

    Raises:
        MalformedQuestions: naming the field and its value.
    """
    reader = _Fields(record, where)
    kind = reader.one_of("type", TYPES, default="short")
    choices = reader.strings("choices")
    answer_index = reader.integer("answer_index", default=None)
    if choices and len(choices) != NUM_CHOICES:
        reader.fail("choices", f"needs exactly {NUM_CHOICES} options, has {len(choices)}")
    if len(set(choices)) != len(choices):
        reader.fail("choices", "holds the same option twice")
    if choices and (answer_index is None or not 0 <= answer_index < len(choices)):
        reader.fail("answer_index", f"must be 0 to {len(choices) - 1}, is {answer_index!r}")
    if kind == "choice" and not choices and reader.boolean("answerable", default=True):
        reader.fail("choices", "are missing from a choice question")
    gold = tuple(_parse_gold(entry, reader) for entry in reader.objects("gold"))
    answerable = reader.boolean("answerable", default=True)
    split = reader.one_of("split", SPLITS, default="test")
    return BankQuestion(
        id=reader.text("id", default=where),
        chapter=reader.integer("chapter", default=0) or 0,
        type=kind,  # type: ignore[arg-type]  # checked against TYPES just above
        question=reader.text("question"),
        question_zh=reader.text("question_zh", default=""),
        choices=choices,
        answer_index=answer_index if choices else None,
        answer=reader.text("answer"),
        key_facts=reader.strings("key_facts"),
        gold=gold,
        answerable=answerable,
        difficulty=reader.integer("difficulty", default=1) or 1,
        split=split,  # type: ignore[arg-type]  # checked against SPLITS just above
        section=reader.text("section", default="") or None,
        seen=reader.boolean("seen", default=False),
        paraphrases=reader.strings("paraphrases"),
        needs_two_passages=reader.boolean("needs_two_passages", default=False),
        identifier=reader.boolean("identifier", default=False),
    )


def load_questions(path: Path) -> tuple[BankQuestion, ...]:
    """Reads one JSONL file of questions.

    Raises:
        MalformedQuestions: the file is not there, is not UTF-8, holds no question, breaks the schema in a line, or
            has one id twice; the message names file and line.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MalformedQuestions(f"question file {path} is not there", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MalformedQuestions(f"question file {path} cannot be read: {error}", hint="save it as UTF-8") from None
    questions = tuple(_parse_lines(content.split("\n"), path.name))
    if not questions:
        raise MalformedQuestions(f"question file {path} holds no question", hint="write one JSON object a line")
    _refuse_duplicates(questions, path.name)
    return questions


def load_bank(
    *, split: Split | None = None, chapter: int | None = None, folder: Path = BANK_FOLDER
) -> tuple[BankQuestion, ...]:
    """The bundled bank in chapter order, or one split or chapter of it.

    Raises:
        MalformedQuestions: as `load_questions`; also for an id that two files share.
    """
    questions: list[BankQuestion] = []
    for path in sorted(folder.glob("*.jsonl")):
        questions.extend(load_questions(path))
    _refuse_duplicates(questions, folder.name)
    return tuple(
        question
        for question in questions
        if (split is None or question.split == split) and (chapter is None or question.chapter == chapter)
    )


def _parse_lines(lines: Iterable[str], name: str) -> Iterator[BankQuestion]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a number too long"
            raise MalformedQuestions(f"{where}: not JSON ({reason})", hint="write one JSON object a line") from None
        if not isinstance(record, dict):
            raise MalformedQuestions(
                f"{where}: a {type(record).__name__}, not an object", hint="write one JSON object a line"
            )
        yield parse_question(record, where=where)


def _refuse_duplicates(questions: Iterable[BankQuestion], name: str) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise MalformedQuestions(f"{name}: id {question.id!r} stands twice", hint="give each question its own id")
        seen.add(question.id)


def _parse_gold(entry: Mapping[str, Any], parent: _Fields) -> Gold:
    reader = _Fields(entry, f"{parent.where}, gold")
    return Gold(
        file=reader.text("file"),
        heading=reader.text("heading", default=""),
        part=reader.integer("part", default=1) or 1,
        evidence=reader.text("evidence", default=""),
    )


class _Fields:
    """Typed access to one record; every complaint names file, line, field and value."""

    def __init__(self, record: Mapping[str, Any], where: str) -> None:
        self._record = record
        self.where = where

    def fail(self, name: str, reason: str) -> None:
        raise MalformedQuestions(f"{self.where}: {name} {reason}", hint="see evals/question_bank/README.md")

    def text(self, name: str, *, default: str | None = None) -> str:
        value = self._record.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not (value.strip() or default is not None):
            self.fail(name, f"must be text, is {value!r:.60}")
        self._refuse_controls(name, str(value))
        return str(value)

    def integer(self, name: str, *, default: int | None) -> int | None:
        value = self._record.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(name, f"must be a whole number, is {value!r:.60}")
        if abs(value) > LARGEST_NUMBER:
            self.fail(name, f"is larger than {LARGEST_NUMBER:,}: {value!r:.60}")
        return int(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._record.get(name, default)
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, is {value!r:.60}")
        return bool(value)

    def one_of(self, name: str, allowed: tuple[str, ...], *, default: str) -> str:
        value = self._record.get(name, default)
        if value not in allowed:
            self.fail(name, f"must be one of {', '.join(allowed)}, is {value!r:.60}")
        return str(value)

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._record.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            self.fail(name, f"must be a list of texts, is {value!r:.60}")
            return ()
        for item in value:
            self._refuse_controls(name, item)
        return tuple(value)

    def _refuse_controls(self, name: str, text: str) -> None:
        """Control characters and half surrogate pairs: no file that a person wrote holds them, and stores choke."""
        if found := _CONTROL.search(text):
            self.fail(name, f"holds the character U+{ord(found.group()):04X}, which is no text")

    def objects(self, name: str) -> tuple[Mapping[str, Any], ...]:
        value = self._record.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fail(name, f"must be a list of objects, is {value!r:.60}")
            return ()
        return tuple(value)
