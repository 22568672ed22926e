"""llama-index's side of this floor: the pipeline that takes a book in, and its parts in place of ours.

The product imports this file only where a book is added or the settings name a part: importing llama-index takes a
second. What each setting does, with examples that the tests run: `docs/llama-index.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from inspect import isclass, isroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo, TextNode
from pydantic import PrivateAttr

from indexes.chunking import Chunk
from indexes.embedder import EncodeListener, Matrix, TextEncoder, bundled_tokenizer
from indexes.errors import Cancelled, CoalesceError, EmbedderCannotLoad, InvalidInput, UnreadableBook
from indexes.readers.elements import chapters_in_file, title_of
from indexes.readers.markdown import parse_markdown
from indexes.settings import LLAMA_INDEX
from indexes.types import Book, CancelCheck, StoredNode

HEADING_SEPARATOR = " > "
NOT_FOR_A_MODEL = ("document_id", "chapter", "page_start", "page_end")

Part = TypeVar("Part")


# --- the pipeline that takes a book in


class BookDocument(Document):
    """A book as its reader read it, on its way into the pipeline."""

    _book: Book = PrivateAttr()

    def __init__(self, book: Book) -> None:
        super().__init__(text=book.title)
        self._book = book


class BookNode(TextNode):
    """A chunk of a book in the pipeline.

    Attributes:
        embedding: a row of float32 numbers, an eighth of the memory of llama-index's lists; None where the library
            has the vector of this text already.
    """

    embedding: Any = None
    _chunk: Chunk = PrivateAttr()

    def __init__(self, chunk: Chunk) -> None:
        super().__init__(text=chunk.text)
        self._chunk = chunk

    @property
    def chunk(self) -> Chunk:
        """The chunk."""
        return self._chunk


class BookParser(NodeParser):
    """Our chunking as a node parser: `BookDocument` in, `BookNode` out."""

    _cut_book: Callable[[Book], Iterable[Chunk]] = PrivateAttr()

    def __init__(self, cut_book: Callable[[Book], Iterable[Chunk]]) -> None:
        super().__init__(include_metadata=False, include_prev_next_rel=False)
        self._cut_book = cut_book

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        return [
            BookNode(chunk) for node in nodes if isinstance(node, BookDocument) for chunk in self._cut_book(node._book)
        ]


class EncoderEmbedding(BaseEmbedding):
    """Our embedder (`Library.encoder`, or any `TextEncoder`) as a llama-index embedding.

    Args:
        encoder: makes the vectors.
        missing: of these digests of texts, those without a vector in the library; in the pipeline only they are
            embedded.
    """

    _encoder: TextEncoder = PrivateAttr()
    _missing: Callable[[Iterable[bytes]], set[bytes]] = PrivateAttr()

    def __init__(self, encoder: TextEncoder, missing: Callable[[Iterable[bytes]], set[bytes]] = set) -> None:
        super().__init__(model_name=encoder.fingerprint)
        self._encoder = encoder
        self._missing = missing

    @classmethod
    def class_name(cls) -> str:
        """llama-index's name of the class."""
        return "CoalesceEmbedding"

    def __call__(
        self,
        nodes: Sequence[BaseNode],
        progress: EncodeListener | None = None,
        cancelled: CancelCheck | None = None,
        **kwargs: Any,
    ) -> Sequence[BaseNode]:
        """Embed the nodes of a book whose text has no vector yet. Raises Cancelled."""
        new = [(node, node.chunk) for node in nodes if isinstance(node, BookNode) and node.embedding is None]
        texts = {chunk.text_sha: chunk.embedded_text for _, chunk in new}
        missing = self._missing(texts)
        texts = {sha: text for sha, text in texts.items() if sha in missing}
        if progress is not None:
            progress(0, len(texts))
        vectors = self._encoder.encode(list(texts.values()), progress=progress, cancelled=cancelled)
        rows = dict(zip(texts, vectors, strict=True))
        for node, chunk in new:
            node.embedding = rows.get(chunk.text_sha)
        return nodes

    def _get_query_embedding(self, query: str) -> list[float]:
        return [float(value) for value in self._encoder.encode_queries([query])[0]]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return [float(value) for value in self._encoder.encode([text])[0]]


def to_text_node(node: StoredNode, node_id: str | None = None, vector: list[float] | None = None) -> TextNode:
    """A stored node as llama-index's, under its own id or another, its book as the source."""
    fields = {
        "document_id": node.document_id,
        "title": node.title,
        "section": HEADING_SEPARATOR.join(node.heading_path),
        "chapter": node.chapter,
        "page_start": node.page_start,
        "page_end": node.page_end,
        "page_label": node.page_labels[0] if node.page_labels else None,
    }
    metadata = {name: value for name, value in fields.items() if value is not None}  # some stores refuse a None
    return TextNode(
        id_=node_id or node.node_id,
        text=node.text,
        embedding=vector,
        metadata=metadata,
        excluded_embed_metadata_keys=list(metadata),
        excluded_llm_metadata_keys=list(NOT_FOR_A_MODEL),
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=node.document_id)},
    )


# --- llama-index's parts for us


