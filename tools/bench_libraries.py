"""Benchmarks of the library: adding a book, searching, and a very large library.

    python -m tools.bench_libraries indexing|search|scale [--rounds N] [--nodes N] [--database URL]

Large libraries hold real texts and real vectors with a little noise: no approximate
index works on random vectors, and no real corpus of a million nodes is at hand.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from evals.bench.timing import side_by_side
from evals.questions import load_bank
from indexes.catalog import CATALOG, BookIdentity, Catalog, CatalogEntry, open_catalog
from indexes.chunking import Chunk, chunk_book
from indexes.embedder import EncodeListener, Matrix, TextEncoder, bundled_model_folder, load_embedder
from indexes.library import Library, open_library
from indexes.postgres import PostgresDatabase
from indexes.readers import read_book
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from indexes.types import Book, CancelCheck, Filters, Section
from indexes.words import query_terms
from rag.assemble import build_engine
from rag.settings import GeneratorSettings, RagSettings

TOP_K = 10
BOOK_NODES = 10_000
SMALL_NODES = 1_000
ADDS = 5
CUT_TOKENS = 240
NOISE = 0.02
"""Standard deviation of the noise in each coordinate before vectors are made unit length again."""


def bench_indexing(rounds: int = 3) -> dict[str, Any]:
    """Adds the bundled book beside llama-index's default and beside bare encoding of the same node texts.

    llama-index runs `VectorStoreIndex.from_documents` with `HuggingFaceEmbedding` of the same model in float32 and its
    default in-memory store, on our node texts, so that both embed the same. Ours also reads, cuts and stores. Takes
    some minutes.
    """
    from llama_index.core import Document, VectorStoreIndex
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    with tempfile.TemporaryDirectory() as folder:
        embedder = load_embedder(IndexSettings(home=Path(folder)))
        numbers = iter(range(1_000_000))

        def ours() -> Any:
            home = Path(folder) / f"home-{next(numbers)}"
            library = open_library(IndexSettings(home=home), embedder=embedder)
            result = library.add(SAMPLE_PATH)
            library.close()
            return result

        first = open_library(IndexSettings(home=Path(folder) / "first"), embedder=embedder)
        nodes = first.nodes_of(first.add(SAMPLE_PATH).document.document_id)
        texts = ["\n".join((*node.heading_path, node.text)) for node in nodes]
        first.close()
        theirs_model = HuggingFaceEmbedding(
            model_name=str(bundled_model_folder()), device="cpu", embed_batch_size=embedder.batch_size
        )
        documents = [Document(text=text) for text in texts]
        seconds = side_by_side(
            {
                "ours": ours,
                "encoding": lambda: embedder.encode(texts),
                "llama_index": lambda: VectorStoreIndex.from_documents(
                    documents, embed_model=theirs_model, transformations=[]
                ),
            },
            rounds,
        )
    return {
        "bench": "indexing",
        "nodes": len(texts),
        "rounds": rounds,
        "dtype": embedder.dtype,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "nodes_per_s": {name: round(len(texts) / value, 1) for name, value in seconds.items()},
        "times_llama_index": round(seconds["llama_index"] / seconds["ours"], 2),
        "over_bare_encoding": round(seconds["ours"] / seconds["encoding"] - 1, 3),
    }


def bench_search(nodes: int = 50_000, rounds: int = 40) -> dict[str, Any]:
    """Median milliseconds per query of each way over `rounds` queries, and the ratios to the bare cost.

    `bare` encodes the query and searches a flat FAISS index; `dense` and `hybrid` are the library's rankings; `served`
    is all that `POST /v1/search` does; `llama_index` is its default in-memory store with the same vectors. The queries
    are the bank's dev questions, encoded for real.
    """
    import faiss

    with tempfile.TemporaryDirectory() as folder:
        settings = IndexSettings(home=Path(folder))
        embedder = load_embedder(settings)
        chunks, noisy = _sample_chunks(embedder)
        library = _filled_library(settings, noisy, chunks, nodes)
        vectors = noisy.vectors(nodes)
        flat = faiss.IndexFlatIP(embedder.dimension)
        flat.add(vectors)
        questions = cycle([question.question for question in load_bank(split="dev")])
        current = {"question": next(questions)}

        def bare() -> None:
            current["question"] = next(questions)
            flat.search(embedder.encode_queries([current["question"]]), TOP_K)

        engine = build_engine(RagSettings(home=settings.home, generator=GeneratorSettings(kind="extractive")), library)
        seconds = side_by_side(
            {
                "bare": bare,
                "dense": lambda: library.dense(current["question"], TOP_K),
                "hybrid": lambda: _hybrid(library, current["question"]),
                "served": lambda: engine.search(current["question"], TOP_K),
                "llama_index": _llama_index_search(vectors, [chunk.text for chunk in chunks], embedder, current),
            },
            rounds,
            warmup=3,
        )
        engine.close()
        library.close()
    return {
        "bench": "search",
        "nodes": nodes,
        "queries": rounds,
        "ms": {name: round(1000 * value, 2) for name, value in seconds.items()},
        **{f"{name}_over_bare": round(seconds[name] / seconds["bare"], 2) for name in ("dense", "served", "hybrid")},
    }


def _hybrid(library: Library, question: str) -> None:
    library.dense(question, 50)
    library.lexical(question, 50)


def _llama_index_search(
    vectors: Matrix, texts: Sequence[str], embedder: TextEncoder, current: Mapping[str, str]
) -> Callable[[], None]:
    """A query over llama-index's default in-memory store that holds the same vectors."""
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores import SimpleVectorStore
    from llama_index.core.vector_stores.types import VectorStoreQuery

    store = SimpleVectorStore()
    rows = vectors.tolist()
    store.add([TextNode(text=texts[i % len(texts)], embedding=row) for i, row in enumerate(rows)])

    def search() -> None:
        query = [float(value) for value in embedder.encode_queries([current["question"]])[0]]
        store.query(VectorStoreQuery(query_embedding=query, similarity_top_k=TOP_K))

    return search


