"""`coalesce mcp`: the library as tools for assistants, over standard input and output."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import typer

from api.commands.context import (
    Adapter,
    BaseUrl,
    GeneratorName,
    Invocation,
    Model,
    Quantization,
    generator_options,
)

if TYPE_CHECKING:
    from rag.engine import AnswerEngine


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog='Example, in an assistant\'s settings: {"command": "coalesce", "args": ["mcp"]}')(mcp)


def mcp(
    context: typer.Context,
    generator: GeneratorName = None,
    model: Model = None,
    quantization: Quantization = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
    learner: Annotated[str | None, typer.Option(help="Whose exams and cards the assistant works on.")] = None,
) -> None:
    """Serve search, ask and quiz as tools (Model Context Protocol) on standard input and output."""
    invocation: Invocation = context.obj
    settings = invocation.settings(**generator_options(generator, model, quantization, adapter, base_url))
    from api.mcp_server import build_mcp_server
    from api.studying import open_study
    from evals.learners import DEFAULT_LEARNER, checked_learner
    from indexes.library import open_library
    from rag.assemble import build_engine

    whose = checked_learner(DEFAULT_LEARNER if learner is None else learner)

    @lru_cache(maxsize=1)
    def engine() -> AnswerEngine:
        library = open_library(settings.index, create=False)
        library.load()
        built = build_engine(settings.rag, library)
        built.load()
        return built

    with open_study(settings) as study:
        build_mcp_server(engine, study, whose).run("stdio")
