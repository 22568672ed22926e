"""llama-index, both ways: our library, embedder and cutting as its parts, and its parts in place of ours.

The product imports this file only where the settings name a part of llama-index: importing that takes a second.
What each setting does, with examples that the tests run: `docs/llama-index.md`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from importlib import import_module
from inspect import isclass, isroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import BaseNode, Document, MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

from indexes.chunking import CutText, TokenStarts, chunk_book, chunk_text
from indexes.embedder import EncodeListener, Matrix, bundled_tokenizer
from indexes.errors import (
    Cancelled,
    CoalesceError,
    Conflict,
    EmbedderCannotLoad,
    InvalidInput,
    NotFound,
    UnreadableBook,
)
from indexes.readers.book import document_id_of
from indexes.readers.elements import chapters_in_file, title_of
from indexes.readers.markdown import parse_markdown
from indexes.settings import LLAMA_INDEX
from indexes.types import Book, CancelCheck, Filters, Section, StoredNode

if TYPE_CHECKING:
    from indexes.embedder import TextEncoder
    from indexes.library import Library

FILTER_KEYS = ("document_id", "chapter")
HEADING_SEPARATOR = " > "
NOT_FOR_A_MODEL = ("document_id", "chapter", "page_start", "page_end")

Part = TypeVar("Part")


# --- our parts for llama-index


class EncoderEmbedding(BaseEmbedding):
    """Our embedder (`Library.encoder`, or any `TextEncoder`) as a llama-index embedding."""

    _encoder: TextEncoder = PrivateAttr()

    def __init__(self, encoder: TextEncoder, **fields: Any) -> None:
        super().__init__(**{"model_name": encoder.fingerprint} | fields)
        self._encoder = encoder

    @classmethod
    def class_name(cls) -> str:
        """llama-index's name of the class."""
        return "CoalesceEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return [float(value) for value in self._encoder.encode_queries([query])[0]]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [[float(value) for value in row] for row in self._encoder.encode(texts)]


class BookNodeParser(NodeParser):
    """Our cutting as a node parser: Markdown documents in, nodes along headings, listings and sentences out.

    A node's metadata hold its book's `title`, its `section` (headings joined by ` > `) and `chapter`. What llama-index
    embeds of a node is what the library embeds: the section's headings and the text.

    Attributes:
        limit_tokens: most tokens of a node with its headings, counted by the embedder.
        overlap_tokens: tokens that neighbouring nodes of one section share.
    """

    limit_tokens: int = 240
    overlap_tokens: int = 0

    _token_starts: TokenStarts = PrivateAttr()

    def __init__(self, token_starts: TokenStarts, **fields: Any) -> None:
        """Count tokens by `token_starts`, such as `library.encoder.token_starts`."""
        super().__init__(**fields)
        self._token_starts = token_starts

    @classmethod
    def class_name(cls) -> str:
        """llama-index's name of the class."""
        return "CoalesceBookNodeParser"

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        return [part for node in nodes for part in self._parse(node)]

    def _parse(self, node: BaseNode) -> list[BaseNode]:
        name = str(node.metadata.get("file_name") or node.node_id)
        book = _markdown_book(node.get_content(metadata_mode=MetadataMode.NONE), name)
        source = RelatedNodeInfo(node_id=node.node_id, metadata=node.metadata)
        return [
            TextNode(
                text=draft.text,
                metadata={
                    **node.metadata,
                    "title": node.metadata.get("title") or book.title,
                    "section": HEADING_SEPARATOR.join(draft.heading_path),
                    "chapter": draft.chapter,
                },
                relationships={NodeRelationship.SOURCE: source},
                excluded_embed_metadata_keys=[*node.metadata, "title", "chapter"],
                excluded_llm_metadata_keys=[*node.metadata, "chapter"],
                metadata_template="{value}",
                text_template="{metadata_str}\n{content}",
            )
            for draft in chunk_book(book, self._token_starts, self.limit_tokens, self.overlap_tokens)
        ]


