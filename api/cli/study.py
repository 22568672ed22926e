"""`coalesce quiz` and `coalesce questions`."""

from __future__ import annotations

import math
import secrets
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json, settings_of
from api.console import Console, counted
from indexes.messages import msg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evals.exam import Result
    from evals.questions import BankQuestion
    from evals.study import Study
    from evals.study_store import StoredExam
    from rag.types import Passage


commands = typer.Typer()
bank = typer.Typer(
    help="The question bank. Example: coalesce questions export --out questions.csv", no_args_is_help=True
)
commands.add_typer(bank, name="questions")
LETTERS = "ABCDEFGH"
_VERDICTS = {"r": 1.0, "p": 0.5, "w": 0.0}
WIDTH = 100


@commands.command(epilog="Example: coalesce quiz --chapters 5,6 --types choice --count 5")
def quiz(
    context: typer.Context,
    chapters: Annotated[str | None, typer.Option(help="Chapter numbers, separated by commas; by default all.")] = None,
    types: Annotated[
        str | None, typer.Option(help="Kinds of questions, separated by commas: choice,short,why,code.")
    ] = None,
    book: Annotated[
        str | None,
        typer.Option(
            metavar="BOOK",
            help="A book's id or title; questions are made from it where there are none. See `coalesce list`.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, max=500, help="How many questions; by default 5, or what there is.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Weights of chapters, separated by commas: 5=2,6=1.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed asks the same questions.")] = None,
    questions: Annotated[Path | None, typer.Option(help="A question file of your own (JSONL or CSV).")] = None,
    only: Annotated[
        str | None, typer.Option(help="Ids of the questions to ask, separated by commas, in this order.")
    ] = None,
    learner: Annotated[str | None, typer.Option(help="Whose progress this is.")] = None,
    chinese: Annotated[bool, typer.Option("--zh", help="Ask in Chinese.")] = False,
    json_output: Json = False,
) -> None:
    """Ask questions one by one, mark the answers, and keep what was missed as cards.

    Answers are read from standard input, one per line; an empty line leaves a question out. Afterwards you mark
    each open answer without full marks yourself: r right, p in part, w wrong; an empty line keeps the mark.
    """
    settings = settings_of(context)
    from api.schemas.study import ResultOut
    from api.services import open_study
    from evals.exam import ExamPlan
    from evals.learners import DEFAULT_LEARNER
    from evals.questions import load_questions
    from indexes.errors import InvalidInput

    console = Console(json_output=json_output)
    plan = ExamPlan(
        count=count,
        chapters=tuple(_numbers(chapters)),
        types=tuple(name.strip() for name in (types or "").split(",") if name.strip()),
        seed=secrets.randbelow(2**31) if seed is None else seed,
        weights=_weights(weights),
        ids=tuple(name.strip() for name in (only or "").split(",") if name.strip()),
    )
    if questions is not None and book is not None:
        raise InvalidInput("--book and --questions both name questions", hint="Name one of them.")
    own = load_questions(questions) if questions is not None else None
    if book is not None:
        own = _questions_on(context, book, console)
    if count is None and not plan.ids:
        plan = replace(plan, count=min(5, len(own)) if own else 5)
    with open_study(settings) as study:
        exam = study.start_exam(plan, DEFAULT_LEARNER if learner is None else learner, own)
        given = _ask_all(exam, console, chinese=chinese)
        result = study.hand_in(exam.id, given, exam.learner)
        result = _ask_verdicts(study, exam, result, console)
    document = ResultOut.model_validate(result).model_dump()
    console.result({"exam_id": exam.id, **document}, _marks(exam, result))


def _questions_on(context: typer.Context, book: str, console: Console | None) -> tuple[BankQuestion, ...]:
    """The questions on a book; with a console they are made where there are none."""
    from api.questions import questions_on

    # No language model is needed.
    return questions_on(settings_of(context, generator="extractive"), book, console.step if console else None)


def _numbers(chapters: str | None) -> list[int]:
    from indexes.errors import InvalidInput
    from rag.question import whole_number

    parts = [part.strip() for part in (chapters or "").split(",") if part.strip()]
    wrong = [part for part in parts if whole_number(part) is None]
    if wrong:
        raise InvalidInput(f"chapter {wrong[0]!r:.40} is not a number", hint="Name chapters by number: --chapters 5,6.")
    return [int(part) for part in parts]


def _weights(given: str | None) -> dict[int, float]:
    from indexes.errors import InvalidInput
    from rag.question import whole_number

    found: dict[int, float] = {}
    for part in (given or "").split(",") if given else ():
        name, _, share = part.partition("=")
        chapter = whole_number(name)
        try:
            weight = float(share)
        except ValueError:
            weight = 0.0
        if chapter is None or not 0 < weight < math.inf:
            raise InvalidInput(
                f"weight {part!r:.40} is not of the form CHAPTER=SHARE", hint="For example: --weights 5=2,6=1"
            )
        found[chapter] = weight
    return found


def _ask_all(exam: StoredExam, console: Console, *, chinese: bool) -> dict[str, int | str | None]:
    from indexes.errors import InvalidInput

    given: dict[str, int | str | None] = {}
    for number, question in enumerate(exam.questions, start=1):
        text = question.question_zh if chinese and question.question_zh else question.question
        console.say(f"\n{number}/{len(exam.questions)}  {textwrap.fill(text, WIDTH)}")
        if question.type == "choice":
            for letter, choice in zip(LETTERS, question.choices, strict=False):
                console.say(f"   {letter}. {choice}")
        while True:
            console.say("> " if not sys.stdin.isatty() else "your answer:")
            line = sys.stdin.readline()
            try:
                given[question.id] = _read_answer(question, line.strip())
            except InvalidInput as error:
                console.say(f"{error.message}: {error.hint}")
                if sys.stdin.isatty():
                    continue
                raise
            break
        if not line:
            break  # no more answers: the rest is left out
    return given


def _ask_verdicts(study: Study, exam: StoredExam, result: Result, console: Console) -> Result:
    """The result after the learner's own verdicts on open answers that are not surely right."""
    for question, mark in zip(exam.questions, result.marks, strict=True):
        if not isinstance(mark.answer, str) or (mark.passed and not mark.needs_check):
            continue
        said = "probably right" if mark.passed else f"{mark.score:g} of {mark.max_score:g}"
        console.say(f"\n{textwrap.fill(question.question, WIDTH)}\n   you: {textwrap.shorten(mark.answer, WIDTH)}")
        console.say(f"   {textwrap.shorten(mark.reference_answer, WIDTH)}")
        console.say(f"   {said}. Were you right (r), in part (p) or wrong (w)? An empty line keeps the mark.")
        line = sys.stdin.readline()
        share = _VERDICTS.get(line.strip()[:1].lower())
        if not line:
            break
        if share is not None:
            study.decide(exam.id, question.id, share, exam.learner)
    return study.exam(exam.id, exam.learner).result or result


def _read_answer(question: BankQuestion, line: str) -> int | str | None:
    """An option by letter or text, or the words of an open answer; None for an empty line."""
    from evals.exam import readable_answer
    from indexes.errors import InvalidInput

    letters = LETTERS[: len(question.choices)]
    if question.type == "choice" and len(line) == 1 and line.upper() in letters:
        return LETTERS.index(line.upper())
    try:
        return readable_answer(question, line)
    except InvalidInput:
        if question.type != "choice":
            raise
        raise InvalidInput(
            f"{line!r:.40} is not one of the options",
            hint=f"Answer {', '.join(letters)}, or an empty line to leave it out.",
        ) from None


def _marks(exam: StoredExam, result: Result) -> list[str]:
    lines = []
    for number, (question, mark) in enumerate(zip(exam.questions, result.marks, strict=True), start=1):
        sign = "right" if mark.passed else f"{mark.score:g} of {mark.max_score:g}"
        sign += {"self": ", by your own verdict", "similarity": ", compared"}.get(mark.by, "")
        sign += ", please check" if mark.needs_check else ""
        lines += ["", f"{number}. {sign}: {textwrap.shorten(question.question, WIDTH)}"]
        if not mark.passed:
            lines.append(f"   you: {textwrap.shorten(_shown(question, mark.answer), WIDTH)}")
            lines.append(textwrap.fill(mark.reference_answer, WIDTH, initial_indent="   ", subsequent_indent="   "))
        if mark.passage is not None:
            lines += _proof(mark.passage, question)
    return [
        *lines,
        "",
        f"{result.score:g} of {result.max_score:g}; the questions you missed are cards now, due at once",
    ]


def _shown(question: BankQuestion, answer: int | str | None) -> str:
    if answer is None:
        return "(nothing)"
    return f"{LETTERS[answer]}. {question.choices[answer]}" if isinstance(answer, int) else answer


def _proof(passage: Passage, question: BankQuestion) -> list[str]:
    from rag.types import place_of

    quote = question.gold[0].evidence if question.gold else textwrap.shorten(passage.text, 200)
    filled = textwrap.fill(f"“{quote}”", WIDTH, initial_indent="   ", subsequent_indent="   ")
    return [filled, f"   {place_of(passage.title, passage.section, passage.page_label or passage.page_start)}"]


@bank.command(epilog='Example: coalesce questions make "My notes" --count 40')
def make(
    context: typer.Context,
    book: Annotated[str, typer.Argument(metavar="BOOK", help="A book's id or title. See `coalesce list`.")],
    count: Annotated[
        int | None, typer.Option(min=1, max=500, help="How many questions; by default what the book holds, up to 60.")
    ] = None,
    types: Annotated[str | None, typer.Option(help="Kinds of questions, separated by commas: choice,short.")] = None,
    json_output: Json = False,
) -> None:
    """Make questions from a book, best first, in place of those made before; what you accepted stays."""
    from api.questions import make_on

    console = Console(json_output=json_output)
    chosen = [name.strip() for name in (types or "").split(",") if name.strip()]
    questions, few = make_on(settings_of(context), book, console.step, count, _made_types(chosen))
    lines = [f"{counted(len(questions), 'question')} on the book; see them with `coalesce questions list`"]
    console.result(_listing(questions), [*lines, *([few] if few else [])])


def _made_types(names: Sequence[str]) -> Sequence[str]:
    from evals.made_questions import MADE_TYPES
    from indexes.errors import InvalidInput

    if unknown := [name for name in names if name not in MADE_TYPES]:
        raise InvalidInput(f"{unknown[0]!r:.40} is not made from books", hint=f"Types are {', '.join(MADE_TYPES)}.")
    return names


@bank.command("list", epilog='Example: coalesce questions list "My notes" --chapter 2')
def list_questions(
    context: typer.Context,
    book: Annotated[str, typer.Argument(metavar="BOOK", help="A book's id or title. See `coalesce list`.")],
    chapter: Annotated[int | None, typer.Option(min=0, help="Of one chapter.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Of one kind: choice or short.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="At most so many.")] = 100,
    json_output: Json = False,
) -> None:
    """List the questions on a book with their answers and the sentences that prove them, best first."""
    questions = _questions_on(context, book, None)
    chosen = [q for q in questions if chapter in (None, q.chapter) and type_ in (None, q.type)]
    left, chosen = len(chosen) - limit, chosen[:limit]
    lines = []
    for question in chosen:
        state = "accepted" if question.accepted else "" if question.checked else "not checked"
        where = ", ".join(part for part in (f"chapter {question.chapter}", question.type, state) if part)
        lines += ["", f"{question.id}  ({where})", textwrap.fill(question.question, WIDTH, subsequent_indent="   ")]
        lines += [f"   {letter}. {choice}" for letter, choice in zip(LETTERS, question.choices, strict=False)]
        lines.append(textwrap.fill(f"= {question.answer}", WIDTH, initial_indent="   ", subsequent_indent="     "))
        if question.gold and question.gold[0].evidence:
            quote = " ".join(question.gold[0].evidence.split())
            lines.append(textwrap.fill(f"“{quote}”", WIDTH, initial_indent="   ", subsequent_indent="   "))
    if left > 0:
        lines += ["", f"{counted(left, 'question')} more: give --limit"]
    Console(json_output=json_output).result(_listing(chosen), lines or ["no question fits"])


def _listing(questions: Sequence[BankQuestion]) -> dict[str, Any]:
    from api.schemas.study import QuestionOut

    shown = [QuestionOut.of(question, with_answer=True).model_dump(mode="json") for question in questions]
    return {"questions": shown}


@bank.command(epilog='Example: coalesce questions edit made-1f0c3a9be2d4c5f6 --answer "32 threads" --fact 32')
def edit(
    context: typer.Context,
    question_id: Annotated[str, typer.Argument(metavar="ID", help="As `coalesce questions list` shows it.")],
    question: Annotated[str | None, typer.Option(help="Other words of the question.")] = None,
    answer: Annotated[str | None, typer.Option(help="Another answer.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="One of four options; give it four times.")] = None,
    right: Annotated[str | None, typer.Option(help="The letter of the right option.")] = None,
    fact: Annotated[list[str] | None, typer.Option(help="A key fact to mark answers by; may be repeated.")] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Remove the question; it does not come back.")] = False,
    json_output: Json = False,
) -> None:
    """Change a question that was made from a book, accept it as it is, or drop it.

    What you change or accept stays when the book is read again, and when questions are made again.
    """
    from contextlib import closing

    from evals.made_store import MadeQuestions
    from indexes.errors import InvalidInput

    if right is not None and (len(right) != 1 or right.upper() not in LETTERS[:4]):
        raise InvalidInput(f"{right!r:.40} is not the letter of an option", hint="Name it A, B, C or D.")
    given: dict[str, Any] = {
        "question": question,
        "answer": answer,
        "choices": option,
        "answer_index": None if right is None else LETTERS.index(right.upper()),
        "key_facts": fact,
    }
    console = Console(json_output=json_output)
    with closing(MadeQuestions(settings_of(context).made_questions_place)) as made:
        if drop:
            made.drop(question_id)
            console.result({"dropped": question_id}, [f"dropped {question_id}"])
            return
        kept = made.change(question_id, {name: value for name, value in given.items() if value is not None})
    console.result(_listing([kept]), [f"kept {kept.id}: {kept.question}", f"   = {kept.answer}"])


@bank.command("import", epilog="Example: coalesce questions import questions.csv --book ID")
def import_questions(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A question file (JSONL or CSV).")],
    book: Annotated[str, typer.Option(metavar="BOOK", help="The book that they are about: its id or title.")],
    json_output: Json = False,
) -> None:
    """Add the questions of a file to those on a book, in place of those with the same ids; they stay."""
    from api.questions import opened
    from evals.questions import load_questions
    from indexes.errors import Conflict

    questions = load_questions(file)
    with opened(settings_of(context), book) as (_, made, document):
        if document.sample:
            raise Conflict(f"'{document.title}' has a question bank", hint="sit them with `coalesce quiz --questions`")
        made.add(document, questions)
    Console(json_output=json_output).result(
        {"document_id": document.document_id, "questions": len(questions)},
        [f"{counted(len(questions), 'question')} added to {document.title}"],
    )


@bank.command(epilog="Example: coalesce questions export --book ID --out questions.csv")
def export(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The file to write: .jsonl with every field, or .csv for a spreadsheet.")],
    book: Annotated[
        str | None, typer.Option(metavar="BOOK", help="A book's id or title; by default the bundled bank.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Write questions with their answers as a question file, made from the book where there are none."""
    from evals.questions import FILE_ENDINGS, load_bank, questions_file
    from indexes.disk import disk_errors
    from indexes.errors import InvalidInput

    if out.suffix not in FILE_ENDINGS:
        raise InvalidInput(msg("{} is not the name of a question file", repr(out.name)), hint="Name it .jsonl or .csv.")
    console = Console(json_output=json_output)
    questions = _questions_on(context, book, console) if book is not None else load_bank()
    with disk_errors(out):
        out.write_text(questions_file(questions, out.suffix), encoding="utf-8")
    console.result({"file": str(out), "questions": len(questions)}, [f"{counted(len(questions), 'question')} in {out}"])
