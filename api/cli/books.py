"""`coalesce add`, `list` and `remove`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from api.cli.options import Json, settings_of
from api.console import Console, counted, table

if TYPE_CHECKING:
    from indexes.library import Library
    from indexes.settings import IndexSettings
    from indexes.types import AddProgress, AddResult, Document


commands = typer.Typer()
WATCH_S = 2.0


class _AddCommand(TyperCommand):
    """Reads `--ray` without an address too: click would take the first path for it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments as click reads them."""
        options = args[: args.index("--")] if "--" in args else args
        return super().parse_args(
            ctx, ["--ray=" if each == "--ray" else each for each in options] + args[len(options) :]
        )


@commands.command(cls=_AddCommand, epilog="Example: coalesce add books/ notes.md lecture.pdf")
def add(
    context: typer.Context,
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Files and folders.")] = None,
    title: Annotated[str | None, typer.Option(help="A title instead of the one the book gives itself.")] = None,
    reindex: Annotated[
        bool, typer.Option("--reindex", help="Embed every book again, as after a change of the embedder.")
    ] = False,
    ocr: Annotated[
        bool, typer.Option("--ocr", help="Recognise the text of scanned PDF pages (needs the extra 'ocr').")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and add what changes until Ctrl-C.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[=ADDRESS]",
            help="Spread the work over a Ray cluster (needs the extra 'ray'), by default that of this machine.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Add books. A folder of text files is one book; a PDF or EPUB is a book wherever it lies."""
    settings = settings_of(context, ocr=ocr or None)
    from indexes.errors import InvalidInput
    from indexes.library import open_library

    paths = paths or []
    if not (paths or reindex):
        raise typer.BadParameter("name at least one file or folder", param_hint="PATH")
    if title is not None and len(paths) > 1:
        raise InvalidInput(
            f"--title names one book, but {len(paths)} paths are given",
            hint="Add them one by one, or leave out --title.",
        )
    if ray is not None:
        from indexes.ray_ingest import check_ray

        if reindex or watch:
            raise typer.BadParameter("leave out --reindex and --watch", param_hint="--ray")
        check_ray(settings.index)
    console = Console(json_output=json_output)
    library = open_library(settings.index, create=True)
    try:
        adding = _Adding(library, console, title)
        if reindex:
            adding.reindex()
        before = _states(paths) if watch else {}
        if ray is None:
            adding.add_all(paths)
        else:
            adding.add_by_ray(paths, settings.index, ray)
        if watch:
            console.say("watching for changes; Ctrl-C ends it")
            _watch(paths, adding, before)
        adding.report()
    finally:
        library.close()
    if adding.unforeseen:
        raise adding.unforeseen[0]  # every book is named by now; this keeps the details for a report
    if adding.failures:
        raise typer.Exit(1)


@commands.command("list", epilog="Example: coalesce list --json")
def list_books(context: typer.Context, json_output: Json = False) -> None:
    """List the books in the library."""
    settings = settings_of(context)
    from api.schemas.books import DocumentOut
    from indexes.errors import IndexMissing
    from indexes.library import open_library

    documents: tuple[Document, ...] = ()
    try:
        library = open_library(settings.index, create=False)
    except IndexMissing:
        documents = ()
    else:
        documents = library.documents()
        library.close()
    rows = [(book.document_id, _extent(book), counted(book.nodes, "node"), book.title) for book in documents]
    empty = ["the library is empty; add a book: coalesce add PATH"]
    found = {"documents": [DocumentOut.model_validate(document).model_dump(mode="json") for document in documents]}
    Console(json_output=json_output).result(found, table(rows) or empty)


@commands.command(epilog="Example: coalesce remove 1f0c3a9be2d4c5f6")
def remove(
    context: typer.Context,
    document_id: Annotated[str, typer.Argument(metavar="ID", help="A book's id, as `coalesce list` shows it.")],
    json_output: Json = False,
) -> None:
    """Remove a book; nothing of it is found afterwards."""
    settings = settings_of(context)
    from api.uploads import uploads_of
    from evals.made_store import MadeQuestions
    from indexes.library import open_library

    library = open_library(settings.index, create=False)
    try:
        document = library.document(document_id)
        library.remove(document_id)
        uploads_of(settings).forget(document.sha256, library.documents())
        MadeQuestions(settings.made_questions_place).forget(document_id)
    finally:
        library.close()
    Console(json_output=json_output).result({"removed": document_id}, [f"removed {document.title}"])


