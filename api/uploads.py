"""Books that come in through a running server: limits on request bodies, files in the home, the job that adds one.

An uploaded file is kept by its content: a book that is indexed again or shown by page is read again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.console import counted
from api.errors import describe, reply_for
from api.fetch import fetch, fetch_pages, listed_pages
from api.jobs import Errand, Job, JobHandle, JobQueue
from api.settings import CoalesceSettings
from indexes.errors import Conflict, InvalidInput, NotFound, TooLarge, UnreadableBook, UnsupportedFormat
from indexes.messages import msg
from indexes.readers import TEXT_FORMATS, content_digest, document_id_of
from indexes.sample import SAMPLE_PATH
from indexes.types import AddProgress, Document

if TYPE_CHECKING:
    from api.shared_files import SharedFiles
    from indexes.library import Library

logger = logging.getLogger("coalesce.uploads")
UPLOAD_PATH = "/v1/documents"
MAX_DRAINED_BYTES = 64 * 1024**2
"""Read and discarded before a 413, so that a client that is still sending can read the answer."""


BODY_S = 30.0
"""The longest that a body may take, and a second more for each `LEAST_BYTES_PER_S` of it that have come."""
LEAST_BYTES_PER_S = 1000
READING_S = 60.0
"""The longest that a piece of a reply may wait for its client to read those before it."""


class BodyLimit:
    """ASGI middleware: 413 for bodies above the limit of their path, 408 for those that come too slowly; and leaves
    clients that do not read their reply."""

    def __init__(self, app: ASGIApp, settings: CoalesceSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 413 when the declared length is too large; counts the bytes otherwise."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = scope["path"].rstrip("/") == UPLOAD_PATH
        limit = self._settings.max_upload_bytes if upload else self._settings.max_body_bytes
        declared = Headers(scope=scope).get("content-length", "0")
        if not (declared.isascii() and declared.isdecimal() and len(declared) < 20):
            error = InvalidInput(
                msg("Content-Length {} is not a number", f"{declared!r:.40}"), hint="Send the body's length in bytes."
            )
            await reply_for(Request(scope), describe(error))(scope, receive, send)
            return
        received = 0
        ended = False
        began = time.monotonic()

        async def in_time() -> Message:
            nonlocal received, ended
            if ended:
                return await receive()  # which comes when the client leaves
            left_s = began + BODY_S + received / LEAST_BYTES_PER_S - time.monotonic()
            try:
                async with asyncio.timeout(left_s):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"the body had {received:,} bytes after {time.monotonic() - began:.0f} s"
                ) from None
            ended = not message.get("more_body", False)
            received += len(message.get("body", b""))
            return message

        if int(declared) > limit:
            with suppress(HTTPException):
                while not ended and received <= MAX_DRAINED_BYTES:
                    await in_time()
            hint = "Raise COALESCE_MAX_UPLOAD_BYTES." if upload else "Send less, or raise COALESCE_MAX_BODY_BYTES."
            large = TooLarge(
                msg("the body has {} bytes; the limit is {}", f"{int(declared):,}", f"{limit:,}"), hint=hint
            )
            await reply_for(Request(scope), describe(large))(scope, receive, send)
            return

        async def counted() -> Message:
            message = await in_time()
            if received > limit:
                # FastAPI hands on an HTTPException raised while it reads a body, and hides every other error.
                raise HTTPException(413, f"the body has more than {limit:,} bytes")
            return message

        async def read(message: Message) -> None:
            try:
                async with asyncio.timeout(READING_S):
                    await send(message)
            except TimeoutError:
                raise ClientDisconnect from None

        try:
            await self._app(scope, counted, read)
        except ClientDisconnect:
            logger.info("a client read no more of %s", scope["path"])


COPY_BYTES = 1024 * 1024
MAX_NAME_BYTES = 200
MAX_DEPTH = 20
PARTIAL_PREFIX = ".partial-"
FOLDER_NAME = "folder"
LEFT_S = 24 * 3600.0
"""How long a half upload may lie: another server of the home may be at it."""
FETCHING = "fetching"
"""What a job says while it fetches the pages of a site."""
UPLOAD, SITE, RENEW = "upload", "site", "renew"
"""Errands."""
STOP_S, STOP_STEP_S = 10.0, 0.05
"""How long removing a book waits for the job that adds it to stop; reading stops within a second."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A complete upload without its final place: its path and the SHA-256 of its content."""

    path: Path
    sha256: str