def bench_scale(nodes: int = 250_000, rounds: int = 200, database: str | None = None) -> dict[str, Any]:
    """Fills, opens, searches and adds to a library of `nodes` nodes: seconds, bytes, ms per query and recall@10.

    Nodes are written into the catalog as books of `BOOK_NODES` nodes without cutting or embedding: that costs the same
    per book at any size, and `bench_indexing` measures it. Everything after is the library as it is served.

    Args:
        database: the address of an empty PostgreSQL database, which is filled in place of a home.
    """
    with tempfile.TemporaryDirectory() as folder:
        embedder = load_embedder(IndexSettings(home=Path(folder)))
        chunks, noisy = _sample_chunks(embedder)
        questions = [question.question for question in load_bank(split="dev")]
        small = _filled_library(IndexSettings(home=Path(folder) / "small"), noisy, chunks, SMALL_NODES)
        small_add_s = _add_seconds(small, Path(folder), questions[0])
        small.close()

        settings = IndexSettings(home=Path(folder) / "large", database_url=database)
        started = time.perf_counter()
        _fill(settings, noisy, chunks, nodes)
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
        files = _sizes(settings)
    return {
        "bench": "scale",
        "nodes": nodes,
        "queries": rounds,
        "fill_s": round(fill_s, 1),
        "build_and_save_s": round(build_s, 1),
        "open_s": round(open_s, 1),
        "opened_bytes": opened_bytes,
        "peak_bytes": peak_bytes,
        "bytes": files,
        "ms": milliseconds,
        "recall_at_10": round(statistics.fmean(recall), 4),
        "lexical_agreement_at_10": round(statistics.fmean(agreement), 4),
        "recall_questions": len(recall),
        "add_a_book_ms": {str(SMALL_NODES): round(1000 * small_add_s, 1), str(nodes): round(1000 * add_s, 1)},
    }