class _Adding:
    """Adds books one after the other and remembers each result."""

    def __init__(self, library: Library, console: Console, title: str | None) -> None:
        self._library = library
        self._console = console
        self._title = title
        self._quiet = False
        self.results: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.unforeseen: list[Exception] = []

    def add_all(self, paths: Iterable[Path], *, quiet: bool = False) -> None:
        """Adds every book below the paths; one that fails, however it does, does not keep the others out.

        Args:
            quiet: say nothing of books that have not changed.

        Raises:
            CoalesceError: what would fail for every book, such as a full disk.
        """
        self._quiet = quiet
        for book in self._find(paths):
            try:
                self._add(book)
            except Exception as error:  # noqa: BLE001  see `_fail`
                self._fail(book, error)

    def add_by_ray(self, paths: Iterable[Path], settings: IndexSettings, address: str) -> None:
        """As `add_all`, on a Ray cluster."""
        from indexes.ray_ingest import add_by_ray

        books = [book.expanduser().resolve() for book in self._find(paths)]
        for done, (book, result) in enumerate(add_by_ray(settings, books, address=address, title=self._title), start=1):
            if isinstance(result, Exception):
                self._fail(book, result)
            else:
                self._keep(result)
            self._console.step("adding", done, len(books))

    def _find(self, paths: Iterable[Path]) -> Iterator[Path]:
        for path in paths:
            try:
                books = self._library.find_books(path)
            except Exception as error:  # noqa: BLE001  see `_fail`
                self._fail(path, error)
                continue
            yield from books

    def report(self) -> None:
        """Prints the results that were not printed as they came; as JSON all of them at once."""
        if self._console.json_output:
            self._console.result({"documents": self.results, "failed": self.failures}, ())

    def reindex(self) -> None:
        """Embeds every book again."""
        for result in self._library.reindex(progress=lambda progress: self._tell("reindex", progress)):
            self._keep(result)

    def _add(self, path: Path) -> None:
        self._keep(
            self._library.add(path, progress=lambda progress: self._tell(path.name, progress), title=self._title)
        )

    def _tell(self, name: str, progress: AddProgress) -> None:
        self._console.step(f"{name}: {progress.stage}", progress.done, progress.total)

    def _keep(self, result: AddResult) -> None:
        from api.schemas.books import DocumentOut

        document = DocumentOut.model_validate(result.document).model_dump(mode="json")
        more = {"status": result.status, "embedded_nodes": result.embedded_nodes, "seconds": round(result.seconds, 3)}
        self.results.append(document | more)
        if not self._console.json_output and not (self._quiet and result.status == "unchanged"):
            self._console.result(None, [_line(result)])

    def _fail(self, path: Path, error: Exception) -> None:
        """Names a book that was not added. Raises what is not about this book alone."""
        from api.errors import describe, known_error
        from indexes.errors import TooLarge, UnreadableBook, UnsupportedFormat

        known, reply = known_error(error), describe(error)
        if known is None:
            self.unforeseen.append(error)
            reply = replace(reply, message=f"'{path.name}': {reply.message}", hint="")
        elif not isinstance(known, (UnreadableBook, UnsupportedFormat, TooLarge)):
            self.report()
            raise error
        self.failures.append({"path": str(path), "type": reply.type, "message": reply.message, "hint": reply.hint})
        hint = f" ({reply.hint})" if reply.hint else ""
        self._console.say(f"not added: {reply.message}{hint}")


def _watch(paths: list[Path], adding: _Adding, seen: dict[Path, tuple[int, int]]) -> None:
    """Adds again whenever a file below the paths changes, until Ctrl-C.

    Args:
        seen: the files as they were before they were first added: what changed meanwhile is a change too.
    """
    try:
        while True:
            time.sleep(WATCH_S)
            now = _states(paths)
            # Two looks that agree: the file is not being written any more.
            if now != seen:
                time.sleep(WATCH_S)
                settled = _states(paths)
                if settled == now:
                    seen = now
                    adding.add_all([path for path in paths if path.exists()], quiet=True)
    except KeyboardInterrupt:
        return


def _states(paths: list[Path]) -> dict[Path, tuple[int, int]]:
    states: dict[Path, tuple[int, int]] = {}
    for path in paths:
        for file in [path] if path.is_file() else path.rglob("*"):
            try:
                stat = file.stat()
            except OSError:
                continue
            states[file] = (stat.st_mtime_ns, stat.st_size)
    return states


def _extent(document: Document) -> str:
    pages, sections = document.pages, document.sections
    return counted(sections, "section") if pages is None else counted(pages, "page")


def _line(result: AddResult) -> str:
    book = result.document
    size = f"{_extent(book)}, {counted(book.nodes, 'node')}, {result.seconds:.1f} s"
    return f"{result.status}: {book.title} ({size}) {book.document_id}"
