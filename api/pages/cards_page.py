"""`/study/cards`: cards that are due, one after the other, by keyboard too."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from urllib.parse import quote as url_quote

from fastapi import Request
from nicegui import ui

from api.pages.controls import button, link, set_attributes, tag, toast
from api.pages.frame import Visit, empty_state, open_view
from api.pages.markup import plain_html
from api.pages.study_page import question_text, study_head
from api.pages.texts import Texts
from evals.questions import chapter_titles
from evals.schedule import RATINGS, review
from evals.study_store import StoredCard
from indexes.errors import CoalesceError


@ui.page("/study/cards")
def cards(request: Request) -> None:
    def build(visit: Visit) -> None:
        study_head(visit, "cards")
        _Review(visit).build()

    open_view(request, "study", build)


class _Review:
    """One tab's review of the due cards."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        self._done = 0
        self._card: StoredCard | None = None

    def build(self) -> None:
        """Draws the first card."""
        self._desk = tag("section", "", "review", aria_live="polite")
        self._next()
        with tag("div", "", "row soft"):
            tag("span", self._t("cards.export"))
            learner = url_quote(self._visit.learner)
            link("Anki (.apkg)", f"/v1/cards/export.apkg?learner={learner}", download=True)
            link("CSV", f"/v1/cards/export.csv?learner={learner}", download=True)

    def _next(self) -> None:
        study = self._visit.services.study
        due = study.due_cards(self._visit.learner, 1)
        self._desk.clear()
        with self._desk:
            if due:
                self._card = due[0]
                self._front(due[0], study.count_due(self._visit.learner))
            else:
                self._card = None
                self._nothing_due()

    def _front(self, card: StoredCard, left: int) -> None:
        with tag("article", "", "card flashcard"):
            tag("p", self._t.count("cards.left", left), "soft")
            text = question_text(self._visit, card.question)
            ui.html(plain_html(text), sanitize=False).classes("rich card-question")
            if card.question.type == "choice":
                with tag("ol", "", "card-choices", type="A"):
                    for choice in card.question.choices:
                        with tag("li"):
                            ui.html(plain_html(choice), sanitize=False).classes("rich")
            self._back = tag("div", "", "card-back", id="card-back", tabindex="-1")
            self._buttons = tag("div", "", "row card-buttons")
        with self._buttons:
            shown = button(self._t("cards.show"), lambda: self._turn(card), kind="primary")
            set_attributes(shown, data_key=" ")
            tag("span", self._t("cards.show_key"), "soft")

    def _turn(self, card: StoredCard) -> None:
        now = datetime.now(UTC)
        with self._back:
            tag("h3", self._t("mark.reference"), "small-heading")
            ui.html(plain_html(card.question.answer), sanitize=False).classes("rich")
            if place := _place(card):
                tag("p", place, "soft")
        self._buttons.clear()
        with self._buttons:
            for rating, name in RATINGS.items():
                due = review(card.fsrs_json, rating, now).due
                with tag("button", "", f"button rate {name}", type="button") as chosen:
                    tag("span", f"{rating}  {self._t(f'rating.{name}')}")
                    tag("small", _span(self._t, due - now))
                set_attributes(chosen, data_key=str(rating))
                chosen.on("click", lambda rating=rating: self._rate(card, rating), args=[])
        with self._visit.client:  # the button that was pressed is gone
            ui.run_javascript("coalesce.focusOn('#card-back')")

    async def _rate(self, card: StoredCard, rating: int) -> None:
        if self._card is not card:
            return
        self._card = None
        study = self._visit.services.study
        try:
            await asyncio.to_thread(study.review_card, card.id, rating, self._visit.learner)
            self._done += 1
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
        self._next()

    def _nothing_due(self) -> None:
        cards = self._visit.services.study.cards(self._visit.learner)
        if not cards:
            with empty_state(self._t("cards.none"), self._t("cards.none_text")):
                link(self._t("exam.new"), "/study", "button primary")
            return
        wait = _span(self._t, cards[0].due - datetime.now(UTC))
        title = self._t.count("cards.done", self._done) if self._done else self._t("cards.nothing_due")
        with empty_state(title, self._t("cards.next_due", time=wait)):
            link(self._t("study.progress"), "/study/progress", "button")


def _place(card: StoredCard) -> str:
    """Chapter and section that the question is about."""
    chapter = chapter_titles().get(card.question.chapter, "")
    section = (card.question.section or "").rpartition("#")[2]
    return " › ".join(part for part in (chapter, section) if part)


def _span(t: Texts, span: timedelta) -> str:
    minutes = max(span.total_seconds() / 60, 0)
    if minutes < 60:
        return t("span.minutes", n=max(1, round(minutes)))
    if minutes < 60 * 24:
        return t("span.hours", n=round(minutes / 60))
    return t("span.days", n=round(minutes / 60 / 24))
