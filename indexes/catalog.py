"""The catalog: which books, nodes and vectors there are. Everything else is derived from it.

A book is written in one transaction. The lexical index is part of the file (`lexical.py`); the vector index is built
from it (`vectors.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa
from filelock import Timeout
from pydantic_core import from_json  # several times as quick as json.loads

from indexes import lexical, pgvector
from indexes.chunking import Chunk
from indexes.database import (
    BUSY_TIMEOUT_S,
    LONG_TIMEOUT_S,
    Database,
    Schema,
    Store,
    fetch_tuples,
    insert_rows,
    stored_values,
)
from indexes.embedder import Matrix
from indexes.errors import Cancelled, IndexMissing, NotFound
from indexes.types import Book, BookHealth, CancelCheck, Chapter, Document, Filters, Hit, Section, StoredNode

PARAMETERS_AT_ONCE = 500
"""Databases bound the parameters of a statement."""
READ_TOGETHER = 1_000
"""Vectors that are read at a time."""

T = TypeVar("T")


# --- tables


class _Tuple(sa.TypeDecorator[tuple[Any, ...]]):
    """A tuple, or a tuple of tuples, as JSON text; empty text is an empty one."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: tuple[Any, ...] | None, _dialect: sa.Dialect) -> str:
        """The text to store."""
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else ""

    def process_result_value(self, value: str | None, _dialect: sa.Dialect) -> tuple[Any, ...]:
        """The tuple that was stored."""
        with stored_values():
            return tuple(tuple(one) if isinstance(one, list) else one for one in from_json(value)) if value else ()


