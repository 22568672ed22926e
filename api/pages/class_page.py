"""`/study/class/{id}`: an exam given to a class: a link for every learner, who has handed in, and the marks as CSV."""

from __future__ import annotations

from fastapi import Request
from nicegui import ui

from api.pages.controls import button, link, set_attributes, tag
from api.pages.frame import Visit, open_view
from api.pages.study_page import points, study_head
from api.schemas.study import exam_link
from api.security import Caller
from evals.study_store import StoredExam


@ui.page("/study/class/{class_id}")
def class_exam(request: Request, class_id: str) -> None:
    server = str(request.base_url).rstrip("/")

    def build(visit: Visit) -> None:
        Caller(visit.owner).need_open_key("see the exams of a class")
        study_head(visit, "exam")
        exams = visit.services.study.class_exam(class_id)
        links = {exam.id: f"{server}{exam_link(exam)}" for exam in exams}
        with tag("section", "", "card class-exam"):
            tag("h2", visit.t.count("class.title", len(exams[0].questions)))
            tag("p", visit.t("class.how"), "soft")
            with tag("div", "", "row"):
                lines = "\n".join(f"{exam.learner}: {links[exam.id]}" for exam in exams)
                _copier(visit, lines, visit.t("class.copy_all"), visit.t("class.copy_all"), "primary")
                address = f"/v1/class-exams/{class_id}/marks.csv"
                link(visit.t("class.marks"), address, "button", download=True)
            with (
                tag("div", "", "table-box stacked", tabindex="0", role="region", aria_label=visit.t("class.learners")),
                tag("table"),
            ):
                with tag("thead"), tag("tr"):
                    for name in ("learner", "state", "link"):
                        tag("th", visit.t(f"class.{name}"), scope="col")
                with tag("tbody"):
                    for exam in exams:
                        _row(visit, exam, links[exam.id])

    open_view(request, "study", build)


def _row(visit: Visit, exam: StoredExam, address: str) -> None:
    t = visit.t
    with tag("tr"):
        tag("th", exam.learner, scope="row")
        with tag("td", "", data_label=t("class.state")):
            if exam.result is None:
                tag("span", t("class.waiting" if exam.waits else "class.open"), "soft")
            else:
                score = t("exam.score", score=points(exam.result.score), most=points(exam.result.max_score))
                link(score, f"/study/exam/{exam.id}?learner={exam_link(exam).rpartition('=')[2]}")
        with tag("td"):
            _copier(visit, address, t("class.copy"), t("class.copy_of", name=exam.learner))


def _copier(visit: Visit, text: str, name: str, label: str, kind: str = "") -> None:
    copy = button(name, kind=kind, icon_name="copy", label=label)
    set_attributes(copy, data_copy=text, data_copied=visit.t("copied"))
