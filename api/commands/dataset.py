"""`coalesce dataset`: training data, from the question bank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from api.commands.context import Json

EXAMPLES = """Example: coalesce dataset --from-bank --split tune --format sharegpt --out data

The folder can be given to `coalesce tune --data`, or to LLaMA-Factory as its dataset_dir."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=EXAMPLES)(dataset)


def dataset(
    out: Annotated[Path, typer.Option(help="Folder to write into; its dataset_info.json is extended.")],
    from_bank: Annotated[bool, typer.Option("--from-bank", help="Take the bundled question bank.")] = False,
    split: Annotated[Literal["tune", "dev", "test"], typer.Option(help="Which questions of the bank.")] = "tune",
    file_format: Annotated[
        Literal["alpaca", "sharegpt", "messages"], typer.Option("--format", help="How a row is laid out.")
    ] = "messages",
    allow_test: Annotated[
        bool, typer.Option("--allow-test", help="Let questions that measure leave as training data.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Make training data that `coalesce tune` and other trainers read."""
    from indexes.errors import InvalidInput

    if not from_bank:
        raise InvalidInput(
            "nothing was named to make training data from", hint="coalesce dataset --from-bank --out FOLDER"
        )
    _write_bank(out, split, file_format, allow_test=allow_test, json_output=json_output)


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
