"""A library far larger than one shelf: filled, opened, searched and added to, with what each costs.

Nodes have real texts with a number in each, and real vectors with noise (`synthetic.py`). They are written into the
catalog as books of `BOOK_NODES` nodes without being cut or embedded: that costs the same per book at any size and is
what `bench indexing` measures. Everything after is the library as it is served.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from evals.bench.synthetic import NoisyEncoder
from evals.bench.timing import percentile
from evals.questions import load_bank
from indexes.catalog import Catalog, open_catalog
from indexes.chunking import NodeDraft, chunk_book
from indexes.database import open_database
from indexes.document_rows import BookIdentity, CatalogEntry
from indexes.embedder import load_embedder
from indexes.lexical_rows import lexical_ranking
from indexes.library import Library, open_library
from indexes.readers import read_book
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from indexes.terms import query_terms
from indexes.types import Book, Filters, Section

TOP_K = 10
BOOK_NODES = 10_000
SMALL_NODES = 1_000
ADDS = 5
CUT_TOKENS = 240


def bench_scale(nodes: int = 250_000, rounds: int = 200) -> dict[str, Any]:
    """Seconds, bytes, milliseconds a query (`rounds` queries a way) and recall@10 of a library of `nodes` nodes."""
    with tempfile.TemporaryDirectory() as folder:
        embedder = load_embedder(IndexSettings(home=Path(folder)))
        drafts = list(chunk_book(read_book(SAMPLE_PATH), embedder.token_starts, CUT_TOKENS))
        noisy = NoisyEncoder(embedder, embedder.encode([draft.embedded_text for draft in drafts]))
        questions = [question.question for question in load_bank(split="dev")]
        small = _opened(Path(folder) / "small", noisy, drafts, SMALL_NODES)
        small_add_s = _add_seconds(small, Path(folder), questions[0])
        small.close()

        settings = IndexSettings(home=Path(folder) / "large")
        started = time.perf_counter()
        _fill(settings, noisy, drafts, nodes)
        fill_s = time.perf_counter() - started
        library, build_s = _open(settings, noisy)
        library.close()
        library, open_s = _open(settings, noisy)
        opened_bytes = psutil.Process().memory_info().rss
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        book = library.documents()[0].document_id
        asked = list(islice(cycle(questions), rounds))
        ways: dict[str, Callable[[str], Any]] = {
            "dense": lambda question: library.dense(question, TOP_K),
            "lexical": lambda question: library.lexical(question, TOP_K),
            "hybrid": lambda question: (library.dense(question, 50), library.lexical(question, 50)),
            "dense_in_one_book": lambda question: library.dense(question, TOP_K, Filters((book,))),
            "lexical_in_one_book": lambda question: library.lexical(question, TOP_K, Filters((book,))),
        }
        milliseconds = {name: _query_ms(way, asked) for name, way in ways.items()}
        agreement = _lexical_agreement(settings, questions, nodes)
        recall = _recall(library, settings, embedder.encode_queries(questions), embedder.dimension)
        add_s = _add_seconds(library, Path(folder), questions[0])
        library.close()
        files = {path.name: path.stat().st_size for path in settings.home.iterdir() if path.is_file()}
    return {
        "bench": "scale",
        "nodes": nodes,
        "queries": rounds,
        "fill_s": round(fill_s, 1),
        "build_and_save_s": round(build_s, 1),
        "open_s": round(open_s, 1),
        "opened_bytes": opened_bytes,
        "peak_bytes": peak_bytes,
        "catalog_bytes": files.get("library.sqlite3", 0),
        "index_bytes": files.get("vectors.faiss", 0),
        "ms": milliseconds,
        "recall_at_10": round(statistics.fmean(recall), 4),
        "lexical_agreement_at_10": round(statistics.fmean(agreement), 4),
        "recall_questions": len(recall),
        "add_a_book_ms": {str(SMALL_NODES): round(1000 * small_add_s, 1), str(nodes): round(1000 * add_s, 1)},
    }


def _opened(home: Path, noisy: NoisyEncoder, drafts: Sequence[NodeDraft], nodes: int) -> Library:
    settings = IndexSettings(home=home)
    _fill(settings, noisy, drafts, nodes)
    return _open(settings, noisy)[0]


def _open(settings: IndexSettings, noisy: NoisyEncoder) -> tuple[Library, float]:
    """The library, loaded, and the seconds that its vectors took (the embedder is there already)."""
    started = time.perf_counter()
    library = open_library(settings, embedder=noisy)
    library.load()
    return library, time.perf_counter() - started


def _fill(settings: IndexSettings, noisy: NoisyEncoder, drafts: Sequence[NodeDraft], nodes: int) -> None:
    """Write books of `BOOK_NODES` nodes into the catalog."""
    catalog = open_catalog(settings.catalog_path, create=True)
    for first in range(0, nodes, BOOK_NODES):
        _put_book(catalog, noisy, drafts, range(first, min(first + BOOK_NODES, nodes)))
    catalog.close()


def _put_book(catalog: Catalog, noisy: NoisyEncoder, drafts: Sequence[NodeDraft], numbers: range) -> None:
    made = [
        # A number in each text keeps texts apart: the same text has one vector, however often it stands.
        replace(draft, section=place, start=0, chapter=1, text=f"{draft.text}\n\nNote {number}.")
        for place, (number, draft) in enumerate((number, drafts[number % len(drafts)]) for number in numbers)
    ]
    vectors = noisy.vectors(len(made)).astype("<f4")
    sections = tuple(Section(draft.heading_path, draft.text, 1) for draft in made)
    identity = BookIdentity(f"synthetic-{numbers.start}", "synthetic", False, f"{numbers.start:064d}", "synthetic")
    entry = CatalogEntry(identity, Book(f"Synthetic {numbers.start}", "text", sections), made)
    new = {draft.text_sha: vector.tobytes() for draft, vector in zip(made, vectors, strict=True)}
    catalog.put([entry], noisy.fingerprint, new)


def _query_ms(way: Callable[[str], Any], asked: Sequence[str]) -> dict[str, float]:
    """p50 and p99 of one caller's queries, the question's own embedding included."""
    for question in asked[:5]:
        way(question)
    seconds = []
    for question in asked:
        started = time.perf_counter()
        way(question)
        seconds.append(time.perf_counter() - started)
    return {"p50": round(1000 * percentile(seconds, 0.5), 1), "p99": round(1000 * percentile(seconds, 0.99), 1)}


def _recall(library: Library, settings: IndexSettings, queries: np.ndarray, dimension: int) -> list[float]:
    """For each question the share of the exact ten nearest nodes that the library found."""
    catalog = open_catalog(settings.catalog_path, create=False)
    best = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)) for _ in queries]
    for span in catalog.ranges()[1].values():
        rowids, vectors = catalog.vectors_of(span, dimension)
        for place, scores in enumerate(queries @ vectors.T):
            ids = np.concatenate([best[place][0], rowids])
            both = np.concatenate([best[place][1], scores])
            kept = np.argsort(-both)[:TOP_K]
            best[place] = (ids[kept], both[kept])
    catalog.close()
    found = [{hit.node.rowid for hit in library.dense_by_vector(query, TOP_K)} for query in queries]
    return [len(found[place] & set(ids.tolist())) / TOP_K for place, (ids, _) in enumerate(best)]


def _lexical_agreement(settings: IndexSettings, questions: Sequence[str], nodes: int) -> list[float]:
    """For each question the share of the first ten by words that are the same when every row is scored."""
    database = open_database(settings.catalog_path, create=False)
    shares = []
    with database.reading() as rows:
        for question in questions:
            terms = query_terms(question)
            served = {rowid for rowid, _ in lexical_ranking(rows, terms, TOP_K, Filters())}
            whole = {rowid for rowid, _ in lexical_ranking(rows, terms, TOP_K, Filters(), scored_at_least=nodes)}
            shares.append(len(served & whole) / len(whole) if whole else 1.0)
    database.close()
    return shares


def _add_seconds(library: Library, folder: Path, question: str) -> float:
    """Median seconds to add one small book and find it, its embedding left out: that does not know the library."""
    chapter = min(SAMPLE_PATH.glob("*.md")).read_text(encoding="utf-8")
    seconds = []
    for number in range(ADDS):
        path = folder / f"added-{number}.md"
        # Each time another text in every paragraph, or nodes would be found that are already stored.
        path.write_text(chapter.replace(". ", f" ({number}). "), encoding="utf-8")
        started = time.perf_counter()
        document = library.add(path).document
        library.dense(question, TOP_K)
        seconds.append(time.perf_counter() - started)
        library.remove(document.document_id)
    return statistics.median(seconds)
