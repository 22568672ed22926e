"""`coalesce serve`, `mcp` and `doctor`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import Adapter, BaseUrl, GeneratorName, Invocation, Json, Model, Quantization, generator_options
from api.console import Console

if TYPE_CHECKING:
    from rag.engine import AnswerEngine


commands = typer.Typer()


@commands.command(epilog="Example: coalesce serve --port 8080")
def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to bind to; others than loopback need a key.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let other machines in without a key.")] = False,
    generator: GeneratorName = None,
    model: Model = None,
    quantization: Quantization = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
) -> None:
    """Answer over REST, the OpenAI-compatible API and a web page."""
    invocation: Invocation = context.obj
    options = generator_options(generator, model, quantization, adapter, base_url)
    settings = invocation.settings(host=host, port=port, insecure=insecure or None, **options)
    from api.server import run_server

    run_server(settings, Console())


@commands.command(epilog='Example, in an assistant\'s settings: {"command": "coalesce", "args": ["mcp"]}')
def mcp(
    context: typer.Context,
    generator: GeneratorName = None,
    model: Model = None,
    quantization: Quantization = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
    learner: Annotated[str | None, typer.Option(help="Whose exams and cards the assistant works on.")] = None,
) -> None:
    """Serve search, ask and quiz as tools (Model Context Protocol) on standard input and output."""
    invocation: Invocation = context.obj
    settings = invocation.settings(**generator_options(generator, model, quantization, adapter, base_url))
    from api.mcp_server import build_mcp_server
    from api.services import open_study
    from evals.learners import DEFAULT_LEARNER, checked_learner
    from indexes.library import open_library
    from rag.assemble import build_engine

    whose = checked_learner(DEFAULT_LEARNER if learner is None else learner)

    @lru_cache(maxsize=1)
    def engine() -> AnswerEngine:
        library = open_library(settings.index, create=False)
        library.load()
        built = build_engine(settings.rag, library)
        built.load()
        return built

    with open_study(settings) as study:
        build_mcp_server(engine, study, whose).run("stdio")


@commands.command(epilog="Example: coalesce doctor --book 1f0c3a9be2d4c5f6")
def doctor(
    context: typer.Context,
    book: Annotated[
        str | None, typer.Option("--book", metavar="ID", help="Show what reading this book lost, by its id.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Check the environment, the home and the library, or show what reading a book lost."""
    invocation: Invocation = context.obj
    settings = invocation.settings()
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