class _Health(sa.TypeDecorator[BookHealth]):
    """What reading a book lost, as JSON text without what is empty."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: BookHealth | None, _dialect: sa.Dialect) -> str:
        """The text to store."""
        return json.dumps({name: lost for name, lost in asdict(value or BookHealth()).items() if lost})

    def process_result_value(self, value: str | None, _dialect: sa.Dialect) -> BookHealth:
        """The health that was stored."""
        with stored_values():
            return BookHealth(**{name: tuple(lost) for name, lost in from_json(value or "{}").items()})


_TABLES = sa.MetaData()


def _required(name: str, kind: Any, *more: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, *more, nullable=False, **options)


def _of_document(**options: Any) -> sa.Column[Any]:
    return _required("document_id", sa.Text, sa.ForeignKey("documents.document_id", ondelete="CASCADE"), **options)


# `generation` counts the writes, `embedder` made the vectors, `last_rowid` is the highest that a node ever had;
# `removed/DIGEST` is an upload whose file may be left when its book is gone.
_REMOVED = "removed/"
_key = sa.Column("key", sa.Text, primary_key=True)
_meta = sa.Table("meta", _TABLES, _key, _required("value", sa.Text), sqlite_with_rowid=False)
_documents = sa.Table(
    "documents",
    _TABLES,
    sa.Column("document_id", sa.Text, primary_key=True),
    _required("title", sa.Text),
    _required("source", sa.Text),
    _required("sample", sa.Boolean),
    _required("format", sa.Text),
    sa.Column("pages", sa.Integer),
    _required("page_labels", _Tuple),
    _required("sections", sa.Integer),
    _required("nodes", sa.Integer),
    _required("sha256", sa.Text),
    _required("chunking", sa.Text),
    _required("added_at", sa.Text),
    _required("health", _Health),
    _required("first_rowid", sa.Integer),  # a document's nodes have consecutive rowids
    _required("last_rowid", sa.Integer),
)
_chapters = sa.Table(
    "chapters",
    _TABLES,
    _of_document(primary_key=True),
    _required("ordinal", sa.Integer, primary_key=True),
    _required("title", sa.Text),
    _required("nodes", sa.Integer),
    sqlite_with_rowid=False,
)
# Sections are kept whole, so that a library can be cut again for another embedder when its sources are gone.
_sections = sa.Table(
    "sections",
    _TABLES,
    sa.Column("section_id", sa.Integer, primary_key=True),
    _of_document(),
    _required("ordinal", sa.Integer),
    _required("chapter", sa.Integer),
    _required("heading_path", _Tuple),
    _required("text", sa.Text),
    _required("page_marks", _Tuple),
    sa.Index("sections_in_order", "document_id", "ordinal", unique=True),
)
_vectors = sa.Table(
    "vectors",
    _TABLES,
    sa.Column("vector_id", sa.Integer, primary_key=True),
    _required("embedder", sa.Text),
    _required("text_sha", sa.LargeBinary),
    _required("vector", sa.LargeBinary),  # float32, little-endian
    sa.Index("vectors_by_text", "embedder", "text_sha", unique=True),
)
_nodes = sa.Table(
    "nodes",
    _TABLES,
    sa.Column("rowid", sa.Integer, primary_key=True, autoincrement=False),  # never reused: FAISS knows nodes by it
    _required("node_id", sa.Text),
    _of_document(),
    _required("ordinal", sa.Integer),
    _required("section", sa.Integer),
    _required("chapter", sa.Integer),
    _required("heading_path", _Tuple),
    _required("text", sa.Text),
    _required("page_marks", _Tuple),
    _required("page_labels", _Tuple),
    sa.Column("page_start", sa.Integer),
    sa.Column("page_end", sa.Integer),
    _required("num_tokens", sa.Integer),
    _required("vector_id", sa.Integer, sa.ForeignKey("vectors.vector_id")),
    sa.Index("nodes_by_id", "node_id", unique=True),
    sa.Index("nodes_by_vector", "vector_id"),
    sa.Index("nodes_by_chapter", "document_id", "chapter"),
)
lexical.create_with(_TABLES)
pgvector.create_with(_TABLES)

CATALOG = Schema("catalog_1", _TABLES)

# Columns in the order of the fields of `StoredNode` and `Document`.
_NODES = sa.select(
    _nodes.c.rowid, _nodes.c.node_id, _nodes.c.document_id, _documents.c.title, _nodes.c.ordinal, _nodes.c.chapter,
    _nodes.c.heading_path, _nodes.c.text, _nodes.c.page_marks, _nodes.c.page_labels, _nodes.c.num_tokens,
).join_from(_nodes, _documents)  # fmt: skip
_DOCUMENTS = sa.select(
    *(_documents.c[name] for name in "document_id title source sample format pages sections nodes sha256".split()),
    _documents.c.added_at, _documents.c.health,
)  # fmt: skip
# Run several times for each question: SQLAlchemy takes as long to build such a statement as SQLite to run it.
_NODES_IN = _NODES.where(_nodes.c.rowid.in_(sa.bindparam("part", expanding=True)))
_META = sa.select(_meta.c.value).where(_meta.c.key == sa.bindparam("key"))
_NUM_NODES = sa.select(sa.func.sum(_documents.c.nodes))

_VECTORS = sa.select(_nodes.c.rowid, _vectors.c.vector).join_from(_nodes, _vectors).order_by(_nodes.c.rowid)
_SET_META = sa.text(
    "INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


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

    def __init__(self, database: Store) -> None:
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

    @contextmanager
    def alone(self, name: str, cancelled: CancelCheck | None = None) -> Iterator[None]:
        """Wait until no other process is in here with this name. Raises Cancelled."""
        lock = self._database.lock(name)
        while True:
            try:
                lock.acquire(timeout=0.2)
                break
            except Timeout:
                if cancelled is not None and cancelled():
                    raise Cancelled("Adding was cancelled while another process added the same book.") from None
        try:
            yield
        finally:
            lock.release()

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
        # Found beforehand, since no other can write while this does.
        terms = [lexical.terms_of((draft.heading_path, draft.text) for draft in entry.drafts) for entry in entries]
        with self._database.writing() as connection:
            _set_meta(connection, "embedder", embedder)
            _add_vectors(connection, embedder, new_vectors)
            unused: list[int] = []
            for entry, in_nodes in zip(entries, terms, strict=True):
                unused.extend(_put_entry(connection, entry, embedder, in_nodes))
            _delete_unused_vectors(connection, unused)
            if only_embedder:
                connection.execute(sa.delete(_vectors).where(_vectors.c.embedder != embedder))
            _advance(connection)

    def set_aside(self, embedder: str, vectors: dict[bytes, bytes]) -> None:
        """Store vectors that no node uses yet, for a change to another embedder."""
        with self._database.writing() as connection:
            _add_vectors(connection, embedder, vectors)

    def remove(self, document_id: str) -> None:
        """Remove a book and all that was derived from it. Raises NotFound, and Busy where another is being written."""
        with self._database.writing(wait_s=BUSY_TIMEOUT_S) as connection:
            unused = _delete_document(connection, document_id)
            if unused is None:
                raise _no_such_document(document_id)
            _delete_unused_vectors(connection, unused)
            _advance(connection)

    # --- documents

    def removed(self) -> frozenset[str]:
        """Digests of uploaded contents whose books were removed or have another content now."""
        with self._database.reading() as connection:
            keys = connection.scalars(sa.select(_meta.c.key).where(_meta.c.key.startswith(_REMOVED)))
            return frozenset(key.removeprefix(_REMOVED) for key in keys)

    def documents(self) -> tuple[Document, ...]:
        """All books, in the order in which they were added."""
        with self._database.reading() as connection:
            rows = connection.execute(_DOCUMENTS.order_by(_documents.c.added_at, _documents.c.first_rowid))
            return tuple(Document(*row) for row in rows)

    def document(self, document_id: str) -> Document:
        """One book. Raises NotFound."""
        found = self.find(document_id)
        if found is None:
            raise _no_such_document(document_id)
        return found

    def find(self, document_id: str) -> Document | None:
        """One book, or None."""
        with self._database.reading() as connection:
            row = connection.execute(_DOCUMENTS.where(_documents.c.document_id == document_id)).one_or_none()
        return Document(*row) if row is not None else None

    def chunking_of(self, document_id: str) -> str | None:
        """How a book was read and cut; None when there is no such book."""
        with self._database.reading() as connection:
            return connection.scalar(sa.select(_documents.c.chunking).where(_documents.c.document_id == document_id))

    def chapters(self, document_id: str) -> tuple[Chapter, ...]:
        """Chapters of a book in order, without chapter 0, the text before the first. Raises NotFound."""
        self.document(document_id)
        wanted = sa.select(_chapters.c.ordinal, _chapters.c.title, _chapters.c.nodes).where(
            _chapters.c.document_id == document_id, _chapters.c.ordinal > 0
        )
        with self._database.reading() as connection:
            return tuple(Chapter(*row) for row in connection.execute(wanted.order_by(_chapters.c.ordinal)))

    def sections(self, document_id: str) -> tuple[Section, ...]:
        """Sections of a book as its reader read them, in order."""
        with self._database.reading() as connection:
            return _sections_of(connection, document_id)

    def book(self, document_id: str) -> Book:
        """A book as its reader read it. Raises NotFound."""
        wanted = _DOCUMENTS.add_columns(_documents.c.page_labels).where(_documents.c.document_id == document_id)
        with self._database.reading() as connection:
            row = connection.execute(wanted).one_or_none()
            sections = _sections_of(connection, document_id)
        if row is None:
            raise _no_such_document(document_id)
        return Book(row.title, row.format, sections, row.pages, row.page_labels, row.health)

    # --- vectors

    def missing_vectors(self, embedder: str, text_shas: Iterable[bytes]) -> set[bytes]:
        """The embedded texts, by `Chunk.text_sha`, that have no vector yet."""
        wanted = set(text_shas)
        with self._database.reading() as connection:
            return wanted - set(_vector_ids(connection, embedder, wanted))

    def ranges(self) -> tuple[int, dict[str, RowRange]]:
        """The generation, and the rowids of each document's nodes at that generation."""
        wanted = sa.select(_documents.c.document_id, _documents.c.first_rowid, _documents.c.last_rowid)
        with self._database.reading() as connection:
            found = connection.execute(wanted.where(_documents.c.nodes > 0))
            return _generation(connection), {name: RowRange(first, last) for name, first, last in found}

    def vectors_of(self, span: RowRange, dimension: int) -> tuple[np.ndarray, Matrix]:
        """Rowids, shape (n,), and vectors, shape (n, dimension), of the nodes in a range."""
        with self._database.reading() as connection:
            found = fetch_tuples(connection, _VECTORS.where(_nodes.c.rowid.between(span.first, span.last)))
        return _matrix(found, dimension)

    def vectors_at(self, rowids: np.ndarray, dimension: int) -> tuple[np.ndarray, Matrix]:
        """Rowids, ascending, shape (n,), and vectors, shape (n, dimension), of these nodes where they still exist."""
        with self._database.reading() as connection:
            wanted = (_VECTORS.where(_nodes.c.rowid.in_(part)) for part in _parts(rowids.tolist()))
            found = list(chain.from_iterable(fetch_tuples(connection, one) for one in wanted))
        return _matrix(found, dimension)

    def nearest(self, vector: np.ndarray, top_k: int, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
        """As `NodeVectors.search`, by pgvector."""
        with self._database.reading() as connection:
            rowids = pgvector.nearest(connection, _nodes, vector, top_k, _conditions(filters))
        rowids, matrix = self.vectors_at(rowids, len(vector))
        scores = matrix @ vector.astype(np.float32)
        order = np.argsort(-scores, kind="stable")[:top_k]
        return rowids[order], scores[order]

    def build_graph(self, dimension: int) -> bool:
        """Build what finds near vectors in a large library; whether it is there."""
        shared: Any = self._database  # only a server's has one
        with shared.connected() as connection:
            connection.detach()  # its settings and its lock end with it
            return pgvector.build(connection, dimension)

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
            nodes = _nodes_at(connection, [rowid for rowid, _ in ranked])
        return [Hit(nodes[rowid], score) for rowid, score in ranked]

    def count_terms(self, terms: Sequence[str], most: int) -> dict[str, int]:
        """How many nodes hold each of these terms, counted up to `most`."""
        with self._database.reading() as connection:
            return lexical.counts(connection, terms, most)

    def check_filters(self, filters: Filters) -> None:
        """Raises NotFound when a filter names a document that is not there."""
        if not filters.document_ids:
            return
        wanted = sa.select(_documents.c.document_id).where(_documents.c.document_id.in_(filters.document_ids))
        with self._database.reading() as connection:
            there = set(connection.scalars(wanted))
        for document_id in filters.document_ids:
            if document_id not in there:
                raise _no_such_document(document_id)

    def rowids(self, filters: Filters) -> np.ndarray:
        """Rowids of the nodes that pass the filters, int64, ascending."""
        if filters.document_ids and not filters.chapters and filters.pages is None:
            ranges = self.ranges()[1]
            spans = sorted((ranges[name].first, ranges[name].last) for name in filters.document_ids if name in ranges)
            return np.concatenate([np.arange(0), *(np.arange(first, last + 1) for first, last in spans)])
        wanted = sa.select(_nodes.c.rowid).where(*_conditions(filters)).order_by(_nodes.c.rowid)
        with self._database.reading() as connection:
            return np.fromiter((rowid for (rowid,) in fetch_tuples(connection, wanted)), dtype=np.int64)

    def nodes_by_rowid(self, rowids: Sequence[int]) -> list[StoredNode]:
        """The nodes with these rowids that are still there, in the order asked."""
        with self._database.reading() as connection:
            found = _nodes_at(connection, rowids)
        return [found[rowid] for rowid in rowids if rowid in found]

    def nodes_by_id(self, node_ids: Sequence[str]) -> list[StoredNode]:
        """The nodes with these ids, in the order asked. Raises NotFound for an id that names nothing."""
        with self._database.reading() as connection:
            rowids = _rowids_of(connection, node_ids)
            found = _nodes_at(connection, list(rowids.values()))
        for node_id in node_ids:
            if node_id not in rowids:
                raise NotFound(f"There is no node '{node_id}'.", hint="it may have changed with its book; search again")
        return [found[rowids[node_id]] for node_id in node_ids]

    def nodes_of(self, document_id: str) -> list[StoredNode]:
        """All nodes of a book in order. Raises NotFound."""
        self.document(document_id)
        wanted = _NODES.where(_nodes.c.document_id == document_id).order_by(_nodes.c.rowid)
        with self._database.reading() as connection:
            return [StoredNode(*row) for row in connection.execute(wanted)]


def derive_indexes(connection: sa.Connection) -> None:
    """Make the indexes of words and vectors of a catalog whose tables were filled row by row."""
    spans = connection.execute(sa.select(_documents.c.first_rowid, _documents.c.last_rowid)).all()
    for first, last in sorted((first, last) for first, last in spans):
        wanted = sa.select(_nodes.c.heading_path, _nodes.c.text).order_by(_nodes.c.rowid)
        rows = connection.execute(wanted.where(_nodes.c.rowid.between(first, last)))
        lexical.add(connection, first, lexical.terms_of((path, text) for path, text in rows))
    if connection.dialect.name == "postgresql":
        stored = sa.select(_vectors.c.vector_id, _vectors.c.vector)
        for part in connection.execute(stored, execution_options={"yield_per": READ_TOGETHER}).partitions():
            pgvector.add(connection, ((row.vector_id, row.vector) for row in part))


def open_catalog(path: Path, *, create: bool, database_url: str | None = None) -> Catalog:
    """Open the catalog at `path`, or make it when `create`; with `database_url` that of a shared database.

    Raises:
        IndexMissing: it is not there, and `create` is false.
        IndexCorrupt, HomeNotWritable, StorageFull, Busy: as `Database.open`.
        DatabaseUnavailable, InvalidInput: as `PostgresDatabase.open`.
    """
    if database_url is not None:
        from indexes.postgres import PostgresDatabase

        shared = PostgresDatabase(database_url, CATALOG)
        shared.open()
        return Catalog(shared)
    if not create and not path.exists():
        raise IndexMissing(f"There is no library in '{path.parent}' yet.", hint="Add a book: coalesce add PATH")
    database = Database(path, CATALOG, busy_timeout_s=LONG_TIMEOUT_S)
    database.open()
    return Catalog(database)


# --- meta


def _get_meta(connection: sa.Connection, key: str) -> str | None:
    return connection.scalar(_META, {"key": key})


def _set_meta(connection: sa.Connection, key: str, value: str) -> None:
    connection.execute(_SET_META, {"key": key, "value": value})


def _generation(connection: sa.Connection) -> int:
    return int(_get_meta(connection, "generation") or 0)


def _advance(connection: sa.Connection) -> None:
    _set_meta(connection, "generation", str(_generation(connection) + 1))


def _take_rowids(connection: sa.Connection, count: int) -> int:
    """The first of `count` rowids that no node ever had."""
    last = int(_get_meta(connection, "last_rowid") or 0)
    _set_meta(connection, "last_rowid", str(last + count))
    return last + 1


# --- writing a book


def _put_entry(
    connection: sa.Connection, entry: CatalogEntry, embedder: str, terms: Sequence[tuple[str, str]]
) -> list[int]:
    """Write one book with the terms of its nodes; returns the vectors that its former state used."""
    document_id = entry.identity.document_id
    added_at = connection.scalar(sa.select(_documents.c.added_at).where(_documents.c.document_id == document_id))
    unused = _delete_document(connection, document_id) or []
    first = _take_rowids(connection, len(entry.drafts))
    _insert_document(connection, entry, added_at or datetime.now(UTC).isoformat(timespec="seconds"), first)
    _insert_sections(connection, document_id, entry.book)
    _insert_chapters(connection, document_id, entry.drafts)
    _insert_nodes(connection, document_id, entry.drafts, embedder, first)
    lexical.add(connection, first, terms)
    return unused


def _delete_document(connection: sa.Connection, document_id: str) -> list[int] | None:
    """Delete a document with all that belongs to it; the vectors that its nodes used, or None without a document."""
    wanted = sa.select(_documents.c.first_rowid, _documents.c.last_rowid, _documents.c.source, _documents.c.sha256)
    row = connection.execute(wanted.where(_documents.c.document_id == document_id)).one_or_none()
    if row is None:
        return None
    *rowids, source, sha256 = row
    if not Path(source).is_absolute():
        _set_meta(connection, f"{_REMOVED}{sha256}", "")
    own = _nodes.c.rowid.between(*rowids)
    used = connection.scalars(sa.select(_nodes.c.vector_id).where(own)).all()
    lexical.remove(connection, *rowids)
    connection.execute(sa.delete(_nodes).where(own))
    for table in (_sections, _chapters, _documents):
        connection.execute(sa.delete(table).where(table.c.document_id == document_id))
    return list(used)


def _columns(value: object, names: str) -> dict[str, Any]:
    """Attributes of a value by name."""
    return {name: getattr(value, name) for name in names.split()}


def _insert_document(connection: sa.Connection, entry: CatalogEntry, added_at: str, first: int) -> None:
    counts = {"sections": len(entry.book.sections), "nodes": len(entry.drafts)}
    rowids = {"first_rowid": first, "last_rowid": first + len(entry.drafts) - 1}
    connection.execute(sa.delete(_meta).where(_meta.c.key == f"{_REMOVED}{entry.identity.sha256}"))
    read = _columns(entry.book, "title format pages page_labels health")
    insert_rows(connection, _documents, [{"added_at": added_at} | asdict(entry.identity) | read | counts | rowids])


def _insert_sections(connection: sa.Connection, document_id: str, book: Book) -> None:
    rows = [
        {"document_id": document_id, "ordinal": ordinal} | _columns(section, "chapter heading_path text page_marks")
        for ordinal, section in enumerate(book.sections)
    ]
    insert_rows(connection, _sections, rows)


def _insert_chapters(connection: sa.Connection, document_id: str, drafts: Sequence[Chunk]) -> None:
    titles: dict[int, str] = {}
    for draft in drafts:
        titles.setdefault(draft.chapter, draft.heading_path[0] if draft.heading_path else "")
    counts = Counter(draft.chapter for draft in drafts)
    rows = [
        {"document_id": document_id, "ordinal": chapter, "title": titles[chapter], "nodes": counts[chapter]}
        for chapter in sorted(titles)
    ]
    insert_rows(connection, _chapters, rows)


def _insert_nodes(
    connection: sa.Connection, document_id: str, drafts: Sequence[Chunk], embedder: str, first: int
) -> None:
    """Store nodes under consecutive rowids; their vectors must be there."""
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
            "page_start": draft.page_marks[0][1] if draft.page_marks else None,
            "page_end": draft.page_marks[-1][1] if draft.page_marks else None,
            "vector_id": vector_ids[draft.text_sha],
        }
        | _columns(draft, "section chapter heading_path text page_marks page_labels num_tokens")
        for ordinal, draft in enumerate(drafts)
    ]
    insert_rows(connection, _nodes, rows)


