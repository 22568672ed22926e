"""Stand-ins without models: a hash embedder, the real library over it, a scripted reader and generator."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexes.catalog import BookIdentity, Catalog, CatalogEntry, open_catalog
from indexes.chunking import chunk_book
from indexes.errors import Cancelled
from indexes.ingest import CHUNKER_VERSION
from indexes.library import Library, open_library
from indexes.settings import IndexSettings
from indexes.types import Book, Section, StoredNode
from rag.citations import resolve
from rag.conversations import ConversationStore
from rag.engine import AnswerEngine
from rag.errors import ArmUnavailable
from rag.evidence import EvidenceJudge
from rag.generators.protocol import ChoiceScores, GenerationDone, GenerationRequest, Generator, TextPiece
from rag.query import Query
from rag.retrieval import HybridRetriever, PassageBudget
from rag.sentence_reader import Pair, ScoredUnit, SentenceReader, units_of
from rag.settings import RetrievalSettings
from rag.types import Answer, Answers, Arm, Finish, Passage, Timings, Usage

DIM = 256


def words_of(text: str) -> set[str]:
    """Lower-case words without a plural's ending, numbers, and Chinese characters one by one."""
    return {word.rstrip("s") or word for word in re.findall(r"[a-z0-9]+|[\u4e00-\u9fff]", text.lower())}


def signals_only(question: str, pairs: Sequence[Pair]) -> NDArray[np.float32]:
    """Scores pairs for a `LearnedReader` by their signals alone, without a model."""
    assert question
    return np.array([min(pair.signals, 1.0) ** 1.5 for pair in pairs], dtype=np.float32)


class SignalsEncoder:
    """Stands in for `rag.sentence_reader.CrossEncoder`: scores pairs by their signals."""

    def __init__(self, *, device: str) -> None:
        self.score = signals_only

    def load(self) -> None:
        """Has nothing to load."""


def hash_embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Unit vectors `(len(texts), DIM)`; texts that share words are near, deterministic everywhere."""
    vectors = np.zeros((len(texts), DIM), np.float32)
    for row, text in enumerate(texts):
        for word in words_of(text) | {"·"}:
            digest = hashlib.sha256(word.encode()).digest()
            vectors[row, digest[0]] += 1.0 if digest[1] % 2 else -1.0
            vectors[row, digest[2]] += 1.0
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms == 0, 1.0, norms)


class HashEncoder:
    """A `TextEncoder` of hashes: words are tokens, texts that share words are near."""

    def __init__(self, fingerprint: str = "hash/1", max_text_tokens: int = 120) -> None:
        self.fingerprint = fingerprint
        self.dimension = DIM
        self.max_text_tokens = max_text_tokens
        self.encoded: list[str] = []
        self.before_batch: Callable[[], None] = lambda: None

    def token_starts(self, texts: Sequence[str]) -> list[list[int]]:
        return [[match.start() for match in re.finditer(r"\w+|[^\w\s]", text)] for text in texts]

    def encode(
        self,
        texts: Sequence[str],
        *,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> NDArray[np.float32]:
        self.encoded.extend(texts)
        rows = []
        for first in range(0, len(texts), 8):
            self.before_batch()
            if cancelled is not None and cancelled():
                raise Cancelled("cancelled")
            rows.append(hash_embed(texts[first : first + 8]))
            if progress is not None:
                progress(min(first + 8, len(texts)), len(texts))
        return np.concatenate(rows) if rows else np.zeros((0, DIM), np.float32)

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return hash_embed(texts)


def qdrant_store(folder: Path) -> Any:
    """llama-index's store over Qdrant without a server: a collection in the folder, open to one client at a time."""
    from llama_index.vector_stores.qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient

    return QdrantVectorStore("books", client=QdrantClient(path=str(folder / "qdrant")), index_doc_id=False)


def section(text: str, *path: str, chapter: int = 1, page: int | None = None) -> Section:
    """A section that a library keeps as one node; without a path it is in the chapter's only section."""
    return Section(path or ("Chapter", "Section"), text, chapter, ((0, page),) if page is not None else ())