def _sizes(settings: IndexSettings) -> dict[str, int]:
    """Bytes on disk, by file of the home, or of the database and its graph of vectors."""
    if settings.database_url is None:
        return {path.name: path.stat().st_size for path in settings.home.iterdir() if path.is_file()}
    wanted = (
        "SELECT 'database', pg_database_size(current_database()) UNION ALL "
        "SELECT relname, pg_relation_size(oid) FROM pg_class WHERE relname LIKE 'vector_graph%%'"
    )
    with PostgresDatabase(settings.database_url, CATALOG).connected() as connection:
        return {name: int(size) for name, size in connection.exec_driver_sql(wanted)}


def _sample_chunks(embedder: TextEncoder) -> tuple[list[Chunk], NoisyEncoder]:
    """The bundled book's chunks, and an encoder that gives their vectors with noise."""
    chunks = list(chunk_book(read_book(SAMPLE_PATH), embedder.token_starts, CUT_TOKENS))
    return chunks, NoisyEncoder(embedder, embedder.encode([chunk.embedded_text for chunk in chunks]))


def _filled_library(settings: IndexSettings, noisy: NoisyEncoder, chunks: Sequence[Chunk], nodes: int) -> Library:
    _fill(settings, noisy, chunks, nodes)
    return _open(settings, noisy)[0]


def _open(settings: IndexSettings, noisy: NoisyEncoder) -> tuple[Library, float]:
    """The loaded library, and the seconds its vectors took; the embedder was loaded before."""
    started = time.perf_counter()
    library = open_library(settings, embedder=noisy)
    library.load()
    if settings.database_url is not None:  # which is asked for by `load`, but not waited for
        with closing(open_catalog(settings.catalog_path, create=False, database_url=settings.database_url)) as catalog:
            catalog.build_graph(noisy.dimension)
    return library, time.perf_counter() - started


def _fill(settings: IndexSettings, noisy: NoisyEncoder, chunks: Sequence[Chunk], nodes: int) -> None:
    """Write books of `BOOK_NODES` nodes into the catalog."""
    catalog = open_catalog(settings.catalog_path, create=True, database_url=settings.database_url)
    for first in range(0, nodes, BOOK_NODES):
        _put_book(catalog, noisy, chunks, range(first, min(first + BOOK_NODES, nodes)))
    catalog.close()


def _put_book(catalog: Catalog, noisy: NoisyEncoder, chunks: Sequence[Chunk], numbers: range) -> None:
    made = [
        # The number keeps texts apart: equal texts share one vector.
        replace(chunks[number % len(chunks)], section=place, start=0, chapter=1, text=f"{text}\n\nNote {number}.")
        for place, (number, text) in enumerate((number, chunks[number % len(chunks)].text) for number in numbers)
    ]
    vectors = noisy.vectors(len(made)).astype("<f4")
    sections = tuple(Section(chunk.heading_path, chunk.text, 1) for chunk in made)
    identity = BookIdentity(f"synthetic-{numbers.start}", "synthetic", False, f"{numbers.start:064d}", "synthetic")
    entry = CatalogEntry(identity, Book(f"Synthetic {numbers.start}", "text", sections), made)
    new = {chunk.text_sha: vector.tobytes() for chunk, vector in zip(made, vectors, strict=True)}
    catalog.put([entry], noisy.fingerprint, new)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _query_ms(way: Callable[[str], Any], asked: Sequence[str]) -> dict[str, float]:
    """p50 and p99 of one caller's queries, embedding the question included."""
    for question in asked[:5]:
        way(question)
    seconds = []
    for question in asked:
        started = time.perf_counter()
        way(question)
        seconds.append(time.perf_counter() - started)
    return {"p50": round(1000 * percentile(seconds, 0.5), 1), "p99": round(1000 * percentile(seconds, 0.99), 1)}


