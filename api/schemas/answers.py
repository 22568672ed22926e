"""Wire forms of asking, searching and comparing. Field names are the contract's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Self

from pydantic import Field, model_validator

from api.schemas.base import Id, Seed, WireIn, WireOut
from indexes import types as index_types
from rag import types as rag_types

MAX_TOP_K = 50

Page = Annotated[int, Field(ge=1, le=10_000_000)]
Chapter = Annotated[int, Field(ge=1, le=1_000_000)] | Annotated[str, Field(min_length=1, max_length=1000)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
MaxTokens = Annotated[int, Field(ge=1, le=1_000_000)]


class FiltersIn(WireIn):
    """Restricts a search before ranking."""

    document_ids: list[Id] = Field(default_factory=list, max_length=1000)
    chapters: list[Annotated[int, Field(ge=1, le=1_000_000)] | Annotated[str, Field(min_length=1, max_length=1000)]] = (
        Field(default_factory=list, max_length=1000, description="1-based ordinals in the book, or exact titles")
    )
    pages: list[Page] | None = Field(default=None, min_length=2, max_length=2, description="file pages [from, to]")

    @model_validator(mode="after")
    def _pages_ascend(self) -> Self:
        if self.pages and self.pages[0] > self.pages[1]:
            raise ValueError(f"pages go from {self.pages[0]} down to {self.pages[1]}")
        return self


def filters_of(given: FiltersIn | None) -> index_types.Filters:
    """The filters as the library takes them."""
    if given is None:
        return index_types.Filters()
    pages = (given.pages[0], given.pages[1]) if given.pages else None
    return index_types.Filters(tuple(given.document_ids), tuple(given.chapters), pages)


class SearchIn(WireIn):
    """Body of `POST /v1/search`."""

    query: str
    top_k: TopK = 5
    filters: FiltersIn | None = None


class CompareIn(WireIn):
    """Body of `POST /v1/compare`; without `arms`, those that can run here."""

    question: str
    arms: list[rag_types.Arm] | None = Field(default=None, min_length=1, max_length=8)
    adapter: Id | None = None
    top_k: TopK = 5
    filters: FiltersIn | None = None
    max_tokens: MaxTokens | None = None
    seed: Seed | None = None


class AskIn(WireIn):
    """Body of `POST /v1/ask`."""

    question: str
    arm: rag_types.Arm = "rag"
    adapter: Id | None = None
    top_k: TopK = 5
    filters: FiltersIn | None = None
    conversation_id: Id | None = None
    max_tokens: MaxTokens | None = None
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    seed: Seed | None = None
    stream: bool = False


class PassageOut(WireOut):
    """A passage shown to model and reader; its number is its place in the list, from 1."""

    node_id: str
    document_id: str
    title: str
    section: list[str]
    page_label: str | None
    page_start: int | None
    page_end: int | None
    text: str
    score: float

    @classmethod
    def of(cls, value: rag_types.Passage) -> Self:
        """From the engine's passage."""
        return cls(
            node_id=value.node_id,
            document_id=value.document_id,
            title=value.title,
            section=list(value.section),
            page_label=value.page_label,
            page_start=value.page_start,
            page_end=value.page_end,
            text=value.text,
            score=value.score,
        )


class PassagesOut(WireOut):
    """Result of a search."""

    passages: list[PassageOut]

    @classmethod
    def of(cls, values: Sequence[rag_types.Passage]) -> Self:
        """From the engine's passages."""
        return cls(passages=[PassageOut.of(value) for value in values])


class CitationOut(WireOut):
    """A quote that stands verbatim in a passage: `passage.text[char_start:char_end] == quote`."""

    marker: int
    node_id: str
    document_id: str
    title: str
    section: list[str]
    page_label: str | None
    page_start: int | None
    page_end: int | None
    quote: str
    char_start: int
    char_end: int
    verdict: rag_types.Verdict


class TimingsOut(WireOut):
    """Seconds."""

    retrieve_s: float
    ttft_s: float
    total_s: float


class UsageOut(WireOut):
    """Tokens."""

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int


class AnswerOut(WireOut):
    """A finished answer."""

    id: str
    conversation_id: str
    question: str
    answer: str
    refused: bool
    arm: rag_types.Arm
    generator: str
    model: str
    adapter: str | None
    citations: list[CitationOut]
    passages: list[PassageOut]
    timings: TimingsOut
    usage: UsageOut
    tokens_per_s: float
    peak_memory_bytes: int

    @classmethod
    def of(cls, value: rag_types.Answer) -> Self:
        """From the engine's answer."""
        return cls(
            id=value.id,
            conversation_id=value.conversation_id,
            question=value.question,
            answer=value.answer,
            refused=value.refused,
            arm=value.arm,
            generator=value.generator,
            model=value.model,
            adapter=value.adapter,
            citations=citations_of(value),
            passages=[PassageOut.of(passage) for passage in value.passages],
            timings=TimingsOut(**asdict(value.timings)),
            usage=UsageOut(**asdict(value.usage)),
            tokens_per_s=value.tokens_per_s,
            peak_memory_bytes=value.peak_memory_bytes,
        )


def citations_of(value: rag_types.Answer) -> list[CitationOut]:
    """The answer's citations in wire form."""
    return [CitationOut(**{**asdict(citation), "section": list(citation.section)}) for citation in value.citations]


class AnswersOut(WireOut):
    """Result of a comparison, in the order asked."""

    answers: list[AnswerOut]