def _node_id(document_id: str, draft: Chunk, seen: Counter[str]) -> str:
    digest = node_digest(document_id, draft.heading_path, draft.text)
    seen[digest] += 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def node_digest(document_id: str, heading_path: Sequence[str], text: str) -> str:
    """What a node's id begins with: the same text under the same headings of the same book keeps its id."""
    content = "\x1f".join((document_id, *heading_path, text))
    return hashlib.sha256(content.encode("utf-8", errors="replace")).hexdigest()[:20]


def _add_vectors(connection: sa.Connection, embedder: str, new: dict[bytes, bytes]) -> None:
    """Store vectors, by the digest of their text, that are not stored."""
    lacking = new.keys() - _vector_ids(connection, embedder, set(new)).keys()
    rows = [{"embedder": embedder, "text_sha": sha, "vector": new[sha]} for sha in lacking]
    insert_rows(connection, _vectors, rows)
    if connection.dialect.name == "postgresql":
        found = _vector_ids(connection, embedder, lacking)
        pgvector.add(connection, ((number, new[sha]) for sha, number in found.items()))


def _delete_unused_vectors(connection: sa.Connection, candidates: Iterable[int]) -> None:
    rows = [{"candidate": vector_id} for vector_id in set(candidates)]
    used = sa.exists().where(_nodes.c.vector_id == _vectors.c.vector_id)
    if rows:
        connection.execute(sa.delete(_vectors).where(_vectors.c.vector_id == sa.bindparam("candidate"), ~used), rows)


