"""`coalesce serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.context import Adapter, BaseUrl, GeneratorName, Invocation, Model, Quantization, generator_options


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog="Example: coalesce serve --port 8080")(serve)


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to bind to; others than loopback need a key.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let other machines in without a key.")] = False,
    generator: GeneratorName = None,
    model: Model = None,
    quantization: Quantization = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
) -> None:
    """Answer over REST, the OpenAI-compatible API and a web page."""
    invocation: Invocation = context.obj
    options = generator_options(generator, model, quantization, adapter, base_url)
    settings = invocation.settings(host=host, port=port, insecure=insecure or None, **options)
    from api.console import Console
    from api.server import run_server

    run_server(settings, Console())