class UploadFolder:
    """One folder per content, named by its digest, that holds the file under its own name. See `uploads_of`.

    Attributes:
        shared: whether every server of a database finds them.
    """

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self._folder = folder
        self.shared = shared

    def check(self) -> None:
        """Raises StorageUnavailable where files cannot be kept; a folder is proved with the home."""

    def take_in(self, source: IO[bytes]) -> Incoming:
        """Copies a file into the folder; `settle` or `drop` must follow.

        Raises:
            InvalidInput: the file is empty.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        descriptor, name = tempfile.mkstemp(prefix=PARTIAL_PREFIX, dir=self._folder)
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as target:
                while block := source.read(COPY_BYTES):
                    digest.update(block)
                    target.write(block)
                size = target.tell()
            if not size:
                raise InvalidInput("the file is empty", hint="Upload a file with text in it.")
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return Incoming(partial, digest.hexdigest())

    def take_in_folder(self, files: Sequence[tuple[PurePosixPath, IO[bytes]]]) -> Incoming:
        """Copies files, each with its path in it, into a folder that is one book; `settle` or `drop` must follow."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=self._folder))
        try:
            for path, source in files:
                target = partial / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(source, file, COPY_BYTES)
        except (FileExistsError, NotADirectoryError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise InvalidInput(
                msg("two files of the folder are called '{}'", path), hint="Give each file its own name."
            ) from error
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return Incoming(partial, content_digest(partial))

    def settle(self, incoming: Incoming, name: str) -> Path:
        """Moves a file or folder to its final place and returns its path."""
        folder = self._folder / incoming.sha256
        folder.mkdir(exist_ok=True)
        try:
            return incoming.path.replace(folder / name)
        except OSError:  # a folder does not replace another; the one there has the same content
            if not (folder / name).is_dir():
                raise
            self.drop(incoming)
            return folder / name

    def drop(self, incoming: Incoming) -> None:
        """Removes a file or folder that is not needed."""
        if incoming.path.is_dir():
            shutil.rmtree(incoming.path, ignore_errors=True)
        else:
            incoming.path.unlink(missing_ok=True)

    def contents(self) -> dict[str, str]:
        """The names of the files and folders that are kept, by the digest of their content."""
        return {path.parent.name: path.name for path in self._folder.glob("[!.]*/*")}

    def orphans(self, kept: Sequence[Document]) -> dict[str, str]:
        """The names of the files and folders that no book has, by the digest of their content."""
        books = {book.sha256 for book in kept}
        return {sha256: name for sha256, name in self.contents().items() if sha256 not in books}

    def sweep(self, orphans: Iterable[str], *, older_than_s: float = 0.0) -> list[str]:
        """Removes half uploads and these contents; gives the names of the files.

        Args:
            older_than_s: only what was not touched for so long.
        """
        swept = []
        for path in (*self._folder.glob(f"{PARTIAL_PREFIX}*"), *map(self._folder.joinpath, orphans)):
            with suppress(FileNotFoundError):  # another server of the folder settled it, or was quicker
                if time.time() - path.stat().st_mtime >= older_than_s:
                    swept += [each.name for each in path.iterdir()] if path.is_dir() else [path.name]
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return swept

    def find(self, sha256: str) -> Path | None:
        """The file kept for a content."""
        return next((self._folder / sha256).glob("*"), None)

    def file_of(self, book: Document) -> Path | None:
        """The file that a book was read from: kept here, the sample's, or one elsewhere that may be gone."""
        if book.sample:
            return SAMPLE_PATH
        return Path(book.source) if Path(book.source).is_absolute() else self.find(book.sha256)

    def forget(self, sha256: str, kept: Sequence[Document]) -> None:
        """Removes the files kept for a content, unless a book that is kept has it: two sites may be alike."""
        if not any(book.sha256 == sha256 and not Path(book.source).is_absolute() for book in kept):
            self._remove(sha256)

    def _remove(self, sha256: str) -> None:
        shutil.rmtree(self._folder / sha256, ignore_errors=True)


class SharedUploads(UploadFolder):
    """Uploads in a storage that several servers share; a folder of this server's own has copies of what it read.

    Args:
        folder: of the copies, made again where they are missing.
    """

    def __init__(self, folder: Path, files: SharedFiles) -> None:
        super().__init__(folder, shared=True)
        self._files = files

    def check(self) -> None:
        """Raises StorageUnavailable where files cannot be kept."""
        self._files.check()

    def settle(self, incoming: Incoming, name: str) -> Path:
        """Copies a file or folder to the storage, keeps the copy here, and returns its path."""
        self._files.put(incoming.path, f"{incoming.sha256}/{name}")
        return super().settle(incoming, name)

    def contents(self) -> dict[str, str]:
        """What the storage keeps."""
        return {sha256: name for sha256, (name, _) in self._files.names().items()}

    def find(self, sha256: str) -> Path | None:
        """The copy here of the file kept for a content, fetched where there is none yet."""
        if (path := super().find(sha256)) is not None:
            return path
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=PARTIAL_PREFIX, dir=self._folder) as part:
            fetched = Path(part, sha256)
            if self._files.get(sha256, fetched):
                with suppress(OSError):  # another has fetched it meanwhile
                    fetched.rename(self._folder / sha256)
        return super().find(sha256)

    def sweep(self, orphans: Iterable[str], *, older_than_s: float = 0.0) -> list[str]:
        """Removes these contents there and here, and copies whose original is gone; gives the names of the files."""
        kept, before = self._files.names(), datetime.now(UTC) - timedelta(seconds=older_than_s)
        gone = [sha256 for sha256 in orphans if sha256 in kept and kept[sha256][1] <= before]
        for sha256 in gone:
            self._files.remove(sha256)
        copies = [sha256 for sha256 in super().contents() if sha256 in gone or sha256 not in kept]
        swept = set(super().sweep(copies, older_than_s=older_than_s))
        return sorted(swept | {kept[sha256][0] for sha256 in gone})

    def _remove(self, sha256: str) -> None:
        self._files.remove(sha256)
        super()._remove(sha256)


