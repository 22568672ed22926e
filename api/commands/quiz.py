"""`coalesce quiz`: an exam in the terminal, marked with the passage that justifies each answer."""

from __future__ import annotations

import math
import secrets
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.context import Invocation, Json

if TYPE_CHECKING:
    from api.console import Console
    from evals.questions import BankQuestion
    from evals.study_store import StoredExam

LETTERS = "ABCDEFGH"
WIDTH = 100


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog="Example: coalesce quiz --chapters 5,6 --types choice --count 5")(quiz)


def quiz(
    context: typer.Context,
    chapters: Annotated[str | None, typer.Option(help="Chapters by number, by commas; all if left out.")] = None,
    types: Annotated[str | None, typer.Option(help="choice, short, why, code; by commas.")] = None,
    count: Annotated[int, typer.Option(min=1, max=500, help="How many questions.")] = 5,
    weights: Annotated[str | None, typer.Option(help="Share of each chapter, by commas: 5=2,6=1.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed asks the same questions.")] = None,
    questions: Annotated[Path | None, typer.Option(help="A question file of your own (JSONL).")] = None,
    learner: Annotated[str | None, typer.Option(help="Whose progress this is.")] = None,
    chinese: Annotated[bool, typer.Option("--zh", help="Ask in Chinese.")] = False,
    json_output: Json = False,
) -> None:
    """Ask questions one by one, mark the answers, and keep what was missed as cards.

    Answers are read from standard input, a line each; an empty line leaves a question out.
    """
    invocation: Invocation = context.obj
    settings = invocation.settings()
    from api.console import Console
    from api.studying import open_study
    from evals.exam import ExamPlan
    from evals.learners import DEFAULT_LEARNER
    from evals.questions import load_questions

    console = Console(json_output=json_output)
    plan = ExamPlan(
        count=count,
        chapters=tuple(_numbers(chapters)),
        types=tuple(name.strip() for name in (types or "").split(",") if name.strip()),
        seed=secrets.randbelow(2**31) if seed is None else seed,
        weights=_weights(weights),
    )
    own = load_questions(questions) if questions is not None else None
    with open_study(settings) as study:
        exam = study.start_exam(plan, DEFAULT_LEARNER if learner is None else learner, own)
        given = _ask_all(exam, console, chinese=chinese)
        result = study.hand_in(exam.id, given, exam.learner)
    console.result({"exam_id": exam.id, **result}, _marks(exam, result))


def _numbers(chapters: str | None) -> list[int]:
    from api.text_input import whole_number
    from indexes.errors import InvalidInput

    parts = [part.strip() for part in (chapters or "").split(",") if part.strip()]
    wrong = [part for part in parts if whole_number(part) is None]
    if wrong:
        raise InvalidInput(f"chapter {wrong[0]!r:.40} is no number", hint="name chapters by number: --chapters 5,6")
    return [int(part) for part in parts]


def _weights(given: str | None) -> dict[int, float]:
    from api.text_input import whole_number
    from indexes.errors import InvalidInput

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
                f"weight {part!r:.40} is not of the form CHAPTER=SHARE", hint="for example --weights 5=2,6=1"
            )
        found[chapter] = weight
    return found


def _ask_all(exam: StoredExam, console: Console, *, chinese: bool) -> dict[str, int | str | None]:
    from evals.study import question_of
    from indexes.errors import InvalidInput

    given: dict[str, int | str | None] = {}
    for number, record in enumerate(exam.questions, start=1):
        question = question_of(record)
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


def _read_answer(question: BankQuestion, line: str) -> int | str | None:
    """An option by letter or text, or the words of an open answer; None for an empty line."""
    from evals.marking import readable_answer
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
            f"{line!r:.40} is none of the options",
            hint=f"answer {', '.join(letters)}, or an empty line to leave it out",
        ) from None


def _marks(exam: StoredExam, result: dict[str, Any]) -> list[str]:
    lines = []
    for number, (record, mark) in enumerate(zip(exam.questions, result["marks"], strict=True), start=1):
        sign = "right" if mark["score"] >= mark["max_score"] else f"{mark['score']:g} of {mark['max_score']:g}"
        lines += ["", f"{number}. {sign}: {textwrap.shorten(record['question'], WIDTH)}"]
        if mark["score"] < mark["max_score"]:
            lines.append(f"   you: {textwrap.shorten(_given(record, mark['answer']), WIDTH)}")
            lines.append(textwrap.fill(mark["reference_answer"], WIDTH, initial_indent="   ", subsequent_indent="   "))
        lines += _proof(mark["passage"], [gold["evidence"] for gold in record["gold"]])
    return [*lines, "", f"{result['score']:g} of {result['max_score']:g}; what was missed is due as cards now"]


def _given(record: Mapping[str, Any], answer: int | str | None) -> str:
    if answer is None:
        return "(nothing)"
    return f"{LETTERS[answer]}. {record['choices'][answer]}" if isinstance(answer, int) else answer


def _proof(passage: dict[str, Any] | None, evidence: Sequence[str]) -> list[str]:
    if passage is None:
        return []
    page = f", page {passage['page_label'] or passage['page_start']}" if passage["page_start"] else ""
    where = " > ".join(passage["section"])
    quote = evidence[0] if evidence else textwrap.shorten(passage["text"], 200)
    return [textwrap.fill(f"“{quote}”", WIDTH, initial_indent="   ", subsequent_indent="   "), f"   {where}{page}"]
