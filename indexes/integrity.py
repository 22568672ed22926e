"""Whether a library holds together, and how one that does not is made again.

Read with SQLite alone, so that it can be done beside a running server and of a file that nothing else opens. What is
compared: books with their sections and nodes, nodes with their words, their vectors and the digests in their ids.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from indexes.catalog import CATALOG, Catalog, node_digest, open_catalog
from indexes.database import Database, copy_damaged, damage, only_reading, set_aside
from indexes.embedder import TextEncoder
from indexes.errors import CoalesceError, NotFound
from indexes.library import Library, open_library
from indexes.readers import content_digest
from indexes.settings import IndexSettings
from indexes.types import Document, FindFile
from indexes.vectors import is_as_noted, read_note

UNIT = 0.01
"""How far the length of a vector may be from 1."""
READ_TOGETHER = 5_000
REBUILDING = ".rebuilding"
"""A folder of the home in which a library is made again."""
REBUILT = ".rebuilt"
"""What it is called when the library in it is whole, until that is in its place."""
_NOT_NOW = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

_COUNTS = {
    "books without some of their nodes": "SELECT count(*) FROM documents AS d WHERE d.nodes <> "
    "(SELECT count(*) FROM nodes WHERE rowid BETWEEN d.first_rowid AND d.last_rowid AND document_id = d.document_id)",
    "books without some of their sections": "SELECT count(*) FROM documents AS d WHERE d.sections <> "
    "(SELECT count(*) FROM sections AS s WHERE s.document_id = d.document_id)",
    "nodes without a book": "SELECT count(*) FROM nodes WHERE document_id NOT IN (SELECT document_id FROM documents)",
    "nodes without words": "SELECT count(*) FROM nodes WHERE rowid NOT IN (SELECT id FROM lexical_docsize)",
    "words without a node": "SELECT count(*) FROM lexical_docsize WHERE id NOT IN (SELECT rowid FROM nodes)",
    "nodes without a vector": "SELECT count(*) FROM nodes WHERE vector_id NOT IN (SELECT vector_id FROM vectors)",
}
_NODES = "SELECT node_id, document_id, heading_path, text FROM nodes"
_SECTIONS_OF = "SELECT heading_path, text, page_marks FROM sections WHERE document_id = ?"
_BOOK_IDS = (
    "SELECT document_id FROM documents",
    "SELECT DISTINCT document_id FROM sections",
    "SELECT DISTINCT document_id FROM nodes",
)
_VECTORS = "SELECT DISTINCT v.vector_id, v.vector FROM vectors AS v JOIN nodes USING (vector_id)"


def library_faults(path: Path) -> list[str]:
    """What is wrong with a library, each in words; empty when it is whole. Waits for no writer but briefly.

    Raises:
        Busy: another process is writing.
    """
    if found := damage(path, CATALOG):
        return [found]
    try:
        with only_reading(path) as connection:
            connection.execute("BEGIN")
            faults = [f"{count} {what}" for what, sql in _COUNTS.items() if (count := _number(connection, sql))]
            faults += _unreadable(connection)
        return faults or list(_faults_of_words(path))
    except (sqlite3.DatabaseError, ValueError, TypeError) as error:
        return [str(error)]


def saved_vectors_fault(path: Path) -> str:
    """What is wrong with the saved FAISS index; empty when it is as it was saved, or there is none."""
    if not path.exists():
        return ""
    try:
        note, _ = read_note(path.with_suffix(".json"))
        whole = is_as_noted(path, note)
    except (OSError, ValueError, KeyError, TypeError):
        return "it has no note that can be read beside it"
    return "" if whole else "it is not as it was saved"


def _number(connection: sqlite3.Connection, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])


def _unreadable(connection: sqlite3.Connection) -> Iterator[str]:
    """What in nodes and vectors is not as it was written."""
    if changed := sum(map(_is_changed, connection.execute(_NODES))):
        yield f"{changed} nodes whose text is not the one that was stored"
    if damaged := sum(not _is_unit(vector) for _, vector in connection.execute(_VECTORS)):
        yield f"{damaged} vectors that are not of unit length"


def _is_unit(vector: bytes) -> bool:
    return len(vector) % 4 == 0 and abs(float(np.linalg.norm(np.frombuffer(vector, "<f4"))) - 1) < UNIT


def _faults_of_words(path: Path) -> Iterator[str]:
    """FTS5's own check, which counts as a write; a home that cannot be written is not asked."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO lexical (lexical) VALUES ('integrity-check')")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _NOT_NOW:
                raise
        except sqlite3.DatabaseError:
            yield "the index of words is not that of the nodes"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A library that was made again.

    Attributes:
        aside: the damaged file under its new name; None where there was none.
        kept, lost: titles of the books that are in it, and of those (or their ids) that could not be had.
    """

    aside: Path | None
    kept: tuple[str, ...]
    lost: tuple[str, ...]


def rebuild_library(
    settings: IndexSettings,
    find_file: FindFile,
    uploads: Iterable[Path] = (),
    *,
    embedder: TextEncoder | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Rebuilt:
    """Make the library again from what can be read of it and from its books' files; the damaged file is set aside.

    A book whose nodes are whole is cut again from its sections, another is read again from its file, or else cut from
    what there is. Vectors that are whole are taken over. No other process may have the library open.

    Args:
        uploads: files that may be books of the library too, added last.
        tell: called with a line of text for each book.
    """
    path, part, done = settings.catalog_path, settings.home / REBUILDING, settings.home / REBUILT
    if not path.exists() and (done / path.name).exists():  # killed just before its last step
        (done / path.name).rename(path)
    shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(done, ignore_errors=True)
    old_path = part / "old" / path.name
    old_path.parent.mkdir(parents=True)
    copy_damaged(path, old_path)
    library = open_library(settings.in_folder(part), embedder=embedder)
    try:
        library.load()
        old = Catalog(Database(old_path, CATALOG))
        kept, lost = _take_books(library, old, old_path, find_file, tell)
        old.close()
        held = {document.sha256 for document in library.documents()}
        for upload in uploads:
            with suppress(CoalesceError):  # left over from an upload that was no book, perhaps
                if content_digest(upload) in held:  # a site's book has an id of its own
                    continue
                tell(f"reading {upload.name}")
                added = library.add(upload, source_name=upload.name).document
                kept.append(added.title)
                lost = [each for each in lost if each != added.document_id]
    finally:
        library.close()
    _finish(old_path, part / path.name)
    part.rename(done)
    aside = set_aside(path) if path.exists() else None
    for cached in (settings.vectors_path, settings.vectors_path.with_suffix(".json")):
        cached.unlink(missing_ok=True)
    (done / path.name).rename(path)
    shutil.rmtree(done)
    return Rebuilt(aside, tuple(kept), tuple(lost))


def _take_books(
    library: Library, old: Catalog, old_path: Path, find_file: FindFile, tell: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Take over the books of a damaged library; the titles of those that are there now, and of those that are not."""
    kept: list[str] = []
    lost: list[str] = []
    with closing(sqlite3.connect(old_path)) as connection:
        into = open_catalog(old_path.parents[1] / old_path.name, create=False)
        for vectors in _whole_vectors(connection, library.encoder.fingerprint):
            into.set_aside(library.encoder.fingerprint, vectors)
        into.close()
        for document_id in _book_ids(connection):
            try:
                document = old.document(document_id)
            except CoalesceError:
                lost.append(document_id)
                continue
            tell(f"taking over {document.title}")
            taken = _take_book(library, old, document, find_file, whole=_is_whole(connection, document))
            (kept if taken else lost).append(document.title)
    return kept, lost


