"""Adds a book in a process that tests kill; to import this module is to import all that adding needs."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import faiss  # noqa: F401
import llama_index.core.ingestion
from fakes import HashEncoder

from indexes import llama_index, vectors  # noqa: F401
from indexes.library import open_library
from indexes.settings import IndexSettings


def add(home: Path, book: Path, said: Connection) -> None:
    """Says when it begins and when it is done."""
    vectors.SAVE_AT_LEAST = 1
    library = open_library(IndexSettings(home), embedder=HashEncoder())
    library.load()
    said.send("begin")
    library.add(book)
    library.close()
    said.send("done")
