"""`coalesce memory`: how many bytes a model needs, before anything is downloaded or loaded."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from api.commands.context import Json

EXAMPLES = """Example: coalesce memory --model Qwen/Qwen3-8B --context 8192

For tuning: coalesce memory --model models/qwen3-8b/config.json --train --rank 16 --context 2048 --json"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=EXAMPLES)(memory)


def memory(
    model: Annotated[str, typer.Option("--model", help="A model folder, a config.json, or a hub name on this disk.")],
    quantization: Annotated[Literal["none", "int8", "nf4"], typer.Option(help="How the weights are held.")] = "nf4",
    context: Annotated[int, typer.Option(min=1, help="Tokens of prompt and answer, or of a training row.")] = 4096,
    batch: Annotated[int, typer.Option(min=1, help="Answers at once, or rows a training pass.")] = 1,
    train: Annotated[bool, typer.Option("--train", help="For tuning an adapter instead of serving.")] = False,
    rank: Annotated[int | None, typer.Option(min=1, help="LoRA rank: 16 for tuning, no adapter for serving.")] = None,
    json_output: Json = False,
) -> None:
    """Estimate the memory of serving or tuning a model. Activations are an upper estimate; the rest is counted."""
    from api.console import Console, table
    from rag.models.memory import estimate_memory

    estimate = estimate_memory(
        model, quantization=quantization, context_tokens=context, batch=batch, train=train, rank=rank
    )
    document = asdict(estimate)
    rows = [
        [name.removesuffix("_bytes").replace("_", " "), _size(value)]
        for name, value in document.items()
        if name.endswith("_bytes")
    ]
    counted = f"{estimate.num_parameters / 1e6:,.1f} million parameters"
    if estimate.trainable_parameters:
        counted += f", {estimate.trainable_parameters / 1e6:.1f} million of them in the adapter"
    Console(json_output=json_output).result(document, [*table(rows), "", counted])


def _size(count: int) -> str:
    return f"{count / 2**30:8.2f} GiB" if count >= 2**30 / 10 or not count else f"{count / 2**20:8.2f} MiB"
