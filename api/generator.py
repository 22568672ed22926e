"""What answers: another model without a restart, and adapters of the local one, each loaded or tuned by a job."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.chosen_generator import GeneratorChoice, is_loopback, keep_choice, origin_of, origins_of, read_choice
from api.console import counted
from api.errors import NotAllowed
from api.jobs import Job, JobHandle, JobQueue
from api.settings import CoalesceSettings
from evals.questions import BankQuestion
from indexes.errors import Cancelled, CoalesceError, Conflict, IndexCorrupt, InvalidInput, NotFound
from indexes.jsonl import read_jsonl
from indexes.messages import msg
from indexes.types import Filters
from rag.assemble import resolve_kind
from rag.generators.protocol import quantization_of
from rag.models import home
from rag.models.fetching import KNOWN_MODELS
from rag.models.folder import check_folder, local_folder
from rag.models.gguf import Progress
from rag.models.home import Available, FoundAdapter, FoundEngine, FoundModel, Inventory
from rag.retrieval import PassageBudget
from rag.settings import GeneratorSettings, RagSettings, addresses_of, shown_address

if TYPE_CHECKING:
    from indexes.library import Library
    from rag.engine import AnswerEngine
    from rag.tuning.data import TrainingRow
    from rag.tuning.settings import TuneProgress, TuneSettings
    from rag.types import Passage

SWITCH = "generator"
"""The kind of the job."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What answers now; `chosen` on the page rather than by the settings, `problem` what kept a choice from loading."""

    generator: str
    model: str
    base_url: str | None
    adapter: str | None
    quantization: str | None
    chosen: bool
    problem: str | None


@dataclass(frozen=True, slots=True)
class Generators(Answers):
    """What answers now, and what was found that could; `silent`: the engine that was chosen does not answer now."""

    silent: bool
    engines: tuple[FoundEngine, ...]
    models: tuple[FoundModel, ...]
    adapters: tuple[FoundAdapter, ...]
    available: tuple[Available, ...]


