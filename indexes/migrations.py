"""The catalog's schema, step by step. Step n brings a catalog from version n-1 to version n; steps never change."""

from __future__ import annotations

_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('generation', '0');

CREATE TABLE documents (
    document_id  TEXT PRIMARY KEY,
    title        TEXT NOT NULL,
    source       TEXT NOT NULL,
    sample       INTEGER NOT NULL,
    format       TEXT NOT NULL,
    pages        INTEGER,
    page_labels  TEXT NOT NULL,
    sections     INTEGER NOT NULL,
    nodes        INTEGER NOT NULL,
    sha256       TEXT NOT NULL,
    chunking     TEXT NOT NULL,
    added_at     TEXT NOT NULL,
    health       TEXT NOT NULL,
    first_rowid  INTEGER NOT NULL,   -- a document's nodes have consecutive rowids
    last_rowid   INTEGER NOT NULL
);

CREATE TABLE chapters (
    document_id  TEXT NOT NULL REFERENCES documents ON DELETE CASCADE,
    ordinal      INTEGER NOT NULL,
    title        TEXT NOT NULL,
    nodes        INTEGER NOT NULL,
    PRIMARY KEY (document_id, ordinal)
) WITHOUT ROWID;

-- Sections are kept whole, so that a library can be cut anew for another embedder when its sources are gone.
CREATE TABLE sections (
    section_id   INTEGER PRIMARY KEY,
    document_id  TEXT NOT NULL REFERENCES documents ON DELETE CASCADE,
    ordinal      INTEGER NOT NULL,
    chapter      INTEGER NOT NULL,
    heading_path TEXT NOT NULL,
    text         TEXT NOT NULL,
    page_marks   TEXT NOT NULL
);
CREATE UNIQUE INDEX sections_in_order ON sections (document_id, ordinal);

CREATE TABLE nodes (
    rowid        INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: FAISS knows nodes by it
    node_id      TEXT NOT NULL,
    document_id  TEXT NOT NULL REFERENCES documents ON DELETE CASCADE,
    ordinal      INTEGER NOT NULL,
    section      INTEGER NOT NULL,
    chapter      INTEGER NOT NULL,
    heading_path TEXT NOT NULL,
    text         TEXT NOT NULL,
    page_marks   TEXT NOT NULL,
    page_labels  TEXT NOT NULL,
    page_start   INTEGER,
    page_end     INTEGER,
    num_tokens   INTEGER NOT NULL,
    vector_id    INTEGER NOT NULL REFERENCES vectors
);
CREATE UNIQUE INDEX nodes_by_id ON nodes (node_id);
CREATE INDEX nodes_by_vector ON nodes (vector_id);
CREATE INDEX nodes_by_chapter ON nodes (document_id, chapter);

CREATE TABLE vectors (
    vector_id    INTEGER PRIMARY KEY,
    embedder     TEXT NOT NULL,
    text_sha     BLOB NOT NULL,
    vector       BLOB NOT NULL
);
CREATE UNIQUE INDEX vectors_by_text ON vectors (embedder, text_sha);

-- Precomputed terms (indexes/terms.py), parted by spaces; bytes above 127 are letters to this tokenizer.
CREATE VIRTUAL TABLE lexical USING fts5(heading, body, tokenize = "ascii tokenchars '_.'");
"""

MIGRATIONS: tuple[str, ...] = (_FIRST,)
SCHEMA_VERSION = len(MIGRATIONS)