# --- reading


def _sections_of(connection: sa.Connection, document_id: str) -> tuple[Section, ...]:
    columns = (_sections.c.heading_path, _sections.c.text, _sections.c.chapter, _sections.c.page_marks)
    wanted = sa.select(*columns).where(_sections.c.document_id == document_id).order_by(_sections.c.ordinal)
    return tuple(Section(*row) for row in connection.execute(wanted))


def _vector_ids(connection: sa.Connection, embedder: str, wanted: set[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    known = sa.select(_vectors.c.text_sha, _vectors.c.vector_id).where(_vectors.c.embedder == embedder)
    for part in _parts(list(wanted)):
        found.update(fetch_tuples(connection, known.where(_vectors.c.text_sha.in_(part))))
    return found


def _matrix(found: list[tuple[int, bytes]], dimension: int) -> tuple[np.ndarray, Matrix]:
    """Rows of rowids and vectors as arrays."""
    rowids = np.fromiter((row[0] for row in found), dtype=np.int64, count=len(found))
    flat = np.frombuffer(b"".join(row[1] for row in found), dtype="<f4").astype(np.float32, copy=False)
    return rowids, flat.reshape(len(found), dimension)


def _conditions(filters: Filters) -> list[sa.ColumnElement[bool]]:
    """Conditions on nodes that are the filters."""
    conditions: list[sa.ColumnElement[bool]] = []
    if filters.document_ids:
        conditions.append(_nodes.c.document_id.in_(filters.document_ids))
    if filters.chapters:
        ordinals = [chapter for chapter in filters.chapters if isinstance(chapter, int)]
        titles = [chapter for chapter in filters.chapters if isinstance(chapter, str)]
        either: list[sa.ColumnElement[bool]] = []
        if ordinals:
            either.append(_nodes.c.chapter.in_(ordinals))
        if titles:
            titled = sa.select(_chapters.c.document_id, _chapters.c.ordinal).where(_chapters.c.title.in_(titles))
            either.append(sa.tuple_(_nodes.c.document_id, _nodes.c.chapter).in_(titled))
        conditions.append(sa.or_(*either))
    if filters.pages is not None:
        conditions += [_nodes.c.page_start <= filters.pages[1], _nodes.c.page_end >= filters.pages[0]]
    return conditions


def _lexical_conditions(connection: sa.Connection, filters: Filters) -> list[sa.ColumnElement[bool]]:
    """Conditions on the rows of the lexical index; a range of rowids lets FTS5 read that stretch only."""
    rowid = lexical.LEXICAL.c.rowid
    conditions = [_nodes.c.rowid == rowid, *_conditions(filters)]
    if filters.document_ids:
        bounds = sa.select(sa.func.min(_documents.c.first_rowid), sa.func.max(_documents.c.last_rowid))
        found = connection.execute(bounds.where(_documents.c.document_id.in_(filters.document_ids)))
        conditions.append(rowid.between(*found.one()))
    return conditions


def _nodes_at(connection: sa.Connection, rowids: Sequence[int]) -> dict[int, StoredNode]:
    """The nodes with these rowids, where they exist."""
    found = (connection.execute(_NODES_IN, {"part": part}) for part in _parts(rowids))
    return {row[0]: StoredNode(*row) for rows in found for row in rows}


def _rowids_of(connection: sa.Connection, node_ids: Sequence[str]) -> dict[str, int]:
    wanted = (
        sa.select(_nodes.c.node_id, _nodes.c.rowid).where(_nodes.c.node_id.in_(part)) for part in _parts(node_ids)
    )
    return dict(chain.from_iterable(fetch_tuples(connection, one) for one in wanted))


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """At most `PARAMETERS_AT_ONCE` values at a time."""
    for start in range(0, len(values), PARAMETERS_AT_ONCE):
        yield values[start : start + PARAMETERS_AT_ONCE]


def _no_such_document(document_id: str) -> NotFound:
    return NotFound(f"There is no document '{document_id}'.", hint="Run `coalesce list` to see the books.")