class GeneratorSwitch:
    """Finds what could answer and switches to it.

    Args:
        library, engine: of the running server; they raise NotReady until they are there.
        use: makes an engine the one that answers, and frees the generator of the one before when it is done.

    Attributes:
        choice: the generator that was chosen on the page; None where the settings say what answers.
        own_port: of this server, which is neither asked nor taken for an engine.
        loading: the first model is still being loaded.
        problem: why a choice kept from an earlier start does not answer.
    """

    def __init__(
        self,
        settings: CoalesceSettings,
        jobs: JobQueue,
        library: Callable[[], Library],
        engine: Callable[[], AnswerEngine],
        use: Callable[[AnswerEngine], None],
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._library = library
        self._engine = engine
        self._use = use
        self.choice = settings.chosen
        self.own_port = settings.port
        self.loading = False
        self.problem: str | None = None
        self._keeping = threading.Lock()
        self._kept = settings.chosen
        if settings.database_url is not None:  # chosen there, even where the command line says what answers here
            with suppress(InvalidInput):
                self._kept = read_choice(settings.choice_place)

    @property
    def rag(self) -> RagSettings:
        """The settings of what answers now."""
        return self._settings.rag_with(self.choice)

    @property
    def running(self) -> GeneratorSettings:
        """The settings of the generator that answers now."""
        return self.rag.generator

    def now(self) -> Answers:
        """What answers now; raises NotReady."""
        generator, running = self._engine().generator, self.running
        return Answers(
            generator=generator.name,
            model=generator.model_name,
            base_url=shown_address(running.base_url or "") if generator.name == "remote" else None,
            adapter=next(iter(generator.adapters), None),
            quantization=quantization_of(generator),
            chosen=self.choice is not None,
            problem=self.problem,
        )

    def discover_models(self) -> Inventory:
        """The models and adapters of the home, the engines of this machine, and what can be fetched (half a second)."""
        return home.discover_models(self._settings.home, self.own_port)

    def found(self) -> Generators:
        """What answers now, and what could; raises NotReady."""
        finding = self.discover_models()
        found = {each.name: getattr(finding, each.name) for each in fields(finding)}
        return Generators(**asdict(self.now()), **found, silent=self.is_silent(finding))

    def is_silent(self, found: Inventory) -> bool:
        """Whether an engine on one of the usual ports was chosen, and `discover_models` found none there."""
        now = self.now()
        silent = {home.engine_address(port) for port in home.ENGINE_PORTS.values()} - {
            engine.base_url for engine in found.engines
        }
        return now.generator == "remote" and now.base_url in silent

    def forget(self, error: BaseException) -> None:
        """Starts without a kept choice that cannot load; its file stays, since the model may come back."""
        self.choice, self.problem = None, str(error)

    def switch(self, choice: GeneratorChoice | None) -> Job:
        """Queues the job that loads a choice, None being what the settings say; the old one answers meanwhile.

        Raises:
            NotReady: the first generator is not there yet.
            InvalidInput: it lacks its model or address.
            NotAllowed: the address is neither of this machine nor that of the settings, or it is this server's own.
            NotFound: the home has no such adapter.
            Conflict: another switch is not done yet.
        """
        self._engine()
        if self.loading:
            raise _being_loaded()
        if choice is not None:
            self._check(choice)
        return self._jobs.submit_alone(
            SWITCH,
            lambda handle: self._load(handle, choice),
            lambda _: _being_loaded(),
            title=(choice.model or "") if choice is not None else "",
        )

    def follow(self) -> None:
        """Switches to what was chosen at another server of the database since the last time.

        Raises:
            CoalesceError: the database does not answer. What cannot be loaded is a `problem`: what answered goes on.
        """
        with self._keeping:
            kept = read_choice(self._settings.choice_place)
            before, self._kept = self._kept, kept
        if kept == before:
            return
        try:
            engine = self._engine_of(kept, lambda *_: None)
        except CoalesceError as error:
            self.problem = str(error)
            return
        self.choice, self.problem = kept, None
        self._use(engine)

    def _check(self, choice: GeneratorChoice) -> None:
        if choice.generator == "extractive":
            return
        if not choice.model:
            raise InvalidInput(msg("generator `{}` needs a model", choice.generator), hint="Name it with `model`.")
        if choice.generator == "remote":
            for address in addresses_of(choice.base_url or ""):
                self._check_address(address)
        elif choice.adapter is not None and choice.adapter not in {
            *self._settings.adapters,
            *home.shipped_adapters(choice.model),
        }:
            folder = self._settings.home / home.ADAPTERS_FOLDER / choice.adapter
            if folder.parent != self._settings.home / home.ADAPTERS_FOLDER or not folder.is_dir():
                raise NotFound(
                    msg("the home has no adapter {}", f"{choice.adapter!r:.80}"),
                    hint="GET /v1/generator lists the adapters.",
                )

    def _check_address(self, address: str) -> None:
        origin = origin_of(address)
        if origin is None:
            raise InvalidInput(
                msg("{} is not the address of an engine", f"{shown_address(address)!r:.200}"),
                hint=msg("For example: {}", "http://127.0.0.1:11434/v1"),
            )
        _, host, port = origin
        if origin in origins_of(self._settings.base_url):
            return
        if not is_loopback(host):
            raise NotAllowed(
                msg("{} is not this machine", host),
                hint=msg("Name an engine elsewhere in the settings: {}", "COALESCE_BASE_URL=URL coalesce serve"),
            )
        if port == self.own_port:
            raise InvalidInput(msg("port {} is this server's own", port), hint="Name the port of the engine.")

    def check_there(self) -> None:
        """Raises NotFound or ModelCannotLoad at once if the model that is to be loaded is not on this machine."""
        if resolve_kind(self.running) == "local" and self.running.model:
            home.check_there(self.running.model, self.running.home)
            folder = None if self.running.model.lower().endswith(".gguf") else local_folder(self.running.model)
            if folder is not None:
                check_folder(folder)

    def load(self, tell: Progress) -> AnswerEngine:
        """The engine with the generator that the choice or the settings name, loaded; raises as `build_engine` does."""
        return self._engine_of(self.choice, tell)

    def _engine_of(self, choice: GeneratorChoice | None, tell: Progress) -> AnswerEngine:
        from rag.assemble import switch_generator

        settings = self._settings.rag_with(choice)
        wanted = settings.generator
        if resolve_kind(wanted) == "local" and wanted.model is not None and wanted.home is not None:
            home.find_model(wanted.model, wanted.home, tell)
        tell("loading the model", 0, 0)
        return switch_generator(self._engine(), settings, self._library())

    def _load(self, handle: JobHandle, choice: GeneratorChoice | None) -> str:
        def tell(step: str, done: int, total: int) -> None:
            if handle.cancelled():
                raise Cancelled("the switch was cancelled")
            handle.progress(done, total, step)

        wanted = self._settings.rag_with(choice).generator
        if wanted.kind in ("auto", "local") and wanted.model in KNOWN_MODELS and wanted.home is not None:
            home.get_model(wanted.model, wanted.home, tell)
        engine = self._engine_of(choice, tell)
        if handle.cancelled():
            engine.generator.close()
            raise Cancelled("the switch was cancelled")
        with self._keeping:
            keep_choice(self._settings.choice_place, choice)
            self._kept = choice
        self.choice, self.problem = choice, None
        self._use(engine)
        return f"{engine.generator.model_name} answers now"


def _being_loaded() -> Conflict:
    return Conflict("another model is being loaded", hint="Wait until it is there, or cancel its job.")


ADAPTER = "adapter"
"""The kind of the job."""
SHOWN_PASSAGES = 3
"""Passages in a training row, as `coalesce dataset --passages` is used for the adapter that comes with Coalesce."""
CURVE_FILE = "loss.svg"
LOSS_FILE = "loss.jsonl"
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
                msg("{} cannot be an adapter's name", f"{name!r:.80}"),
                hint="Use letters, digits, '-', '_' and '.', at most 64.",
            )
        folder = self._folder(name)
        if folder.exists():
            raise Conflict(msg("there is an adapter {}", repr(name)), hint="Give yours another name.")
        if not questions:
            raise Conflict("none of these questions is for tuning", hint="Make more questions, or take another book.")
        return self._jobs.submit_alone(
            ADAPTER,
            partial(self._work, self.base, folder, tuple(questions), epochs),
            lambda other: Conflict("an adapter is being tuned", hint=msg("Wait, or cancel job {}.", other.id)),
            title=name,
            undo=partial(shutil.rmtree, folder, ignore_errors=True),
        )

    def fitting(self) -> list[str]:
        """The adapters of the home that were tuned on the model that answers."""
        return [] if self.base is None else home.adapters_tuned_on(self.base, self._settings.home)

    def offered(self) -> dict[str, Any]:
        """The local model that answers, as it is named and held, with the adapters that were tuned on it."""
        try:
            names = self.fitting()
        except CoalesceError:  # the model has gone from the disk
            names = []
        held = self._running().quantization.removeprefix("auto") or None
        return {"model": self.base, "quantization": held, "adapters": names}

    def points(self, name: str) -> list[dict[str, float]]:
        """The loss of an adapter by step, so far while it is being tuned. Raises NotFound."""
        points = self._curves.get(name)
        if points is not None:
            return list(points)
        return [point for _, point in read_jsonl(self._kept(name, LOSS_FILE), IndexCorrupt)]

    def curve(self, name: str) -> str:
        """The loss curve of an adapter as SVG, so far while it is being tuned. Raises NotFound."""
        from rag.tuning.run_folder import draw_curve

        points = self._curves.get(name)
        if points is not None:
            return draw_curve(list(points))
        return self._kept(name, CURVE_FILE).read_text(encoding="utf-8")

    def _kept(self, name: str, file: str) -> Path:
        path = self._folder(name) / file
        if not _NAME.fullmatch(name) or not path.is_file():
            raise NotFound(msg("there is no adapter {}", f"{name!r:.80}"), hint="GET /v1/generator lists the adapters.")
        return path

    def _folder(self, name: str) -> Path:
        return self._settings.home / home.ADAPTERS_FOLDER / name

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
        model = home.find_model(base, self._settings.home)
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
    learnt = f"{counted(report.steps, 'step')} on {counted(report.train_rows, 'row')}"
    return f"{learnt}, training loss {report.train_loss:.2f}" + (f". {report.warning}" if report.warning else "")
