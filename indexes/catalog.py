"""The catalog: the one truth about which books, nodes and vectors there are. A book is written in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from indexes import lexical_rows, node_rows
from indexes.database import Database, open_database
from indexes.document_rows import SELECT_DOCUMENT, CatalogEntry, document_of, insert_document, insert_sections
from indexes.errors import NotFound
from indexes.text_encoder import Matrix
from indexes.types import Book, Chapter, Document, Filters, Hit, Section, StoredNode


@dataclass(frozen=True, slots=True)
class RowRange:
    """The consecutive rowids of a document's nodes, both ends included."""

    first: int
    last: int


class Catalog:
    """Documents, chapters, sections, nodes, lexical terms and vectors in one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._titles: tuple[int, dict[str, str]] = (-1, {})

    # --- whole library

    def generation(self) -> int:
        """Counts the writes: another number means that something changed, perhaps by another process."""
        with self._database.reading() as rows:
            return _generation(rows)

    def embedder(self) -> str | None:
        """Fingerprint of the embedder of all vectors here; None before the first book."""
        with self._database.reading() as rows:
            return _meta(rows, "embedder")

    def close(self) -> None:
        """Close the file's connections."""
        self._database.close()

    # --- documents

    def documents(self) -> tuple[Document, ...]:
        """All books, in the order in which they were added."""
        with self._database.reading() as rows:
            return tuple(document_of(row) for row in rows.execute(f"{SELECT_DOCUMENT} ORDER BY added_at, rowid"))

    def document(self, document_id: str) -> Document:
        """One book. Raises NotFound."""
        found = self.find(document_id)
        if found is None:
            raise _no_such_document(document_id)
        return found

    def find(self, document_id: str) -> Document | None:
        """One book, or None."""
        with self._database.reading() as rows:
            row = rows.execute(f"{SELECT_DOCUMENT} WHERE document_id = ?", (document_id,)).fetchone()
        return document_of(row) if row is not None else None

    def chunking_of(self, document_id: str) -> str | None:
        """How a book was read and cut; None when it is not there."""
        with self._database.reading() as rows:
            row = rows.execute("SELECT chunking FROM documents WHERE document_id = ?", (document_id,)).fetchone()
        return str(row[0]) if row is not None else None

    def chapters(self, document_id: str) -> tuple[Chapter, ...]:
        """Chapters of a book in order; what stands before the first (chapter 0) is not listed. Raises NotFound."""
        self.document(document_id)
        with self._database.reading() as rows:
            found = rows.execute(
                "SELECT ordinal, title, nodes FROM chapters WHERE document_id = ? AND ordinal > 0 ORDER BY ordinal",
                (document_id,),
            )
            return tuple(Chapter(*row) for row in found)

    def sections(self, document_id: str) -> tuple[Section, ...]:
        """Sections of a book as its reader read them, in order."""
        with self._database.reading() as rows:
            found = rows.execute(
                "SELECT heading_path, text, chapter, page_marks FROM sections WHERE document_id = ? ORDER BY ordinal",
                (document_id,),
            )
            return tuple(
                Section(tuple(json.loads(path)), text, chapter, node_rows.marks_from_json(marks))
                for path, text, chapter, marks in found
            )

    def book(self, document_id: str) -> Book:
        """A book as its reader read it. Raises NotFound."""
        document = self.document(document_id)
        with self._database.reading() as rows:
            (labels,) = rows.execute(
                "SELECT page_labels FROM documents WHERE document_id = ?", (document_id,)
            ).fetchone()
        sections = self.sections(document_id)
        return Book(
            document.title, document.format, sections, document.pages, tuple(json.loads(labels)), document.health
        )

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
            new_vectors: little-endian float32 vectors of embedded texts not stored yet, by `NodeDraft.text_sha`.
            only_embedder: delete the vectors of all other embedders; the entries must then be the whole library.
        """
        with self._database.writing() as rows:
            _set_meta(rows, "embedder", embedder)
            node_rows.insert_vectors(rows, embedder, new_vectors)
            unused: list[int] = []
            for entry in entries:
                unused.extend(_put_entry(rows, entry, embedder))
            node_rows.delete_unused_vectors(rows, unused)
            if only_embedder:
                rows.execute("DELETE FROM vectors WHERE embedder <> ?", (embedder,))
            _advance(rows)

    def set_aside(self, embedder: str, vectors: dict[bytes, bytes]) -> None:
        """Store vectors that no node uses yet, for a change to another embedder."""
        with self._database.writing() as rows:
            node_rows.insert_vectors(rows, embedder, vectors)

    def remove(self, document_id: str) -> None:
        """Remove a book and all that was derived from it. Raises NotFound."""
        with self._database.writing() as rows:
            unused = node_rows.delete_document(rows, document_id)
            if unused is None:
                raise _no_such_document(document_id)
            node_rows.delete_unused_vectors(rows, unused)
            _advance(rows)

    # --- vectors

    def missing_vectors(self, embedder: str, text_shas: Iterable[bytes]) -> set[bytes]:
        """Those of the embedded texts for which there is no vector yet."""
        wanted = set(text_shas)
        with self._database.reading() as rows:
            return wanted - node_rows.known_vectors(rows, embedder, wanted)

    def ranges(self) -> tuple[int, dict[str, RowRange]]:
        """The generation, and the rowids of each document's nodes at that generation."""
        with self._database.reading() as rows:
            found = rows.execute("SELECT document_id, first_rowid, last_rowid FROM documents WHERE nodes > 0")
            return _generation(rows), {name: RowRange(first, last) for name, first, last in found}

    def vectors_of(self, span: RowRange, dimension: int) -> tuple[np.ndarray, Matrix]:
        """Rowids, shape (n,), and vectors, shape (n, dimension), of the nodes in a range."""
        with self._database.reading() as rows:
            return node_rows.vectors_in(rows, span.first, span.last, dimension)

    def vectors_at(self, rowids: np.ndarray, dimension: int) -> tuple[np.ndarray, Matrix]:
        """Rowids, ascending, shape (n,), and vectors, shape (n, dimension), of those of these nodes that are there."""
        with self._database.reading() as rows:
            return node_rows.vectors_at(rows, rowids, dimension)

    # --- nodes

    def lexical(self, terms: Sequence[str], top_k: int, filters: Filters) -> list[Hit]:
        """Nodes that hold any of the terms, best first."""
        with self._database.reading() as rows:
            ranked = lexical_rows.lexical_ranking(rows, terms, top_k, filters)
            nodes = {node.rowid: node for node in self._nodes(rows, [rowid for rowid, _ in ranked])}
        return [Hit(nodes[rowid], score) for rowid, score in ranked]

    def check_filters(self, filters: Filters) -> None:
        """Raises NotFound when a filter names a document that is not there."""
        for document_id in filters.document_ids:
            self.document(document_id)

    def rowids(self, filters: Filters) -> np.ndarray:
        """Rowids of the nodes that pass the filters, int64, ascending."""
        with self._database.reading() as rows:
            return node_rows.filtered_rowids(rows, filters)

    def nodes_by_rowid(self, rowids: Sequence[int]) -> list[StoredNode]:
        """The nodes with these rowids that are still there, in the order asked."""
        with self._database.reading() as rows:
            return self._nodes(rows, rowids)

    def rowids_by_id(self, node_ids: Sequence[str]) -> dict[str, int]:
        """Rowids of those of these node ids that are there."""
        with self._database.reading() as rows:
            return node_rows.rowids_of_ids(rows, node_ids)

    def nodes_by_id(self, node_ids: Sequence[str]) -> list[StoredNode]:
        """The nodes with these ids, in the order asked. Raises NotFound for an id that names nothing."""
        with self._database.reading() as rows:
            rowids = node_rows.rowids_of_ids(rows, node_ids)
            missing = [node_id for node_id in node_ids if node_id not in rowids]
            if missing:
                raise NotFound(
                    f"There is no node '{missing[0]}'.", hint="it may have changed with its book; search again"
                )
            return self._nodes(rows, [rowids[node_id] for node_id in node_ids])

    def nodes_of(self, document_id: str) -> list[StoredNode]:
        """All nodes of a book in order. Raises NotFound."""
        self.document(document_id)
        with self._database.reading() as rows:
            return node_rows.select_nodes(
                rows, self._title_map(rows), "document_id = ? ORDER BY nodes.rowid", (document_id,)
            )

    def neighbours(self, node: StoredNode, before: int, after: int) -> list[StoredNode]:
        """The node with those of its section that stand around it, in document order."""
        with self._database.reading() as rows:
            return node_rows.neighbours(rows, self._title_map(rows), node, before, after)

    def _nodes(self, rows: sqlite3.Connection, rowids: Sequence[int]) -> list[StoredNode]:
        found = node_rows.nodes_at(rows, self._title_map(rows), rowids)
        return [found[rowid] for rowid in rowids if rowid in found]

    def _title_map(self, rows: sqlite3.Connection) -> dict[str, str]:
        generation = _generation(rows)
        if self._titles[0] != generation:
            self._titles = (generation, dict(rows.execute("SELECT document_id, title FROM documents").fetchall()))
        return self._titles[1]


