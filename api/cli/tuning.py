"""`coalesce dataset`, `tune`, `export`, `quantize` and `memory`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.cli.options import Json, Quantization, WriterOptions, settings_of, with_options
from api.console import Console, counted, table
from rag.tuning.settings import SynthesisSettings, TuneSettings

if TYPE_CHECKING:
    from api.settings import CoalesceSettings
    from evals.training_rows import Source
    from rag.errors import MalformedTrainingData
    from rag.tuning.data import Format, TrainingRow
    from rag.tuning.preferences import Preference
    from rag.tuning.settings import TuneProgress, TuneReport


commands = typer.Typer()
TUNE_EXAMPLES = """Example: coalesce tune --model Qwen/Qwen3-0.6B --data data --out adapters/qa

Several GPUs: accelerate launch --config_file rag/tuning/launch/fsdp.yaml -m api.cli tune --model … --data … --out …"""
EXPORT_EXAMPLES = """Example: coalesce export --model Qwen/Qwen3-8B --adapter adapters/qa --out exported/qa

One model folder: coalesce export --model Qwen/Qwen3-8B --adapter adapters/qa --out qwen3-8b-qa --merge"""

BaseModel = Annotated[
    str, typer.Option("--model", help="The base model: a folder, a .gguf file, or a name that `coalesce models` lists.")
]
Out = Annotated[Path, typer.Option("--out", help="The folder to write.")]


@commands.command(epilog=TUNE_EXAMPLES)
@with_options
def tune(
    context: typer.Context,
    model: BaseModel,
    out: Out,
    data: Annotated[
        Path | None, typer.Option(help="A .json or .jsonl file, or a folder with dataset_info.json.")
    ] = None,
    preferences: Annotated[
        Literal["kept", "sampled"] | None,
        typer.Option(
            help="Learn which of two answers is better: from votes and thumbs that were kept, or from answers that the "
            "model samples to the bank's questions in --data, by their key facts."
        ),
    ] = None,
    *,
    settings: TuneSettings,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")] = False,
    json_output: Json = False,
) -> None:
    """Train a LoRA adapter on questions and answers. Ctrl-C writes a checkpoint first."""
    from indexes.errors import Cancelled, InvalidInput
    from rag.tuning.data import read_dataset
    from rag.tuning.settings import place_process
    from rag.tuning.train import tune as train

    console = Console(json_output=json_output)
    if (data is None) != (preferences == "kept"):
        raise InvalidInput(
            "Training needs --data, or --preferences kept without it.",
            hint="Run `coalesce tune --model MODEL --data DATA --out FOLDER`.",
        )
    bad: list[MalformedTrainingData] = []
    rows = read_dataset(data, bad.append) if data is not None else []
    if bad:
        console.say(f"rows that cannot be used and are left out: {len(bad)}; the first: {bad[0].message}")
    path = _model_path(context, model, console)
    console.step(f"loading {model}")
    show = partial(_show, console)
    try:
        with stopping_gently(console.say) as stopped:
            if preferences:
                from rag.tuning.preferences import tune_preferences

                kept = settings_of(context).rag.conversations_place
                pairs = _sampled(path, rows, settings, console, stopped) if rows else _kept(kept)
                report = tune_preferences(
                    path, pairs, out, settings, source=preferences, resume=resume, progress=show, cancelled=stopped
                )
            else:
                report = train(path, rows, out, settings, resume=resume, progress=show, cancelled=stopped)
    except Cancelled as cancelled:
        console.say(f"{cancelled.message} Go on with --resume.")
        raise typer.Exit(130) from cancelled
    if place_process(settings.device).main:
        console.result(asdict(report), _report_lines(report))


def _kept(conversations: Path | str) -> list[Preference]:
    """Pairs from the votes and thumbs of the home."""
    from contextlib import closing

    from rag.conversations import ConversationStore
    from rag.tuning.preferences import kept_preferences

    with closing(ConversationStore(conversations)) as store:
        return kept_preferences(store)


def _sampled(
    model: str, rows: Sequence[TrainingRow], settings: TuneSettings, console: Console, stopped: Callable[[], bool]
) -> Iterator[Preference]:
    """Pairs of answers that the model samples to those rows that ask a tune question of the bank and are answered."""
    from evals.questions import load_bank
    from evals.scoring import key_fact_recall
    from rag.assemble import build_language_model
    from rag.generators.prompts import REFUSAL
    from rag.sentence_reader import CrossEncoder, LearnedReader
    from rag.settings import GeneratorSettings
    from rag.tuning.preferences import sampled_preferences

    facts = {
        wording: question.key_facts
        for question in load_bank(split="tune")
        if question.key_facts
        for wording in (question.question, *question.paraphrases)
    }
    asked = [
        (row, partial(key_fact_recall, facts[row.question]))
        for row in rows
        if row.question in facts and row.answer != REFUSAL
    ]
    quantization = settings.over(settings.device).quantization if settings.device == "cuda" else "none"
    reader = LearnedReader(CrossEncoder(device=settings.device).score)
    writer = build_language_model(
        GeneratorSettings("local", model, quantization, device=settings.device, prefix_cache=True), reader
    )

    def each() -> Iterator[tuple[TrainingRow, Callable[[str], float | None]]]:
        for number, row in enumerate(asked):
            if number and number % max(len(asked) // 10, 1) == 0:
                console.say(f"sampled {number} of {counted(len(asked), 'question')}: {counted(found, 'pair')}")
            console.step("sampling answers", number, len(asked))
            yield row

    found = 0
    try:
        for pair in sampled_preferences(writer, each(), cancelled=stopped):
            found += 1
            yield pair
    finally:
        writer.close()


@commands.command(epilog=EXPORT_EXAMPLES)
def export(
    context: typer.Context,
    model: BaseModel,
    adapter: Annotated[Path, typer.Option(help="The adapter's folder.")],
    out: Out,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write one 16-bit model folder with the adapter inside.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Write an adapter as engines take it, or merged into its base."""
    from rag.tuning.export import export_adapter, export_merged

    console = Console(json_output=json_output)
    path = _model_path(context, model, console)
    console.step("merging" if merge else "copying")
    report = export_merged(path, adapter, out) if merge else export_adapter(adapter, out, base_model=path)
    for finding in report.findings:
        console.say(f"vLLM: {finding}")
    console.result(asdict(report), [f"{report.kind} in {report.out} ({report.bytes_written / 1e6:,.1f} MB)"])