class LibraryVectorStore(BasePydanticVectorStore):
    """A library as a vector store: `VectorStoreIndex.from_vector_store(store, embed_model=EncoderEmbedding(…))`.

    The library makes its own vectors, as for every book: those that nodes bring are left aside.
    """

    stores_text: bool = True

    _library: Library = PrivateAttr()

    def __init__(self, library: Library) -> None:
        super().__init__(stores_text=True)
        self._library = library

    @classmethod
    def class_name(cls) -> str:
        """llama-index's name of the class."""
        return "CoalesceLibraryVectorStore"

    @property
    def client(self) -> Any:
        """The library."""
        return self._library

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes to the books that their `ref_doc_id` names, making new books where needed; returns the nodes' ids.

        A node becomes a section of its book: `section`, `chapter`, `title` and `page_start` are read from its
        metadata. A node that the book already has is not added again.

        Raises:
            Conflict: the book was read from a file; adding nodes would take its pages away.
            EmbedderMismatch: the library belongs to another embedder.
            StorageFull, HomeNotWritable: nothing of the book was kept.
        """
        books: dict[str, list[BaseNode]] = {}
        for node in nodes:
            books.setdefault(node.ref_doc_id or node.node_id, []).append(node)
        for ref_doc_id, members in books.items():
            document_id = document_id_of(ref_doc_id)
            if self._document_id(ref_doc_id) != document_id:
                raise Conflict(
                    f"Nodes cannot be added to the book '{ref_doc_id}'.",
                    hint="change the book's file and add the file again",
                )
            held = self._sections(document_id)
            new = [section for section in dict.fromkeys(map(_section, members)) if section not in held]
            if new:
                title = str(members[0].metadata.get("title") or members[0].metadata.get("file_name") or ref_doc_id)
                self._library.add_book(Book(title, "text", (*held, *new)), ref_doc_id, document_id)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Remove a book, by its own id or the `ref_doc_id` of the nodes added; nothing happens if there is none."""
        document_id = self._document_id(ref_doc_id)
        if any(document.document_id == document_id for document in self._library.documents()):
            self._library.remove(document_id)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Nodes by the library's ids, as `query` gives them. Raises NotFound; InvalidInput for filters."""
        if node_ids is None or filters is not None:
            raise InvalidInput("A library gives nodes by their ids only.")
        return [to_text_node(node) for node in self._library.get_nodes(node_ids)]

    def embedded_nodes(self, document_id: str) -> list[TextNode]:
        """A book's nodes with their vectors, ready for another store's `add`. Raises NotFound, Busy."""
        nodes, vectors = self._library.nodes_of(document_id), self._library.vectors_of(document_id).tolist()
        return [to_text_node(node, vector) for node, vector in zip(nodes, vectors, strict=True)]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes nearest in meaning, best first. Filters: `document_id` and `chapter`, by `==` or `in`.

        Raises:
            InvalidInput: no query vector, or another filter.
            NotFound: no such book.
        """
        if query.query_embedding is None:
            raise InvalidInput("A query to a vector store needs a vector.", hint="give the index an embedding model")
        vector = np.array(query.query_embedding, dtype=np.float32)
        hits = self._library.dense_by_vector(vector, query.similarity_top_k, self._filters(query))
        return VectorStoreQueryResult(
            nodes=[to_text_node(hit.node) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.node.node_id for hit in hits],
        )

    def _document_id(self, ref_doc_id: str) -> str:
        """The id of a book in the library; other ids, which may be paths, become one that fits into a web address."""
        known = any(document.document_id == ref_doc_id for document in self._library.documents())
        return ref_doc_id if known else document_id_of(ref_doc_id)

    def _sections(self, document_id: str) -> tuple[Section, ...]:
        try:
            return self._library.sections_of(document_id)
        except NotFound:
            return ()

    def _filters(self, query: VectorStoreQuery) -> Filters:
        found: dict[str, tuple[Any, ...]] = {"document_id": tuple(query.doc_ids or ()), "chapter": ()}
        if query.node_ids or (query.filters is not None and query.filters.condition != FilterCondition.AND):
            raise InvalidInput("A library filters by book and chapter, all conditions together.")
        for one in query.filters.filters if query.filters is not None else ():
            key, operator = getattr(one, "key", None), getattr(one, "operator", None)
            if key not in FILTER_KEYS or operator not in (FilterOperator.EQ, FilterOperator.IN):
                raise InvalidInput(
                    f"A library cannot filter by '{key}'.", hint=f"Filter by one of {', '.join(FILTER_KEYS)}"
                )
            value = getattr(one, "value", None)
            found[key] += tuple(value) if isinstance(value, list) else (value,)
        return Filters(tuple(self._document_id(name) for name in found["document_id"]), found["chapter"])


def to_text_node(node: StoredNode, vector: Sequence[float] | None = None) -> TextNode:
    """A stored node as llama-index's, under its own id, its book as the source.

    Args:
        vector: its embedding, for another store's `add`.
    """
    metadata = {
        "document_id": node.document_id,
        "title": node.title,
        "section": HEADING_SEPARATOR.join(node.heading_path),
        "chapter": node.chapter,
        "page_start": node.page_start,
        "page_end": node.page_end,
        "page_label": node.page_labels[0] if node.page_labels else None,
    }
    return TextNode(
        id_=node.node_id,
        text=node.text,
        embedding=list(vector) if vector is not None else None,
        metadata=metadata,
        excluded_embed_metadata_keys=list(metadata),
        excluded_llm_metadata_keys=list(NOT_FOR_A_MODEL),
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=node.document_id)},
    )


def _section(node: BaseNode) -> Section:
    section, chapter, page = (node.metadata.get(key) for key in ("section", "chapter", "page_start"))
    heading_path = tuple(str(section).split(HEADING_SEPARATOR)) if section else ()
    marks = ((0, page),) if isinstance(page, int) else ()
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return Section(heading_path, text, chapter if isinstance(chapter, int) else 1, marks)


def _markdown_book(text: str, name: str) -> Book:
    parsed = parse_markdown(text)
    title, elements = title_of(parsed)
    title = title or name
    return Book(title, "markdown", chapters_in_file(elements, title))


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
            f"'{part_name}' cannot be used: {_reason(error)}", hint="install the part's package and check its arguments"
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
                f"The embedding '{self._name}' failed: {_reason(error)}",
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
        raise UnreadableBook(f"'{name}' cannot be read by '{reader_name}': {_reason(error)}") from error
    book = _markdown_book("\n\n".join(document.get_content() for document in documents), Path(name).stem)
    if not any(character.isalnum() for section in book.sections for character in section.text):
        raise UnreadableBook(f"'{name}' holds no text that '{reader_name}' can read.")
    return book


def load_cutter(spec: str) -> CutText:
    """A `CutText` that cuts sections with a llama-index node parser.

    A node that is too long is cut further by our own rules, because an embedder ignores what does not fit. Raises
    InvalidInput when the setting does not name a node parser, and later when that one changes the text.
    """
    parser = load_part(spec, NodeParser)  # type: ignore[type-abstract]

    def cut(text: str, token_starts: Sequence[int], limit_tokens: int, overlap_tokens: int) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        start = -1
        for node in parser.get_nodes_from_documents([Document(text=text)]):
            content = node.get_content(metadata_mode=MetadataMode.NONE).strip()
            if not content:
                continue
            start = text.find(content, start + 1)
            if start < 0:
                raise InvalidInput(
                    f"The node parser '{type(parser).__name__}' changes the text, so nothing could be cited from it.",
                    hint="choose a node parser that only splits the text",
                )
            end = start + len(content)
            first, last = bisect_left(token_starts, start), bisect_left(token_starts, end)
            if last - first <= limit_tokens:
                spans.append((start, end))
            else:
                inside = [place - start for place in token_starts[first:last]]
                parts = chunk_text(content, inside, limit_tokens, overlap_tokens)
                spans.extend((start + begin, start + stop) for begin, stop in parts)
        return spans

    return cut


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _reason(error: Exception) -> str:
    if isinstance(error, CoalesceError):
        return error.message
    return " ".join(str(error).split())[:300] or type(error).__name__