def open_catalog(path: Path, *, create: bool) -> Catalog:
    """Open the catalog at `path`, or make it. Raises as `open_database`."""
    return Catalog(open_database(path, create=create))


def _put_entry(rows: sqlite3.Connection, entry: CatalogEntry, embedder: str) -> list[int]:
    """Write one book; the vectors that its former state used."""
    name = entry.identity.document_id
    row = rows.execute("SELECT added_at FROM documents WHERE document_id = ?", (name,)).fetchone()
    added_at = str(row[0]) if row is not None else datetime.now(UTC).isoformat(timespec="seconds")
    unused = node_rows.delete_document(rows, name) or []
    insert_document(rows, entry, added_at)
    insert_sections(rows, name, entry.book)
    vector_ids = node_rows.vector_ids(rows, embedder, {draft.text_sha for draft in entry.drafts})
    span = node_rows.insert_nodes(rows, name, entry.drafts, vector_ids)
    rows.execute("UPDATE documents SET first_rowid = ?, last_rowid = ? WHERE document_id = ?", (*span, name))
    return unused


def _generation(rows: sqlite3.Connection) -> int:
    return int(_meta(rows, "generation") or 0)


def _meta(rows: sqlite3.Connection, key: str) -> str | None:
    row = rows.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row is not None else None


def _set_meta(rows: sqlite3.Connection, key: str, value: str) -> None:
    rows.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value))


def _advance(rows: sqlite3.Connection) -> None:
    _set_meta(rows, "generation", str(_generation(rows) + 1))


def _no_such_document(document_id: str) -> NotFound:
    return NotFound(f"There is no document '{document_id}'.", hint="coalesce list")
