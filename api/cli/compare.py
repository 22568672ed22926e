"""`coalesce eval` and `coalesce bench`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import AnswerOptions, Json, settings_of, with_options
from api.console import Console, table
from indexes.messages import msg

if TYPE_CHECKING:
    from api.settings import CoalesceSettings
    from evals.questions import BankQuestion

commands = typer.Typer()
bench = typer.Typer(
    help="Measure this machine; ratios are taken side by side in one run. Example: coalesce bench readers",
    no_args_is_help=True,
)
commands.add_typer(bench, name="bench")
EXAMPLES = """Example: coalesce eval --quick

On other books: coalesce eval --questions judged --texts FOLDER

With a language model: coalesce eval --model qwen2.5-coder-1.5b --adapter qa=adapters/qa --out run

An interrupted run goes on with the same command, and arms can be added to it: its answers are kept."""


def _questions_on(settings: CoalesceSettings, document_id: str) -> Sequence[BankQuestion]:
    """The questions made from a book of the home, or the bank's test ones on the bundled book."""
    from api.questions import questions_on

    return [question for question in questions_on(settings, document_id) if question.split == "test"]


@commands.command("eval", epilog=EXAMPLES)
@with_options
def evaluate(
    context: typer.Context,
    arms: Annotated[
        str | None,
        typer.Option(
            help="Arms by commas: base,tuned,rag,rag+tuned,quotes,oracle,random,oracle+tuned; ARM@NAME for one adapter."
        ),
    ] = None,
    questions: Annotated[
        str,
        typer.Option(
            help="bank:test, bank:dev, book:ID, judged (sets on books nothing is fitted on), or a JSONL or CSV file."
        ),
    ] = "bank:test",
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the text of each question set, in a folder of the set's name (needed for judged)."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many questions, spread over chapters.")] = None,
    opened: Annotated[
        int | None,
        typer.Option(
            "--open",
            min=0,
            help="Answerable questions to answer in writing, spread: 100 with a language model, else all.",
        ),
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(help="Only these types, by commas: choice,short,why,code; without choice, open answers alone."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Ask fewer questions and tune for fewer steps: takes minutes.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Base seed of tuning, bootstrap and random passages.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="Tuning runs of the encoder, each with its own seed.")] = 1,
    language: Annotated[str, typer.Option(help="Language of the questions: en or zh.")] = "en",
    top_k: Annotated[int, typer.Option(min=1, max=50, help="Passages per question.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; an interrupted run continues in the same one.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Folder for the run in other tools' formats: BEIR, TREC runs, lm-eval samples.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Folder of an earlier run: paired differences from it, question by question.")
    ] = None,
    *,
    writer: AnswerOptions,
    judge_url: Annotated[
        str | None, typer.Option(help="/v1 address of a model that grades open answers (needs --judge-model).")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Name of the model that grades; off by default.")] = None,
    labels: Annotated[
        list[Path] | None,
        typer.Option(help="A to_label.jsonl that a person filled in; twice for two readers, who are compared."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Compare the bare model, the tuned one, retrieval, and both, on the same questions.

    Without a language model the embedded encoder answers the choice questions; its adapter is trained on the spot.
    """
    settings = settings_of(
        context,
        **writer.given,
        judge_url=judge_url,
        judge_model=judge_model,
    )
    from evals.experiment import plan_run, run_experiment
    from indexes.errors import InvalidInput

    if language not in ("en", "zh"):
        raise InvalidInput(f"language {language!r} is not known", hint="Use en or zh.")
    spec = plan_run(
        questions,
        settings.rag.generator,
        arms=None if arms is None else [name.strip() for name in arms.split(",") if name.strip()],
        texts=texts,
        limit=limit,
        opened=opened,
        types=types.split(",") if types else (),
        of_book=partial(_questions_on, settings),
        seed=seed,
        seeds=seeds,
        quick=quick,
        language=language,
        top_k=top_k,
        judge=settings.judge,
        labels=tuple(labels or ()),
        export=export,
        against=against,
        command=shlex.join(["coalesce", *sys.argv[1:]]),
    )
    folder = out or settings.reports_folder / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
    console = Console(json_output=json_output)
    data = run_experiment(spec, settings.index, settings.measured(settings.rag), folder, console.step)
    console.result(data, _lines(data, folder))


def _lines(data: dict[str, Any], folder: Path) -> list[str]:
    from evals.report import cell

    rows = [["arm", "scored", "accuracy", "facts in two sentences", "in the whole answer"]]
    for name, arm in data["arms"].items():
        shares = (arm["metrics"].get(metric) for metric in ("accuracy", "key_facts_first_two", "key_fact_recall"))
        rows.append([name, str(arm["n"]), *(cell("share", share) for share in shares)])
    return [*table(rows), "", data["verdict"] or data["verdict_withheld"], "", f"report: {folder / 'report.html'}"]


Rounds = Annotated[int, typer.Option(min=1, max=10_000, help="Rounds; medians are printed.")]
JsonLine = Annotated[bool, typer.Option("--json", help="Print the JSON line only.")]


@bench.command()
def generator(
    invoked: typer.Context,
    shape: Annotated[
        str, typer.Option(help="Model shape with random weights: 0.6b, 4b or 8b (for a GPU), tiny.")
    ] = "0.6b",
    context: Annotated[int, typer.Option(min=16, help="Tokens behind the long decoding step.")] = 4000,
    model: Annotated[
        str | None,
        typer.Option(help="A real model instead: perplexity, memory and speed before and after quantization."),
    ] = None,
    windows: Annotated[int, typer.Option(min=2, help="Windows of 512 tokens that a real model reads.")] = 16,
    rounds: Rounds = 8,
    json_output: JsonLine = False,
) -> None:
    """The local generator: precision, cache, attention, prefixes; or a real model in none, int8 and nf4.

    Example: coalesce bench generator --model smollm2-135m
    """
    if model is not None:
        from evals.bench.precision import bench_precision
        from rag.models.home import find_model

        path = find_model(model, settings_of(invoked).home, Console().step)
        _print(bench_precision(path, windows=windows, rounds=rounds), json_output)
        return
    from evals.bench.generator import bench_generator
    from evals.bench.local_model import SHAPES
    from indexes.errors import InvalidInput

    if shape not in SHAPES:
        raise InvalidInput(f"shape {shape!r} is not known", hint=msg("Use one of {}.", ", ".join(SHAPES)))
    _print(bench_generator(shape, rounds, context), json_output)


@bench.command()
def readers(
    invoked: typer.Context,
    model: Annotated[str, typer.Option(help="The language model, as for `serve`.")] = "smollm2-135m",
    quantization: Annotated[str, typer.Option(help="Format of its weights.")] = "none",
    tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 300,
    clients: Annotated[int, typer.Option(min=2, help="Concurrent clients.")] = 30,
    address: Annotated[
        str | None, typer.Option(help="A server that runs, instead of a model: only concurrent clients are measured.")
    ] = None,
    rounds: Rounds = 8,
    json_output: JsonLine = False,
) -> None:
    """A real model, or a server, asked by one client and by many at once; a model computes in `COALESCE_DTYPE`.

    Example: coalesce bench readers --model smollm2-135m
    """
    from evals.bench.clients import bench_clients, bench_server
    from rag.models.home import find_model

    if address is not None:
        result = bench_server(address, clients, tokens, rounds)
    else:
        settings = settings_of(invoked)
        path = find_model(model, settings.home, Console().step)
        result = bench_clients(path, quantization, rounds, clients, tokens, settings.dtype)
    _print(result, json_output)


def _print(result: dict[str, Any], json_output: bool) -> None:
    lines = [] if json_output else [line for name, value in result.items() for line in _measured(name, value)]
    Console().result(None, [*lines, json.dumps(result, ensure_ascii=False)])


def _measured(name: str, value: Any) -> list[str]:
    """A measurement in lines: one, or a table of rows; a value that has an interval as `value [low, high]`."""
    rows = value if isinstance(value, list) and value and all(isinstance(row, dict) for row in value) else ()
    if not rows:
        return [f"{name}: {_figure(value)}"]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return [f"{name}:", *table([columns, *([_figure(row.get(column, "-")) for column in columns] for row in rows)])]


def _figure(value: Any) -> str:
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        return f"{value['value']} [{value['low']}, {value['high']}]"
    return str(value)
