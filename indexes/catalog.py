"""The catalog: which books, nodes and vectors there are. Everything else is derived from it.

A book is written in one transaction. The lexical index is part of the file (`lexical.py`); the vector index is built
from it (`vectors.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic_core import from_json  # several times as quick as json.loads
from sqlalchemy import (
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Executable,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
)

from indexes import lexical
from indexes.chunking import Chunk
from indexes.database import Database, Schema, fetch_tuples
from indexes.embedder import Matrix
from indexes.errors import IndexMissing, NotFound
from indexes.types import Book, BookHealth, Chapter, Document, Filters, Hit, PageMarks, Section, StoredNode

BUSY_TIMEOUT_S = 60.0
"""How long a writer waits for another process's transaction; a book's takes seconds."""
PARAMETERS_AT_ONCE = 500

T = TypeVar("T")


# --- tables

_TABLES = MetaData()


def _of_document(**options: Any) -> Column[str]:
    return Column("document_id", Text, ForeignKey("documents.document_id", ondelete="CASCADE"), **options)


# `generation` counts the writes, `embedder` made the vectors, `last_rowid` is the highest that a node ever had.
_meta = Table(
    "meta",
    _TABLES,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)
_documents = Table(
    "documents",
    _TABLES,
    Column("document_id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("sample", Boolean, nullable=False),
    Column("format", Text, nullable=False),
    Column("pages", Integer),
    Column("page_labels", Text, nullable=False),
    Column("sections", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("chunking", Text, nullable=False),
    Column("added_at", Text, nullable=False),
    Column("health", Text, nullable=False),
    Column("first_rowid", Integer, nullable=False),  # a document's nodes have consecutive rowids
    Column("last_rowid", Integer, nullable=False),
)
_chapters = Table(
    "chapters",
    _TABLES,
    _of_document(primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("title", Text, nullable=False),
    Column("nodes", Integer, nullable=False),
    sqlite_with_rowid=False,
)
# Sections are kept whole, so that a library can be cut again for another embedder when its sources are gone.
_sections = Table(
    "sections",
    _TABLES,
    Column("section_id", Integer, primary_key=True),
    _of_document(nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("chapter", Integer, nullable=False),
    Column("heading_path", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("page_marks", Text, nullable=False),
    Index("sections_in_order", "document_id", "ordinal", unique=True),
)
_vectors = Table(
    "vectors",
    _TABLES,
    Column("vector_id", Integer, primary_key=True),
    Column("embedder", Text, nullable=False),
    Column("text_sha", LargeBinary, nullable=False),
    Column("vector", LargeBinary, nullable=False),  # float32, little-endian
    Index("vectors_by_text", "embedder", "text_sha", unique=True),
)
_nodes = Table(
    "nodes",
    _TABLES,
    Column("rowid", Integer, primary_key=True, autoincrement=False),  # never reused: FAISS knows nodes by it
    Column("node_id", Text, nullable=False),
    _of_document(nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("section", Integer, nullable=False),
    Column("chapter", Integer, nullable=False),
    Column("heading_path", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("page_marks", Text, nullable=False),
    Column("page_labels", Text, nullable=False),
    Column("page_start", Integer),
    Column("page_end", Integer),
    Column("num_tokens", Integer, nullable=False),
    Column("vector_id", Integer, ForeignKey("vectors.vector_id"), nullable=False),
    Index("nodes_by_id", "node_id", unique=True),
    Index("nodes_by_vector", "vector_id"),
    Index("nodes_by_chapter", "document_id", "chapter"),
)
lexical.create_with(_TABLES)

CATALOG = Schema("catalog_1", _TABLES)


# --- statements that are run often: SQLAlchemy takes as long to build one as SQLite to run it

_PART: BindParameter[Any] = bindparam("part", expanding=True)
_META = select(_meta.c.value).where(_meta.c.key == bindparam("key"))
_SET_META = text(
    "INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
_ADD_VECTORS = text(
    "INSERT INTO vectors (embedder, text_sha, vector) VALUES (:embedder, :text_sha, :vector) ON CONFLICT DO NOTHING"
)
_DELETE_UNUSED_VECTOR = delete(_vectors).where(
    _vectors.c.vector_id == bindparam("candidate"), ~exists().where(_nodes.c.vector_id == _vectors.c.vector_id)
)
_VECTORS = select(_nodes.c.rowid, _vectors.c.vector).join_from(_nodes, _vectors).order_by(_nodes.c.rowid)
_VECTORS_IN = _VECTORS.where(_nodes.c.rowid.between(bindparam("first"), bindparam("last")))
_VECTORS_AT = _VECTORS.where(_nodes.c.rowid.in_(_PART))
_VECTOR_IDS = select(_vectors.c.text_sha, _vectors.c.vector_id).where(
    _vectors.c.embedder == bindparam("embedder"), _vectors.c.text_sha.in_(_PART)
)
_NODES = select(
    _nodes.c.rowid, _nodes.c.node_id, _nodes.c.document_id, _documents.c.title, _nodes.c.ordinal, _nodes.c.chapter,
    _nodes.c.heading_path, _nodes.c.text, _nodes.c.page_marks, _nodes.c.page_labels, _nodes.c.num_tokens,
).join_from(_nodes, _documents)  # fmt: skip
_NODES_BY_ROWID = _NODES.where(_nodes.c.rowid.in_(_PART))
_NODES_BY_ID = _NODES.where(_nodes.c.node_id.in_(_PART))
_RANGES = select(_documents.c.document_id, _documents.c.first_rowid, _documents.c.last_rowid).where(
    _documents.c.nodes > 0
)
_NUM_NODES = select(func.sum(_documents.c.nodes))
_NAMED = _documents.c.document_id.in_(_PART)
_DOCUMENT_IDS = select(_documents.c.document_id).where(_NAMED)
_BOUNDS = select(func.min(_documents.c.first_rowid), func.max(_documents.c.last_rowid)).where(_NAMED)
_DOCUMENTS = select(
    *(_documents.c[name] for name in "document_id title source sample format pages sections nodes sha256".split()),
    _documents.c.added_at, _documents.c.health,
)  # fmt: skip


# --- what is written and read


@dataclass(frozen=True, slots=True)
class RowRange:
    """The consecutive rowids of a document's nodes, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BookIdentity:
    """A book's name in the catalog and which content of it is stored.

    Attributes:
        chunking: how it was read and cut; when that changes, unchanged content is read and cut again.
    """

    document_id: str
    source: str
    sample: bool
    sha256: str
    chunking: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A book to be written: its identity, the book as read, and the nodes it was cut into."""

    identity: BookIdentity
    book: Book
    drafts: Sequence[Chunk]


class VectorsGone(Exception):
    """Vectors that a book was to share with another went with that one meanwhile; nothing was written."""


class Catalog:
    """Documents, chapters, sections, nodes, lexical terms and vectors of one library."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def close(self) -> None:
        """Close the file's connections."""
        self._database.close()

    # --- whole library

    def generation(self) -> int:
        """Counts the writes: another number means that something changed, perhaps by another process."""
        with self._database.reading() as connection:
            return _generation(connection)

    def embedder(self) -> str | None:
        """Fingerprint of the embedder of all vectors; None before the first book."""
        with self._database.reading() as connection:
            return _get_meta(connection, "embedder")

    # --- writing

    def put(
        self,
        entries: Sequence[CatalogEntry],
        embedder: str,
        new_vectors: dict[bytes, bytes],
        *,
        only_embedder: bool = False,
    ) -> None:
        """Write books and everything derived from them, in place of what was there, in one transaction.

        Args:
            embedder: fingerprint of the embedder that made the vectors.
            new_vectors: little-endian float32 vectors of embedded texts not stored yet, by `Chunk.text_sha`.
            only_embedder: delete the vectors of all other embedders; the entries must then be the whole library.

        Raises:
            VectorsGone: nodes have texts that are neither stored nor among `new_vectors`.
        """
        with self._database.writing() as connection:
            _set_meta(connection, "embedder", embedder)
            _add_vectors(connection, embedder, new_vectors)
            unused: list[int] = []
            for entry in entries:
                unused.extend(_put_entry(connection, entry, embedder))
            _delete_unused_vectors(connection, unused)
            if only_embedder:
                connection.execute(delete(_vectors).where(_vectors.c.embedder != embedder))
            _advance(connection)

    def set_aside(self, embedder: str, vectors: dict[bytes, bytes]) -> None:
        """Store vectors that no node uses yet, for a change to another embedder."""
        with self._database.writing() as connection:
            _add_vectors(connection, embedder, vectors)

    def remove(self, document_id: str) -> None:
        """Remove a book and all that was derived from it. Raises NotFound."""
        with self._database.writing() as connection:
            unused = _delete_document(connection, document_id)
            if unused is None:
                raise _no_such_document(document_id)
            _delete_unused_vectors(connection, unused)
            _advance(connection)

    # --- documents

    def documents(self) -> tuple[Document, ...]:
        """All books, in the order in which they were added."""
        with self._database.reading() as connection:
            rows = connection.execute(_DOCUMENTS.order_by(_documents.c.added_at, _documents.c.first_rowid))
            return tuple(_document(row) for row in rows)

    def document(self, document_id: str) -> Document:
        """One book. Raises NotFound."""
        found = self.find(document_id)
        if found is None:
            raise _no_such_document(document_id)
        return found

    def find(self, document_id: str) -> Document | None:
        """One book, or None."""
        with self._database.reading() as connection:
            return _find(connection, document_id)

    def chunking_of(self, document_id: str) -> str | None:
        """How a book was read and cut; None when there is no such book."""
        with self._database.reading() as connection:
            return connection.scalar(select(_documents.c.chunking).where(_documents.c.document_id == document_id))

    def chapters(self, document_id: str) -> tuple[Chapter, ...]:
        """Chapters of a book in order, without chapter 0, the text before the first. Raises NotFound."""
        self.document(document_id)
        wanted = select(_chapters.c.ordinal, _chapters.c.title, _chapters.c.nodes).where(
            _chapters.c.document_id == document_id, _chapters.c.ordinal > 0
        )
        with self._database.reading() as connection:
            return tuple(Chapter(*row) for row in connection.execute(wanted.order_by(_chapters.c.ordinal)))

    def sections(self, document_id: str) -> tuple[Section, ...]:
        """Sections of a book as its reader read them, in order."""
        with self._database.reading() as connection:
            return _select_sections(connection, document_id)

    def book(self, document_id: str) -> Book:
        """A book as its reader read it. Raises NotFound."""
        own = _documents.c.document_id == document_id
        with self._database.reading() as connection:
            document = _find(connection, document_id)
            labels = connection.scalar(select(_documents.c.page_labels).where(own))
            sections = _select_sections(connection, document_id)
        if document is None or labels is None:
            raise _no_such_document(document_id)
        return Book(
            document.title, document.format, sections, document.pages, tuple(from_json(labels)), document.health
        )

    # --- vectors

    def missing_vectors(self, embedder: str, text_shas: Iterable[bytes]) -> set[bytes]:
        """The embedded texts, by `Chunk.text_sha`, that have no vector yet."""
        wanted = set(text_shas)
        with self._database.reading() as connection:
            return wanted - set(_vector_ids(connection, embedder, wanted))

    def ranges(self) -> tuple[int, dict[str, RowRange]]:
        """The generation, and the rowids of each document's nodes at that generation."""
        with self._database.reading() as connection:
            found = connection.execute(_RANGES)
            return _generation(connection), {name: RowRange(first, last) for name, first, last in found}

    def vectors_of(self, span: RowRange, dimension: int) -> tuple[np.ndarray, Matrix]:
        """Rowids, shape (n,), and vectors, shape (n, dimension), of the nodes in a range."""
        with self._database.reading() as connection:
            found = fetch_tuples(connection, _VECTORS_IN, {"first": span.first, "last": span.last})
        return _matrix(found, dimension)

    def vectors_at(self, rowids: np.ndarray, dimension: int) -> tuple[np.ndarray, Matrix]:
        """Rowids, ascending, shape (n,), and vectors, shape (n, dimension), of these nodes where they still exist."""
        with self._database.reading() as connection:
            parts = [fetch_tuples(connection, _VECTORS_AT, {"part": part}) for part in _parts(rowids.tolist())]
        return _matrix(list(chain.from_iterable(parts)), dimension)

    # --- nodes

    def lexical(
        self, terms: Sequence[str], top_k: int, filters: Filters, scored_at_least: int | None = None
    ) -> list[Hit]:
        """Nodes that hold any of the terms, best first; `scored_at_least` as in `lexical.ranking`."""
        with self._database.reading() as connection:
            if filters.empty:
                num_nodes = connection.scalar(_NUM_NODES) or 0
                ranked = lexical.ranking(connection, terms, top_k, num_nodes, scored_at_least)
            else:
                ranked = lexical.ranking_among(connection, terms, top_k, _lexical_conditions(connection, filters))
            found = _select_nodes(connection, _NODES_BY_ROWID, [rowid for rowid, _ in ranked])
        nodes = {node.rowid: node for node in found}
        return [Hit(nodes[rowid], score) for rowid, score in ranked]

    def count_terms(self, terms: Sequence[str], most: int) -> dict[str, int]:
        """How many nodes hold each of these terms, counted up to `most`."""
        with self._database.reading() as connection:
            return lexical.counts(connection, terms, most)

    def check_filters(self, filters: Filters) -> None:
        """Raises NotFound when a filter names a document that is not there."""
        if not filters.document_ids:
            return
        with self._database.reading() as connection:
            there = set(connection.scalars(_DOCUMENT_IDS, {"part": filters.document_ids}))
        for document_id in filters.document_ids:
            if document_id not in there:
                raise _no_such_document(document_id)

    def rowids(self, filters: Filters) -> np.ndarray:
        """Rowids of the nodes that pass the filters, int64, ascending."""
        only_books = filters.document_ids and not filters.chapters and filters.pages is None
        wanted = select(_nodes.c.rowid).where(*_conditions(filters)).order_by(_nodes.c.rowid)
        with self._database.reading() as connection:
            if not only_books:
                return np.fromiter((rowid for (rowid,) in fetch_tuples(connection, wanted)), dtype=np.int64)
            books = connection.execute(_RANGES.where(_NAMED), {"part": filters.document_ids})
            ranges = [np.arange(first, last + 1, dtype=np.int64) for _, first, last in books]
        return np.sort(np.concatenate(ranges)) if ranges else np.empty(0, dtype=np.int64)

    def nodes_by_rowid(self, rowids: Sequence[int]) -> list[StoredNode]:
        """The nodes with these rowids that are still there, in the order asked."""
        with self._database.reading() as connection:
            found = {node.rowid: node for node in _select_nodes(connection, _NODES_BY_ROWID, rowids)}
        return [found[rowid] for rowid in rowids if rowid in found]

    def nodes_by_id(self, node_ids: Sequence[str]) -> list[StoredNode]:
        """The nodes with these ids, in the order asked. Raises NotFound for an id that names nothing."""
        with self._database.reading() as connection:
            found = {node.node_id: node for node in _select_nodes(connection, _NODES_BY_ID, node_ids)}
        for node_id in node_ids:
            if node_id not in found:
                raise NotFound(f"There is no node '{node_id}'.", hint="it may have changed with its book; search again")
        return [found[node_id] for node_id in node_ids]

    def nodes_of(self, document_id: str) -> list[StoredNode]:
        """All nodes of a book in order. Raises NotFound."""
        self.document(document_id)
        wanted = _NODES.where(_nodes.c.document_id == document_id).order_by(_nodes.c.rowid)
        with self._database.reading() as connection:
            return [_node(row) for row in connection.execute(wanted)]


