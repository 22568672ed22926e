"""`/study/cards`: cards that are due, one after the other, by keyboard too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import quote as url_quote

from fastapi import Request
from nicegui import ui

from api.pages.controls import button, confirm, field, link, set_attributes, tag, text_area, toast
from api.pages.frame import Visit, book_path, empty_state, open_view
from api.pages.markup import plain_html
from api.pages.study_page import question_text, study_head
from api.pages.texts import Texts
from evals.anki import source_of
from evals.questions import BankQuestion
from evals.schedule import RATINGS, SUSPENDED, review
from evals.study import Study, justify
from evals.study_store import StoredCard
from indexes.errors import CoalesceError
from rag.generators.prompts import CHOICE_LETTERS


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
        self._rated: str | None = None

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
        study = self._visit.study
        due = study.due_cards(self._visit.learner, 1)
        self._desk.clear()
        with self._desk:
            if self._rated is not None:
                undo = button(self._t("cards.undo"), self._undo, kind="quiet")
                set_attributes(undo, data_key="u")
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
        question = card.question
        with self._back:
            tag("h3", self._t("mark.reference"), "small-heading")
            letter = ""
            if question.type == "choice" and question.answer_index is not None:
                letter = f"**{CHOICE_LETTERS[question.answer_index]}.** "
                if question.answer != question.choices[question.answer_index]:
                    letter += f"{question.choices[question.answer_index]}\n\n"
            ui.html(plain_html(f"{letter}{question.answer}"), sanitize=False).classes("rich")
            for gold in question.gold:
                if gold.evidence:
                    with tag("blockquote", "", "card-quote"):
                        ui.html(plain_html(gold.evidence), sanitize=False).classes("rich")
            if place := source_of(question, self._t("filters.in_chapter")):
                with tag("p", "", "soft"):
                    tag("span", place)
                    if path := self._place_in_book(question):
                        tag("span", " · ")
                        link(self._t("cards.read"), path)
            with tag("div", "", "row card-care"):
                button(self._t("cards.edit"), lambda: self._edit(card), kind="quiet")
                button(self._t("cards.suspend"), lambda: self._suspend(card), kind="quiet")
                button(self._t("cards.delete"), lambda: self._ask_delete(card), kind="quiet")
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

    def _place_in_book(self, question: BankQuestion) -> str:
        """The address of a card's quote in its book; "" where the library does not have it."""
        passage = justify(question, self._visit.services.library) if question.gold else None
        if passage is None or not passage.document_id:
            return ""
        return book_path(passage.document_id, node=passage.node_id, quote=question.gold[0].evidence)

    def _edit(self, card: StoredCard) -> None:
        texts = {"question": card.question.question, "answer": card.question.answer}

        async def keep() -> None:
            await self._do(
                lambda study, learner: study.change_card(
                    card.id, learner, question=texts["question"], answer=texts["answer"]
                )
            )

        self._back.clear()
        self._buttons.clear()
        with self._back:
            with field(self._t("cards.question")):
                text_area(partial(texts.__setitem__, "question"), value=texts["question"], event="input", rows="3")
            with field(self._t("mark.reference")):
                text_area(partial(texts.__setitem__, "answer"), value=texts["answer"], event="input", rows="2")
            with tag("div", "", "row"):
                button(self._t("cards.keep"), keep, kind="primary")
                button(self._t("cancel"), self._next, kind="quiet")

    def _ask_delete(self, card: StoredCard) -> None:
        confirm(
            self._t("cards.delete_question"),
            self._t("cards.delete"),
            self._t("keep"),
            lambda: self._do(lambda study, learner: study.delete_card(card.id, learner)),
        )

    async def _suspend(self, card: StoredCard) -> None:
        await self._do(lambda study, learner: study.change_card(card.id, learner, suspended=True))

    async def _undo(self) -> None:
        rated, self._rated = self._rated, None
        if rated is not None:
            await self._do(lambda study, learner: study.undo_review(rated, learner))
            self._done -= 1

    async def _do(self, change: Callable[[Study, str], object]) -> None:
        """Changes a card and shows the one that is due now."""
        try:
            await asyncio.to_thread(change, self._visit.study, self._visit.learner)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
        self._next()

    async def _rate(self, card: StoredCard, rating: int) -> None:
        if self._card is not card:
            return
        self._card = None
        study = self._visit.study
        try:
            await asyncio.to_thread(study.review_card, card.id, rating, self._visit.learner)
            self._done += 1
            self._rated = card.id
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
        self._next()

    def _nothing_due(self) -> None:
        cards = [card for card in self._visit.study.cards(self._visit.learner) if card.state != SUSPENDED]
        if not cards:
            with empty_state(self._t("cards.none"), self._t("cards.none_text")):
                link(self._t("exam.new"), "/study", "button primary")
            return
        wait = _span(self._t, cards[0].due - datetime.now(UTC))
        title = self._t.count("cards.done", self._done) if self._done else self._t("cards.nothing_due")
        with empty_state(title, self._t("cards.next_due", time=wait)):
            link(self._t("study.progress"), "/study/progress", "button")


def _span(t: Texts, span: timedelta) -> str:
    minutes = max(span.total_seconds() / 60, 0)
    if minutes < 60:
        return t("span.minutes", n=max(1, round(minutes)))
    if minutes < 60 * 24:
        return t("span.hours", n=round(minutes / 60))
    return t("span.days", n=round(minutes / 60 / 24))
