"""A home that holds the sample book, made once by `coalesce serve` and kept between test runs."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock
from serving import start, stop

from indexes.embedder import BUNDLED_SHA256
from indexes.ingest import CHUNKER_VERSION, READER_VERSION
from indexes.sample import SAMPLE_PATH


def open_sample_home(cache: Path) -> Path:
    """The home of the book as it is now, kept in `cache`; homes of earlier books are removed. One process makes it."""
    home = cache / _identity()
    with FileLock(cache.with_suffix(".lock")):
        if not home.exists():
            shutil.rmtree(cache)
            cache.mkdir()
            made = Path(tempfile.mkdtemp(dir=cache)) / "home"
            assert stop(start(made)) == 0
            made.rename(home)
    return home


def _identity() -> str:
    """A digest of the book, of how it is read and cut, and of the embedder's weights."""
    digest = hashlib.sha256(f"{READER_VERSION} {CHUNKER_VERSION} {BUNDLED_SHA256}".encode())
    for chapter in sorted(SAMPLE_PATH.iterdir()):
        digest.update(chapter.name.encode() + chapter.read_bytes())
    return digest.hexdigest()[:20]