def open_catalog(path: Path, *, create: bool) -> Catalog:
    """Open the catalog at `path`, or make it when `create`.

    Raises:
        IndexMissing: it is not there, and `create` is false.
        IndexCorrupt, HomeNotWritable, StorageFull, Busy: as `Database.open`.
    """
    if not create and not path.exists():
        raise IndexMissing(f"There is no library in '{path.parent}' yet.", hint="Add a book: coalesce add PATH")
    database = Database(path, CATALOG, busy_timeout_s=BUSY_TIMEOUT_S)
    database.open()
    return Catalog(database)


# --- meta


def _get_meta(connection: Connection, key: str) -> str | None:
    return connection.scalar(_META, {"key": key})


def _set_meta(connection: Connection, key: str, value: str) -> None:
    connection.execute(_SET_META, {"key": key, "value": value})


def _generation(connection: Connection) -> int:
    return int(_get_meta(connection, "generation") or 0)


def _advance(connection: Connection) -> None:
    _set_meta(connection, "generation", str(_generation(connection) + 1))


def _take_rowids(connection: Connection, count: int) -> int:
    """The first of `count` rowids that no node ever had."""
    last = int(_get_meta(connection, "last_rowid") or 0)
    _set_meta(connection, "last_rowid", str(last + count))
    return last + 1


