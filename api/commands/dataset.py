"""`coalesce dataset`: training data, from the question bank or from books."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.commands.context import (
    Adapter,
    BaseUrl,
    GeneratorName,
    Invocation,
    Json,
    Model,
    Quantization,
    generator_options,
)

if TYPE_CHECKING:
    from api.settings import CoalesceSettings
    from rag.tuning.formats import Format
    from rag.tuning.synthesis import SynthesisSettings

EXAMPLES = """Example: coalesce dataset --from-bank --split tune --format sharegpt --out data

From your own books: coalesce dataset books/ --generator local --model Qwen/Qwen3-8B --out data

The folder can be given to `coalesce tune --data`, or to LLaMA-Factory as its dataset_dir."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=EXAMPLES)(dataset)


def dataset(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder to write into; its dataset_info.json is extended.")],
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Books to make questions from.")] = None,
    from_bank: Annotated[bool, typer.Option("--from-bank", help="Take the bundled question bank.")] = False,
    split: Annotated[Literal["tune", "dev", "test"], typer.Option(help="Which questions of the bank.")] = "tune",
    file_format: Annotated[
        Literal["alpaca", "sharegpt", "messages"], typer.Option("--format", help="How a row is laid out.")
    ] = "messages",
    allow_test: Annotated[
        bool, typer.Option("--allow-test", help="Let questions that measure leave as training data.")
    ] = False,
    pairs: Annotated[int, typer.Option(min=1, max=10, help="Questions asked for a passage of a book.")] = 3,
    passages: Annotated[
        int, typer.Option(min=0, max=10, help="Passages shown in each row's prompt; 0 trains closed book.")
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many passages, spread over the books.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Have the model answer each question from its passage.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampling.")] = 0,
    generator: GeneratorName = None,
    model: Model = None,
    quantization: Quantization = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
    json_output: Json = False,
) -> None:
    """Make training data that `coalesce tune` and other trainers read.

    From books a model writes the questions; each is checked, and what is thrown away is counted. A stopped run goes on
    where it was when it is called again.
    """
    from indexes.errors import InvalidInput

    if from_bank and not paths:
        _write_bank(out, split, file_format, allow_test=allow_test, json_output=json_output)
        return
    if from_bank or not paths:
        raise InvalidInput(
            "give either --from-bank or the paths of books",
            hint="coalesce dataset --from-bank --out FOLDER, or coalesce dataset PATH… --generator … --out FOLDER",
        )
    from rag.tuning.synthesis import SynthesisSettings

    invocation: Invocation = context.obj
    settings = invocation.settings(**generator_options(generator, model, quantization, adapter, base_url))
    wanted = SynthesisSettings(pairs=pairs, shown_passages=passages, verify=verify, limit=limit, seed=seed)
    _write_questions(paths, out, settings, wanted, file_format, json_output=json_output)


def _write_questions(
    paths: list[Path],
    out: Path,
    settings: CoalesceSettings,
    wanted: SynthesisSettings,
    file_format: Format,
    *,
    json_output: bool,
) -> None:
    from dataclasses import asdict

    from api.commands.tuning import stopping_gently
    from api.console import Console
    from indexes.errors import Cancelled
    from indexes.readers import find_books, read_book
    from rag.assemble import build_language_model
    from rag.tuning.synthesis import cut_passages, synthesize

    console = Console(json_output=json_output)
    console.step("reading books")
    books = [read_book(book) for path in paths for book in find_books(path)]
    cut = [passage for book in books for passage in cut_passages(book)]
    console.step("loading the model")
    writer = build_language_model(settings.rag.generator)
    try:
        with stopping_gently(console.say) as stopped:
            report = synthesize(
                cut,
                writer,
                out,
                wanted,
                file_format=file_format,
                progress=lambda done, total, _rows: console.step("writing questions", done, total),
                cancelled=stopped,
            )
    except Cancelled as cancelled:
        console.say(f"{cancelled.message} The same command goes on where it stopped.")
        raise typer.Exit(130) from cancelled
    finally:
        writer.close()
    thrown = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in report.thrown_away.items())
    lines = [
        f"{report.rows} rows from {report.passages} passages of {len(books)} books in {report.data_file}",
        f"{report.written} pairs were written; thrown away: {thrown or 'none'}",
    ]
    console.result(asdict(report), lines)


def _write_bank(
    out: Path,
    split: Literal["tune", "dev", "test"],
    file_format: Literal["alpaca", "sharegpt", "messages"],
    *,
    allow_test: bool,
    json_output: bool,
) -> None:
    from api.console import Console
    from evals.export import export_bank

    written = export_bank(out, split=split, file_format=file_format, allow_test=allow_test)
    document = {
        "data_file": str(written.data_file),
        "info_file": str(written.info_file),
        "format": file_format,
        "split": split,
        "questions": written.questions,
        "rows": written.rows,
    }
    line = f"{written.rows} rows from {written.questions} questions in {written.data_file}"
    Console(json_output=json_output).result(document, [line])