def load_part(spec: str, kind: type[Part]) -> Part:
    """The part that a setting names: `llama_index:MODULE:NAME`, with arguments as `?ARGUMENT=VALUE&…`.

    `NAME` is a class or function, called with the arguments, or an object that is taken as it is. A value is read as
    JSON where it is JSON (`true`, `0.5`, `[1, 2]`), as text otherwise.

    Raises:
        InvalidInput: not of this form, not installed, not a `kind`, or it does not take these arguments.
    """
    part_name, _, query = spec.partition("?")
    module, _, name = part_name.removeprefix(LLAMA_INDEX).partition(":")
    if not spec.startswith(LLAMA_INDEX) or not name:
        raise InvalidInput(
            f"'{part_name}' does not name a part of llama-index.", hint=f"Write it as {LLAMA_INDEX}MODULE:NAME."
        )
    arguments = {key: _value(text) for key, text in parse_qsl(query, keep_blank_values=True)}
    try:
        found: Any = getattr(import_module(module), name)
        part = found(**arguments) if isclass(found) or isroutine(found) else found
    except Exception as error:
        raise InvalidInput(
            f"'{part_name}' cannot be used: {reason_of(error)}",
            hint="install the part's package, check its arguments, and see that its server runs",
        ) from error
    if not isinstance(part, kind):
        raise InvalidInput(f"'{part_name}' is a {type(part).__name__}, not a llama-index {kind.__name__}.")
    return part


def load_embedding(spec: str) -> LlamaIndexEncoder:
    """The embedding that the setting `embedder` names. Raises InvalidInput, EmbedderCannotLoad."""
    return LlamaIndexEncoder(load_part(spec, BaseEmbedding), spec)  # type: ignore[type-abstract]


class LlamaIndexEncoder:
    """A llama-index embedding as our `TextEncoder`.

    It does not say how much it reads: it is given up to `chunk_tokens`, counted by the bundled embedder's tokenizer.
    """

    max_text_tokens = 8192  # leaves the choice to `chunk_tokens`

    def __init__(self, embedding: BaseEmbedding, spec: str) -> None:
        self._embedding = embedding
        self._name = spec.partition("?")[0]  # without arguments: an address may change, a key must not be stored
        self._tokenizer = bundled_tokenizer()
        self.dimension = 0  # unknown until the first vector
        self.dimension = self.encode_queries(["warp"]).shape[1]
        self.fingerprint = f"{self._name}/{embedding.model_name}/{self.dimension}"

    def token_starts(self, texts: Sequence[str]) -> list[list[int]]:
        """As `TextEncoder.token_starts`."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[start for start, _ in encoding.offsets] for encoding in encodings]

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: EncodeListener | None = None,
        cancelled: CancelCheck | None = None,
    ) -> Matrix:
        """As `TextEncoder.encode`. Raises EmbedderCannotLoad when the embedding fails."""
        parts = [np.empty((0, self.dimension), dtype=np.float32)]
        size = self._embedding.embed_batch_size
        for first in range(0, len(texts), size):
            if cancelled is not None and cancelled():
                raise Cancelled(f"Embedding was cancelled after {first} of {len(texts)} texts.")
            parts.append(self._vectors(self._embedding.get_text_embedding_batch, list(texts[first : first + size])))
            if progress is not None:
                progress(min(first + size, len(texts)), len(texts))
        return np.concatenate(parts)

    def encode_queries(self, texts: Sequence[str]) -> Matrix:
        """As `TextEncoder.encode_queries`. Raises EmbedderCannotLoad when the embedding fails."""
        return self._vectors(lambda queries: [self._embedding.get_query_embedding(one) for one in queries], list(texts))

    def _vectors(self, embed: Any, texts: list[str]) -> Matrix:
        try:
            rows = np.asarray(embed(texts), dtype=np.float32).reshape(len(texts), -1)
        except Exception as error:
            raise EmbedderCannotLoad(
                f"The embedding '{self._name}' failed: {reason_of(error)}",
                hint="check that its server runs and that its key is set",
            ) from error
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if rows.shape[1] != (self.dimension or rows.shape[1]) or not (np.isfinite(rows).all() and (lengths > 0).all()):
            raise EmbedderCannotLoad(f"The embedding '{self._name}' gave vectors of another length, of zeros or NaN.")
        unit: Matrix = rows / lengths
        return unit


def read_with(spec: str, path: Path, name: str) -> Book:
    """Read a file with a llama-index reader; its documents, joined, are read as Markdown. Pages are not known then.

    Raises:
        InvalidInput: the setting does not name a reader.
        UnreadableBook: the reader fails or finds no text.
    """
    reader, reader_name = load_part(spec, BaseReader), spec.partition("?")[0]
    try:
        documents = list(reader.load_data(path))
    except Exception as error:
        raise UnreadableBook(f"'{name}' cannot be read by '{reader_name}': {reason_of(error)}") from error
    book = _markdown_book("\n\n".join(document.get_content() for document in documents), Path(name).stem)
    if not any(character.isalnum() for section in book.sections for character in section.text):
        raise UnreadableBook(f"'{name}' holds no text that '{reader_name}' can read.")
    return book


def _markdown_book(text: str, name: str) -> Book:
    parsed = parse_markdown(text)
    title, elements = title_of(parsed)
    title = title or name
    return Book(title, "markdown", chapters_in_file(elements, title))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def reason_of(error: Exception) -> str:
    """What an error of somebody else's code says, in one line."""
    if isinstance(error, CoalesceError):
        return error.message
    return " ".join(str(error).split())[:300] or type(error).__name__