# --- writing a book


def _put_entry(connection: Connection, entry: CatalogEntry, embedder: str) -> list[int]:
    """Write one book; returns the vectors that its former state used."""
    document_id = entry.identity.document_id
    added_at = connection.scalar(select(_documents.c.added_at).where(_documents.c.document_id == document_id))
    unused = _delete_document(connection, document_id) or []
    first = _take_rowids(connection, len(entry.drafts))
    _insert_document(connection, entry, added_at or datetime.now(UTC).isoformat(timespec="seconds"), first)
    _insert_sections(connection, document_id, entry.book)
    _insert_chapters(connection, document_id, entry.drafts)
    _insert_nodes(connection, document_id, entry.drafts, embedder, first)
    return unused


def _delete_document(connection: Connection, document_id: str) -> list[int] | None:
    """Delete a document with all that belongs to it; the vectors that its nodes used, or None without a document."""
    row = connection.execute(
        select(_documents.c.first_rowid, _documents.c.last_rowid).where(_documents.c.document_id == document_id)
    ).one_or_none()
    if row is None:
        return None
    own = _nodes.c.rowid.between(*row)
    used = connection.scalars(select(_nodes.c.vector_id).where(own)).all()
    lexical.remove(connection, *row)
    connection.execute(delete(_nodes).where(own))
    for table in (_sections, _chapters, _documents):
        connection.execute(delete(table).where(table.c.document_id == document_id))
    return list(used)


