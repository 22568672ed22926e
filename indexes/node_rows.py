"""SQL over nodes, their vectors and their lexical terms. Functions of an open transaction; no state."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from indexes.chunking import NodeDraft
from indexes.terms import terms
from indexes.text_encoder import Matrix
from indexes.types import Filters, PageMarks, StoredNode

_COLUMNS = (
    "nodes.rowid, node_id, nodes.document_id, ordinal, chapter, heading_path, text, page_marks, page_labels, num_tokens"
)


def marks_to_json(marks: PageMarks) -> str:
    """Page marks as stored."""
    return json.dumps(marks, separators=(",", ":")) if marks else ""


def marks_from_json(text: str) -> PageMarks:
    """Page marks as read."""
    return tuple((offset, page) for offset, page in json.loads(text)) if text else ()


# --- writing


def delete_document(rows: sqlite3.Connection, document_id: str) -> list[int] | None:
    """Delete a document with its chapters, sections, nodes and terms.

    Returns the vectors that its nodes used, for `delete_unused_vectors`; None when there is no such document.
    """
    found = rows.execute(
        "SELECT first_rowid, last_rowid FROM documents WHERE document_id = ?", (document_id,)
    ).fetchone()
    if found is None:
        return None
    used = [row[0] for row in rows.execute("SELECT vector_id FROM nodes WHERE rowid BETWEEN ? AND ?", found)]
    rows.execute("DELETE FROM lexical WHERE rowid BETWEEN ? AND ?", found)
    rows.execute("DELETE FROM nodes WHERE rowid BETWEEN ? AND ?", found)
    rows.execute("DELETE FROM sections WHERE document_id = ?", (document_id,))
    rows.execute("DELETE FROM chapters WHERE document_id = ?", (document_id,))
    rows.execute("DELETE FROM documents WHERE document_id = ?", (document_id,))
    return used


def insert_vectors(rows: sqlite3.Connection, embedder: str, vectors: dict[bytes, bytes]) -> None:
    """Store vectors (little-endian float32) by the digest of their texts; those already there stay."""
    rows.executemany(
        "INSERT OR IGNORE INTO vectors (embedder, text_sha, vector) VALUES (?, ?, ?)",
        ((embedder, sha, vector) for sha, vector in vectors.items()),
    )


def vector_ids(rows: sqlite3.Connection, embedder: str, wanted: set[bytes]) -> dict[bytes, int]:
    """Keys of the stored vectors of these texts."""
    query = "SELECT text_sha, vector_id FROM vectors WHERE embedder = ? AND text_sha IN"
    return dict(_lookup(rows, query, embedder, wanted))


def known_vectors(rows: sqlite3.Connection, embedder: str, wanted: set[bytes]) -> set[bytes]:
    """Those of the wanted texts whose vectors are stored."""
    return set(vector_ids(rows, embedder, wanted))


def insert_nodes(
    rows: sqlite3.Connection, document_id: str, drafts: Sequence[NodeDraft], vector_ids: dict[bytes, int]
) -> tuple[int, int]:
    """Store nodes under consecutive rowids with their terms and chapters; the first and last rowid."""
    row = rows.execute("SELECT seq FROM sqlite_sequence WHERE name = 'nodes'").fetchone()
    first = (int(row[0]) if row is not None else 0) + 1
    seen: Counter[str] = Counter()
    chapters: dict[int, list[object]] = {}
    headings: dict[tuple[str, ...], str] = {}
    for ordinal, draft in enumerate(drafts):
        rowid = first + ordinal
        node_id = _node_id(document_id, draft, seen)
        pages = (draft.page_marks[0][1], draft.page_marks[-1][1]) if draft.page_marks else (None, None)
        path = json.dumps(draft.heading_path, ensure_ascii=False)
        rows.execute(
            "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                rowid, node_id, document_id, ordinal, draft.section, draft.chapter, path, draft.text,
                marks_to_json(draft.page_marks), json.dumps(draft.page_labels) if draft.page_labels else "", *pages,
                draft.num_tokens, vector_ids[draft.text_sha],
            ),
        )  # fmt: skip
        heading = headings.setdefault(draft.heading_path, " ".join(terms(" \n ".join(draft.heading_path))))
        rows.execute(
            "INSERT INTO lexical (rowid, heading, body) VALUES (?, ?, ?)", (rowid, heading, " ".join(terms(draft.text)))
        )
        title = draft.heading_path[0] if draft.heading_path else ""
        counted = chapters.setdefault(draft.chapter, [title, 0])
        counted[1] = int(str(counted[1])) + 1
    rows.executemany(
        "INSERT INTO chapters VALUES (?, ?, ?, ?)",
        ((document_id, ordinal, title, count) for ordinal, (title, count) in sorted(chapters.items())),
    )
    return first, first + len(drafts) - 1


def delete_unused_vectors(rows: sqlite3.Connection, candidates: Iterable[int]) -> None:
    """Delete those of the candidate vectors that no node uses any more."""
    rows.executemany(
        "DELETE FROM vectors WHERE vector_id = ?1 AND NOT EXISTS (SELECT 1 FROM nodes WHERE vector_id = ?1)",
        ((vector_id,) for vector_id in set(candidates)),
    )


def _node_id(document_id: str, draft: NodeDraft, seen: Counter[str]) -> str:
    """Content-addressed: the same text under the same headings of the same book keeps its id."""
    content = "\x1f".join((document_id, *draft.heading_path, draft.text))
    digest = hashlib.sha256(content.encode("utf-8", errors="replace")).hexdigest()[:20]
    seen[digest] += 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def _lookup(
    rows: sqlite3.Connection, query: str, first: object, wanted: Iterable[object]
) -> Iterator[tuple[bytes, int]]:
    keys = list(wanted)
    for start in range(0, len(keys), 500):
        part = keys[start : start + 500]
        yield from rows.execute(f"{query} ({','.join('?' * len(part))})", (first, *part))


# --- reading


def vectors_in(rows: sqlite3.Connection, first: int, last: int, dimension: int) -> tuple[np.ndarray, Matrix]:
    """Rowids and vectors of the nodes in a range of rowids."""
    found = rows.execute(
        "SELECT nodes.rowid, vector FROM nodes JOIN vectors USING (vector_id) WHERE nodes.rowid BETWEEN ? AND ? "
        "ORDER BY nodes.rowid",
        (first, last),
    ).fetchall()
    rowids = np.fromiter((row[0] for row in found), dtype=np.int64, count=len(found))
    flat = np.frombuffer(b"".join(row[1] for row in found), dtype="<f4").astype(np.float32, copy=False)
    return rowids, flat.reshape(len(found), dimension)


def vectors_at(rows: sqlite3.Connection, wanted: np.ndarray, dimension: int) -> tuple[np.ndarray, Matrix]:
    """Rowids and vectors of those nodes that are there."""
    parts = [
        vectors_in(rows, int(run[0]), int(run[-1]), dimension)
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
        if len(run)
    ]
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty((0, dimension), dtype=np.float32)
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def filter_clause(filters: Filters) -> tuple[str, list[object]]:
    """An SQL condition on `nodes` that the filters allow, and its parameters."""
    parts: list[str] = []
    values: list[object] = []
    if filters.document_ids:
        parts.append(f"nodes.document_id IN ({','.join('?' * len(filters.document_ids))})")
        values.extend(filters.document_ids)
    if filters.chapters:
        ordinals = [chapter for chapter in filters.chapters if isinstance(chapter, int)]
        titles = [chapter for chapter in filters.chapters if isinstance(chapter, str)]
        either: list[str] = []
        if ordinals:
            either.append(f"nodes.chapter IN ({','.join('?' * len(ordinals))})")
            values.extend(ordinals)
        if titles:
            either.append(
                "(nodes.document_id, nodes.chapter) IN (SELECT document_id, ordinal FROM chapters WHERE title IN "
                f"({','.join('?' * len(titles))}))"
            )
            values.extend(titles)
        parts.append(f"({' OR '.join(either)})")
    if filters.pages is not None:
        parts.append("nodes.page_start <= ? AND nodes.page_end >= ?")
        values.extend((filters.pages[1], filters.pages[0]))
    return " AND ".join(parts) or "1", values


def filtered_rowids(rows: sqlite3.Connection, filters: Filters) -> np.ndarray:
    """Rowids of the nodes that pass the filters, ascending."""
    clause, values = filter_clause(filters)
    found = rows.execute(f"SELECT rowid FROM nodes WHERE {clause} ORDER BY rowid", values).fetchall()
    return np.fromiter((row[0] for row in found), dtype=np.int64, count=len(found))


def rowids_of_ids(rows: sqlite3.Connection, node_ids: Sequence[str]) -> dict[str, int]:
    """Rowids of those node ids that are there."""
    found: dict[str, int] = {}
    for start in range(0, len(node_ids), 500):
        part = node_ids[start : start + 500]
        found.update(
            rows.execute(
                f"SELECT node_id, rowid FROM nodes WHERE node_id IN ({','.join('?' * len(part))})", part
            ).fetchall()
        )
    return found


def nodes_at(rows: sqlite3.Connection, titles: dict[str, str], rowids: Sequence[int]) -> dict[int, StoredNode]:
    """The nodes with these rowids that are there."""
    found: dict[int, StoredNode] = {}
    for start in range(0, len(rowids), 500):
        part = rowids[start : start + 500]
        clause = f"nodes.rowid IN ({','.join('?' * len(part))})"
        found.update((node.rowid, node) for node in select_nodes(rows, titles, clause, part))
    return found


def neighbours(
    rows: sqlite3.Connection, titles: dict[str, str], node: StoredNode, before: int, after: int
) -> list[StoredNode]:
    """The node with up to `before` and `after` nodes around it in its own section, in document order."""
    clause = (
        "document_id = ? AND section = (SELECT section FROM nodes AS own WHERE own.rowid = ?) "
        "AND nodes.rowid BETWEEN ? AND ? ORDER BY nodes.rowid"
    )
    values = (node.document_id, node.rowid, node.rowid - before, node.rowid + after)
    return select_nodes(rows, titles, clause, values)


def select_nodes(
    rows: sqlite3.Connection, titles: dict[str, str], clause: str, values: Sequence[object]
) -> list[StoredNode]:
    """Nodes for which an SQL condition holds."""
    return [_node(row, titles) for row in rows.execute(f"SELECT {_COLUMNS} FROM nodes WHERE {clause}", values)]


def _node(row: tuple[object, ...], titles: dict[str, str]) -> StoredNode:
    rowid, node_id, document_id, ordinal, chapter, path, text, marks, labels, num_tokens = row
    return StoredNode(
        rowid=int(str(rowid)),
        node_id=str(node_id),
        document_id=str(document_id),
        title=titles.get(str(document_id), ""),
        ordinal=int(str(ordinal)),
        chapter=int(str(chapter)),
        heading_path=tuple(json.loads(str(path))),
        text=str(text),
        page_marks=marks_from_json(str(marks)),
        page_labels=tuple(json.loads(str(labels))) if labels else (),
        num_tokens=int(str(num_tokens)),
    )
