"""`coalesce tune`, `export` and `quantize`: making adapters and taking them elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.commands.context import Json

if TYPE_CHECKING:
    from api.console import Console
    from rag.tuning.settings import TuneProgress, TuneReport

TUNE_EXAMPLES = """Example: coalesce tune --model Qwen/Qwen3-0.6B --data data --out adapters/qa

Several GPUs: accelerate launch --config_file rag/tuning/launch/fsdp.yaml -m api.cli tune --model … --data … --out …"""
EXPORT_EXAMPLES = """Example: coalesce export --model Qwen/Qwen3-8B --adapter adapters/qa --out exported/qa

One model folder: coalesce export --model Qwen/Qwen3-8B --adapter adapters/qa --out qwen3-8b-qa --merge"""

Model = Annotated[str, typer.Option("--model", help="The base model: a folder or a hub name.")]
Out = Annotated[Path, typer.Option("--out", help="The folder to write.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(epilog=TUNE_EXAMPLES)(tune)
    app.command(epilog=EXPORT_EXAMPLES)(export)
    app.command(epilog="Example: coalesce quantize --model Qwen/Qwen3-8B --out models/qwen3-8b-nf4")(quantize)


def tune(
    model: Model,
    data: Annotated[Path, typer.Option(help="A .json or .jsonl file, or a folder with dataset_info.json.")],
    out: Out,
    quantization: Annotated[
        Literal["none", "nf4"], typer.Option(help="nf4 is QLoRA: a 4-bit base. none is LoRA over 16 bits.")
    ] = "nf4",
    rank: Annotated[int, typer.Option(min=1, max=512, help="LoRA rank.")] = 16,
    alpha: Annotated[int | None, typer.Option(min=1, help="LoRA alpha; twice the rank when not given.")] = None,
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="LoRA dropout.")] = 0.05,
    epochs: Annotated[float, typer.Option(min=0.01, help="Passes over the rows.")] = 3.0,
    max_steps: Annotated[int, typer.Option(min=0, help="Stop after this many steps; 0 does not.")] = 0,
    learning_rate: Annotated[float | None, typer.Option(min=0, help="2e-4 up to 5B parameters, else 1e-4.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows a pass, per device.")] = 2,
    accumulation: Annotated[int, typer.Option(min=1, help="Passes an update.")] = 4,
    max_length: Annotated[int, typer.Option(min=8, help="Longest row in tokens.")] = 2048,
    validation_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="Rows kept for validation, by section.")
    ] = 0.1,
    passages: Annotated[
        bool,
        typer.Option("--passages/--no-passages", help="Show the rows' passages in the prompt, or train closed book."),
    ] = True,
    train_on_prompt: Annotated[bool, typer.Option("--train-on-prompt", help="Learn the questions too.")] = False,
    checkpoint_steps: Annotated[int | None, typer.Option(min=1, help="Steps between checkpoints.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of initialisation, order and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")] = False,
    json_output: Json = False,
) -> None:
    """Train a LoRA adapter on questions and answers. Ctrl-C writes a checkpoint first."""
    from api.console import Console
    from indexes.errors import Cancelled
    from rag.tuning.dataset import read_dataset
    from rag.tuning.placement import place_process
    from rag.tuning.settings import TuneSettings
    from rag.tuning.train import tune as train

    console = Console(json_output=json_output)
    rows = read_dataset(data)
    settings = TuneSettings(
        quantization=quantization,
        rank=rank,
        alpha=alpha or 2 * rank,
        dropout=dropout,
        learning_rate=learning_rate,
        batch_size=batch_size,
        accumulation=accumulation,
        max_tokens=max_length,
        epochs=epochs,
        max_steps=max_steps,
        validation_share=validation_share,
        passages=passages,
        train_on_prompt=train_on_prompt,
        checkpoint_steps=checkpoint_steps,
        seed=seed,
        device=device,
    )
    console.step(f"loading {model}")
    try:
        with stopping_gently(console.say) as stopped:
            report = train(
                model,
                rows,
                out,
                settings,
                resume=resume,
                progress=lambda now: _show(console, now),
                cancelled=stopped,
            )
    except Cancelled as cancelled:
        console.say(f"{cancelled.message} Go on with --resume.")
        raise typer.Exit(130) from cancelled
    if place_process(device).main:
        console.result(asdict(report), _report_lines(report))


def export(
    model: Model,
    adapter: Annotated[Path, typer.Option(help="The adapter's folder.")],
    out: Out,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write one 16-bit model folder with the adapter inside.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Write an adapter as engines take it, or merged into its base."""
    from api.console import Console
    from rag.tuning.export import export_adapter, export_merged

    console = Console(json_output=json_output)
    console.step("merging" if merge else "copying")
    report = export_merged(model, adapter, out) if merge else export_adapter(adapter, out, base_model=model)
    for finding in report.findings:
        console.say(f"vLLM: {finding}")
    console.result(asdict(report), [f"{report.kind} in {report.out} ({report.bytes_written / 1e6:,.1f} MB)"])


def quantize(
    model: Model,
    out: Out,
    quantization: Annotated[Literal["nf4", "int8"], typer.Option(help="How to hold the weights.")] = "nf4",
    json_output: Json = False,
) -> None:
    """Write a model with its weights quantized: it then loads in a fraction of the time."""
    from api.console import Console
    from rag.tuning.quantize import quantize_model

    console = Console(json_output=json_output)
    console.step(f"quantizing {model}")
    report = quantize_model(model, out, quantization)
    before = f"{report.before_bytes / 1e6:,.1f} MB -> " if report.before_bytes else ""
    console.result(asdict(report), [f"{report.out}: {before}{report.after_bytes / 1e6:,.1f} MB"])


@contextmanager
def stopping_gently(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C or SIGTERM is a request that the function it gives reports; the second one ends."""
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        say("stopping after this step; press Ctrl-C again to stop at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(console: Console, now: TuneProgress) -> None:
    """Moves the bar, and says the losses ten times in a run."""
    if now.loss is not None and now.step % max(now.total_steps // 10, 1) == 0:
        validation = f", validation {now.eval_loss:.3f}" if now.eval_loss is not None else ""
        console.say(
            f"step {now.step} of {now.total_steps}: loss {now.loss:.3f}{validation}, {now.tokens_per_s:,.0f} tokens/s"
        )
    console.step("training", now.step, now.total_steps)


def _report_lines(report: TuneReport) -> list[str]:
    validation = f", validation {report.eval_loss:.3f}" if report.eval_loss is not None else ""
    left_out = f"; {report.dropped_rows} rows were too long" if report.dropped_rows else ""
    return [
        f"adapter in {report.adapter} (loss curve: {report.adapter}/loss.svg)",
        f"{report.steps} steps over {report.train_rows} rows, {report.validation_rows} kept by {report.split_by} "
        f"for validation{left_out}",
        f"training loss {report.train_loss:.3f}{validation}; {report.tokens_per_s:,.0f} tokens/s; "
        f"{report.seconds:.0f} s; {report.peak_memory_bytes / 2**30:.2f} GiB at most",
        f"serve it: coalesce serve --generator local --model BASE --adapter NAME={report.adapter}",
    ]
