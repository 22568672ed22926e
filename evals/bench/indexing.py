"""Adding a book: the whole pipeline beside llama-index's default and beside bare encoding, over the same node texts.

llama-index's way is `VectorStoreIndex.from_documents` with `HuggingFaceEmbedding` of the same model in float32 and its
default in-memory store; it is given our node texts, so that both embed the same. Ours reads, cuts, embeds and stores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from evals.bench.timing import side_by_side
from indexes.embedder import load_embedder
from indexes.library import open_library
from indexes.model_files import bundled_model_folder
from indexes.sample import SAMPLE_PATH
from indexes.settings import IndexSettings


def bench_indexing(book: Path | None = None, rounds: int = 3) -> dict[str, Any]:
    """Nodes a second of both, their ratio, and ours over bare encoding. Some minutes."""
    from llama_index.core import Document, VectorStoreIndex
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    book = book or SAMPLE_PATH
    with tempfile.TemporaryDirectory() as folder:
        embedder = load_embedder(IndexSettings(home=Path(folder)))
        numbers = iter(range(1_000_000))

        def ours() -> Any:
            home = Path(folder) / f"home-{next(numbers)}"
            library = open_library(IndexSettings(home=home), embedder=embedder)
            result = library.add(book)
            library.close()
            return result

        first = open_library(IndexSettings(home=Path(folder) / "first"), embedder=embedder)
        nodes = first.nodes_of(first.add(book).document.document_id)
        texts = ["\n".join((*node.heading_path, node.text)) for node in nodes]
        first.close()
        theirs_model = HuggingFaceEmbedding(
            model_name=str(bundled_model_folder()), device="cpu", embed_batch_size=embedder.embed_batch_size
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