def _take_book(library: Library, old: Catalog, document: Document, find_file: FindFile, *, whole: bool) -> bool:
    def from_file() -> None:
        file = find_file(document)
        if file is None:
            raise NotFound("its file is gone")
        library.add(
            file,
            title=document.title,
            sample=document.sample,
            source_name=None if Path(document.source).is_absolute() else document.source,
            document_id=document.document_id,
        )

    ways: list[Callable[[], None]] = [partial(library.take_over, old, document), from_file]
    for way in ways if whole else reversed(ways):
        with suppress(CoalesceError):
            way()
            return True
    return False


def _is_whole(connection: sqlite3.Connection, document: Document) -> bool:
    """Whether all nodes and sections of a book are there, and the nodes as they were stored."""
    try:
        nodes = connection.execute(f"{_NODES} WHERE document_id = ?", [document.document_id]).fetchall()
        sections = connection.execute(_SECTIONS_OF, [document.document_id]).fetchall()
        return (len(nodes), len(sections)) == (document.nodes, document.sections) and not any(map(_is_changed, nodes))
    except (sqlite3.DatabaseError, ValueError, TypeError):
        return False


def _is_changed(node: tuple[str, str, str, str]) -> bool:
    node_id, document_id, path, text = node
    return node_id.partition("-")[0] != node_digest(document_id, json.loads(path or "[]"), text)


def _book_ids(connection: sqlite3.Connection) -> list[str]:
    found: dict[str, None] = {}
    for wanted in _BOOK_IDS:
        with suppress(sqlite3.DatabaseError):
            for (document_id,) in connection.execute(wanted):
                found[str(document_id)] = None
    return list(found)


def _whole_vectors(connection: sqlite3.Connection, embedder: str) -> Iterator[dict[bytes, bytes]]:
    """The vectors of an embedder that can be read, some thousands at a time, by the digest of their text."""
    found: dict[bytes, bytes] = {}
    with suppress(sqlite3.DatabaseError):
        for name, digest, vector in connection.execute("SELECT embedder, text_sha, vector FROM vectors"):
            if name == embedder and _is_unit(vector):
                found[digest] = vector
            if len(found) == READ_TOGETHER:
                yield found
                found = {}
    yield found


def _finish(old_path: Path, new_path: Path) -> None:
    """Drop the vectors of lost books, and let the others have been added when they were."""
    times: list[tuple[str, str]] = []
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(old_path)) as old:
        times += old.execute("SELECT added_at, document_id FROM documents")
    with closing(sqlite3.connect(new_path)) as new, new:
        new.execute("DELETE FROM vectors WHERE vector_id NOT IN (SELECT vector_id FROM nodes)")
        new.executemany("UPDATE documents SET added_at = ? WHERE document_id = ?", times)
