"""Adapters tuned by a job of the server: of the local model that answers, on questions about the library's books."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from api.chosen_generator import GeneratorChoice
from api.job_store import Job
from api.jobs import JobHandle, JobQueue
from api.settings import CoalesceSettings
from evals.questions import BankQuestion
from indexes.errors import Cancelled, Conflict, InvalidInput, NotFound
from indexes.types import Filters
from rag.assemble import resolve_kind
from rag.models.home import ADAPTERS_FOLDER, adapters_tuned_on, find_model
from rag.retrieval import PassageBudget
from rag.settings import GeneratorSettings

if TYPE_CHECKING:
    from rag.engine import AnswerEngine
    from rag.tuning.data import TrainingRow
    from rag.tuning.settings import TuneProgress, TuneSettings
    from rag.types import Passage

ADAPTER = "adapter"
"""The kind of the job."""
SHOWN_PASSAGES = 3
"""Passages in a training row, as `coalesce dataset --passages` is used for the adapter that comes with Coalesce."""
CURVE_FILE = "loss.svg"
_NAME = re.compile(r"[A-Za-z0-9][\w\-.]{0,63}", re.ASCII)
Tune = Callable[
    [str, "Sequence[TrainingRow]", Path, "TuneSettings", Callable[["TuneProgress"], None], Callable[[], bool]], str
]
"""Trains an adapter of a model into a folder, and says in words what came of it."""


class AdapterTuning:
    """Queues the tuning of adapters.

    Args:
        running: settings of the generator that answers; engine: it, which finds the passages of the rows.
        tune: trains one; None is `rag.tuning.train.tune`.
    """

    def __init__(
        self,
        settings: CoalesceSettings,
        jobs: JobQueue,
        running: Callable[[], GeneratorSettings],
        engine: Callable[[], AnswerEngine],
        tune: Tune | None = None,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._running = running
        self._engine = engine
        self._tune = tune or _tune
        self._curves: dict[str, list[dict[str, float]]] = {}

    @property
    def base(self) -> str | None:
        """The local model that answers now, by the name it was given; None where another generator does."""
        running = self._running()
        return running.model if resolve_kind(running) == "local" else None

    def start(self, name: str, questions: Sequence[BankQuestion], epochs: float) -> Job:
        """Queues the tuning of an adapter `name` of the local model that answers.

        Raises:
            NotReady: nothing answers yet.
            InvalidInput: the name cannot be that of a folder.
            Conflict: no local model answers, the name is taken, too few questions, or another adapter is being tuned.
        """
        self._engine()
        if self.base is None:
            raise Conflict(
                "no local language model answers", hint="Choose one: the settings page, or PUT /v1/generator."
            )
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r:.80} cannot be an adapter's name", hint="Use letters, digits, '-', '_' and '.', at most 64."
            )
        folder = self._folder(name)
        if folder.exists():
            raise Conflict(f"there is an adapter {name!r}", hint="Give yours another name.")
        if not questions:
            raise Conflict("none of these questions is for tuning", hint="Make more questions, or take another book.")
        return self._jobs.submit_alone(
            ADAPTER,
            partial(self._work, self.base, folder, tuple(questions), epochs),
            lambda other: Conflict("an adapter is being tuned", hint=f"Wait, or cancel job {other.id}."),
            title=name,
            undo=partial(shutil.rmtree, folder, ignore_errors=True),
        )

    def choice_of(self, name: str) -> GeneratorChoice:
        """What switches to the model that answers with one of its adapters."""
        return GeneratorChoice.model_validate(
            {
                "generator": "local",
                "model": self.base,
                "adapter": name,
                "quantization": self._running().quantization.removeprefix("auto") or None,
            }
        )

    def fitting(self) -> list[str]:
        """The adapters of the home that were tuned on the model that answers."""
        return [] if self.base is None else adapters_tuned_on(self.base, self._settings.home)

    def has_curve(self, name: str) -> bool:
        """Whether there is a loss to draw: from the first steps on."""
        return bool(self._curves.get(name)) or (self._folder(name) / CURVE_FILE).is_file()

    def curve(self, name: str) -> str:
        """The loss curve of an adapter as SVG, so far while it is being tuned. Raises NotFound."""
        from rag.tuning.run_folder import draw_curve

        points = self._curves.get(name)
        if points is not None:
            return draw_curve(list(points))
        path = self._folder(name) / CURVE_FILE
        if not _NAME.fullmatch(name) or not path.is_file():
            raise NotFound(f"there is no adapter {name!r:.80}", hint="GET /v1/generator lists the adapters.")
        return path.read_text(encoding="utf-8")

    def _folder(self, name: str) -> Path:
        return self._settings.home / ADAPTERS_FOLDER / name

    def _work(
        self, base: str, folder: Path, questions: Sequence[BankQuestion], epochs: float, handle: JobHandle
    ) -> str:
        from rag.tuning.settings import TuneSettings

        points: list[dict[str, float]] = []
        self._curves = {folder.name: points}
        rows = self._rows(questions, handle)

        def tell(now: TuneProgress) -> None:
            handle.progress(now.step, now.total_steps, "training")
            losses = {"loss": now.loss, "eval_loss": now.eval_loss}
            known = {name: loss for name, loss in losses.items() if loss is not None}
            if known:
                points.append({"step": float(now.step), **known})

        handle.progress(0, 0, "preparing the rows")
        model = find_model(base, self._settings.home)
        settings = TuneSettings(epochs=epochs, device=self._settings.device)
        said = self._tune(model, rows, folder, settings, tell, handle.cancelled)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return said

    def _rows(self, questions: Sequence[BankQuestion], handle: JobHandle) -> list[TrainingRow]:
        """Rows that show what the search finds for each question, in the book that it is about."""
        from evals.training_rows import ReadingRows, few_refusals

        engine = self._engine()
        library = engine.library
        documents = library.documents()
        usual = next((document.document_id for document in documents if document.sample), "")
        known = {document.document_id for document in documents}
        makers: dict[str, ReadingRows] = {}
        rows: list[TrainingRow] = []
        for number, question in enumerate(questions, 1):
            if handle.cancelled():
                raise Cancelled("stopped before training began")
            book = question.book if question.book in known else usual
            if book not in makers:
                makers[book] = ReadingRows(
                    partial(_search, engine, Filters(document_ids=(book,) if book else ())),
                    library,
                    library.nodes_of(book),
                    shown=SHOWN_PASSAGES,
                    budget=PassageBudget.of_tokens(self._settings.passage_budget_tokens),
                )
            rows += makers[book].of(question)
            handle.progress(number, len(questions), "searching passages")
        if not rows:
            raise Conflict(
                "the library has the passages of none of these questions", hint="Add the book that they are about."
            )
        return few_refusals(rows)


def _search(engine: AnswerEngine, filters: Filters, query: str, top_k: int) -> Sequence[Passage]:
    return engine.search(query, top_k, filters)


def _tune(
    model: str,
    rows: Sequence[TrainingRow],
    out: Path,
    settings: TuneSettings,
    progress: Callable[[TuneProgress], None],
    cancelled: Callable[[], bool],
) -> str:
    from rag.tuning.train import tune

    report = tune(model, rows, out, settings, progress=progress, cancelled=cancelled)
    steps = "1 step" if report.steps == 1 else f"{report.steps} steps"
    return f"{steps} on {report.train_rows} rows, training loss {report.train_loss:.2f}"
