"""The values that flow from a question to a cited answer. All are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args

from indexes.types import Chapter, Document, Filters, Hit, PageMarks, StoredNode, page_at

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arm: TypeAlias = Literal["base", "tuned", "rag", "rag+tuned"]
ARMS: tuple[Arm, ...] = get_args(Arm)
RETRIEVING_ARMS: frozenset[str] = frozenset({"rag", "rag+tuned"})
TUNED_ARMS: frozenset[str] = frozenset({"tuned", "rag+tuned"})

Verdict: TypeAlias = Literal["supported", "partial", "unsupported"]
Searched: TypeAlias = Literal["hybrid", "dense", "lexical"]
Evidence: TypeAlias = Literal["strong", "weak", "none"]
"""How sure the search is that the passages answer the question."""
Answers: TypeAlias = Literal["both", "free", "quotes", "unchecked"]
"""Of a language model's answers: the written sentences that hold, above the books' own; the written text alone, each
sentence checked; the books' own sentences alone; the written text as it comes, for measuring."""
Finish: TypeAlias = Literal["stop", "length"]
TalkKind: TypeAlias = Literal["greeting", "thanks", "about", "exam", "rewrite"]
"""A message that is no question for the books. `about`: who answers, and what it can do. `exam`: the reader wants to be
asked. `rewrite`: the last answer in other words, shorter, with an example."""


class SearchableLibrary(Protocol):
    """What answering asks of a library (`indexes.library.Library`); scores are higher for better hits."""

    @property
    def embedder_name(self) -> str:
        """What made the vectors."""
        ...

    @property
    def generation(self) -> int:
        """Changes whenever what can be found changes."""
        ...

    def dense(self, query: str, top_k: int, filters: Filters | None = None) -> list[Hit]:
        """The `top_k` nodes whose vectors are nearest the query's; the score is the cosine."""
        ...

    def lexical(self, query: str, top_k: int, filters: Filters | None = None) -> list[Hit]:
        """The `top_k` nodes that match the query's terms best."""
        ...

    def count_terms(self, terms: Sequence[str], most: int = 1000) -> dict[str, int]:
        """How many nodes hold each of these terms of `indexes.words`, counted up to `most`."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, float32 `(len(texts), dim)`."""
        ...

    def around(self, node: StoredNode, before: int = 1, after: int = 1) -> list[StoredNode]:
        """`node` with up to `before` and `after` nodes around it in its book, in reading order."""
        ...

    def get_nodes(self, node_ids: Sequence[str]) -> list[StoredNode]:
        """The nodes with these ids, in the order asked."""
        ...

    def nodes_of(self, document_id: str) -> list[StoredNode]:
        """All nodes of a book in order. Raises NotFound."""
        ...

    def document(self, document_id: str) -> Document:
        """One book. Raises NotFound."""
        ...

    def documents(self) -> Sequence[Document]:
        """All books."""
        ...

    def chapters(self, document_id: str) -> Sequence[Chapter]:
        """The chapters of a book in order."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier exchange of the conversation."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Question:
    """One question to the engine.

    Attributes:
        arm: what answers: base model or adapter, with or without retrieval.
        adapter: name of the adapter for tuned arms; None takes the only one configured.
        top_k: number of passages to retrieve.
        max_tokens: longest answer, in the generator's tokens; None is the generator's default.
        temperature: 0 is greedy; sampling_top_p: the smallest set of tokens as likely as this is drawn from;
            sampling_top_k: of the so many likeliest alone, 0 for all.
        system: what the caller tells a language model beside our own rules.
        stop: strings before which the answer ends.
        turns: earlier `(question, answer)` pairs that the caller brings, oldest first, in place of a conversation's.
        owner: whose conversations it may continue, and who owns a new one; None continues anyone's.
        answer_id: the id its answer gets; None makes a new one.
        replaces: the answer of its conversation that this one takes the place of, once it is finished.
        answer_anyway: answer from the nearest passages even where the evidence is `none`.
        retrieval: both searches fused, or one of them alone.
        answers: what a language model's answer is made of; None takes the engine's.
        variant: what a comparison calls this question's way of being answered.
    """

    text: str
    arm: Arm = "rag"
    adapter: str | None = None
    top_k: int = 5
    filters: Filters = field(default_factory=Filters)
    conversation_id: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None
    sampling_top_p: float = 1.0
    sampling_top_k: int = 0
    system: str = ""
    stop: tuple[str, ...] = ()
    turns: tuple[tuple[str, str], ...] = ()
    owner: str | None = None
    answer_id: str | None = None
    replaces: str | None = None
    answer_anyway: bool = False
    retrieval: Searched = "hybrid"
    answers: Answers | None = None
    variant: str | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of answering in a comparison; what is None or empty is taken from the question."""

    arm: Arm = "rag"
    top_k: int | None = None
    retrieval: Searched | None = None
    filters: Filters | None = None
    answers: Answers | None = None

    @property
    def name(self) -> str:
        """What varies, in short: `rag retrieval=dense`, `rag top_k=10`, `rag book=ID`."""
        parts = [str(self.arm)]
        if self.retrieval is not None:
            parts.append(f"retrieval={self.retrieval}")
        if self.top_k is not None:
            parts.append(f"top_k={self.top_k}")
        if self.answers is not None:
            parts.append(f"answers={self.answers}")
        if self.filters is not None:
            parts += [f"book={document_id}" for document_id in self.filters.document_ids]
            parts += [f"chapter={chapter}" for chapter in self.filters.chapters]
            parts += [f"pages={self.filters.pages[0]}-{self.filters.pages[1]}"] if self.filters.pages else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class PassagePart:
    """A node's stretch of a passage: `passage.text[start:end]` is the node's text."""

    start: int
    end: int
    node_id: str
    section: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """Evidence shown to model and reader; its number is its place in the answer's `passages`, from 1.

    Attributes:
        section: heading path.
        page_label: printed label of `page_start`.
        text: what the model reads and the reader sees; may reach past the node it was found by.
        page_marks, page_labels: as in `indexes.types.StoredNode`; they give a quote its own page.
        parts: the nodes that `text` was joined from, in order; they give a quote its own node and section.
        format: the book's (`indexes.types.Book`), which says what of `text` is Markdown.
    """

    node_id: str
    document_id: str
    title: str
    section: tuple[str, ...]
    page_label: str | None
    page_start: int | None
    page_end: int | None
    text: str
    score: float
    chapter: int = 0
    page_marks: PageMarks = ()
    page_labels: tuple[str | None, ...] = ()
    parts: tuple[PassagePart, ...] = ()
    format: str = "markdown"

    def part_at(self, char_offset: int) -> PassagePart:
        """The part that holds the character at `char_offset`, or the last that begins before it."""
        held = [part for part in self.parts if part.start <= char_offset]
        return held[-1] if held else PassagePart(0, len(self.text), self.node_id, self.section)

    def page_of(self, char_offset: int) -> int | None:
        """File page of the character at `char_offset` in `text`."""
        return page_at(self.page_marks, char_offset)

    def label_of(self, page: int | None) -> str | None:
        """Printed label of a file page that this passage touches."""
        if page is None or not self.page_marks or not self.page_labels:
            return None
        index = page - self.page_marks[0][1]
        return self.page_labels[index] if 0 <= index < len(self.page_labels) else None