def _insert_document(connection: Connection, entry: CatalogEntry, added_at: str, first: int) -> None:
    identity, book = entry.identity, entry.book
    values = {
        "title": book.title,
        "format": book.format,
        "pages": book.pages,
        "page_labels": _to_json(book.page_labels),
        "sections": len(book.sections),
        "nodes": len(entry.drafts),
        "added_at": added_at,
        "health": _to_json({name: value for name, value in asdict(book.health).items() if value}),
        "first_rowid": first,
        "last_rowid": first + len(entry.drafts) - 1,
    }
    connection.execute(insert(_documents), asdict(identity) | values)


def _insert_sections(connection: Connection, document_id: str, book: Book) -> None:
    rows = [
        {
            "document_id": document_id,
            "ordinal": ordinal,
            "chapter": section.chapter,
            "heading_path": _to_json(section.heading_path),
            "text": section.text,
            "page_marks": _write_marks(section.page_marks),
        }
        for ordinal, section in enumerate(book.sections)
    ]
    if rows:
        connection.execute(insert(_sections), rows)


def _insert_chapters(connection: Connection, document_id: str, drafts: Sequence[Chunk]) -> None:
    titles: dict[int, str] = {}
    for draft in drafts:
        titles.setdefault(draft.chapter, draft.heading_path[0] if draft.heading_path else "")
    counts = Counter(draft.chapter for draft in drafts)
    rows = [
        {"document_id": document_id, "ordinal": chapter, "title": titles[chapter], "nodes": counts[chapter]}
        for chapter in sorted(titles)
    ]
    if rows:
        connection.execute(insert(_chapters), rows)


