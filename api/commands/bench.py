"""`coalesce bench`: the measurements behind `docs/benchmarks.md`; the last line is JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from api.console import Console

bench = typer.Typer(
    name="bench",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure this machine; ratios are taken side by side in one run. Example: coalesce bench search",
)
Rounds = Annotated[int, typer.Option(min=1, max=10_000, help="Rounds; medians are printed.")]
Json = Annotated[bool, typer.Option("--json", help="Print the JSON line only.")]


def register(app: typer.Typer) -> None:
    """Adds the group."""
    app.add_typer(bench)


@bench.command()
def indexing(rounds: Rounds = 3, json_output: Json = False) -> None:
    """Adding a book beside llama-index's default and bare encoding. Example: coalesce bench indexing"""
    from evals.bench.indexing import bench_indexing

    _print(bench_indexing(rounds=rounds), json_output)


@bench.command()
def search(
    nodes: Annotated[int, typer.Option(min=100, max=5_000_000, help="Nodes of the library.")] = 50_000,
    rounds: Rounds = 40,
    json_output: Json = False,
) -> None:
    """Dense and hybrid search beside the bare cost. Example: coalesce bench search --nodes 50000"""
    from evals.bench.search import bench_search

    _print(bench_search(nodes, rounds), json_output)


@bench.command()
def scale(
    nodes: Annotated[int, typer.Option(min=1_000, max=5_000_000, help="Nodes of the library.")] = 250_000,
    rounds: Rounds = 200,
    json_output: Json = False,
) -> None:
    """A very large library: filled, opened, searched, added to. Example: coalesce bench scale --nodes 1000000"""
    from evals.bench.scale import bench_scale

    _print(bench_scale(nodes, rounds), json_output)


@bench.command()
def answers(rounds: Rounds = 40, json_output: Json = False) -> None:
    """Extractive answers, one client and sixteen at once. Example: coalesce bench answers"""
    from evals.bench.answers import bench_answers

    _print(bench_answers(rounds=rounds), json_output)


@bench.command()
def startup(rounds: Rounds = 3, json_output: Json = False) -> None:
    """Starting the server on a home with a library. Example: coalesce bench startup"""
    from evals.bench.startup import bench_startup

    _print(bench_startup(rounds), json_output)


@bench.command()
def generator(
    shape: Annotated[str, typer.Option(help="Model shape with random weights: 0.6b, 8b (for a GPU) or tiny.")] = "0.6b",
    context: Annotated[int, typer.Option(min=16, help="Tokens behind the long decoding step.")] = 4000,
    rounds: Rounds = 8,
    json_output: Json = False,
) -> None:
    """The local generator: precision, cache, attention, prefixes. Example: coalesce bench generator"""
    from evals.bench.generator import bench_generator
    from evals.bench.random_model import SHAPES
    from indexes.errors import InvalidInput

    if shape not in SHAPES:
        raise InvalidInput(f"shape {shape!r} is not known", hint=f"use one of {', '.join(SHAPES)}")
    _print(bench_generator(shape, rounds, context), json_output)


def _print(result: dict[str, Any], json_output: bool) -> None:
    lines = [] if json_output else [f"{name}: {value}" for name, value in result.items()]
    Console().result(None, [*lines, json.dumps(result, ensure_ascii=False)])