@cache
def _empty_catalog() -> bytes:
    """A catalog file without books; making one takes longer than all the rest of a small library."""
    with TemporaryDirectory() as folder:
        settings = IndexSettings(Path(folder))
        open_library(settings).close()
        return settings.catalog_path.read_bytes()


def put_book(
    catalog: Catalog, encoder: HashEncoder, book: Book, document_id: str, source: str, node_tokens: int = 100
) -> None:
    """Cut, embed and store a book that no file holds."""
    drafts = list(chunk_book(book, encoder.token_starts, node_tokens))
    texts = {draft.text_sha: draft.embedded_text for draft in drafts}
    vectors = zip(texts, encoder.encode(list(texts.values())), strict=True)
    digest = hashlib.sha256(repr(book.sections).encode()).hexdigest()
    identity = BookIdentity(document_id, source, False, digest, f"{CHUNKER_VERSION}/{node_tokens}/0")
    known = {sha: vector.astype("<f4").tobytes() for sha, vector in vectors}
    catalog.put([CatalogEntry(identity, book, drafts)], encoder.fingerprint, known)


def make_library(home: Path, *sections: Section, **books: Sequence[Section]) -> Library:
    """The real library over hashes: the book `book` of these sections, then `books`, each titled as its id.

    Page 3 is labelled `p3`. It is made in 15 ms of a core; the fixture `library_of` keeps those that are only read.
    """
    settings = IndexSettings(home, chunk_tokens=2000, device="cpu")
    encoder = HashEncoder(max_text_tokens=2100)
    home.mkdir(parents=True, exist_ok=True)
    settings.catalog_path.write_bytes(_empty_catalog())
    catalog = open_catalog(settings.catalog_path, create=False)
    for document_id, held in {"book": sections, **books}.items():
        if held:
            pages = max((page for one in held for _, page in one.page_marks), default=0)
            labels = tuple(f"p{page}" for page in range(1, pages + 1))
            title = document_id.replace("_", " ").title()
            book = Book(title, "markdown", tuple(held), pages or None, labels)
            put_book(catalog, encoder, book, document_id, f"{document_id}.md", settings.chunk_tokens or 0)
    catalog.close()
    library = open_library(settings, embedder=encoder)
    library.load()
    return library


class ScriptedReader:
    """Reads sentences by their first words, as scores from 0 to 1; those it does not know are not read.

    Args:
        scores: by beginnings of sentences and listings, white space aside; "" is the beginning of all others.
    """

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = sorted(scores.items(), key=lambda item: -len(item[0]))

    def read(self, query: Query, passages: Sequence[Passage]) -> list[ScoredUnit]:
        units = [unit for unit in units_of(passages) if unit.kind != "heading"]
        read = [ScoredUnit(unit, score) for unit in units if (score := self._score(unit.text)) is not None]
        return sorted(read, key=lambda item: (-item.score, item.unit.passage, item.unit.place))

    def _score(self, text: str) -> float | None:
        return next((score for beginning, score in self._scores if text.lstrip("-*# ").startswith(beginning)), None)


def make_engine(
    home: Path,
    library: Library,
    generator: object = None,
    *,
    reader: SentenceReader | None = None,
    threshold: float | None = 0.0,
    answers: Answers = "unchecked",
    budget: PassageBudget | None = None,
) -> AnswerEngine:
    """An engine over a library; without a generator it is scripted, and without a reader nothing is a good answer.

    Args:
        threshold: the least evidence that is answered, 0 all, more than 1 none; None as it is served.
        answers: by default what is scripted, as it is.
    """
    scripted = generator if isinstance(generator, ScriptedGenerator) else ScriptedGenerator()
    return AnswerEngine(
        library,
        HybridRetriever(library, RetrievalSettings()),
        generator or scripted,  # type: ignore[arg-type]
        ConversationStore(home / "conversations.sqlite3"),
        chooser=scripted,
        judge=EvidenceJudge(reader or ScriptedReader({}), threshold),
        answers=answers,
        budget=budget,
    )


