"""A process killed at any moment leaves the library as it was before the book, or as it is after it: never between."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import HashEncoder

from indexes.library import Library, open_library
from indexes.settings import IndexSettings

# It has imported what adding needs, and forks a process for each book: importing takes longer than adding. The process
# says that it begins and that it is done; when it has ended, its status is said.
FORKING = """
import os, sys, traceback
from pathlib import Path
import faiss
import llama_index.core.ingestion
from fakes import HashEncoder
from indexes import llama_index, vectors
from indexes.library import open_library
from indexes.settings import IndexSettings

vectors.SAVE_AT_LEAST = 1

def say(word):
    os.write(1, f"{os.getpid()} {word}\\n".encode())

def add(home, book):
    try:
        library = open_library(IndexSettings(home), embedder=HashEncoder())
        library.load()
        say("begin")
        library.add(book)
        library.close()
        say("done")
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)

for line in sys.stdin:
    home, book = line.rstrip("\\n").split("\\t")
    if os.fork() == 0:
        add(Path(home), Path(book))
    say(f"ended {os.wait()[1]}")
"""


class Adders:
    """Processes that add a book."""

    def __init__(self) -> None:
        tests, root = (str(Path(__file__).resolve().parents[levels]) for levels in (1, 2))
        self._forking = subprocess.Popen(
            [sys.executable, "-c", FORKING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": f"{tests}:{root}", "PATH": "/usr/bin:/bin"},
        )

    def start(self, home: Path, book: Path) -> None:
        assert self._forking.stdin is not None
        self._forking.stdin.write(f"{home}\t{book}\n")
        self._forking.stdin.flush()

    def said(self) -> tuple[int, str]:
        """The next word, and the process that said it."""
        assert self._forking.stdout is not None
        pid, _, word = self._forking.stdout.readline().rstrip("\n").partition(" ")
        return int(pid), word

    def until_ended(self) -> None:
        while not self.said()[1].startswith("ended"):
            pass

    def close(self) -> None:
        self._forking.communicate()


@pytest.fixture(scope="module")
def adders() -> Iterator[Adders]:
    made = Adders()
    yield made
    made.close()


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


def kill_at_random_moments(adders: Adders, tmp_path: Path, kills: int, paragraphs: int) -> tuple[int, int]:
    rng = random.Random(7)
    home, book = tmp_path / "home", tmp_path / "book"
    write_book(book, 0, paragraphs)
    adders.start(home, book)
    assert adders.said()[1] == "begin"
    started = time.monotonic()
    assert adders.said()[1] == "done"
    at_most = time.monotonic() - started
    assert adders.said()[1] == "ended 0"
    before_count = after_count = 0
    for edition in range(1, kills + 1):
        before = state(home)
        write_book(book, edition, paragraphs)
        adders.start(home, book)
        child, _ = adders.said()
        time.sleep(rng.random() * at_most)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        adders.until_ended()
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
def test_a_kill_leaves_before_or_after(adders: Adders, tmp_path: Path) -> None:
    kill_at_random_moments(adders, tmp_path, kills=4, paragraphs=60)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_kills_leave_before_or_after(adders: Adders, tmp_path: Path) -> None:
    before, after = kill_at_random_moments(adders, tmp_path, kills=50, paragraphs=300)
    assert min(before, after) >= 5
