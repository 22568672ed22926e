"""Wire forms of asking, searching, comparing, conversations, feedback and generators; names are the contract's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from api.schemas.base import Id, Seed, WireIn, WireOut
from indexes.types import Filters
from rag.conversations import Conversation, Place, Rating
from rag.explanation import NodeRanks
from rag.settings import QuantizationName
from rag.types import (
    AnswerDone,
    Arm,
    Citation,
    Event,
    Evidence,
    PassagesFound,
    QuotesFound,
    Searched,
    TalkKind,
    TextDelta,
    Thinking,
    Timings,
    Usage,
    Variant,
    Waiting,
)

MAX_TOP_K = 50
MAX_TITLE_CHARS = 300

Page = Annotated[int, Field(ge=1, le=10_000_000)]
Chapter = Annotated[int, Field(ge=1, le=1_000_000)] | Annotated[str, Field(min_length=1, max_length=1000)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
WhatAnswers = Annotated[
    Literal["both", "free", "quotes"],
    Field(
        description="of a language model's answer: its sentences that a passage supports above the books' own, its "
        "text alone, or the books' own sentences alone; by default what the settings say"
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
MaxTokens = Annotated[int, Field(ge=1, le=1_000_000)]


class FiltersIn(WireIn):
    """Restricts a search before ranking."""

    document_ids: list[Id] = Field(default_factory=list, max_length=1000)
    chapters: list[Chapter] = Field(
        default_factory=list, max_length=1000, description="ordinals in the book from 1, or exact titles"
    )
    pages: list[Page] | None = Field(default=None, min_length=2, max_length=2, description="file pages [from, to]")

    @model_validator(mode="after")
    def _pages_ascend(self) -> Self:
        if self.pages and self.pages[0] > self.pages[1]:
            raise ValueError(f"pages go from {self.pages[0]} down to {self.pages[1]}")
        return self


def filters_of(given: FiltersIn | None) -> Filters:
    """The filters as the library takes them."""
    if given is None:
        return Filters()
    pages = (given.pages[0], given.pages[1]) if given.pages else None
    return Filters(tuple(given.document_ids), tuple(given.chapters), pages)


class SearchIn(WireIn):
    """Body of `POST /v1/search`."""

    query: str
    top_k: TopK = 5
    filters: FiltersIn | None = None


class VariantIn(WireIn):
    """A way of answering; what it leaves out is taken from the question."""

    arm: Arm = "rag"
    top_k: TopK | None = None
    retrieval: Searched | None = Field(default=None, description="both searches fused, or one of them alone")
    answers: WhatAnswers | None = None
    filters: FiltersIn | None = None


class CompareIn(WireIn):
    """Body of `POST /v1/compare`; without `arms` and `variants`, the arms that can run here."""

    question: str
    arms: list[Arm] | None = Field(default=None, min_length=1, max_length=8)
    variants: list[VariantIn] | None = Field(default=None, min_length=1, max_length=8, description="instead of `arms`")
    adapter: Id | None = None
    top_k: TopK = 5
    filters: FiltersIn | None = None
    max_tokens: MaxTokens | None = None
    seed: Seed | None = None
    stream: bool = False
    grace_s: float = Field(
        default=0.0, ge=0, le=60, description="how long a stream is made on after its last reader has left"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.arms and self.variants:
            raise ValueError("give either `arms` or `variants`")
        return self

    def names(self) -> list[str]:
        """What is compared, as answers name it; empty where it is whatever runs here."""
        return [one.name for one in self.ways()] or list(self.arms or ())

    def ways(self) -> tuple[Variant, ...]:
        """The variants as the engine takes them."""
        return tuple(
            Variant(one.arm, one.top_k, one.retrieval, filters_of(one.filters) if one.filters else None, one.answers)
            for one in self.variants or ()
        )


class ChooseIn(WireIn):
    """Body of `POST /v1/choose`; without `arms`, those that can choose here."""

    question: str
    choices: list[Annotated[str, Field(max_length=4000)]] = Field(min_length=2, max_length=10)
    arms: list[Arm] | None = Field(default=None, min_length=1, max_length=8)
    adapter: Id | None = None
    top_k: TopK = 5


@dataclass(frozen=True, slots=True)
class Pick:
    """What an arm chose: the option's index, and the score of each, higher is better."""

    arm: Arm
    picked: int
    scores: tuple[float, ...]


class PicksOut(WireOut):
    """What each arm chose, in the order asked, and what scored the options."""

    generator: str
    model: str
    picks: list[Pick]


class AskIn(WireIn):
    """Body of `POST /v1/ask`."""

    question: str
    arm: Arm = "rag"
    adapter: Id | None = None
    top_k: TopK = 5
    filters: FiltersIn | None = None
    conversation_id: Id | None = None
    max_tokens: MaxTokens | None = None
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    seed: Seed | None = None
    stream: bool = False
    answer_anyway: bool = Field(default=False, description="answer from the nearest passages where nothing fits")
    answers: WhatAnswers | None = None
    grace_s: float = Field(
        default=0.0, ge=0, le=60, description="how long the answer is written on after its last reader has left"
    )
    replaces: Id | None = Field(
        default=None, description="an answer of the conversation that goes when this one is finished"
    )


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
    format: str


class PassagesOut(WireOut):
    """Result of a search."""

    passages: list[PassageOut]