def _insert_nodes(connection: Connection, document_id: str, drafts: Sequence[Chunk], embedder: str, first: int) -> None:
    """Store nodes and their terms under consecutive rowids; their vectors must be there."""
    if not drafts:
        return
    wanted = {draft.text_sha for draft in drafts}
    vector_ids = _vector_ids(connection, embedder, wanted)
    if len(vector_ids) < len(wanted):
        raise VectorsGone
    seen: Counter[str] = Counter()
    rows = [
        {
            "rowid": first + ordinal,
            "node_id": _node_id(document_id, draft, seen),
            "document_id": document_id,
            "ordinal": ordinal,
            "section": draft.section,
            "chapter": draft.chapter,
            "heading_path": _to_json(draft.heading_path),
            "text": draft.text,
            "page_marks": _write_marks(draft.page_marks),
            "page_labels": _to_json(draft.page_labels) if draft.page_labels else "",
            "page_start": draft.page_marks[0][1] if draft.page_marks else None,
            "page_end": draft.page_marks[-1][1] if draft.page_marks else None,
            "num_tokens": draft.num_tokens,
            "vector_id": vector_ids[draft.text_sha],
        }
        for ordinal, draft in enumerate(drafts)
    ]
    connection.execute(insert(_nodes), rows)
    lexical.add(connection, ((first + place, draft.heading_path, draft.text) for place, draft in enumerate(drafts)))


