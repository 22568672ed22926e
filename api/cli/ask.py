"""`coalesce ask`, `chat` and `search`: by the running server of the home where there is one, else in this process."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import (
    Adapter,
    Answers,
    BaseUrl,
    GeneratorName,
    Invocation,
    Json,
    Model,
    Quantization,
    generator_options,
)
from api.console import Console
from rag.types import Arm

if TYPE_CHECKING:
    from api.running_server import RunningServer
    from api.schemas.answers import AnswerOut, CitationOut, PassageOut
    from api.settings import CoalesceSettings
    from indexes.types import Filters
    from rag.engine import AnswerEngine
    from rag.types import Answer, Event, Question


commands = typer.Typer()
Book = Annotated[list[str] | None, typer.Option("--book", metavar="ID", help="Only this book; may be repeated.")]
Chapter = Annotated[
    list[str] | None,
    typer.Option("--chapter", metavar="N", help="Only this chapter: number or exact title; may be repeated."),
]
Pages = Annotated[str | None, typer.Option("--pages", metavar="A-B", help="Only these pages of the file, from 1.")]
TopK = Annotated[int, typer.Option("--top-k", metavar="N", help="How many passages to use.")]
QUOTE_CHARS = 160
CUT_OFF = "The answer was cut off: it reached its longest length (see --max-tokens) or began to repeat itself."


@commands.command(epilog='Example: coalesce ask "When is a memory access coalesced?" --chapter 5')
def ask(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="The question.")],
    arm: Annotated[Arm, typer.Option(help="The arm that answers.")] = "rag",
    book: Book = None,
    chapter: Chapter = None,
    pages: Pages = None,
    top_k: TopK = 5,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="Longest answer.")] = None,
    generator: GeneratorName = None,
    model: Model = None,
    quantization: Quantization = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
    answers: Answers = None,
    answer_anyway: Annotated[
        bool, typer.Option("--answer-anyway", help="Answer from the nearest passages where nothing fits.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Ask a question; the answer names its sources."""
    invocation: Invocation = context.obj
    settings = invocation.settings(**generator_options(generator, model, quantization, adapter, base_url, answers))
    from rag.types import Question

    filters = _filters(book, chapter, pages)
    console = Console(json_output=json_output)
    asked = Question(
        question, arm=arm, top_k=top_k, filters=filters, max_tokens=max_tokens, answer_anyway=answer_anyway
    )
    own = any((generator, model, quantization, adapter, base_url, answers))
    with _answering(settings, console, asked, own=own) as answering:
        answer = answering(asked)
    lines = [] if json_output else _sources(answer)
    console.result(answer.model_dump(mode="json"), lines)


@commands.command(epilog="Example: coalesce chat --chapter 5")
def chat(
    context: typer.Context,
    arm: Annotated[Arm, typer.Option(help="The arm that answers.")] = "rag",
    book: Book = None,
    chapter: Chapter = None,
    top_k: TopK = 5,
    generator: GeneratorName = None,
    model: Model = None,
    quantization: Quantization = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
) -> None:
    """Ask one question after another in one conversation; an empty line or Ctrl-D ends it."""
    invocation: Invocation = context.obj
    settings = invocation.settings(**generator_options(generator, model, quantization, adapter, base_url))
    from dataclasses import replace

    from indexes.errors import CoalesceError
    from rag.types import Question

    console = Console()
    question = Question("What is a warp?", arm=arm, top_k=top_k, filters=_filters(book, chapter, None))
    own = any((generator, model, quantization, adapter, base_url))
    with _answering(settings, console, question, own=own) as answering:
        while text := _next_question():
            try:
                answer = answering(replace(question, text=text))
            except CoalesceError as error:
                console.say(f"{error.message}\n  {error.hint}")
                continue
            question = replace(question, conversation_id=answer.conversation_id)
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
    invocation: Invocation = context.obj
    settings = invocation.settings(generator="extractive")
    from api.running_server import find_server
    from api.schemas.answers import PassagesOut
    from rag.types import Question

    filters = _filters(book, chapter, pages)
    console = Console(json_output=json_output)
    if server := find_server(settings):
        body = {"query": query, "top_k": top_k, "filters": _filters_body(filters)}
        found = PassagesOut.model_validate(server.post("/v1/search", body))
    else:
        with _engine(settings, console, Question(query, top_k=top_k, filters=filters)) as engine:
            found = PassagesOut.model_validate({"passages": engine.search(query, top_k, filters)})
    console.result(found.model_dump(mode="json"), _listed(found.passages) or ["nothing was found"])


