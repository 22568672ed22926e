"""Searching a large library: dense and hybrid beside the bare cost (encode the query, raw FAISS flat) and llama-index.

`hybrid` is both rankings; `served` is all that `POST /v1/search` does: fusion, wording, passages too.
The library has real texts and noisy vectors (`synthetic.py`); queries are the bank's dev questions, encoded for real.
"""

from __future__ import annotations

import tempfile
from itertools import cycle
from pathlib import Path
from typing import Any

from evals.bench.synthetic import NoisyEncoder, write_synthetic_book
from evals.bench.timing import side_by_side
from evals.questions import load_bank
from indexes.embedder import load_embedder
from indexes.library import Library, open_library
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings
from rag.assemble import build_engine
from rag.settings import GeneratorSettings, RagSettings

TOP_K = 10


def bench_search(nodes: int = 50_000, rounds: int = 40, with_llama_index: bool = True) -> dict[str, Any]:
    """Median milliseconds a query of each way over `rounds` queries, and the ratios to the bare cost."""
    import faiss

    with tempfile.TemporaryDirectory() as folder:
        settings = IndexSettings(home=Path(folder) / "home")
        embedder = load_embedder(settings)
        with_book = open_library(IndexSettings(home=Path(folder) / "small"), embedder=embedder)
        texts = [node.text for node in with_book.nodes_of(with_book.add(SAMPLE_PATH).document.document_id)]
        with_book.close()
        noisy = NoisyEncoder(embedder, embedder.encode(texts))
        library = _large_library(settings, noisy, texts, nodes, Path(folder))
        count = sum(document.nodes for document in library.documents())
        vectors = noisy.vectors(count)
        flat = faiss.IndexFlatIP(embedder.dimension)
        flat.add(vectors)
        questions = cycle([question.question for question in load_bank(split="dev")])
        current = {"question": next(questions)}

        def bare() -> None:
            current["question"] = next(questions)
            flat.search(embedder.encode_queries([current["question"]]), TOP_K)

        engine = build_engine(RagSettings(home=settings.home, generator=GeneratorSettings(kind="extractive")), library)
        ways = {
            "bare": bare,
            "dense": lambda: library.dense(current["question"], TOP_K),
            "hybrid": lambda: _hybrid(library, current["question"]),
            "served": lambda: engine.search(current["question"], TOP_K),
        }
        if with_llama_index:
            ways["llama_index"] = _llama_index_search(vectors, texts, embedder, current)
        seconds = side_by_side(ways, rounds, warmup=3)
        engine.close()
        library.close()
    return {
        "bench": "search",
        "nodes": count,
        "queries": rounds,
        "ms": {name: round(1000 * value, 2) for name, value in seconds.items()},
        "dense_over_bare": round(seconds["dense"] / seconds["bare"], 2),
        "served_over_bare": round(seconds["served"] / seconds["bare"], 2),
        "hybrid_over_bare": round(seconds["hybrid"] / seconds["bare"], 2),
    }


def _hybrid(library: Library, question: str) -> None:
    library.dense(question, 50)
    library.lexical(question, 50)


def _large_library(settings: IndexSettings, noisy: NoisyEncoder, texts: list[str], nodes: int, folder: Path) -> Library:
    """A library of about `nodes` nodes in ten books."""
    library = open_library(settings, embedder=noisy)
    number = 0
    while (have := sum(document.nodes for document in library.documents())) < nodes:
        sections = max(1, min(nodes // 10, nodes - have))
        library.add(write_synthetic_book(folder / f"book-{number}.md", texts, sections, seed=number))
        number += 1
    return library


def _llama_index_search(vectors: Any, texts: list[str], embedder: Any, current: dict[str, str]) -> Any:
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
