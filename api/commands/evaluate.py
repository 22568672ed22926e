"""`coalesce eval`: retrieve or tune, measured on the same questions."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from api.commands.context import (
    Adapter,
    BaseUrl,
    GeneratorName,
    Invocation,
    Json,
    Model,
    Quantization,
    generator_options,
)

EXAMPLES = """Example: coalesce eval --quick

With a language model: coalesce eval --generator local --model Qwen/Qwen3-4B-Instruct-2507 --adapter qa=adapters/qa"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("eval", epilog=EXAMPLES)(evaluate)


def evaluate(
    context: typer.Context,
    arms: Annotated[
        str | None,
        typer.Option(
            help="Arms, by commas: base,tuned,rag,rag+tuned,oracle,random,oracle+tuned; ARM@ADAPTER for one adapter."
        ),
    ] = None,
    questions: Annotated[str, typer.Option(help="bank:test, bank:dev, or a question file (JSONL).")] = "bank:test",
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many questions, spread over chapters.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few questions, short tuning: about a minute.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Base seed of tuning, bootstrap and random passages.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="Repetitions of the tuned arms.")] = 1,
    language: Annotated[str, typer.Option(help="Which wording to ask: en or zh.")] = "en",
    top_k: Annotated[int, typer.Option(min=1, max=50, help="Passages a question.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; an interrupted run goes on in the same one.")
    ] = None,
    generator: GeneratorName = None,
    model: Model = None,
    quantization: Quantization = None,
    adapter: Adapter = None,
    base_url: BaseUrl = None,
    judge_url: Annotated[
        str | None, typer.Option(help="/v1 address of a model that grades open answers (needs --judge-model).")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Name of the model that grades; off by default.")] = None,
    judge_labels: Annotated[
        Path | None, typer.Option(help="A filled to_label.jsonl: tells how often the judge agrees with a person.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Compare the bare model, the tuned one, retrieval, and both, on the same questions.

    Without a language model the embedded encoder answers the choice questions; its adapter is trained on the spot.
    """
    invocation: Invocation = context.obj
    settings = invocation.settings(
        **generator_options(generator, model, quantization, adapter, base_url),
        judge_url=judge_url,
        judge_model=judge_model,
    )
    from api.console import Console
    from api.studying import REPORT_FOLDER
    from evals.experiment import ExperimentPlan, run_experiment
    from evals.judge import JudgeSettings
    from indexes.errors import InvalidInput

    if judge_labels is not None and settings.judge is None:
        raise InvalidInput(
            "hand labels tell how far a judge is right, and there is none",
            hint="add --judge-url URL --judge-model NAME",
        )
    if language not in ("en", "zh"):
        raise InvalidInput(f"language {language!r} is not known", hint="use en or zh")
    console = Console(json_output=json_output)
    plan = ExperimentPlan(
        questions=questions,
        limit=limit,
        seed=seed,
        seeds=seeds,
        quick=quick,
        language=language,
        top_k=top_k,
        judge=None if settings.judge is None else JudgeSettings(settings.judge, judge_labels),
        command=shlex.join(["coalesce", *sys.argv[1:]]),
    )
    if arms is not None:
        plan = replace(plan, arms=tuple(name.strip() for name in arms.split(",") if name.strip()))
    folder = out or settings.home / REPORT_FOLDER / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
    data = run_experiment(plan, settings.index, settings.rag, folder, console.step)
    console.result(data, _lines(data, folder))


def _lines(data: dict[str, Any], folder: Path) -> list[str]:
    from api.console import table

    rows = [["arm", "scored", "accuracy", "key facts"]]
    for name, arm in data["arms"].items():
        cells = [_share(arm["metrics"].get(metric)) for metric in ("accuracy", "key_fact_recall")]
        rows.append([name, str(arm["n"]), *cells])
    return [*table(rows), "", data["verdict"] or data["verdict_withheld"], "", f"report: {folder / 'report.html'}"]


def _share(interval: dict[str, Any] | None) -> str:
    if not interval or interval["value"] is None:
        return "-"
    return f"{100 * interval['value']:.1f} % [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"
