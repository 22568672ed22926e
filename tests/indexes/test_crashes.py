"""A process killed at any moment leaves the library as it was before the book, or as it is after it: never between."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder

from indexes.library import Library, open_library
from indexes.settings import IndexSettings


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> ForkServerContext:
    """Forks each process from one that has imported what adding needs: importing takes longer than adding."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of the one that forks
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["adding"])
    return context


def start(forking: ForkServerContext, home: Path, book: Path) -> tuple[ForkServerProcess, Connection]:
    """A process that has begun to add the book, and what it will say."""
    from adding import add

    said, says = forking.Pipe(duplex=False)
    process = forking.Process(target=add, args=(home, book, says))
    process.start()
    says.close()
    assert said.recv() == "begin"
    return process, said


def write_book(book: Path, edition: int, paragraphs: int) -> None:
    book.mkdir(exist_ok=True)
    for chapter in range(3):
        text = "\n\n".join(f"Paragraph {n} of edition {edition} tells of warps. " * 6 for n in range(paragraphs))
        (book / f"{chapter}.md").write_text(f"# Chapter {chapter}\n\n## Part\n\n{text}\n")


def state(home: Path) -> object:
    """All that can be seen and found, from a freshly opened library."""
    library: Library = open_library(IndexSettings(home), embedder=HashEncoder())
    library.load()
    documents = library.documents()
    nodes = [node for document in documents for node in library.nodes_of(document.document_id)]
    dense = library.dense("paragraph of an edition", 10_000)
    lexical = library.lexical("paragraph edition", 10_000)
    assert {hit.node.node_id for hit in dense} == {node.node_id for node in nodes}
    assert {hit.node.node_id for hit in lexical} == {node.node_id for node in nodes}
    library.close()
    return [(document.sha256, document.nodes) for document in documents], [(node.node_id, node.text) for node in nodes]


def kill_at_random_moments(forking: ForkServerContext, tmp_path: Path, kills: int, paragraphs: int) -> tuple[int, int]:
    rng = random.Random(7)
    home, book = tmp_path / "home", tmp_path / "book"
    write_book(book, 0, paragraphs)
    process, said = start(forking, home, book)
    started = time.monotonic()
    assert said.recv() == "done"
    at_most = time.monotonic() - started
    process.join()
    before_count = after_count = 0
    for edition in range(1, kills + 1):
        before = state(home)
        write_book(book, edition, paragraphs)
        process, _ = start(forking, home, book)
        time.sleep(rng.random() * at_most)
        process.kill()
        process.join()
        now = state(home)
        if now == before:
            before_count += 1
            at_most *= 1.1  # how long an edit takes depends on what else runs: search for the moment between
        else:
            after_count += 1
            at_most *= 0.8
            reference = tmp_path / f"reference-{edition}"
            library = open_library(IndexSettings(reference), embedder=HashEncoder())
            library.add(book)
            library.close()
            assert now == state(reference)
    return before_count, after_count


@pytest.mark.integration
def test_a_kill_leaves_before_or_after(forking: ForkServerContext, tmp_path: Path) -> None:
    kill_at_random_moments(forking, tmp_path, kills=4, paragraphs=60)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_kills_leave_before_or_after(forking: ForkServerContext, tmp_path: Path, record_property: Any) -> None:
    record_property("tried", 50)
    before, after = kill_at_random_moments(forking, tmp_path, kills=50, paragraphs=300)
    assert min(before, after) >= 5
