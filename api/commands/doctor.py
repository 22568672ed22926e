"""`coalesce doctor`: is everything here that answering needs, and is it what it says it is?"""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.context import Invocation, Json


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog="Example: coalesce doctor --book 1f0c3a9be2d4c5f6")(doctor)


def doctor(
    context: typer.Context,
    book: Annotated[str | None, typer.Option("--book", metavar="ID", help="What reading this book lost.")] = None,
    json_output: Json = False,
) -> None:
    """Check the environment, the home, the library, or what reading a book lost."""
    invocation: Invocation = context.obj
    settings = invocation.settings()
    from api.console import Console
    from api.health_checks import book_report, run_checks

    console = Console(json_output=json_output)
    if book is not None:
        report = book_report(settings, book)
        console.result(report, (f"{name}: {value}" for name, value in report.items()))
        return
    checks = run_checks(settings)
    lines = [f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}" for check in checks]
    lines += [f"     {check.name}: {check.hint}" for check in checks if not check.ok and check.hint]
    failed = [check.name for check in checks if not check.ok]
    found = {
        "ok": not failed,
        "checks": [
            {"name": check.name, "ok": check.ok, "detail": check.detail, "hint": check.hint} for check in checks
        ],
    }
    console.result(found, lines)
    if failed:
        raise typer.Exit(1)