def make_node(
    text: str,
    ordinal: int = 0,
    *,
    document_id: str = "book",
    title: str = "A Book",
    heading_path: tuple[str, ...] = ("Chapter", "Section"),
    chapter: int = 1,
    page_marks: tuple[tuple[int, int], ...] = (),
    page_labels: tuple[str | None, ...] = (),
) -> StoredNode:
    """A node with an id of its place."""
    return StoredNode(
        rowid=hash((document_id, ordinal)) & 0x7FFFFFFF,
        node_id=f"{document_id}-{ordinal}",
        document_id=document_id,
        title=title,
        ordinal=ordinal,
        chapter=chapter,
        heading_path=heading_path,
        text=text,
        page_marks=page_marks,
        page_labels=page_labels,
        num_tokens=len(text.split()),
    )


def make_passage(text: str, **fields: object) -> Passage:
    """A passage, by default without pages."""
    values: dict[str, object] = {
        "node_id": "book-0",
        "document_id": "book",
        "title": "A Book",
        "section": ("Chapter", "Section"),
        "page_label": None,
        "page_start": None,
        "page_end": None,
        "text": text,
        "score": 1.0,
        "chapter": 1,
    }
    return Passage(**(values | fields))  # type: ignore[arg-type]


def make_answer(text: str, *passages: Passage, **fields: object) -> Answer:
    """An answer to 'What is a warp?' in the arm `rag`, cited as its markers say."""
    values: dict[str, object] = {
        "id": "a1",
        "conversation_id": "",
        "question": "What is a warp?",
        "answer": text,
        "refused": False,
        "arm": "rag",
        "generator": "scripted",
        "model": "script",
        "adapter": None,
        "citations": resolve(text, passages),
        "passages": passages,
        "timings": Timings(),
        "usage": Usage(),
        "tokens_per_s": 0.0,
        "peak_memory_bytes": 0,
    }
    return Answer(**(values | fields))  # type: ignore[arg-type]


def answer_of(generator: Generator, request: GenerationRequest) -> tuple[str, GenerationDone]:
    """The text that a generator writes, and how it ended."""
    *pieces, done = generator.stream(request)
    assert isinstance(done, GenerationDone)
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)), done


class ScriptedGenerator:
    """Writes the given pieces, and records the requests."""

    name = "scripted"
    model_name = "script"

    def __init__(
        self,
        pieces: Sequence[str] = ("All is well. [1]",),
        *,
        arms: tuple[Arm, ...] = ("base", "rag"),
        adapters: tuple[str, ...] = (),
        refused: bool = False,
        passages_used: int | None = None,
        finish: Finish = "stop",
        before_piece: Callable[[int], None] = lambda index: None,
    ) -> None:
        self.pieces = tuple(pieces)
        self.arms = arms
        self.adapters = adapters
        self.refused = refused
        self.passages_used = passages_used
        self.finish = finish
        self.before_piece = before_piece
        self.requests: list[GenerationRequest] = []
        self.closed_streams = 0

    def check(self, request: GenerationRequest) -> None:
        if request.arm not in self.arms:
            raise ArmUnavailable(f"arm {request.arm!r} is not scripted", hint="script it")

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        self.requests.append(request)
        try:
            whole = "".join(self.pieces)
            left = min((place for string in request.stop if (place := whole.find(string)) >= 0), default=len(whole))
            for index, piece in enumerate(self.pieces):
                self.before_piece(index)
                if text := piece[:left]:
                    yield TextPiece(text)
                left -= len(text)
            usage = Usage(10, 0, len(self.pieces), finish=self.finish)
            yield GenerationDone(usage, 1.0, 1, refused=self.refused, passages_used=self.passages_used)
        finally:
            self.closed_streams += 1

    def score_choices(self, request: GenerationRequest, choices: tuple[str, ...]) -> ChoiceScores:
        self.requests.append(request)
        return ChoiceScores(tuple(float(len(choice)) for choice in choices))

    def close(self) -> None:
        """Nothing to free."""
