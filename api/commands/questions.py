"""`coalesce questions`: the checks of the bundled question bank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.context import Json

if TYPE_CHECKING:
    from evals.question_checks import CheckReport

questions = typer.Typer(
    name="questions",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The question bank. Example: coalesce questions check",
)


def register(app: typer.Typer) -> None:
    """Adds the group."""
    app.add_typer(questions)


@questions.command(epilog="Example: coalesce questions check --chapters 5,6")
def check(
    chapters: Annotated[
        str | None, typer.Option(help="Chapter numbers by commas; without it the whole bank and its totals.")
    ] = None,
    embed: Annotated[bool, typer.Option(help="Also the checks that need the embedder (about a minute).")] = True,
    json_output: Json = False,
) -> None:
    """Check evidence, key facts, answer keys, splits, duplicates and shortcuts; status 1 when something is found."""
    from api.console import Console
    from evals.question_checks import bundled_encoder, check_questions
    from evals.questions import load_bank

    chosen = load_bank()
    if chapters is not None:
        numbers = _chapter_numbers(chapters, {question.chapter for question in chosen})
        chosen = tuple(question for question in chosen if question.chapter in numbers)
    report = check_questions(chosen, embed=bundled_encoder() if embed else None, whole_bank=chapters is None)
    Console(json_output=json_output).result(_document(report), _lines(report))
    if report.findings:
        raise typer.Exit(1)


def _chapter_numbers(text: str, known: set[int]) -> set[int]:
    from indexes.errors import InvalidInput

    numbers = {int(part) for part in text.split(",") if part.strip().isdecimal()}
    if not numbers or len(numbers) != len(text.split(",")) or numbers - known:
        raise InvalidInput(
            f"--chapters {text!r} does not name chapters of the bank",
            hint=f"give numbers from {min(known)} to {max(known)} by commas",
        )
    return numbers


def _document(report: CheckReport) -> dict[str, Any]:
    return {
        "findings": [
            {"check": finding.check, "question_id": finding.question_id, "detail": finding.detail}
            for finding in report.findings
        ],
        "floors": report.floors,
        "counts": report.counts,
    }


def _lines(report: CheckReport) -> list[str]:
    from evals.question_checks import FLOOR_BOUNDS

    found = [f"{finding.question_id}: {finding.check}: {finding.detail}" for finding in report.findings]
    floors = [f"floor {name}: {value:.3f} (bound {FLOOR_BOUNDS[name]:.2f})" for name, value in report.floors.items()]
    counts = ", ".join(f"{count} {split}" for split, count in report.counts.items())
    return [*found, *floors, f"{sum(report.counts.values())} questions ({counts}), {len(report.findings)} findings"]