def _recall(library: Library, settings: IndexSettings, queries: np.ndarray, dimension: int) -> list[float]:
    """Per question, the share of the exact ten nearest nodes that the library found."""
    catalog = open_catalog(settings.catalog_path, create=False, database_url=settings.database_url)
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
    """Per question, the share of the first ten by words that stay the same when every row is scored."""
    catalog = open_catalog(settings.catalog_path, create=False, database_url=settings.database_url)
    shares = []
    for question in questions:
        terms = query_terms(question)
        served = {hit.node.rowid for hit in catalog.lexical(terms, TOP_K, Filters())}
        whole = {hit.node.rowid for hit in catalog.lexical(terms, TOP_K, Filters(), scored_at_least=nodes)}
        shares.append(len(served & whole) / len(whole) if whole else 1.0)
    catalog.close()
    return shares


def _add_seconds(library: Library, folder: Path, question: str) -> float:
    """Median seconds to add one small book and find it; drawing its vectors takes no time."""
    chapter = min(SAMPLE_PATH.glob("*.md")).read_text(encoding="utf-8")
    seconds = []
    for number in range(ADDS):
        path = folder / f"added-{number}.md"
        # Another text in every paragraph each time: equal texts would reuse stored vectors.
        path.write_text(chapter.replace(". ", f" ({number}). "), encoding="utf-8")
        started = time.perf_counter()
        document = library.add(path).document
        library.dense(question, TOP_K)
        seconds.append(time.perf_counter() - started)
        library.remove(document.document_id)
    return statistics.median(seconds)


class NoisyEncoder:
    """Encodes queries for real; gives passages the vectors of real passages, drawn at random, with noise.

    Args:
        real: the encoder that queries go to.
        base: vectors of real passages, shape (num_passages, dimension).
    """

    def __init__(self, real: TextEncoder, base: Matrix, seed: int = 0) -> None:
        self._real = real
        self._base = base
        self._generator = np.random.default_rng(seed)

    @property
    def fingerprint(self) -> str:
        """The real encoder's, so that its queries can be compared."""
        return self._real.fingerprint

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self._real.dimension

    @property
    def max_text_tokens(self) -> int:
        """The real encoder's."""
        return self._real.max_text_tokens

    def token_starts(self, texts: Sequence[str]) -> list[list[int]]:
        """The real encoder's."""
        return self._real.token_starts(texts)

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: EncodeListener | None = None,  # noqa: ARG002  part of the protocol; drawing vectors takes no time
        cancelled: CancelCheck | None = None,  # noqa: ARG002
    ) -> Matrix:
        """Vectors near real ones, shape (len(texts), dimension)."""
        return self.vectors(len(texts))

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        """Vectors of questions, by the real encoder."""
        return self._real.encode_queries(texts)

    def vectors(self, count: int) -> Matrix:
        """`count` noisy vectors of unit length, float32, shape (count, dimension)."""
        rows = self._base[self._generator.integers(0, len(self._base), count)]
        noise = self._generator.standard_normal(rows.shape, dtype=np.float32)
        noisy = rows + NOISE * noise
        return np.asarray(noisy / np.linalg.norm(noisy, axis=1, keepdims=True), dtype=np.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the result as JSON."""
    benches: dict[str, Callable[..., dict[str, Any]]] = {
        "indexing": bench_indexing, "search": bench_search, "scale": bench_scale,
    }  # fmt: skip
    parser = argparse.ArgumentParser(prog="python -m tools.bench_libraries", description="Measure the library.")
    parser.add_argument("bench", choices=benches)
    parser.add_argument("--rounds", type=int, help="rounds or queries")
    parser.add_argument("--nodes", type=int, help="nodes of the library (search and scale)")
    parser.add_argument("--database", help="an empty PostgreSQL database that holds the library (scale)")
    given = vars(parser.parse_args(arguments))
    bench = benches[given.pop("bench")]
    result = bench(**{name: value for name, value in given.items() if value is not None})
    sys.stdout.write(json.dumps(result, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
