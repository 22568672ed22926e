"""`coalesce ask`, `chat` and `search`: by the running server of the home where there is one, else in this process."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import AnswerOptions, Json, settings_of, with_options
from api.console import Console
from rag.types import Arm

if TYPE_CHECKING:
    from api.settings import CoalesceSettings
    from indexes.types import Filters
    from rag.engine import AnswerEngine
    from rag.types import Question

Document = dict[str, Any]
"""A reply of REST."""
Ask = Callable[["Question"], Iterable[tuple[str, Any]]]
"""Answers a question by the events of `POST /v1/ask`, each with its data."""

commands = typer.Typer()
Book = Annotated[
    list[str] | None,
    typer.Option("--book", metavar="BOOK", help="Only this book, by its id or title; may be repeated."),
]
Chapter = Annotated[
    list[str] | None,
    typer.Option("--chapter", metavar="N", help="Only this chapter: number or exact title; may be repeated."),
]
Pages = Annotated[str | None, typer.Option("--pages", metavar="A-B", help="Only these pages of the file, from 1.")]
TopK = Annotated[int, typer.Option("--top-k", metavar="N", help="How many passages to use.")]
QUOTE_CHARS = 160
WRITTEN = "Written from these passages:"
CUT_OFF = "The answer was cut off: it reached its longest length (see --max-tokens) or began to repeat itself."


@commands.command(epilog='Example: coalesce ask "When is a memory access coalesced?" --chapter 5')
@with_options
def ask(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="The question.")],
    arm: Annotated[Arm, typer.Option(help="The arm that answers.")] = "rag",
    book: Book = None,
    chapter: Chapter = None,
    pages: Pages = None,
    top_k: TopK = 5,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="Longest answer.")] = None,
    *,
    writer: AnswerOptions,
    answer_anyway: Annotated[
        bool, typer.Option("--answer-anyway", help="Answer from the nearest passages where nothing fits.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Ask a question; the answer names its sources."""
    settings = settings_of(context, **writer.given)
    from rag.types import Question

    filters = _filters(book, chapter, pages)
    console = Console(json_output=json_output)
    asked = Question(
        question,
        arm=arm,
        top_k=top_k,
        filters=filters,
        max_tokens=max_tokens,
        answer_anyway=answer_anyway,
        answers=writer.answers,
    )
    with _answering(settings, console, asked, own=bool(writer.given.keys() - {"answers"})) as answering:
        answer = _shown(answering(asked), console)
    console.result(answer, _sources(answer))


@commands.command(epilog="Example: coalesce chat --chapter 5")
@with_options
def chat(
    context: typer.Context,
    arm: Annotated[Arm, typer.Option(help="The arm that answers.")] = "rag",
    book: Book = None,
    chapter: Chapter = None,
    top_k: TopK = 5,
    *,
    writer: AnswerOptions,
) -> None:
    """Ask one question after another in one conversation; an empty line or Ctrl-D ends it."""
    settings = settings_of(context, **writer.given)
    from indexes.errors import CoalesceError
    from rag.types import Question

    console = Console()
    filters = _filters(book, chapter, None)
    question = Question("What is a warp?", arm=arm, top_k=top_k, filters=filters, answers=writer.answers)
    with _answering(settings, console, question, own=bool(writer.given.keys() - {"answers"})) as answering:
        while text := _next_question():
            try:
                answer = _shown(answering(replace(question, text=text)), console)
            except CoalesceError as error:
                console.say(f"{error.message}\n  {error.hint}")
                continue
            question = replace(question, conversation_id=answer["conversation_id"])
            console.result(None, [*_sources(answer), ""])


def _next_question() -> str:
    try:
        return input("? ").strip()
    except EOFError:
        print()  # what comes next does not stand beside the prompt
        return ""


@commands.command(epilog='Example: coalesce search "__syncthreads divergence" --top-k 3')
def search(
    context: typer.Context,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    book: Book = None,
    chapter: Chapter = None,
    pages: Pages = None,
    top_k: TopK = 5,
    json_output: Json = False,
) -> None:
    """Find passages."""
    settings = settings_of(context, generator="extractive")
    from api.running_server import find_server
    from rag.types import Question

    filters = _filters(book, chapter, pages)
    console = Console(json_output=json_output)
    if server := find_server(settings):
        filters = _by_id(filters, server.every("/v1/documents", "documents") if book else ())
        found = server.post("/v1/search", {"query": query, "top_k": top_k, "filters": asdict(filters)})
    else:
        with _engine(settings, console, Question(query, top_k=top_k, filters=filters)) as (engine, asked):
            from api.schemas.answers import PassagesOut

            passages = engine.search(query, top_k, asked.filters)
            found = PassagesOut.model_validate({"passages": passages}).model_dump(mode="json")
    console.result(found, _listed(found["passages"]) or ["nothing was found"])


