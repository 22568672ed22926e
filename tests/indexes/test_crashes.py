"""A process killed at any moment leaves the library as it was before the book, or as it is after it: never between."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import HashEncoder

from indexes.library import Library, open_library
from indexes.settings import IndexSettings

# The child adds the book, edited for each round; it says so before it begins and after it is done.
CHILD = """
import sys
from pathlib import Path
from fakes import HashEncoder
from indexes import vectors
from indexes.library import open_library
from indexes.settings import IndexSettings
vectors.SAVE_AT_LEAST = 1
home, book = map(Path, sys.argv[1:3])
library = open_library(IndexSettings(home), embedder=HashEncoder())
library.load()
print("begin", flush=True)
library.add(book)
library.close()
print("done", flush=True)
"""


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


def run_child(home: Path, book: Path) -> subprocess.Popen[str]:
    tests = str(Path(__file__).resolve().parents[1])
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(home), str(book)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{tests}:{root}", "PATH": "/usr/bin:/bin"},
    )


def kill_at_random_moments(tmp_path: Path, kills: int, paragraphs: int) -> tuple[int, int]:
    rng = random.Random(7)
    home, book = tmp_path / "home", tmp_path / "book"
    write_book(book, 0, paragraphs)
    whole = run_child(home, book)
    assert whole.stdout is not None
    whole.stdout.readline()
    started = time.monotonic()
    assert whole.stdout.readline() == "done\n"
    at_most = time.monotonic() - started
    whole.communicate()
    before_count = after_count = 0
    for edition in range(1, kills + 1):
        before = state(home)
        write_book(book, edition, paragraphs)
        child = run_child(home, book)
        assert child.stdout is not None
        child.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(rng.random() * at_most)
        child.send_signal(signal.SIGKILL)
        child.communicate()
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
def test_a_kill_leaves_before_or_after(tmp_path: Path) -> None:
    kill_at_random_moments(tmp_path, kills=4, paragraphs=60)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_kills_leave_before_or_after(tmp_path: Path) -> None:
    before, after = kill_at_random_moments(tmp_path, kills=50, paragraphs=300)
    assert min(before, after) >= 5


@pytest.mark.integration
def test_two_processes_add_one_book_at_once(tmp_path: Path) -> None:
    home, book = tmp_path / "home", tmp_path / "book"
    write_book(book, 0, 100)
    children = [run_child(home, book) for _ in range(3)]
    for child in children:
        out, _ = child.communicate(timeout=120)
        assert out == "begin\ndone\n"
        assert child.returncode == 0
    documents, nodes = state(home)  # type: ignore[misc]
    assert len(documents) == 1
    assert len(nodes) == documents[0][1]