@commands.command(epilog="Example: coalesce quantize --model Qwen/Qwen3-8B --out models/qwen3-8b-nf4")
def quantize(
    context: typer.Context,
    model: BaseModel,
    out: Out,
    quantization: Annotated[Literal["nf4", "int8"], typer.Option(help="How to hold the weights.")] = "nf4",
    json_output: Json = False,
) -> None:
    """Write a model with its weights quantized: it then loads in a fraction of the time."""
    from rag.tuning.export import quantize_model

    console = Console(json_output=json_output)
    path = _model_path(context, model, console)
    console.step(f"quantizing {model}")
    report = quantize_model(path, out, quantization)
    before = f"{report.before_bytes / 1e6:,.1f} MB -> " if report.before_bytes else ""
    console.result(asdict(report), [f"{report.out}: {before}{report.after_bytes / 1e6:,.1f} MB"])


def _model_path(context: typer.Context, model: str, console: Console) -> str:
    """The folder (or hub name) of what `--model` names."""
    from rag.models.home import find_model

    return find_model(model, settings_of(context).home, console.step)


@contextmanager
def stopping_gently(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM sets a stop flag, read with the yielded function; the second interrupts."""
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
    validation = (
        f", validation {report.eval_loss:.3f} at step {report.best_step}, which is kept"
        if report.eval_loss is not None
        else ""
    )
    left_out = f"; too long: {counted(report.dropped_rows, 'row')}" if report.dropped_rows else ""
    return [
        f"adapter in {report.adapter} (loss curve: {report.adapter}/loss.svg)",
        f"{counted(report.steps, 'step')} over {counted(report.train_rows, 'row')}, {report.validation_rows} kept by "
        f"{report.split_by} for validation{left_out}",
        f"training loss {report.train_loss:.3f}{validation}; {report.tokens_per_s:,.0f} tokens/s; "
        f"{report.seconds:.0f} s; {report.peak_memory_bytes / 2**30:.2f} GiB at most",
        report.warning or f"serve it: coalesce serve --generator local --model BASE --adapter NAME={report.adapter}",
    ]


DATASET_EXAMPLES = """Example: coalesce dataset --from-bank --passages 3 --out data

From questions about your books: coalesce dataset books/ --questions questions.jsonl --passages 3 --out data

Questions by a model: coalesce dataset books/ --generator local --model Qwen/Qwen3-8B --out data

The folder can be given to `coalesce tune --data`, or to LLaMA-Factory as its dataset_dir."""


@commands.command(epilog=DATASET_EXAMPLES)
@with_options
def dataset(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder to write into; its dataset_info.json is extended.")],
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH...", help="Books to ask about, or that --questions asks about.")
    ] = None,
    from_bank: Annotated[bool, typer.Option("--from-bank", help="Take the bundled question bank.")] = False,
    questions: Annotated[
        Path | None, typer.Option(help="Take a question file instead; with --passages, name its books as PATH.")
    ] = None,
    split: Annotated[Literal["tune", "dev", "test"], typer.Option(help="Which questions of the bank.")] = "tune",
    file_format: Annotated[
        Literal["alpaca", "sharegpt", "messages"], typer.Option("--format", help="How a row is laid out.")
    ] = "messages",
    allow_test: Annotated[
        bool, typer.Option("--allow-test", help="Allow test questions in the training data.")
    ] = False,
    passage_tokens: Annotated[
        int | None,
        typer.Option(
            min=64, help="Most tokens of a row's passages; as served if not given. Not for a model's questions."
        ),
    ] = None,
    *,
    wanted: SynthesisSettings,
    writer: WriterOptions,
    json_output: Json = False,
) -> None:
    """Make training data that `coalesce tune` and other trainers read.

    Questions come from the bundled bank, from a file, or from a model that reads the books; a model's questions are
    checked, and rejected ones are counted. With --passages, rows of the bank or a file show what the search finds: the
    right passage at a random place, and sometimes not at all, with a refusal as the answer. Run the command again to
    continue a model's run, or to add rows to the folder.
    """
    from indexes.errors import InvalidInput

    if (from_bank and (paths or questions)) or not (from_bank or questions or paths):
        raise InvalidInput(
            "give one of --from-bank, --questions or the paths of books",
            hint="Run `coalesce dataset --from-bank --out FOLDER`, or `coalesce dataset PATH… --out FOLDER`.",
        )
    if from_bank or questions:
        from evals.training_rows import bank_source, file_source, some_of

        source = (
            file_source(questions, paths or (), allow_test=allow_test)
            if questions
            else bank_source(split, allow_test=allow_test)
        )
        source = some_of(source, wanted.limit, wanted.seed)
        settings = settings_of(context, passage_budget_tokens=passage_tokens)
        _write_questions(source, out, settings, wanted, file_format, split, json_output=json_output)
        return
    settings = settings_of(context, **writer.given)
    _write_synthesis(paths or [], out, settings, wanted, file_format, json_output=json_output)


def _write_synthesis(
    paths: list[Path],
    out: Path,
    settings: CoalesceSettings,
    wanted: SynthesisSettings,
    file_format: Format,
    *,
    json_output: bool,
) -> None:
    from contextlib import closing

    from indexes.errors import Cancelled
    from indexes.readers import find_books
    from indexes.reading_process import ReadingProcesses
    from rag.assemble import build_language_model
    from rag.tuning.synthesis import cut_passages, synthesize

    console = Console(json_output=json_output)
    console.step("reading books")
    with closing(ReadingProcesses(settings.index)) as reading:
        books = [reading.read(book) for path in paths for book in find_books(path)]
    cut = [passage for book in books for passage in cut_passages(book)]
    console.step("loading the model")
    writer = build_language_model(settings.rag.generator)
    try:
        with stopping_gently(console.say) as stopped:
            report = synthesize(
                cut,
                writer,
                out,
                wanted,
                file_format=file_format,
                progress=lambda done, total, _rows: console.step("writing questions", done, total),
                cancelled=stopped,
            )
    except Cancelled as cancelled:
        console.say(f"{cancelled.message} The same command goes on where it stopped.")
        raise typer.Exit(130) from cancelled
    finally:
        writer.close()
    thrown = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in report.thrown_away.items())
    lines = [
        f"{counted(report.rows, 'row')} from {counted(report.passages, 'passage')} of {counted(len(books), 'book')} "
        f"in {report.data_file}",
        f"written: {counted(report.written, 'pair')}; rejected: {thrown or 'none'}",
    ]
    console.result(asdict(report), lines)


def _write_questions(
    source: Source,
    out: Path,
    settings: CoalesceSettings,
    wanted: SynthesisSettings,
    file_format: Format,
    split: str,
    *,
    json_output: bool,
) -> None:
    from evals.training_rows import write_closed_book, write_with_passages

    console = Console(json_output=json_output)
    if wanted.shown_passages:
        report = write_with_passages(
            source,
            out,
            settings.index,
            settings.rag,
            shown=wanted.shown_passages,
            wordings=wanted.wordings,
            file_format=file_format,
            seed=wanted.seed,
            progress=console.step,
        )
    else:
        report = write_closed_book(source, out, wordings=wanted.wordings, file_format=file_format, seed=wanted.seed)
    document = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(report).items()}
    left_out = (
        f"; left out, as their passages were not found: {counted(report.left_out, 'question')}"
        if report.left_out
        else ""
    )
    refused = f", {report.refusals} of them refusals" if report.refusals else ""
    line = (
        f"{counted(report.rows, 'row')} from {counted(report.questions, 'question')} in {report.data_file}"
        f"{refused}{left_out}"
    )
    console.result(document | {"format": file_format, "split": split}, [line])


MEMORY_EXAMPLES = """Example: coalesce memory --model Qwen/Qwen3-8B --context 8192

For tuning: coalesce memory --model models/qwen3-8b/config.json --train --rank 16 --context 2048 --json"""


@commands.command(epilog=MEMORY_EXAMPLES)
def memory(
    invoked: typer.Context,
    model: Annotated[
        str, typer.Option("--model", help="A folder, a config.json, a .gguf file, or a name on this disk.")
    ],
    quantization: Quantization = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens of prompt and answer, or of a training row.")] = 4096,
    batch: Annotated[int, typer.Option(min=1, help="Answers at once, or rows per training pass.")] = 1,
    train: Annotated[bool, typer.Option("--train", help="For tuning an adapter instead of serving.")] = False,
    rank: Annotated[int | None, typer.Option(min=1, help="LoRA rank: 16 for tuning, no adapter for serving.")] = None,
    json_output: Json = False,
) -> None:
    """Estimate the memory of serving or tuning a model. Activations are an upper estimate; the rest is counted."""
    from rag.models.folder import load_config
    from rag.models.memory import estimate_memory, usual_quantization

    console = Console(json_output=json_output)
    path = _model_path(invoked, model, console)
    config = load_config(path)
    held = quantization or usual_quantization(config)
    estimate = estimate_memory(config, quantization=held, context_tokens=context, batch=batch, train=train, rank=rank)
    document = asdict(estimate) | {"quantization": held}
    rows = [
        [name.removesuffix("_bytes").replace("_", " "), _size(value)]
        for name, value in document.items()
        if name.endswith("_bytes")
    ]
    counted = f"{estimate.num_parameters / 1e6:,.1f} million parameters, quantization {held}"
    if estimate.trainable_parameters:
        counted += f", {estimate.trainable_parameters / 1e6:.1f} million of them in the adapter"
    console.result(document, [*table(rows), "", counted])


def _size(count: int) -> str:
    return f"{count / 2**30:8.2f} GiB" if count >= 2**30 / 10 or not count else f"{count / 2**20:8.2f} MiB"