@contextmanager
def _answering(settings: CoalesceSettings, console: Console, question: Question, *, own: bool) -> Iterator[Ask]:
    """What answers: the running server of this home, or models loaded here; `own` keeps it here.

    Raises:
        CoalesceError: `question`, the first one, cannot be answered here.
    """
    from api.running_server import find_server

    if server := None if own else find_server(settings):
        books = server.every("/v1/documents", "documents") if question.filters.document_ids else ()
        filters = asdict(_by_id(question.filters, books))

        def ask_server(asked: Question) -> Iterable[tuple[str, Any]]:
            names = ("arm", "top_k", "conversation_id", "max_tokens", "answer_anyway", "answers")
            body = {"question": asked.text, "filters": filters} | {name: getattr(asked, name) for name in names}
            console.step(f"asking {server.address}")
            return server.stream("/v1/ask", body)

        yield ask_server
        return
    with _engine(settings, console, question) as (engine, first):
        from api.schemas.answers import wire_event

        yield lambda asked: map(wire_event, engine.stream(replace(asked, filters=first.filters)))


@contextmanager
def _engine(
    settings: CoalesceSettings, console: Console, question: Question
) -> Iterator[tuple[AnswerEngine, Question]]:
    """The loaded engine over the home's library, and the question with its books by id.

    A question that cannot be answered is refused before models load.
    """
    from indexes.library import open_library
    from rag.assemble import build_engine, check_before_loading

    library = open_library(settings.index, create=True)
    try:
        if question.filters.document_ids:
            books = [{"id": book.document_id, "title": book.title} for book in library.documents()]
            question = replace(question, filters=_by_id(question.filters, books))
        check_before_loading(settings.rag, library, question)
        console.step("loading models")
        engine = build_engine(settings.rag, library)
        try:
            engine.load()
            console.clear()
            yield engine, question
        finally:
            engine.close()
    finally:
        library.close()


def _shown(events: Iterable[tuple[str, Any]], console: Console) -> Document:
    """Prints the answer as it comes, its note above it or, where that is known later, below; gives it whole.

    Quotes that a language model writes above come first here too, and what it wrote below them once that is whole.
    """
    from indexes.errors import CoalesceError

    note: str | None = None
    quotes = ""
    for name, data in events:
        if console.json_output and name != "done":
            continue
        if name == "passages" and data["note"]:
            note = data["note"]
            console.clear()
            console.text(f"{note}\n\n")
        elif name == "thinking":
            console.step("the model is thinking")
        elif name == "quotes":
            quotes = data["text"]
            console.clear()
            console.text(f"{quotes}\n")
            console.step("the model is writing")
        elif name == "delta" and not quotes:
            console.clear()
            console.text(data["text"])
        elif name == "done":
            console.clear()
            if not console.json_output and quotes and data["written"]:
                written = data["answer"].removesuffix(quotes)
                console.text(f"\n{WRITTEN}\n{written.rstrip().removesuffix('---').strip()}")
            later = (data["note"] or "").removeprefix(note or "").strip()
            if later and not console.json_output:
                console.text(f"\n\n{later}")
            return dict(data)
    raise CoalesceError("the answer ended before it was whole", hint="Ask again.")


def _filters(books: list[str] | None, chapters: list[str] | None, pages: str | None) -> Filters:
    from indexes.errors import InvalidInput
    from indexes.types import Filters
    from rag.question import whole_number

    first_last = None
    if pages is not None:
        first, _, last = pages.partition("-")
        low, high = whole_number(first), whole_number(last or first)
        if not low or not high or low > high:
            raise InvalidInput(f"--pages {pages!r:.40} is not of the form A-B", hint="For example: --pages 12-20")
        first_last = (low, high)
    named = tuple(whole_number(chapter) or chapter for chapter in chapters or ())
    return Filters(tuple(books or ()), named, first_last)


def _by_id(filters: Filters, books: Iterable[Mapping[str, Any]]) -> Filters:
    """The filters with books that are named by their title under their ids."""
    from indexes.types import book_id

    known = [(book["id"], book["title"]) for book in books]
    return replace(filters, document_ids=tuple(book_id(named, known) for named in filters.document_ids))


def _sources(answer: Document) -> list[str]:
    """The lines below an answer: that it was cut off, and its sources."""
    if answer["refused"]:  # a model may name the passage that it does not find enough in
        named = [(n, one) for n, one in enumerate(answer["passages"], 1) if f"[{n}]" in answer["answer"]]
        return ["", *([""] if named else []), *(f"[{n}] {_place(one)}" for n, one in named)]
    cut_off = ["", "", CUT_OFF] if answer["usage"]["finish"] == "length" else []
    lines = [*cut_off, "", ""] if answer["citations"] else [*cut_off, ""]
    shown: set[int] = set()
    for citation in answer["citations"]:
        if citation["marker"] not in shown:
            shown.add(citation["marker"])
            lines.append(f"[{citation['marker']}] {_place(citation)}")
        quote = " ".join(citation["quote"].split())
        lines.append(f"    {citation['verdict']}: “{textwrap.shorten(quote, QUOTE_CHARS, placeholder=' …')}”")
    return lines


def _listed(passages: Sequence[Document]) -> list[str]:
    lines: list[str] = []
    for number, passage in enumerate(passages, 1):
        lines.append(f"[{number}] {_place(passage)}  ({passage['score']:.3f})")
        lines.extend(textwrap.indent(passage["text"].strip(), "    ").splitlines())
        lines.append("")
    return lines


def _place(source: Document) -> str:
    from rag.types import place_of

    return place_of(source["title"], source["section"], source["page_label"] or source["page_start"])