def _node_id(document_id: str, draft: Chunk, seen: Counter[str]) -> str:
    """Content-addressed: the same text under the same headings of the same book keeps its id."""
    content = "\x1f".join((document_id, *draft.heading_path, draft.text))
    digest = hashlib.sha256(content.encode("utf-8", errors="replace")).hexdigest()[:20]
    seen[digest] += 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def _add_vectors(connection: Connection, embedder: str, new: dict[bytes, bytes]) -> None:
    rows = [{"embedder": embedder, "text_sha": sha, "vector": vector} for sha, vector in new.items()]
    if rows:
        connection.execute(_ADD_VECTORS, rows)


def _delete_unused_vectors(connection: Connection, candidates: Iterable[int]) -> None:
    rows = [{"candidate": vector_id} for vector_id in set(candidates)]
    if rows:
        connection.execute(_DELETE_UNUSED_VECTOR, rows)


# --- reading


def _find(connection: Connection, document_id: str) -> Document | None:
    row = connection.execute(_DOCUMENTS.where(_documents.c.document_id == document_id)).one_or_none()
    return _document(row) if row is not None else None


def _select_sections(connection: Connection, document_id: str) -> tuple[Section, ...]:
    wanted = select(_sections).where(_sections.c.document_id == document_id).order_by(_sections.c.ordinal)
    return tuple(
        Section(tuple(from_json(row.heading_path)), row.text, row.chapter, _read_marks(row.page_marks))
        for row in connection.execute(wanted)
    )


