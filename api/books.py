"""Books that come in through a running server, and go: uploads become jobs; REST and the page share this."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from api.job_store import Job
from api.jobs import JobHandle
from api.services import Services
from api.uploads import UploadFolder, file_name, upload_id
from indexes.errors import NotFound, UnsupportedFormat
from indexes.types import AddProgress


@dataclass(frozen=True, slots=True)
class Taken:
    """An upload that was taken in: its book's id, the job that adds it, and whether that job is new."""

    document_id: str
    job: Job | None
    new: bool


class Books:
    """Adds and removes books of the running server's library."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._folder = UploadFolder(services.settings.home)
        self._lock = threading.Lock()

    def upload(self, source: BinaryIO, name: str) -> Taken:
        """Takes a file in and queues the job that adds it, unless its content is there or on its way.

        Raises:
            NotReady: the library is still being opened.
            UnsupportedFormat: no reader reads this ending.
            InvalidInput: the file is empty or has no name.
        """
        self._services.library  # noqa: B018  raises NotReady before anything is taken in
        name = check_format(file_name(name))
        incoming = self._folder.take_in(source)
        document_id = upload_id(incoming.sha256)
        with self._lock:
            waiting = self._services.jobs.unfinished(document_id)
            if waiting is not None or self._has(document_id):
                self._folder.drop(incoming)
                return Taken(document_id, waiting, new=False)
            path = self._folder.settle(incoming, name)
            job = self._services.jobs.submit(
                "add",
                lambda handle: self._add(handle, path),
                document_id=document_id,
                undo=lambda: self._folder.forget(incoming.sha256),
            )
        return Taken(document_id, job, new=True)

    def remove(self, document_id: str) -> None:
        """Removes a book, and the file that was kept if it was uploaded; raises NotFound."""
        library = self._services.library
        document = library.document(document_id)
        library.remove(document_id)
        self._folder.forget_book(document)

    def _add(self, handle: JobHandle, path: Path) -> str:
        def tell(progress: AddProgress) -> None:
            handle.progress(progress.done, progress.total, progress.stage)

        result = self._services.library.add(path, progress=tell, cancelled=handle.cancelled, source_name=path.name)
        return f"{result.status}: {result.document.title}, {result.document.nodes} nodes in {result.seconds:.1f} s"

    def _has(self, document_id: str) -> bool:
        try:
            self._services.library.document(document_id)
        except NotFound:
            return False
        return True


def check_format(name: str) -> str:
    """`name` as it is.

    Raises:
        UnsupportedFormat: no reader reads its ending.
    """
    from indexes.readers import readable_endings

    endings = readable_endings()
    suffix = Path(name).suffix.casefold()
    if suffix not in endings.split():
        what = f"files ending in {suffix!r}" if suffix else "files without an ending"
        raise UnsupportedFormat(f"{name!r}: {what} are not read", hint=f"formats read: {endings}")
    return name