def uploads_of(settings: CoalesceSettings) -> UploadFolder:
    """Where the settings say that uploads are kept. Raises InvalidInput for an address that cannot be used."""
    url, folder = settings.uploads_url, settings.uploads_folder
    if url is None or url.startswith("file:"):
        return UploadFolder(folder, shared=url is not None)
    from api.shared_files import SharedFiles

    return SharedUploads(folder, SharedFiles(url))


def page_source(uploads: UploadFolder, library: Library, document_id: str) -> Path | None:
    """The PDF of a book where it still is; None for unknown books, other formats and files that are gone."""
    try:
        document = library.document(document_id)
    except NotFound:
        return None
    if document.format != "pdf":
        return None
    source = Path(document.source)  # an upload's is its bare name
    candidates = [uploads.find(document.sha256), source if source.is_absolute() else None]
    return next((path for path in candidates if path is not None and path.is_file()), None)


def file_name(given: str) -> str:
    """The name of an uploaded file without folders and control characters.

    Raises:
        InvalidInput: nothing is left.
    """
    bare = PureWindowsPath(PurePosixPath(given).name).name
    shown = "".join(character for character in bare if unicodedata.category(character)[0] != "C").strip()
    if not shown or shown in (".", ".."):
        raise InvalidInput(
            msg("{} is not a file name", repr(given)), hint="Send a file name with an ending, such as book.pdf."
        )
    suffix = Path(shown).suffix[:20]
    if len(shown.encode("utf-8", "replace")) <= MAX_NAME_BYTES:
        return shown
    room = MAX_NAME_BYTES - len(suffix.encode("utf-8", "replace"))
    return shown.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + suffix


def path_in_folder(given: str) -> PurePosixPath:
    """The path of a file in an uploaded folder, each part of it as `file_name` leaves it.

    Raises:
        InvalidInput: nothing is left, or it is too deep.
    """
    parts = [file_name(part) for part in given.replace("\\", "/").split("/") if part not in ("", ".")]
    if not 1 <= len(parts) <= MAX_DEPTH:
        raise InvalidInput(
            msg("{} is not a path in a folder", f"{given!r:.200}"), hint=msg("For example: {}", "book/chapter-1.md")
        )
    return PurePosixPath(*parts)


@dataclass(frozen=True, slots=True)
class Taken:
    """An accepted upload: the book's id, the job that adds it, and whether that job is new."""

    document_id: str
    job: Job | None
    new: bool


def left_over(
    orphans: Iterable[str], removed: frozenset[str], jobs: Sequence[Job], *, unfinished: bool = False
) -> list[str]:
    """Of contents that no book has, those whose book was removed or whose job failed; others may have been lost.

    Args:
        removed: contents whose books were removed.
        unfinished: those with an unfinished job too.
    """
    last = {job.document_id: job for job in reversed(jobs) if job.kind == "add"}  # they come newest first
    found = ((sha256, last.get(document_id_of(sha256))) for sha256 in orphans)
    return [
        sha256
        for sha256, job in found
        if sha256 in removed or (job and job.state != "done" and (job.final or unfinished))
    ]


