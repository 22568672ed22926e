"""`/study/progress`: by chapter what was seen and right, what comes due, and what is weak."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from fastapi import Request
from nicegui import ui

from api.pages.controls import field, link, select, tag
from api.pages.frame import Visit, empty_state, open_view
from api.pages.study_page import study_head
from evals.questions import chapter_titles, load_bank
from evals.study import FORECAST_DAYS, ChapterProgress, Progress

EVERYTHING = "all"


@ui.page("/study/progress")
def progress(request: Request, book: str = "") -> None:
    def build(visit: Visit) -> None:
        study_head(visit, "progress")
        _ProgressView(visit, book).build()

    open_view(request, "study", build)


class _ProgressView:
    """Progress in the bank's questions, in those of one book, or in all that was ever asked.

    Without a choice it is the first of them of which something was seen.
    """

    def __init__(self, visit: Visit, source: str) -> None:
        self._visit = visit
        self._books = {book.document_id: book for book in visit.services.questions.books()}
        self._sources = ["", *self._books, EVERYTHING]
        self._source = source if source in self._sources else ""
        self._asked = bool(source)
        self._titles: dict[tuple[str, int], str] = {}

    def build(self) -> None:
        """Draws the view."""
        t = self._visit.t
        found = self._progress()
        if not self._asked and not _seen(found):
            for source in self._sources[1:]:
                self._source = source
                if _seen(found := self._progress()):
                    break
            else:
                self._source = ""
        if len(self._sources) > 2:
            with field(t("exam.questions_from")):
                names = [("", t("exam.bank")), *((key, book.title) for key, book in self._books.items())]
                select([*names, (EVERYTHING, t("progress.all"))], self._go, value=self._source)
        _show(self._visit, found, self._titles, self._source if self._source in self._books else "")

    def _progress(self) -> Progress:
        services, study, learner = self._visit.services, self._visit.study, self._visit.learner
        if self._source:
            found, self._titles = services.questions.progress(
                study, learner, None if self._source == EVERYTHING else self._source
            )
            return found
        self._titles = {("", number): title for number, title in chapter_titles().items()}
        return study.progress(learner, load_bank())

    def _go(self, source: str) -> None:
        ui.navigate.to(f"/study/progress?book={quote(source, safe='')}")


def _seen(progress: Progress) -> int:
    return sum(chapter.seen for chapter in progress.chapters)


def _show(visit: Visit, progress: Progress, titles: Mapping[tuple[str, int], str], book: str) -> None:
    t = visit.t
    seen = _seen(progress)
    if not seen:
        with empty_state(t("progress.none"), t("progress.none_text")):
            link(t("exam.new"), "/study", "button primary")
        return
    right = sum(chapter.right for chapter in progress.chapters)
    total = sum(chapter.questions for chapter in progress.chapters)
    due = sum(chapter.due for chapter in progress.chapters)
    with tag("dl", "", "tiles"):
        for name, value in (
            ("seen", t("progress.of", n=f"{seen:,}", most=f"{total:,}")),
            ("right", f"{right / seen:.0%}"),
            ("due", f"{due:,}"),
        ):
            with tag("div", "", "card tile"):
                tag("dt", t(f"progress.{name}"))
                tag("dd", value, "big")
    _chapters(visit, progress, titles, book)
    with tag("div", "", "grid"):
        _forecast(visit, progress)
        _weak(visit, progress)


def _chapters(visit: Visit, progress: Progress, titles: Mapping[tuple[str, int], str], book: str) -> None:
    t = visit.t
    with tag("section", "", "card"):
        tag("h2", t("progress.chapters"))
        with (
            tag("div", "", "table-box stacked", tabindex="0", role="region", aria_label=t("progress.chapters")),
            tag("table"),
        ):
            with tag("thead"), tag("tr"):
                for name in ("chapter", "right_of_seen", "due", "practise"):
                    tag("th", t(f"progress.{name}"), scope="col")
            with tag("tbody"):
                of_book = ""
                for chapter in progress.chapters:
                    if chapter.book != of_book:
                        of_book = chapter.book
                        with tag("tr"):
                            tag(
                                "th",
                                visit.services.library.document(of_book).title,
                                "book-row",
                                colspan="4",
                                scope="colgroup",
                            )
                    _chapter(visit, chapter, titles.get((chapter.book, chapter.chapter), ""), book or chapter.book)


def _chapter(visit: Visit, chapter: ChapterProgress, title: str, book: str) -> None:
    most = max(chapter.questions, chapter.seen, 1)
    with tag("tr"):
        tag("th", f"{chapter.chapter}. {title}", scope="row")
        with tag("td"):
            with tag("div", "", "stack", aria_hidden="true"):
                tag("i", "", "right").style(f"width:{100 * chapter.right / most:.1f}%")
                tag("i", "", "wrong").style(f"width:{100 * (chapter.seen - chapter.right) / most:.1f}%")
            text = visit.t("progress.counts", right=chapter.right, seen=chapter.seen, most=chapter.questions)
            tag("span", text, "soft")
        due = str(chapter.due) if chapter.due else "–"
        tag("td", due, "number-cell", data_label=visit.t("progress.due"))
        with tag("td"):
            label = visit.t("progress.exam_of", n=chapter.chapter)
            asked = urlencode({"chapter": chapter.chapter} | ({"book": book} if book else {}))
            link(visit.t("study.exam"), f"/study?{asked}", aria_label=label)


def _forecast(visit: Visit, progress: Progress) -> None:
    t = visit.t
    days = [sum(chapter.forecast[day] for chapter in progress.chapters) for day in range(FORECAST_DAYS)]
    highest = max(*days, 1)
    today = datetime.now().astimezone()
    with tag("section", "", "card"):
        tag("h2", t("progress.forecast"))
        if not any(days):
            tag("p", t("progress.nothing_coming"), "soft")
            return
        with tag("ol", "", "columns"):
            for day, number in enumerate(days):
                name = t("progress.today") if day == 0 else (today + timedelta(days=day)).strftime("%m-%d")
                with tag("li"):
                    tag("span", str(number), "day-number")
                    tag("i", "", "day-bar", aria_hidden="true").style(f"height:{5 * number / highest:.2f}rem")
                    tag("span", name, "soft")


def _weak(visit: Visit, progress: Progress) -> None:
    t = visit.t
    with tag("section", "", "card"):
        tag("h2", t("progress.weak"))
        if not progress.weak_sections:
            tag("p", t("progress.no_weak"), "soft")
            return
        with tag("ul", "", "weak"):
            for section, missed, seen in progress.weak_sections:
                with tag("li"):
                    tag("span", section.rpartition("#")[2] or section)
                    tag("span", t("progress.missed", n=missed, most=seen), "soft")
