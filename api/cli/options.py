"""Options that several commands share, and commands whose options are the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from rag.settings import GeneratorName, QuantizationName

if TYPE_CHECKING:
    from api.settings import CoalesceSettings

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quantization = Annotated[
    QuantizationName | None,
    typer.Option(
        "--quantization", help="Format of a local model's weights; by default what was measured best for the machine."
    ),
]


def settings_of(context: typer.Context, **overrides: Any) -> CoalesceSettings:
    """The settings of a command, over the home named before it; raises InvalidInput."""
    from api.settings import load_settings

    return load_settings({"home": context.obj, **overrides})


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The language model or other generator that a command uses; None where an option was not given."""

    generator: Annotated[
        GeneratorName | None,
        typer.Option("--generator", help="What writes the answer."),
    ] = None
    model: Annotated[
        str | None, typer.Option("--model", help="Model to run: folder, .gguf file or name (local), name (remote).")
    ] = None
    quantization: Quantization = None
    adapter: Annotated[
        list[str] | None,
        typer.Option("--adapter", metavar="NAME=PATH", help="A LoRA adapter by name; may be repeated."),
    ] = None
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", help="The remote engine's /v1 address, or several with commas between them."),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that were given, as settings; raises InvalidInput unless an adapter is NAME=PATH."""
        from api.settings import parse_pair

        found = {each.name: value for each in fields(self) if (value := getattr(self, each.name))}
        if "adapter" in found:
            found["adapters"] = dict(parse_pair(pair) for pair in found.pop("adapter"))
        return found


@dataclass(frozen=True, slots=True)
class AnswerOptions(WriterOptions):
    """What answers, and how."""

    answers: Annotated[
        Literal["both", "free", "quotes"] | None,
        typer.Option(
            "--answers",
            help="With a language model: both, its sentences that a passage supports above the books' own; free, its "
            "text alone, checked; quotes, the books' sentences alone.",
        ),
    ] = None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes each field of its dataclass parameters as an option.

    A field is annotated as Typer's own parameters are, or its metadata holds `help`, `min`, `max` and `option`: the
    option's name, "" for the field's own, None where the command line does not have it.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }
    options = {name: _options_of(group) for name, group in groups.items()}
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in signature.parameters.items()
        for parameter in options.get(name, [each])
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        made = {name: groups[name](**{each.name: given.pop(each.name) for each in options[name]}) for name in groups}
        command(**given, **made)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    found = []
    for each in fields(group):
        about, annotation = each.metadata, hints[each.name]
        if about:
            if about["option"] is None:
                continue
            name = about["option"] or f"--{each.name.replace('_', '-')}"
            if each.default is True:
                name = f"{name}/--no-{name.removeprefix('--')}"
            option = typer.Option(name, help=about["help"], min=about["min"], max=about["max"])
            annotation = Annotated[annotation, option]
        keyword = inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(each.name, keyword, default=each.default, annotation=annotation))
    return found