@dataclass(frozen=True, slots=True)
class Quoted:
    """A stretch of a passage: its number from 1, start and end offset in its text."""

    passage: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Citation:
    """A verbatim quote of a passage: `passage.text[char_start:char_end] == quote`.

    Attributes:
        marker: the passage's number, as in `[marker]` in the answer. The n-th `[marker]` of an answer belongs to
            the n-th citation with that marker.
        node_id: that of the passage, by which it is found among the answer's; section: headings over the quote itself.
        page_start, page_end: file pages of the quote itself, from 1; page_label: printed label of `page_start`.
        verdict: whether the quote supports the sentence before the marker.
    """

    marker: int
    node_id: str
    document_id: str
    title: str
    section: tuple[str, ...]
    page_label: str | None
    page_start: int | None
    page_end: int | None
    quote: str
    char_start: int
    char_end: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: retrieval, from the start to the first text, and the whole."""

    retrieve_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens: read in all, of those taken from a cache, and written, of those thought and not shown.

    Attributes:
        finish: `length` when the answer was cut off at its longest length.
    """

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    finish: Finish = "stop"


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer. Field names are those of the wire form (`api/schemas/answers.py`).

    Attributes:
        evidence: None where nothing was searched.
        note: what a reader should know beside the answer, never part of it; None when there is nothing.
        variant: what a comparison called this way of answering, where more than the arm was varied.
        filters: what the question was restricted to.
        written: a sentence of a language model is in the answer.
        quotes: the books' own sentences with which the answer ends, where a language model may write above them.
        talk: what was said, where it was no question for the books.
    """

    id: str
    conversation_id: str
    question: str
    answer: str
    refused: bool
    arm: Arm
    generator: str
    model: str
    adapter: str | None
    citations: tuple[Citation, ...]
    passages: tuple[Passage, ...]
    timings: Timings
    usage: Usage
    tokens_per_s: float
    peak_memory_bytes: int
    evidence: Evidence | None = None
    note: str | None = None
    variant: str | None = None
    filters: Filters = field(default_factory=Filters)
    written: bool = False
    quotes: str = ""
    talk: TalkKind | None = None

    @property
    def name(self) -> str:
        """What a vote calls it: its variant, else its arm."""
        return self.variant or self.arm


@dataclass(frozen=True, slots=True)
class PassagesFound:
    """First event: the passages that the answer may cite (empty for arms without retrieval).

    Attributes:
        evidence: as in `Answer`.
        note: what is known of `Answer.note` before the answer is written.
        evidence_score: what `evidence` was judged by, 0 to 1; None where nothing was judged.
    """

    passages: tuple[Passage, ...]
    evidence: Evidence | None = None
    note: str | None = None
    evidence_score: float | None = None


@dataclass(frozen=True, slots=True)
class QuotesFound:
    """The books' own sentences, before a language model begins to write: the answer will end with them.

    Attributes:
        citations: of `text`, as `Answer.citations`.
    """

    text: str
    citations: tuple[Citation, ...]


@dataclass(frozen=True, slots=True)
class Thinking:
    """The model thinks before it answers; what it thinks is not shown. Comes once at most, before the first text."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The answer waits for the model; `before` others begin before it. Comes again whenever the line moves."""

    before: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer; joined, the pieces are `Answer.answer`."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """Last event: the whole answer."""

    answer: Answer


Event: TypeAlias = PassagesFound | QuotesFound | Waiting | Thinking | TextDelta | AnswerDone


def place_of(title: str, section: Sequence[str], page: str | int | None = None) -> str:
    """Where a text stands, for people: its book, the headings over it, and the page where there are pages."""
    place = " › ".join((title, *section))
    return place if page is None else f"{place}, page {page}"
