"""The `coalesce` command. Nothing heavy is imported before a command runs.

Exit status: 0 done; 1 our error (what was wrong, and the command that mends it); 2 usage; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from api.cli import ask, books, compare, service, study, tuning

SECTIONS = {
    "Serve": ("serve", "mcp", "models"),
    "Keep": ("doctor", "backup", "restore", "migrate"),
    "Books": ("add", "list", "remove"),
    "Ask": ("ask", "chat", "search"),
    "Study": ("quiz", "questions"),
    "Compare and measure": ("eval", "bench"),
    "Tune": ("dataset", "tune", "export", "quantize", "memory"),
}
"""The commands as `--help` lists them; any other comes last."""


class GroupedHelp(TyperGroup):
    """Lists the commands by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # click's, which typer keeps private
        """Writes each section of the list."""
        left = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        width = formatter.width - 6 - max(map(len, left))
        for title, names in (*SECTIONS.items(), ("More", tuple(left))):
            found = [(name, left.pop(name).get_short_help_str(width)) for name in names if name in left]
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)


app = typer.Typer(
    name="coalesce",
    cls=GroupedHelp,
    help="Cited answers from GPU-programming books.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from api.settings import program_version

        print(f"coalesce {program_version()}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    home: Annotated[Path | None, typer.Option(help="The folder that holds everything you make.")] = None,
    debug: Annotated[  # noqa: ARG001  `run` looks for it, since it may have to tell before options are read
        bool, typer.Option("--debug", help="Show the details of an unexpected error.")
    ] = False,
    version: Annotated[  # noqa: ARG001  its callback prints and ends
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Cited answers from GPU-programming books."""
    context.obj = home


for group in (service, books, ask, study, compare, tuning):
    app.add_typer(group.commands)


def main() -> None:
    """Runs the command line and exits with its status."""
    from indexes.cores import heed_quota

    heed_quota()
    # Hides the warnings of model libraries; their errors still show.
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("coalesce").setLevel(logging.DEBUG if "--debug" in sys.argv else logging.WARNING)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    status = run(sys.argv[1:])
    if "torch" not in sys.modules:
        sys.exit(status)
    # Every command has closed what it opened; taking the model libraries apart would take seconds and change nothing.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit status; every error becomes a line on stderr."""
    from indexes.errors import CoalesceError

    try:
        app(arguments, prog_name="coalesce")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except CoalesceError as error:
        return _fail(error)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Who reads our output has gone (`coalesce list | head`); Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001  never a traceback: a line, and the details in a file
        from api.errors import known_error

        known = known_error(error)
        if known is not None:
            return _fail(known)
        return _fail_unexpected(error, debug="--debug" in arguments)
    return 0


def _fail(error: Exception) -> int:
    print(f"coalesce: {getattr(error, 'message', error)}", file=sys.stderr)
    hint = getattr(error, "hint", "")
    if hint:
        print(f"  {hint}", file=sys.stderr)
    return 1


def _fail_unexpected(error: Exception, *, debug: bool) -> int:
    details = "".join(traceback.format_exception(error))
    print(f"coalesce: an error inside Coalesce: {type(error).__name__}: {error}", file=sys.stderr)
    if debug:
        print(details, file=sys.stderr)
        return 1
    kept = _keep_details(details)
    where = f"the details are in {kept}" if kept else "run it again with --debug for the details"
    print(f"  please report it; {where}", file=sys.stderr)
    return 1


def _keep_details(details: str) -> Path | None:
    from api.settings import load_settings
    from indexes.errors import CoalesceError

    try:
        path = load_settings().home / "errors.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC).isoformat()} {' '.join(sys.argv[1:2])}\n{details}\n")
    except (OSError, CoalesceError):
        return None
    return path
