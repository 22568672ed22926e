"""`/` and `/c/{conversation_id}`: questions, answers as they are written, and the list of conversations."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby

from fastapi import Request
from nicegui import background_tasks, ui

from api.answering import PAGE_GRACE_S, AnswerRun
from api.pages.answer_card import AnswerCard, Suggestions
from api.pages.controls import button, confirm, field, icon, link, set_attributes, show_dialog, tag, text_box, toast
from api.pages.filter_bar import FilterBar
from api.pages.frame import Visit, empty_state, open_view, show_problem
from api.pages.source_panel import SourcePanel
from api.pages.texts import Texts
from indexes.errors import CoalesceError
from indexes.types import Filters
from rag.conversations import Conversation, ConversationStore
from rag.question import check_question
from rag.types import Answer, Question

EXAMPLES = 3


@ui.page("/")
def ask(request: Request) -> None:
    open_view(request, "ask", lambda visit: AskView(visit).build())


@ui.page("/c/{conversation_id}")
def conversation(request: Request, conversation_id: str) -> None:
    open_view(request, "ask", lambda visit: AskView(visit, conversation_id).build())


class AskView:
    """One browser tab's conversation."""

    def __init__(self, visit: Visit, conversation_id: str | None = None) -> None:
        self._visit = visit
        self._t = visit.t
        self._conversation_id = conversation_id
        self._run: AnswerRun | None = None
        self._asking = False
        self._cards: dict[str, AnswerCard] = {}
        self._replaces: str | None = None

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
                self._composer(answers[-1].filters if answers else None)
            self._source = SourcePanel(self._visit)
        with self._thread:
            tag("h1", self._t("nav.ask"), "sr-only")
            if self._conversation_id is None:
                self._welcome()
            ratings = self._store.ratings(self._conversation_id) if self._conversation_id else {}
            for answer in answers:
                self._cards[answer.id] = AnswerCard(self._visit, self._source, self._ask, self._edit)
                self._cards[answer.id].show(answer, ratings.get(answer.id), last=answer is answers[-1])
            if len(answers) > 1:
                ui.run_javascript("coalesce.showLastTurn()")
        answering = self._visit.services.answering
        run = answering.unfinished(self._conversation_id) if self._conversation_id else None
        if run is not None and not _kept(run, answers):
            background_tasks.create(self._write(run))

    @property
    def _store(self) -> ConversationStore:
        return self._visit.conversations

    def _answers(self) -> tuple[Answer, ...]:
        return self._store.answers(self._conversation_id) if self._conversation_id is not None else ()

    def _welcome(self) -> None:
        documents = self._visit.services.library.documents()
        with tag("section", "", "welcome") as self._greeting:
            if not documents:
                with empty_state(self._t("ask.empty.title"), self._t("ask.empty.text")):
                    link(self._t("library.add"), "/library", "button primary")
                return
            tag("h2", self._t("ask.welcome"))
            tag("p", self._t.count("ask.books", len(documents), title=documents[0].title))
            own = [document.document_id for document in documents if not document.sample]
            if own:
                suggestions = partial(self._visit.services.reading.suggest, own)
                Suggestions(self._visit, suggestions, self._ask, "ask.examples", "").build()
            else:
                with tag("ul", "", "examples", aria_label=self._t("ask.examples")):
                    for number in range(1, EXAMPLES + 1):
                        text = self._t(f"ask.example.{number}")
                        with tag("li"):
                            button(text, lambda text=text: self._ask(text), kind="example")

    def _composer(self, chosen: Filters | None) -> None:
        with tag("form", "", "composer", aria_label=self._t("ask.form")) as form:
            self._editing = tag("div", "", "row editing")
            with self._editing:
                tag("span", self._t("ask.editing"), "soft")
                button(self._t("cancel"), self._stop_editing, kind="quiet")
            self._editing.set_visibility(False)
            self._filters = FilterBar(self._visit, chosen=chosen)
            with tag("div", "", "composer-row"):
                tag("label", self._t("ask.placeholder"), "sr-only", for_="question")
                box = tag("textarea", "", "question-box", id="question", rows="1", autofocus=True)
                set_attributes(box, placeholder=self._t("ask.placeholder"), maxlength="100000", enterkeyhint="send")
                box.on(
                    "keydown.enter",
                    lambda event: self._ask(event.args, replaces=self._replaces),
                    js_handler="(e) => coalesce.sendOnEnter(e, () => coalesce.send(emit))",
                )
                self._send = button("", kind="primary round", icon_name="send", label=self._t("ask.send"), id="send")
                self._send.on(
                    "click",
                    lambda event: self._ask(event.args, replaces=self._replaces),
                    js_handler="() => coalesce.send(emit)",
                )
                self._stop = button("", self._stop_run, kind="round", icon_name="stop", label=self._t("ask.stop"))
                self._stop.set_visibility(False)
        form.on("submit.prevent", js_handler="() => {}")

    def _edit(self, answer: Answer) -> None:
        """Puts the last question into the box; what is sent next takes its place."""
        self._replaces = answer.id
        self._editing.set_visibility(True)
        ui.run_javascript(f"coalesce.editQuestion({json.dumps(answer.question)})")

    def _stop_editing(self) -> None:
        self._replaces = None
        self._editing.set_visibility(False)

    async def _ask(self, text: str, *, answer_anyway: bool = False, replaces: str | None = None) -> None:
        text = text.strip()
        if self._asking:
            _restore(text)
        if not text or self._asking:
            return
        self._asking = True
        try:
            with self._visit.client:  # what was clicked may go with the greeting
                await self._begin(text, answer_anyway=answer_anyway, replaces=replaces)
        finally:
            self._asking = False

    async def _begin(self, text: str, *, answer_anyway: bool, replaces: str | None) -> None:
        made = None
        try:
            question = check_question(
                Question(
                    text,
                    arm=self._filters.arm,
                    adapter=self._filters.adapter,
                    filters=self._filters.value(),
                    owner=self._visit.owner,
                    answer_anyway=answer_anyway,
                )
            )
            if self._conversation_id is None:
                made = await asyncio.to_thread(self._store.create, text, "page")
            conversation_id = made.id if made is not None else self._conversation_id or ""
            run = self._visit.services.answering.start(
                replace(question, conversation_id=conversation_id, replaces=replaces),
                self._visit.asker,
                grace_s=PAGE_GRACE_S,
            )
        except CoalesceError as error:
            if made is not None:
                await asyncio.to_thread(self._store.delete, made.id)
            toast(self._t.error(error), bad=True)
            _restore(text)
            return
        if made is not None:
            self._conversation_id = made.id
            self._greeting.delete()
            ui.run_javascript(f"history.replaceState(null, '', '/c/{made.id}')")
            self._list.refresh(made.id)
        await self._write(run)

    async def _write(self, run: AnswerRun) -> None:
        """Draws a run as it goes on, to its end."""
        self._run, self._asking = run, True
        self._stop_editing()  # only the last answer can be changed
        old = self._cards.get(run.question.replaces or "")
        if old is not None:  # it comes back if the new answer does not
            old.turn.set_visibility(False)
        self._set_busy(True)
        self._status.set_text(self._t("ask.writing"))
        try:
            with self._thread:
                card = AnswerCard(self._visit, self._source, self._ask, self._edit)
                card.begin(run.question.text)
            await card.write(run)
            self._finish(run, card)
            if old is not None and run.done is not None:
                old.turn.delete()
        finally:
            if old is not None and run.done is None:
                old.turn.set_visibility(True)
            self._run, self._asking = None, False
            self._set_busy(False)

    def _finish(self, run: AnswerRun, card: AnswerCard) -> None:
        if run.done is not None:
            card.finish(run.done)
            self._cards[run.done.id] = card
            self._status.set_text(
                self._t.count("ask.finished", len({citation.marker for citation in run.done.citations}))
            )
            self._list.refresh(self._conversation_id)
            return
        self._status.set_text("")
        with card.body_slot:
            if run.stopped:
                tag("p", self._t("ask.stopped"), "note", role="status")
            elif run.error is not None:
                show_problem(self._visit, run.error)
        with suppress(RuntimeError):  # the tab has gone meanwhile
            _restore(run.question.text)

    def _stop_run(self) -> None:
        if self._run is not None:
            self._run.stop()

    def _set_busy(self, busy: bool) -> None:
        self._send.set_visibility(not busy)
        self._stop.set_visibility(busy)