class Books:
    """Adds and removes books of the running server's library.

    Args:
        library: gives the library; raises NotReady until it is open.
        forget: removes what else is kept about a book, by its id.
    """

    def __init__(
        self, folder: UploadFolder, library: Callable[[], Library], jobs: JobQueue, forget: Callable[[str], None]
    ) -> None:
        self._library = library
        self._forget = forget
        self._jobs = jobs
        self.folder = folder
        self._lock = threading.Lock()
        jobs.does(UPLOAD, self._add_upload, self._undo_upload)
        jobs.does(SITE, self._add_site)
        jobs.does(RENEW, self._renew)

    def upload(self, source: IO[bytes], name: str) -> Taken:
        """Stores a file and queues the job that adds it, unless its content is in the library or waiting.

        Raises:
            NotReady: the library is not open yet.
            UnsupportedFormat: no reader reads this ending.
            InvalidInput: the file is empty or has no name.
        """
        endings = self._library().readable_endings()  # raises NotReady before the file is stored
        name = file_name(name)
        suffix = Path(name).suffix.casefold()
        if suffix not in endings.split():
            what = msg("files ending in {}", repr(suffix)) if suffix else "files without an ending"
            raise UnsupportedFormat(
                msg("{}: {} are not read", repr(name), what), hint=msg("These endings are read: {}.", endings)
            )
        return self._queue(self.folder.take_in(source), name)

    def upload_folder(self, files: Sequence[tuple[str, IO[bytes]]]) -> Taken:
        """As `upload`, for the text files of a folder, which are the chapters of one book.

        Args:
            files: path and content of each; a first part that all paths share is the folder's name.
        """
        self._library()
        paths = [path_in_folder(given) for given, _ in files]
        if not any(path.suffix.casefold() in TEXT_FORMATS for path in paths):
            raise UnsupportedFormat("no file of the folder is a text file", hint="Add other books one by one.")
        tops = {path.parts[0] for path in paths}
        name = FOLDER_NAME
        if len(tops) == 1 and all(len(path.parts) > 1 for path in paths):
            name = tops.pop()
            paths = [PurePosixPath(*path.parts[1:]) for path in paths]
        contents = (content for _, content in files)
        return self._queue(self.folder.take_in_folder(list(zip(paths, contents, strict=True))), name)

    def _queue(self, incoming: Incoming, name: str) -> Taken:
        document_id = document_id_of(incoming.sha256)
        with self._lock:
            waiting = self._jobs.unfinished("add", document_id)
            if waiting is not None or self._has(document_id):
                if waiting is None and self.folder.find(incoming.sha256) is None:
                    self.folder.settle(incoming, name)  # the book's file was lost
                else:
                    self.folder.drop(incoming)
                return Taken(document_id, waiting, new=False)
            arguments: dict[str, Any] = {"sha256": incoming.sha256, "name": name}
            if self._anywhere:
                self.folder.settle(incoming, name)
            else:  # named only by its job, so that no file stands there without one, whenever the server is killed
                arguments["partial"] = str(incoming.path)
            return self._submit(self._errand(UPLOAD, arguments), document_id, name)

    def _submit(self, errand: Errand, document_id: str, title: str) -> Taken:
        return Taken(document_id, *self._jobs.submit_or_find("add", errand, about=document_id, title=title))

    def fetch(self, url: str, most_bytes: int, *, private: bool = False) -> Taken:
        """Fetches a page of the web, and queues the job that adds it; the pages of a sitemap are fetched by the job.

        A site's id comes from the sitemap's address: the same address again updates the book.

        Raises as `upload`, `fetch` and `listed_pages` do.
        """
        self._library()
        page = fetch(url, most_bytes, private=private)
        with page.content:
            pages = listed_pages(page, private=private)
            if not pages:
                return self.upload(page.content, page.name)
        document_id, site = document_id_of(url), urlsplit(page.url).hostname or FOLDER_NAME
        listed = {"pages": list(pages), "most_bytes": most_bytes, "private": private}
        errand = self._errand(SITE, listed | {"site": site, "document_id": document_id})
        with self._lock:
            return self._submit(errand, document_id, site)

    @property
    def _anywhere(self) -> bool:
        return self._jobs.shared and self.folder.shared

    def _errand(self, name: str, arguments: dict[str, Any]) -> Errand:
        return Errand(name, arguments, here=not self.folder.shared)

    def _add_upload(self, handle: JobHandle, sha256: str, name: str, partial: str | None = None) -> str:
        if partial is not None:
            return self._add(handle, self.folder.settle(Incoming(Path(partial), sha256), name))
        path = self.folder.find(sha256)
        if path is None:
            raise NotFound(msg("the uploaded file {} is gone", repr(name)), hint="Upload it again.")
        return self._add(handle, path)

    def _undo_upload(self, sha256: str, partial: str | None = None, **_: str) -> None:
        if partial is not None:
            self.folder.drop(Incoming(Path(partial), sha256))
        self._forget_files(sha256)

    def _add_site(
        self, handle: JobHandle, pages: list[str], most_bytes: int, site: str, document_id: str, *, private: bool
    ) -> str:
        """Adds the pages of a site, or updates its book; the files of an earlier content go."""
        handle.progress(0, len(pages), FETCHING)
        fetched = fetch_pages(
            pages,
            most_bytes,
            private=private,
            progress=lambda done: handle.progress(done, len(pages), FETCHING),
            cancelled=handle.cancelled,
        )
        with ExitStack() as contents:
            files = [(PurePosixPath(one.name), contents.enter_context(one.content)) for one in fetched]
            incoming = self.folder.take_in_folder(files)
        before = self._library().document(document_id).sha256 if self._has(document_id) else None
        if before == incoming.sha256:
            self.folder.drop(incoming)
            return f"unchanged: {site}"
        held = self.folder.find(incoming.sha256)  # by an upload of the same pages
        if held is not None:
            self.folder.drop(incoming)
        path = held or self.folder.settle(incoming, site)
        try:
            said = self._add(handle, path, document_id, title=site)  # as a name of a folder it would lose its numbers
        except BaseException:
            self._forget_files(incoming.sha256)
            raise
        if before is not None:
            self._forget_files(before)
        return said

    def _forget_files(self, sha256: str) -> None:
        self.folder.forget(sha256, self._library().documents())

    def sweep(self) -> None:
        """Removes what uploads left whose jobs failed a day ago or longer."""
        library = self._library()
        with self._lock:
            if self._jobs.unfinished("add") is None:
                orphans = left_over(self.folder.orphans(library.documents()), library.removed(), self._jobs.list())
                self.folder.sweep(orphans, older_than_s=LEFT_S)

    def renew_outdated(self) -> None:
        """Queues a job that reads again what an earlier version read; until then books are searched as they are."""
        if self._jobs.unfinished("renew") is None and self._library().outdated(self.folder.file_of):
            self._jobs.submit("renew", self._errand(RENEW, {}))

    def remove(self, document_id: str) -> None:
        """Removes a book, and its file if it was uploaded; one that is being added is not added.

        Raises:
            NotFound: the library has no such book.
            Conflict: the job that adds it does not stop in time.
        """
        library = self._library()
        waiting = self._jobs.unfinished("add", document_id)
        if waiting is not None:
            self._stop(waiting)
            if not self._has(document_id):
                return
        with self._lock:  # an upload of the same content must not lose its file
            document = library.document(document_id)
            library.remove(document_id)
            self._forget_files(document.sha256)
            self._forget(document_id)

    def _stop(self, job: Job) -> None:
        """Cancels a job and waits for its end, so that nothing of it comes afterwards."""
        with suppress(Conflict):  # it has ended meanwhile
            self._jobs.cancel(job.id)
        deadline = time.monotonic() + STOP_S
        while not self._jobs.get(job.id).final:
            if time.monotonic() > deadline:
                raise Conflict(
                    msg("book {} is still being added", repr(job.document_id)), hint="Remove it again in a few seconds."
                )
            time.sleep(STOP_STEP_S)

    def _add(self, handle: JobHandle, path: Path, document_id: str | None = None, *, title: str | None = None) -> str:
        def tell(progress: AddProgress) -> None:
            handle.progress(progress.done, progress.total, progress.stage)

        result = self._library().add(
            path,
            progress=tell,
            cancelled=handle.cancelled,
            title=title,
            source_name=path.name,
            document_id=document_id,
        )
        nodes = counted(result.document.nodes, "node")
        return f"{result.status}: {result.document.title}, {nodes} in {result.seconds:.1f} s"

    def _renew(self, handle: JobHandle) -> str:
        library = self._library()
        outdated = library.outdated(self.folder.file_of)
        for number, (document, path) in enumerate(outdated):
            handle.progress(number, len(outdated), f"reading {document.title} again")
            # Removed meanwhile, or its file is damaged or takes too much: it stays as it is.
            with suppress(NotFound, UnreadableBook, TooLarge):
                library.renew(document, path, cancelled=handle.cancelled)
        return f"read again: {counted(len(outdated), 'book')}"

    def _has(self, document_id: str) -> bool:
        try:
            self._library().document(document_id)
        except NotFound:
            return False
        return True
