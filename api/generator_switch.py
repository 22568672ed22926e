"""Switches models without a restart: finds what could answer, loads it in a job while the old one answers, keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.chosen_generator import GeneratorChoice, is_loopback, keep_choice, origin_of
from api.errors import NotAllowed
from api.job_store import Job
from api.jobs import JobHandle, JobQueue
from api.settings import CoalesceSettings
from indexes.errors import Cancelled, Conflict, InvalidInput, NotFound
from rag.settings import shown_address

if TYPE_CHECKING:
    from indexes.library import Library
    from rag.engine import AnswerEngine
    from rag.models.home import Finding
    from rag.settings import GeneratorSettings, RagSettings

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


class GeneratorSwitch:
    """Finds what could answer and switches to it.

    Args:
        library, engine: of the running server; they raise NotReady until they are there.
        use: makes an engine the one that answers, and frees the generator of the one before when it is done.

    Attributes:
        own_port: of this server, which is neither asked nor taken for an engine.
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
        self._choice = settings.chosen
        self.own_port = settings.port
        self.problem: str | None = None

    @property
    def rag(self) -> RagSettings:
        """The settings of what answers now."""
        return self._settings.rag_with(self._choice)

    @property
    def running(self) -> GeneratorSettings:
        """The settings of the generator that answers now."""
        return self.rag.generator

    def now(self) -> Answers:
        """What answers now; raises NotReady."""
        generator, running = self._engine().generator, self.running
        loaded = getattr(generator, "loaded", None)
        return Answers(
            generator=generator.name,
            model=generator.model_name,
            base_url=shown_address(running.base_url or "") if generator.name == "remote" else None,
            adapter=next(iter(generator.adapters), None),
            quantization=loaded.quantization if loaded is not None else None,
            chosen=self._choice is not None,
            problem=self.problem,
        )

    def look_around(self) -> Finding:
        """The models and adapters of the home, the engines of this machine, and what can be fetched (half a second)."""
        from rag.models.home import look_around

        return look_around(self._settings.home, self.own_port)

    def is_silent(self, found: Finding) -> bool:
        """Whether an engine on one of the usual ports was chosen, and `look_around` found none there."""
        from rag.models.home import ENGINE_PORTS, engine_address

        now = self.now()
        silent = {engine_address(port) for port in ENGINE_PORTS.values()} - {
            engine.base_url for engine in found.engines
        }
        return now.generator == "remote" and now.base_url in silent

    def forget(self, error: BaseException) -> None:
        """Starts without a kept choice that cannot load; its file stays, since the model may come back."""
        self._choice, self.problem = None, str(error)

    def switch(self, choice: GeneratorChoice | None) -> Job:
        """Queues the job that loads a choice, None being what the settings say; the old one answers meanwhile.

        Raises:
            NotReady: nothing answers yet.
            InvalidInput: it lacks its model or address.
            NotAllowed: the address is neither of this machine nor that of the settings, or it is this server's own.
            NotFound: the home has no such adapter.
            Conflict: another switch is not done yet.
        """
        self._engine()
        if choice is not None:
            self._check(choice)
        return self._jobs.submit_alone(
            SWITCH,
            lambda handle: self._load(handle, choice),
            lambda _: Conflict("another model is being loaded", hint="Wait until it is there, or cancel its job."),
            title=(choice.model or "") if choice is not None else "",
        )

    def _check(self, choice: GeneratorChoice) -> None:
        from rag.models.home import shipped_adapters

        if choice.generator == "extractive":
            return
        if not choice.model:
            raise InvalidInput(f"generator `{choice.generator}` needs a model", hint="Name it with `model`.")
        if choice.generator == "remote":
            self._check_address(choice.base_url)
        elif choice.adapter is not None and choice.adapter not in {
            *self._settings.adapters,
            *shipped_adapters(choice.model),
        }:
            folder = self._settings.home / "adapters" / choice.adapter
            if folder.parent != self._settings.home / "adapters" or not folder.is_dir():
                raise NotFound(
                    f"the home has no adapter {choice.adapter!r:.80}", hint="GET /v1/generator lists the adapters."
                )

    def _check_address(self, address: str | None) -> None:
        origin = origin_of(address)
        if origin is None:
            raise InvalidInput(
                f"{shown_address(address or '')!r:.200} is not the address of an engine",
                hint="For example: http://127.0.0.1:11434/v1",
            )
        _, host, port = origin
        if origin == origin_of(self._settings.base_url):
            return
        if not is_loopback(host):
            raise NotAllowed(
                f"{host} is not this machine",
                hint="Name an engine elsewhere in the settings: COALESCE_BASE_URL=URL coalesce serve",
            )
        if port == self.own_port:
            raise InvalidInput(f"port {port} is this server's own", hint="Name the port of the engine.")

    def _load(self, handle: JobHandle, choice: GeneratorChoice | None) -> str:
        from rag.assemble import switch_generator
        from rag.models.home import PACKAGES, find_model, get_model

        def tell(step: str, done: int, total: int) -> None:
            if handle.cancelled():
                raise Cancelled("the switch was cancelled")
            handle.progress(done, total, step)

        settings = self._settings.rag_with(choice)
        wanted = settings.generator
        if wanted.kind in ("auto", "local") and wanted.model is not None and wanted.home is not None:
            if wanted.model in PACKAGES:
                get_model(wanted.model, wanted.home, tell)
            find_model(wanted.model, wanted.home, tell)
        tell("loading the model", 0, 0)
        engine = switch_generator(self._engine(), settings, self._library())
        if handle.cancelled():
            engine.generator.close()
            raise Cancelled("the switch was cancelled")
        keep_choice(self._settings.home, choice)
        self._choice, self.problem = choice, None
        self._use(engine)
        return f"{engine.generator.model_name} answers now"
