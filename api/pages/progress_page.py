"""`/study/progress`: by chapter what was seen and right, what comes due, and what is weak."""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import Request
from nicegui import ui

from api.pages.controls import link, tag
from api.pages.frame import Visit, empty_state, open_view
from api.pages.study_page import study_head
from evals.questions import chapter_titles
from evals.study import FORECAST_DAYS, ChapterProgress, Progress


@ui.page("/study/progress")
def progress(request: Request) -> None:
    def build(visit: Visit) -> None:
        study_head(visit, "progress")
        _show(visit, visit.services.study.progress(visit.learner))

    open_view(request, "study", build)


def _show(visit: Visit, progress: Progress) -> None:
    t = visit.t
    seen = sum(chapter.seen for chapter in progress.chapters)
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
    _chapters(visit, progress)
    with tag("div", "", "grid"):
        _forecast(visit, progress)
        _weak(visit, progress)


def _chapters(visit: Visit, progress: Progress) -> None:
    t = visit.t
    titles = chapter_titles()
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
                for chapter in progress.chapters:
                    _chapter(visit, chapter, titles.get(chapter.chapter, ""))


def _chapter(visit: Visit, chapter: ChapterProgress, title: str) -> None:
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
            link(visit.t("study.exam"), f"/study?chapter={chapter.chapter}", aria_label=label)


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
