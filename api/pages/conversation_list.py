"""The conversations beside the desk: open, name, delete, begin another."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from nicegui import ui

from api.pages.controls import button, confirm, field, link, set_attributes, show_dialog, tag, text_box, toast
from api.pages.frame import Visit
from api.text_input import refuse_controls
from indexes.errors import CoalesceError
from rag.conversations import Conversation

SHOWN = 200


class ConversationList:
    """The list; `current` is the one that is open."""

    def __init__(self, visit: Visit, current: str | None) -> None:
        self._visit = visit
        self._t = visit.t
        self._current = current

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
        self._items = tag("div", "", "conversations-items", id="conversations-items")
        self._draw()

    def refresh(self, current: str | None) -> None:
        """Draws it again, after something was asked."""
        self._current = current
        self._draw()

    def _draw(self) -> None:
        kept = self._visit.conversations.list()
        self._items.clear()
        with self._items:
            if not kept:
                tag("p", self._t("conversations.none"), "soft")
                return
            with tag("ul"):
                for conversation in kept[:SHOWN]:
                    self._row(conversation)

    def _row(self, conversation: Conversation) -> None:
        title = conversation.title or self._t("conversations.untitled")
        mine = conversation.id == self._current
        with tag("li", "", "conversation current" if mine else "conversation"):
            with link("", f"/c/{conversation.id}", aria_current="page" if mine else None):
                tag("span", title, "name")
                tag("span", _day(conversation.updated_at), "when")
            if mine:
                with tag("span", "", "conversation-tools"):
                    button(
                        "",
                        lambda: self._rename(conversation),
                        kind="quiet",
                        icon_name="edit",
                        label=self._t("conversations.rename"),
                    )
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
            store = self._visit.conversations
            try:
                await asyncio.to_thread(store.rename, conversation.id, refuse_controls(name, "title"))
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
            self._visit.page.runs.forget(conversation.id)
            store = self._visit.conversations
            try:
                await asyncio.to_thread(store.delete, conversation.id)
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


def _day(moment: str) -> str:
    then = datetime.fromisoformat(moment)
    today = datetime.now(UTC).date()
    return then.astimezone().strftime("%H:%M" if then.date() == today else "%Y-%m-%d")