class PassagesEventOut(PassagesOut):
    """The first event of a streamed answer; `note` is what is known of the answer's before it is written."""

    evidence: Evidence | None
    note: str | None


class QuotesEventOut(WireOut):
    """The books' own sentences, before the first `delta` of an answer that will end with them."""

    text: str
    citations: list[Citation]


class AnswerOut(WireOut):
    """A finished answer.

    `evidence` is null where nothing was searched; `note` is what a reader should know beside the answer. `written`: a
    sentence of a language model is in it; then it ends with `quotes`, the books' own sentences, unless those were not
    wanted. `talk`: what was said, where it was no question for the books.
    """

    id: str
    conversation_id: str
    question: str
    answer: str
    quotes: str
    refused: bool
    written: bool
    evidence: Evidence | None
    note: str | None
    arm: Arm
    generator: str
    model: str
    adapter: str | None
    citations: list[Citation]
    passages: list[PassageOut]
    timings: Timings
    usage: Usage
    tokens_per_s: float
    peak_memory_bytes: int
    filters: Filters
    talk: TalkKind | None


class AnswersOut(WireOut):
    """Result of a comparison, in the order asked; `variants` names what was varied, null where only the arm was."""

    answers: list[AnswerOut]
    variants: list[str | None]


class ConversationIn(WireIn):
    """Body of `POST /v1/conversations`."""

    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS)] = ""
    begun_in: Place = Field(default="call", description="`page` for those that a page lists, apart from programs' own")


class RenameIn(WireIn):
    """Body of `PATCH /v1/conversations/{id}`."""

    title: Annotated[str, Field(min_length=1, max_length=MAX_TITLE_CHARS)]


class ConversationsOut(WireOut):
    """Conversations, the newest first."""

    conversations: list[Conversation]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An answer that is being written: `GET /v1/answers/{id}/events` follows it."""

    id: str
    question: str
    replaces: str | None


@dataclass(frozen=True, slots=True)
class ConversationDetail(Conversation):
    """A conversation with its answers, the thumbs given to them by their ids, and the answer that is being written."""

    answers: list[AnswerOut]
    ratings: dict[str, Rating]
    unfinished: Unfinished | None


class FeedbackIn(WireIn):
    """Body of `POST /v1/feedback`."""

    answer_id: Id
    rating: Rating
    comment: str | None = None


class ReportIn(WireIn):
    """Body of `POST /v1/reports`: the questions made from a book in place of the bank's."""

    document_id: Id | None = None


class VoteIn(WireIn):
    """Body of `POST /v1/votes`: `preferred` is null when no answer is better; `blind`: the arms were hidden."""

    answer_ids: list[Id] = Field(min_length=2, max_length=8)
    preferred: Id | None = None
    blind: bool = True


class VoteOut(WireOut):
    """A vote as it is kept; `winner` is the arm or variant of the preferred answer, or null."""

    question: str
    winner: Annotated[str | None, BeforeValidator(lambda winner: winner or None)]
    blind: bool
    at: str


class ExplainIn(WireIn):
    """Body of `POST /v1/explain`: the page of the file, or the heading path of the section, that was not found."""

    question: str
    document_id: Id
    page: Page | None = None
    section: list[Annotated[str, Field(max_length=1000)]] = Field(default_factory=list, max_length=20)


class ExplanationOut(WireOut):
    """Why a page was not found: its nodes, the best rank first, and how many candidates each search had."""

    query: str
    nodes: list[NodeRanks]
    candidates_dense: int
    candidates_lexical: int


class GeneratorIn(WireIn):
    """What should answer; `auto` without a model goes back to what the settings say."""

    generator: Literal["auto", "extractive", "local", "remote"]
    model: Name | None = None
    base_url: Name | None = None
    adapter: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    quantization: QuantizationName | None = None


class AdaptersOut(WireOut):
    """The adapters that were tuned on the local model that answers; `model` is null where another generator does.

    `PUT /v1/generator` takes `model`, `quantization` and one of `adapters`.
    """

    model: str | None
    quantization: str | None
    adapters: list[str]


class LossOut(WireOut):
    """A loss curve: at each step the training loss, the loss on rows that are held back, or both."""

    class Point(WireOut):
        """A step."""

        step: float
        loss: float | None = None
        eval_loss: float | None = None

    points: list[Point]


class FeedbackCountOut(WireOut):
    """How many answers were found good and bad."""

    up: int
    down: int


class AdapterIn(WireIn):
    """Body of `POST /v1/adapters`: on the questions about some books, or on `questions`."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    document_ids: list[Id] | None = Field(default=None, max_length=100)
    questions: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="`bank:tune` if left out, or the name of a question file of the home"
    )
    epochs: Annotated[float, Field(ge=0.1, le=100)] = 3.0


def wire_event(event: Event) -> tuple[str, dict[str, Any]]:
    """An event of an answer by its name in a stream, with its data."""
    match event:
        case PassagesFound():
            return "passages", PassagesEventOut.model_validate(event).model_dump(mode="json")
        case QuotesFound():
            return "quotes", QuotesEventOut.model_validate(event).model_dump(mode="json")
        case Waiting(before):
            return "waiting", {"before": before}
        case Thinking():
            return "thinking", {}
        case TextDelta(text):
            return "delta", {"text": text}
        case AnswerDone(answer):
            return "done", AnswerOut.model_validate(answer).model_dump(mode="json")