@contextmanager
def _answering(
    settings: CoalesceSettings, console: Console, question: Question, *, own: bool
) -> Iterator[Callable[[Question], AnswerOut]]:
    """What answers: the running server of this home, or models loaded here; `own` keeps it here.

    Raises:
        CoalesceError: `question`, the first one, cannot be answered here.
    """
    from api.running_server import find_server
    from api.schemas.answers import AnswerOut

    if server := None if own else find_server(settings):
        yield partial(_ask_server, server, console)
        return
    with _engine(settings, console, question) as engine:
        yield lambda asked: AnswerOut.model_validate(_stream(engine, asked, console))


def _ask_server(server: RunningServer, console: Console, question: Question) -> AnswerOut:
    from api.schemas.answers import AnswerOut
    from indexes.errors import CoalesceError
    from rag.evidence import without_nearest

    names = ("arm", "top_k", "conversation_id", "max_tokens", "answer_anyway")
    body = {name: getattr(question, name) for name in names} | {"filters": _filters_body(question.filters)}
    noted: str | None = None
    console.step(f"asking {server.address}")
    for name, data in server.stream("/v1/ask", body | {"question": question.text}):
        if name == "done":
            answer = AnswerOut.model_validate(data)
            if not console.json_output and answer.note and answer.note != noted:
                console.text(f"\n\n{answer.note}")
            return answer
        if console.json_output:
            continue
        if name == "passages" and data["note"]:
            noted = data["note"]
            console.clear()
            console.text(f"{noted}\n\n")
        elif name == "thinking":
            console.step("the model is thinking")
        elif name == "delta":
            console.clear()
            console.text(without_nearest(data["text"]))
    raise CoalesceError("the server ended its answer early", hint="Ask again.")


def _filters_body(filters: Filters) -> dict[str, Any]:
    return {
        "document_ids": list(filters.document_ids),
        "chapters": list(filters.chapters),
        "pages": list(filters.pages) if filters.pages else None,
    }


@contextmanager
def _engine(settings: CoalesceSettings, console: Console, question: Question) -> Iterator[AnswerEngine]:
    """The loaded engine over the home's library; a question that it cannot answer is refused before models load."""
    from indexes.library import open_library
    from rag.assemble import build_engine, check_before_loading

    library = open_library(settings.index, create=True)
    try:
        check_before_loading(settings.rag, library, question)
        console.step("loading models")
        engine = build_engine(settings.rag, library)
        try:
            engine.load()
            console.clear()
            yield engine
        finally:
            engine.close()
    finally:
        library.close()


def _stream(engine: AnswerEngine, question: Any, console: Console) -> Answer:
    from rag.evidence import without_nearest
    from rag.types import AnswerDone, PassagesFound, TextDelta, Thinking

    noted: str | None = None

    def listen(event: Event) -> None:
        nonlocal noted
        if console.json_output:
            return
        match event:
            case PassagesFound(note=note) if note:
                noted = note
                console.text(f"{note}\n\n")
            case Thinking():
                console.step("the model is thinking")
            case TextDelta(text):
                console.clear()
                console.text(without_nearest(text))
            case AnswerDone(answer) if answer.note and answer.note != noted:
                console.text(f"\n\n{answer.note}")

    return engine.ask(question, listen=listen)


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


def _sources(answer: AnswerOut) -> list[str]:
    """The lines below an answer: that it was cut off, its sources, or the passages nearest to a refusal."""
    if answer.refused:
        nearest = [f"[{number}] {_place(passage)}" for number, passage in enumerate(answer.passages, 1)]
        return ["", "", "The nearest passages:", *nearest] if nearest else [""]
    cut_off = ["", "", CUT_OFF] if answer.usage.finish == "length" else []
    lines = [*cut_off, "", ""] if answer.citations else [*cut_off, ""]
    shown: set[int] = set()
    for citation in answer.citations:
        if citation.marker not in shown:
            shown.add(citation.marker)
            lines.append(f"[{citation.marker}] {_place(citation)}")
        quote = " ".join(citation.quote.split())
        lines.append(f"    {citation.verdict}: “{textwrap.shorten(quote, QUOTE_CHARS, placeholder=' …')}”")
    return lines


def _listed(passages: Sequence[PassageOut]) -> list[str]:
    lines: list[str] = []
    for number, passage in enumerate(passages, 1):
        lines.append(f"[{number}] {_place(passage)}  ({passage.score:.3f})")
        lines.extend(textwrap.indent(passage.text.strip(), "    ").splitlines())
        lines.append("")
    return lines


def _place(source: CitationOut | PassageOut) -> str:
    page = f", page {source.page_label or source.page_start}" if source.page_start is not None else ""
    return " › ".join((source.title, *source.section)) + page
