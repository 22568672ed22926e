"""The marks of an exam: each with what was right, and the passage that proves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from api.pages.controls import link, tag
from api.pages.exam_end import ended_by_itself
from api.pages.frame import Visit
from api.pages.markup import passage_html, plain_html
from api.pages.source_panel import page_of
from api.pages.study_page import points
from evals.study import PASSED
from evals.study_store import StoredExam


def show_marks(visit: Visit, exam: StoredExam) -> None:
    """Draws the result of an exam that was handed in."""
    t = visit.t
    result = exam.result or {}
    marks: Sequence[Mapping[str, Any]] = result.get("marks", ())
    missed = sum(_missed(mark) for mark in marks)
    with tag("section", "", "card result"):
        tag("h2", t("exam.result"))
        tag("p", t("exam.score", score=points(result["score"]), most=points(result["max_score"])), "big")
        share = result["score"] / result["max_score"] if result["max_score"] else 0.0
        tag("progress", "", "bar", max=1, value=round(share, 3), aria_label=t("exam.result"))
        if ended_by_itself(exam):
            tag("p", t("exam.handed_in_late"), "note")
        tag("p", t.count("exam.became_cards", missed) if missed else t("exam.all_right"), "soft")
        with tag("div", "", "row"):
            if missed:
                link(t("exam.review"), "/study/cards", "button primary")
            link(t("exam.another"), "/study", "button")
            link(t("study.progress"), "/study/progress", "button")
    records = {record["id"]: record for record in exam.questions}
    for number, mark in enumerate(marks, 1):
        _show_mark(visit, number, mark, records[mark["question_id"]])


def _missed(mark: Mapping[str, Any]) -> bool:
    return bool(mark["score"] < PASSED * mark["max_score"])


def _show_mark(visit: Visit, number: int, mark: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    t = visit.t
    state = "right" if not _missed(mark) else "wrong" if mark["score"] <= 0 else "part"
    chinese = record.get("question_zh") if t.language == "zh" else ""
    with tag("article", "", f"card mark {state}"):
        with tag("div", "", "mark-head"):
            tag("span", t(f"mark.{state}"), f"badge {state}")
            tag("span", t("exam.score", score=points(mark["score"]), most=points(mark["max_score"])), "soft")
        with tag("h3", "", "mark-question"):
            tag("span", f"{number}. ")
            ui.html(plain_html(str(chinese or record["question"])), sanitize=False, tag="span").classes("rich inline")
        with tag("dl"):
            _said(t("mark.yours"), _given(visit, mark, record))
            if state != "right" or record["type"] != "choice":
                _said(t("mark.reference"), str(mark["reference_answer"]))
        for name in ("met", "missed"):
            if facts := mark.get(f"facts_{name}"):
                with tag("ul", "", f"facts {name}", aria_label=t(f"mark.{name}")):
                    for fact in facts:
                        tag("li", f"{'✓' if name == 'met' else '✗'} {fact}")
        if mark["passage"]:
            _show_passage(visit, mark["passage"], record, opened=state != "right")


def _said(name: str, text: str) -> None:
    tag("dt", name)
    with tag("dd"):
        ui.html(plain_html(text), sanitize=False).classes("rich")


def _given(visit: Visit, mark: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    answer = mark["answer"]
    if answer is None:
        return visit.t("mark.nothing")
    return str(record["choices"][answer]) if isinstance(answer, int) and record.get("choices") else str(answer)


def _show_passage(visit: Visit, passage: Mapping[str, Any], record: Mapping[str, Any], *, opened: bool) -> None:
    text = str(passage["text"])
    start, end = _evidence(text, record)
    place = " › ".join(part for part in (passage["title"], *passage["section"]) if part)
    page = page_of(visit.t, passage["page_label"], passage["page_start"], passage["page_end"])
    with tag("details", "", "proof", open=opened):
        tag("summary", visit.t("mark.proof", place=f"{place}{visit.t('page.join')}{page}" if page else place))
        ui.html(passage_html(text, start, end), sanitize=False).classes("passage")


def _evidence(text: str, record: Mapping[str, Any]) -> tuple[int, int]:
    """Where the gold evidence stands in the passage, white space aside; (0, 0) when it does not."""
    places = [index for index, character in enumerate(text) if not character.isspace()]
    bare = "".join(text[index] for index in places)
    for gold in record.get("gold", ()):
        wanted = "".join(str(gold["evidence"]).split())
        found = bare.find(wanted) if wanted else -1
        if found >= 0:
            return places[found], places[found + len(wanted) - 1] + 1
    return 0, 0
