"""The library as tools for assistants (Model Context Protocol): search, ask and quiz."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer

from api.schemas.answers import AnswerOut, PassageOut
from api.schemas.study import ExamOut, ResultOut
from evals.exam import ExamPlan
from evals.study import Study
from indexes.errors import CoalesceError
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
    server = MCPServer("coalesce", title="Coalesce", instructions=INSTRUCTIONS)

    @server.tool()
    def search(query: str, top_k: int = 5) -> dict[str, Any]:
        """Finds passages in the books: text, heading path, printed page."""
        return _reply(
            lambda: {"passages": [PassageOut.model_validate(p).model_dump() for p in engine().search(query, top_k)]}
        )

    @server.tool()
    def ask(question: str, top_k: int = 5, answer_anyway: bool = False) -> dict[str, Any]:
        """Answers from the books; every quote is verbatim on the page named, or the question is refused.

        `note` is what a reader should know beside the answer. `answer_anyway` answers from the nearest passages where
        the question would be refused.
        """
        asked = Question(question, top_k=top_k, answer_anyway=answer_anyway)
        return _reply(lambda: AnswerOut.model_validate(engine().ask(asked, keep=False)).model_dump(mode="json"))

    @server.tool()
    def quiz(count: int = 5, chapters: list[int] | None = None, types: list[str] | None = None) -> dict[str, Any]:
        """Sets exam questions on the bundled book; hand the answers to `mark_quiz` with the exam's id."""

        def start() -> dict[str, Any]:
            plan = ExamPlan(count, tuple(chapters or ()), tuple(types or ()), seed=secrets.randbelow(2**31))
            exam = study.start_exam(plan, learner)
            questions = ExamOut.model_validate(exam).questions
            return {"exam_id": exam.id, "questions": [question.model_dump() for question in questions]}

        return _reply(start)

    @server.tool()
    def mark_quiz(exam_id: str, answers: dict[str, int | str]) -> dict[str, Any]:
        """Marks answers by question id: an option's index from 0, or a text."""
        return _reply(lambda: ResultOut.model_validate(study.hand_in(exam_id, answers, learner)).model_dump())

    return server


def _reply(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The call's result, or our error in words that an assistant can act on."""
    try:
        return call()
    except CoalesceError as error:
        return {"error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}}