def _restore(text: str) -> None:
    """Puts a question that was not answered back into the box, unless something new stands there."""
    ui.run_javascript(f"coalesce.restoreQuestion({json.dumps(text)})")


def _kept(run: AnswerRun, answers: tuple[Answer, ...]) -> bool:
    """Whether a run that was stopped at its very end was kept all the same."""
    last = answers[-1] if answers else None
    return last is not None and run.ended and last.question == run.question.text and last.answer.startswith(run.text)


SHOWN = 200


class ConversationList:
    """The list; `current` is the one that is open."""

    def __init__(self, visit: Visit, current: str | None) -> None:
        self._visit = visit
        self._t = visit.t
        self._current = current
        self._search = ""

    def build(self) -> None:
        """Draws the list into the current slot."""
        with tag("div", "", "conversations-head"):
            tag("h2", self._t("conversations.title"))
            # On a phone the list is folded away until it is asked for.
            toggle = button("", kind="quiet phone-only", icon_name="list", label=self._t("conversations.show"))
            set_attributes(toggle, aria_expanded="false", aria_controls="conversations-items")
            toggle.on("click", js_handler="(e) => coalesce.toggleList(e.currentTarget)")
            with link(
                "", "/", "button quiet", aria_label=self._t("conversations.new"), title=self._t("conversations.new")
            ):
                tag("span", "+", "plus", aria_hidden="true")
        with tag("div", "", "conversations-items", id="conversations-items"):
            search = text_box(self._look_for, kind="search", event="input", maxlength="200")
            set_attributes(
                search, placeholder=self._t("conversations.search"), aria_label=self._t("conversations.search")
            )
            self._items = tag("div", "")
        self._draw()

    def refresh(self, current: str | None) -> None:
        """Draws it again, after something was asked."""
        self._current = current
        self._draw()

    def _draw(self) -> None:
        kept = self._visit.conversations.list(self._search, of_the_page=True)
        self._items.clear()
        with self._items:
            if not kept:
                tag("p", self._t("conversations.not_found" if self._search else "conversations.none"), "soft")
                return
            for day, listed in groupby(kept[:SHOWN], key=lambda conversation: _day(self._t, conversation.updated_at)):
                tag("h3", day, "day")
                with tag("ul"):
                    for conversation in listed:
                        self._row(conversation)
            if not self._search:
                button(self._t("conversations.delete_all"), partial(self._delete_all, len(kept)), kind="quiet")

    def _look_for(self, text: str) -> None:
        self._search = text
        self._draw()

    def _delete_all(self, number: int) -> None:
        async def delete() -> None:
            remove = self._visit.services.delete_conversations
            try:
                await asyncio.to_thread(remove, self._visit.owner, of_the_page=True)
            except CoalesceError as error:
                toast(self._t.error(error), bad=True)
                return
            ui.navigate.to("/")

        confirm(
            self._t.count("conversations.delete_all_question", number),
            self._t("delete"),
            self._t("keep"),
            delete,
            detail=self._t("conversations.delete_all_detail"),
        )

    def _row(self, conversation: Conversation) -> None:
        title = conversation.title or self._t("conversations.untitled")
        mine = conversation.id == self._current
        with tag("li", "", "conversation current" if mine else "conversation"):
            with link("", f"/c/{conversation.id}", aria_current="page" if mine else None):
                tag("span", title, "name")
                tag("span", datetime.fromisoformat(conversation.updated_at).astimezone().strftime("%H:%M"), "when")
            if mine:
                with tag("span", "", "conversation-tools"):
                    button(
                        "",
                        lambda: self._rename(conversation),
                        kind="quiet",
                        icon_name="edit",
                        label=self._t("conversations.rename"),
                    )
                    export = f"/v1/conversations/{conversation.id}/export.md"
                    with link(
                        "", export, "button quiet", download=True, title=self._t("conversations.export")
                    ) as saved:
                        icon("download")
                    set_attributes(saved, aria_label=self._t("conversations.export"))
                    button(
                        "",
                        lambda: self._delete(conversation, title),
                        kind="quiet",
                        icon_name="trash",
                        label=self._t("conversations.delete"),
                    )

    def _rename(self, conversation: Conversation) -> None:
        name = conversation.title
        dialog = tag("dialog", "", "dialog", aria_label=self._t("conversations.rename"))

        def keep(text: str) -> None:
            nonlocal name
            name = text

        async def save() -> None:
            dialog.delete()
            rename = self._visit.services.rename_conversation
            try:
                await asyncio.to_thread(rename, conversation.id, name, self._visit.owner)
            except CoalesceError as error:
                with self._visit.client:
                    toast(self._t.error(error), bad=True)
                return
            self._draw()

        with dialog:
            with field(self._t("conversations.name")):
                box = text_box(keep, value=conversation.title, event="input", maxlength="200", autofocus=True)
            box.on("keydown.enter", save, args=[])
            with tag("div", "", "row end"):
                button(self._t("cancel"), dialog.delete)
                button(self._t("save"), save, kind="primary")
        dialog.on("close", dialog.delete, args=[])
        show_dialog(dialog)

    def _delete(self, conversation: Conversation, title: str) -> None:
        async def delete() -> None:
            remove = self._visit.services.delete_conversation
            try:
                await asyncio.to_thread(remove, conversation.id, self._visit.owner)
            except CoalesceError as error:
                toast(self._t.error(error), bad=True)
                return
            ui.navigate.to("/")

        confirm(
            self._t("conversations.delete_question", title=title),
            self._t("delete"),
            self._t("keep"),
            delete,
            detail=self._t.count("conversations.delete_detail", conversation.num_answers),
        )


def _day(t: Texts, moment: str) -> str:
    """The day of a time, by the server's clock."""
    then = datetime.fromisoformat(moment).astimezone().date()
    days = (datetime.now(UTC).astimezone().date() - then).days
    return t("conversations.today") if days <= 0 else t("conversations.yesterday") if days == 1 else then.isoformat()
