"""The library as tools for assistants (Model Context Protocol): search, ask and quiz."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Annotated, Any

import anyio
import mcp_types
from mcp.server import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult

from api.schemas.answers import AnswerOut, PassageOut
from api.schemas.study import ExamOut, ResultOut
from api.settings import program_version
from evals.exam import ExamPlan
from evals.study import Study
from indexes.errors import CoalesceError
from indexes.types import Filters, book_id
from rag.engine import AnswerEngine
from rag.types import Question

INSTRUCTIONS = (
    "Books on GPU programming. `search` finds passages, `ask` gives an answer whose citations are verbatim on the "
    "page named, `quiz` sets questions and `mark_quiz` marks the answers with the passage that justifies each."
)


def build_mcp_server(engine: Callable[[], AnswerEngine], study: Study, learner: str) -> MCPServer:
    """Makes the server with its four tools.

    Args:
        engine: gives the engine, loaded at the first call.
        learner: whose exams and cards the assistant may see.
    """
    server = MCPServer("coalesce", title="Coalesce", instructions=INSTRUCTIONS, version=program_version())

    def within(book: str | None) -> Filters:
        if book is None:
            return Filters()
        books = [(document.document_id, document.title) for document in engine().library.documents()]
        return Filters((book_id(book, books),))

    @server.tool()
    def search(query: str, top_k: int = 5, book: str | None = None) -> Reply:
        """Finds passages in the books, or in the one of this id or title: text, heading path, printed page."""

        def found() -> dict[str, Any]:
            passages = engine().search(query, top_k, within(book))
            return {"passages": [PassageOut.model_validate(passage).model_dump() for passage in passages]}

        return _reply(found)

    @server.tool()
    def ask(question: str, top_k: int = 5, answer_anyway: bool = False, book: str | None = None) -> Reply:
        """Answers from the books, or from the one of this id or title; every quote is verbatim on the page named, or
        the question is refused.

        With a language model, sentences that it wrote and that a passage supports come first (`written`), and the
        books' own (`quotes`) below.

        `note` is what a reader should know beside the answer. `answer_anyway` answers from the nearest passages where
        the question would be refused.
        """

        def answered() -> dict[str, Any]:
            asked = Question(question, top_k=top_k, answer_anyway=answer_anyway, filters=within(book))
            return AnswerOut.model_validate(engine().ask(asked, keep=False)).model_dump(mode="json")

        return _reply(answered)

    @server.tool()
    def quiz(count: int = 5, chapters: list[int] | None = None, types: list[str] | None = None) -> Reply:
        """Sets exam questions on the bundled book; hand the answers to `mark_quiz` with the exam's id."""

        def start() -> dict[str, Any]:
            plan = ExamPlan(count, tuple(chapters or ()), tuple(types or ()), seed=secrets.randbelow(2**31))
            exam = study.start_exam(plan, learner)
            questions = ExamOut.model_validate(exam).questions
            return {"exam_id": exam.id, "questions": [question.model_dump() for question in questions]}

        return _reply(start)

    @server.tool()
    def mark_quiz(exam_id: str, answers: dict[str, int | str]) -> Reply:
        """Marks answers by question id: an option's index from 0, or a text."""
        return _reply(lambda: ResultOut.model_validate(study.hand_in(exam_id, answers, learner)).model_dump())

    return server


Reply = Annotated[CallToolResult, dict[str, Any]]


def _reply(call: Callable[[], dict[str, Any]]) -> CallToolResult:
    """The call's result, or our error in words that an assistant can act on."""
    try:
        said, failed = call(), False
    except CoalesceError as error:
        said = {"error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}}
        failed = True
    text = mcp_types.TextContent(type="text", text=json.dumps(said, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content=said, is_error=failed)


async def serve_stdio(server: MCPServer) -> None:
    """Serves on standard input and output. A line that is no message gets its error: the SDK says nothing to it."""
    lowlevel = server._lowlevel_server
    to_server, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with stdio_server() as (lines, replies), anyio.create_task_group() as tasks:

        async def pass_on() -> None:
            async with to_server:
                async for line in lines:
                    if isinstance(line, Exception):
                        await replies.send(SessionMessage(_NO_MESSAGE))
                    else:
                        await to_server.send(line)

        tasks.start_soon(pass_on)
        await lowlevel.run(messages, replies, lowlevel.create_initialization_options())
        tasks.cancel_scope.cancel()


_NO_MESSAGE = mcp_types.JSONRPCError(
    jsonrpc="2.0",
    id=None,
    error=mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message="the line is not a message of JSON-RPC in UTF-8"),
)
