"""`/` and `/c/{conversation_id}`: questions, answers as they are written, and the passage behind each marker."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace

from fastapi import Request
from nicegui import background_tasks, ui

from api.pages.answer_card import AnswerCard
from api.pages.controls import button, link, set_attributes, tag, toast
from api.pages.conversation_list import ConversationList
from api.pages.filter_bar import FilterBar
from api.pages.frame import PageServices, Visit, empty_state, open_view, show_problem
from api.pages.runs import AnswerRun
from api.pages.source_panel import SourcePanel
from api.text_input import refuse_controls
from indexes.errors import CoalesceError
from rag.conversations import ConversationStore
from rag.question_checks import check_question
from rag.types import Answer, Question

EXAMPLES = 3


def register(page: PageServices) -> None:
    """Adds the view to NiceGUI's own application."""

    @ui.page("/")
    def ask(request: Request) -> None:
        open_view(page, request, "ask", lambda visit: AskView(visit).build())

    @ui.page("/c/{conversation_id}")
    def conversation(request: Request, conversation_id: str) -> None:
        open_view(page, request, "ask", lambda visit: AskView(visit, conversation_id).build())


class AskView:
    """One browser tab's conversation."""

    def __init__(self, visit: Visit, conversation_id: str | None = None) -> None:
        self._visit = visit
        self._t = visit.t
        self._conversation_id = conversation_id
        self._run: AnswerRun | None = None
        self._asking = False

    def build(self) -> None:
        """Draws the view, with what the conversation holds."""
        answers = self._answers()
        self._list = ConversationList(self._visit, self._conversation_id)
        with tag("div", "", "ask-layout"):
            with tag("aside", "", "conversations", aria_label=self._t("conversations.title"), id="conversations"):
                self._list.build()
            with tag("section", "", "desk"):
                self._thread = tag("div", "", "thread")
                self._status = tag("p", "", "sr-only", role="status")
                self._composer()
            self._source = SourcePanel(self._visit)
        with self._thread:
            tag("h1", self._t("nav.ask"), "sr-only")
            if self._conversation_id is None:
                self._welcome()
            ratings = self._store.ratings(self._conversation_id) if self._conversation_id else {}
            for answer in answers:
                AnswerCard(self._visit, self._source).show(answer, ratings.get(answer.id))
            if len(answers) > 1:
                ui.run_javascript("coalesce.showLastTurn()")
        run = self._visit.page.runs.of(self._conversation_id) if self._conversation_id else None
        if run is not None and not _kept(run, answers):
            background_tasks.create(self._write(run))

    @property
    def _store(self) -> ConversationStore:
        return self._visit.conversations

    def _answers(self) -> tuple[Answer, ...]:
        return self._store.answers(self._conversation_id) if self._conversation_id is not None else ()

    def _welcome(self) -> None:
        documents = self._visit.page.services.library.documents()
        with tag("section", "", "welcome") as self._greeting:
            if not documents:
                with empty_state(self._t("ask.empty.title"), self._t("ask.empty.text")):
                    link(self._t("library.add"), "/library", "button primary")
                return
            tag("h2", self._t("ask.welcome"))
            tag("p", self._t.count("ask.books", len(documents), title=documents[0].title))
            if any(document.sample for document in documents):
                with tag("ul", "", "examples", aria_label=self._t("ask.examples")):
                    for number in range(1, EXAMPLES + 1):
                        text = self._t(f"ask.example.{number}")
                        with tag("li"):
                            button(text, lambda text=text: self._ask(text), kind="example")

    def _composer(self) -> None:
        with tag("form", "", "composer", aria_label=self._t("ask.form")) as form:
            self._filters = FilterBar(self._visit)
            with tag("div", "", "composer-row"):
                tag("label", self._t("ask.placeholder"), "sr-only", for_="question")
                box = tag("textarea", "", "question-box", id="question", rows="1", autofocus=True)
                set_attributes(box, placeholder=self._t("ask.placeholder"), maxlength="100000", enterkeyhint="send")
                box.on(
                    "keydown.enter",
                    lambda event: self._ask(event.args),
                    js_handler="(e) => coalesce.sendOnEnter(e, emit)",
                )
                self._send = button("", kind="primary round", icon_name="send", label=self._t("ask.send"), id="send")
                self._send.on(
                    "click",
                    lambda event: self._ask(event.args),
                    js_handler="() => emit(document.getElementById('question').value)",
                )
                self._stop = button("", self._stop_run, kind="round", icon_name="stop", label=self._t("ask.stop"))
                self._stop.set_visibility(False)
        form.on("submit.prevent", js_handler="() => {}")

    async def _ask(self, text: str) -> None:
        text = text.strip()
        if not text or self._asking:
            return
        self._asking = True
        try:
            with self._visit.client:  # what was clicked may go with the greeting
                await self._begin(text)
        finally:
            self._asking = False

    async def _begin(self, text: str) -> None:
        made = None
        try:
            filters = self._filters.value()
            text = refuse_controls(text, "question")
            question = Question(text, filters=filters, owner=self._visit.owner, **self._filters.arm())
            check_question(question)
            if self._conversation_id is None:
                made = await asyncio.to_thread(self._store.create, text)
            conversation_id = made.id if made is not None else self._conversation_id or ""
            run = self._visit.page.runs.start(replace(question, conversation_id=conversation_id), self._visit.address)
        except CoalesceError as error:
            if made is not None:
                await asyncio.to_thread(self._store.delete, made.id)
            toast(self._t.error(error), bad=True)
            return
        if made is not None:
            self._conversation_id = made.id
            self._greeting.delete()
            ui.run_javascript(f"history.replaceState(null, '', '/c/{made.id}')")
            self._list.refresh(made.id)
        ui.run_javascript("coalesce.clearQuestion()")
        await self._write(run)

    async def _write(self, run: AnswerRun) -> None:
        """Draws a run as it goes on, to its end."""
        self._run, self._asking = run, True
        self._set_busy(True)
        self._status.set_text(self._t("ask.writing"))
        try:
            with self._thread:
                card = AnswerCard(self._visit, self._source)
                card.begin(run.question.text)
            await card.write(run)
            self._finish(run, card)
        finally:
            self._run, self._asking = None, False
            self._set_busy(False)

    def _finish(self, run: AnswerRun, card: AnswerCard) -> None:
        if run.done is not None:
            card.finish(run.done)
            self._status.set_text(self._t.count("ask.finished", len(run.done.citations)))
            self._list.refresh(self._conversation_id)
            return
        self._status.set_text("")
        with card.body_slot:
            if run.stopped:
                tag("p", self._t("ask.stopped"), "note", role="status")
            elif run.error is not None:
                show_problem(self._visit, run.error)
        with suppress(RuntimeError):  # the tab has gone meanwhile
            ui.run_javascript(f"coalesce.restoreQuestion({json.dumps(run.question.text)})")

    def _stop_run(self) -> None:
        if self._run is not None:
            self._run.stop()

    def _set_busy(self, busy: bool) -> None:
        self._send.set_visibility(not busy)
        self._stop.set_visibility(busy)


def _kept(run: AnswerRun, answers: tuple[Answer, ...]) -> bool:
    """Whether a run that was stopped at its very end was kept all the same."""
    last = answers[-1] if answers else None
    return last is not None and run.ended and last.question == run.question.text and last.answer.startswith(run.text)