def _vector_ids(connection: Connection, embedder: str, wanted: set[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for part in _parts(list(wanted)):
        rows = connection.execute(_VECTOR_IDS, {"embedder": embedder, "part": part})
        found.update((sha, vector_id) for sha, vector_id in rows)
    return found


def _matrix(found: list[tuple[int, bytes]], dimension: int) -> tuple[np.ndarray, Matrix]:
    """Rows of rowids and vectors as arrays."""
    rowids = np.fromiter((row[0] for row in found), dtype=np.int64, count=len(found))
    flat = np.frombuffer(b"".join(row[1] for row in found), dtype="<f4").astype(np.float32, copy=False)
    return rowids, flat.reshape(len(found), dimension)


def _conditions(filters: Filters) -> list[ColumnElement[bool]]:
    """Conditions on nodes that are the filters."""
    conditions: list[ColumnElement[bool]] = []
    if filters.document_ids:
        conditions.append(_nodes.c.document_id.in_(filters.document_ids))
    if filters.chapters:
        ordinals = [chapter for chapter in filters.chapters if isinstance(chapter, int)]
        titles = [chapter for chapter in filters.chapters if isinstance(chapter, str)]
        either: list[ColumnElement[bool]] = []
        if ordinals:
            either.append(_nodes.c.chapter.in_(ordinals))
        if titles:
            titled = select(_chapters.c.document_id, _chapters.c.ordinal).where(_chapters.c.title.in_(titles))
            either.append(tuple_(_nodes.c.document_id, _nodes.c.chapter).in_(titled))
        conditions.append(or_(*either))
    if filters.pages is not None:
        conditions += [_nodes.c.page_start <= filters.pages[1], _nodes.c.page_end >= filters.pages[0]]
    return conditions


def _lexical_conditions(connection: Connection, filters: Filters) -> list[ColumnElement[bool]]:
    """Conditions on the rows of the lexical index; a range of rowids lets FTS5 read that stretch only."""
    rowid = lexical.LEXICAL.c.rowid
    conditions = [_nodes.c.rowid == rowid, *_conditions(filters)]
    if filters.document_ids:
        conditions.append(rowid.between(*connection.execute(_BOUNDS, {"part": filters.document_ids}).one()))
    return conditions


def _select_nodes(connection: Connection, statement: Executable, keys: Sequence[object]) -> list[StoredNode]:
    """The nodes that the statement finds for the keys, in any order."""
    return [_node(row) for part in _parts(keys) for row in connection.execute(statement, {"part": part})]


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """At most `PARAMETERS_AT_ONCE` values at a time: databases bound the parameters of a statement."""
    for start in range(0, len(values), PARAMETERS_AT_ONCE):
        yield values[start : start + PARAMETERS_AT_ONCE]


# --- rows as values


def _document(row: Sequence[Any]) -> Document:
    health = BookHealth(**{name: tuple(value) for name, value in from_json(row[-1]).items()})
    fields: list[Any] = [*row[:-1], health]  # the columns are in the order of the fields
    return Document(*fields)


def _node(row: Sequence[Any]) -> StoredNode:
    rowid, node_id, document_id, title, ordinal, chapter, path, text, marks, labels, num_tokens = row
    return StoredNode(
        rowid, node_id, document_id, title, ordinal, chapter, tuple(from_json(path)), text,
        _read_marks(marks), tuple(from_json(labels)) if labels else (), num_tokens,
    )  # fmt: skip


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_marks(marks: PageMarks) -> str:
    return json.dumps(marks, separators=(",", ":")) if marks else ""


def _read_marks(marks: str) -> PageMarks:
    return tuple(map(tuple, from_json(marks))) if marks else ()


def _no_such_document(document_id: str) -> NotFound:
    return NotFound(f"There is no document '{document_id}'.", hint="Run `coalesce list` to see the books.")
