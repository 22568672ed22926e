"""Options that several commands share, and the settings that they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from api.settings import CoalesceSettings

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
GeneratorName = Annotated[
    Literal["auto", "extractive", "local", "remote", "vllm", "encoder", "llama_index"] | None,
    typer.Option("--generator", help="What writes the answer."),
]
Model = Annotated[
    str | None, typer.Option("--model", help="Model to run: folder, .gguf file or name (local), name (remote).")
]
Quantization = Annotated[
    Literal["none", "int8", "nf4"] | None,
    typer.Option(
        "--quantization", help="Format of a local model's weights; by default nf4, and none below 500M weights."
    ),
]
Adapter = Annotated[
    list[str] | None, typer.Option("--adapter", metavar="NAME=PATH", help="A LoRA adapter by name; may be repeated.")
]
Answers = Annotated[
    Literal["free", "quotes"] | None,
    typer.Option("--answers", help="free: a local model writes; quotes: it says only sentences of the passages."),
]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="The remote engine's /v1 address.")]


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options before the command."""

    home: Path | None
    debug: bool

    def settings(self, **overrides: Any) -> CoalesceSettings:
        """The settings of this call; raises InvalidInput."""
        from api.settings import load_settings

        return load_settings({"home": self.home, **overrides})


def generator_options(
    generator: str | None,
    model: str | None,
    quantization: str | None,
    adapter: list[str] | None,
    base_url: str | None,
    answers: str | None = None,
) -> dict[str, Any]:
    """The generator's options as settings; raises InvalidInput unless an adapter is NAME=PATH."""
    from api.settings import parse_pair

    adapters = dict(parse_pair(pair) for pair in adapter) if adapter else None
    return {
        "generator": generator,
        "model": model,
        "quantization": quantization,
        "adapters": adapters,
        "base_url": base_url,
        "answers": answers,
    }
