"""`/`: a question, the answer as it is written, and the passage behind each marker."""

from __future__ import annotations

from nicegui import ui

from api.pages.answer_view import page_text, show_answer
from api.pages.frame import PageServices, frame, show_error
from api.streaming import EventPump
from api.text_input import refuse_controls
from rag.types import Answer, AnswerDone, Citation, Event, Passage, PassagesFound, Question, TextDelta


def register(page: PageServices) -> None:
    """Adds the view to NiceGUI's own application."""

    @ui.page("/")
    def show() -> None:
        with frame(page):
            _AskView(page).build()


class _AskView:
    """One browser tab's question and answer."""

    def __init__(self, page: PageServices) -> None:
        self._page = page
        self._pump: EventPump[Event] | None = None
        self._conversation_id: str | None = None
        self._passages: tuple[Passage, ...] = ()
        self._client = ui.context.client
        self._client.on_delete(self._stop)

    def build(self) -> None:
        """Draws the view."""
        with ui.row().classes("w-full items-center no-wrap"):
            self._box = ui.input(placeholder="Ask the library").props('outlined autofocus aria-label="Question"')
            self._box.classes("grow").on("keydown.enter", self._ask)
            self._ask_button = ui.button("Ask", on_click=self._ask).props("unelevated no-caps")
            self._stop_button = ui.button("Stop", on_click=self._stop).props("outline no-caps")
            self._stop_button.set_visibility(False)
        with ui.row().classes("w-full items-start gap-6"):
            self._answers = ui.column().classes("grow basis-80 gap-3").props('aria-live="polite"')
            self._source = ui.column().classes("basis-80 grow gap-2")
        with self._answers:
            ui.label("Ask a question about the books in the library. Every answer names its pages.").classes(
                "opacity-70"
            )

    async def _ask(self) -> None:
        text = (self._box.value or "").strip()
        if not text or self._pump is not None:
            return
        self._answers.clear()
        self._source.clear()
        try:
            question = Question(refuse_controls(text, "question"), conversation_id=self._conversation_id)
            address = self._client.ip or "page"
            self._pump = self._page.answering.stream(question, address)
            self._set_busy(True)
            await self._write(text, self._pump)
        except Exception as error:  # noqa: BLE001  shown to the reader in words
            with self._answers:
                show_error(error)
        finally:
            self._pump = None
            self._set_busy(False)

    async def _write(self, text: str, pump: EventPump[Event]) -> None:
        with self._answers:
            ui.label(text).classes("text-lg font-medium whitespace-pre-wrap")
            spinner = ui.spinner("dots", size="lg")
            body = ui.column().classes("gap-3 w-full")
        with body:
            running = ui.label().classes("whitespace-pre-wrap leading-7")
        pieces: list[str] = []
        async for event in pump:
            match event:
                case PassagesFound(passages):
                    self._passages = passages
                case TextDelta(piece):
                    pieces.append(piece)
                    running.set_text("".join(pieces))
                case AnswerDone(answer):
                    self._finish(answer, body)
        spinner.delete()

    def _finish(self, answer: Answer, body: ui.column) -> None:
        self._conversation_id = answer.conversation_id
        body.clear()
        with body:
            show_answer(answer, self._open)
        if answer.citations:
            self._open(answer.citations[0])

    def _open(self, citation: Citation) -> None:
        passage = self._passages[citation.marker - 1]
        self._source.clear()
        with self._source:
            ui.label(f"[{citation.marker}] {passage.title}").classes("font-semibold")
            ui.label(" › ".join(passage.section) + page_text(citation)).classes("text-sm opacity-80")
            ui.label(f"The quote is {citation.verdict}: it stands word for word in the passage.").classes(
                "text-xs opacity-70"
            )
            with ui.element("div").classes("whitespace-pre-wrap border rounded p-3 w-full leading-6 text-sm"):
                ui.label(passage.text[: citation.char_start]).classes("inline")
                ui.label(passage.text[citation.char_start : citation.char_end]).classes(
                    "inline bg-yellow-200 text-black"
                )
                ui.label(passage.text[citation.char_end :]).classes("inline")

    def _stop(self) -> None:
        if self._pump is not None:
            self._pump.stop()

    def _set_busy(self, busy: bool) -> None:
        self._ask_button.set_visibility(not busy)
        self._stop_button.set_visibility(busy)
