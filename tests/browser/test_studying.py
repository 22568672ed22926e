"""Exams, cards, progress, classes."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from email.utils import formatdate

import pytest
from api_fakes import WARP, Live, wait_until
from browser_help import PHONE, Open
from playwright.sync_api import Browser, Route, expect

from evals.questions import own_question


def test_an_exam_is_taken_reloaded_handed_in_and_its_marks_decided(site: Live, open_page: Open) -> None:
    page = open_page("/study")
    page.get_by_label("Short answer").check()
    page.get_by_label("Number of questions").fill("2")
    page.get_by_label("Time limit in minutes").fill("5")
    page.get_by_role("button", name="Start the exam").click()
    expect(page.locator(".clock")).to_contain_text("left")
    typed = "(a1*a2, a2*b1 + b2)\n<b>threads</b>"
    page.locator(".question textarea").fill(typed)
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".question")).to_be_focused()
    expect(page.locator(".step.done")).to_have_count(1)
    exam = page.url.rpartition("/")[2]
    wait_until(lambda: site.get(f"/v1/exams/{exam}/draft")["answers"], "the answer was kept")
    page.reload()
    expect(page.locator(".question textarea")).to_have_value(typed)
    page.get_by_role("button", name="Hand in").click()
    expect(page.locator("dialog")).to_contain_text("One question has no answer yet")
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".typed")).to_have_text(typed)
    expect(page.locator(".mark").nth(1).locator(".proof .passage")).to_be_visible()
    page.get_by_role("button", name="I was right").click()
    expect(page.locator(".big")).to_have_text("1 of 2 points")
    expect(page.locator(".subnav")).to_contain_text("Cards (1)")
    page.get_by_role("link", name="Another exam").click()
    expect(page.locator(".exam-list")).to_contain_text("1 of 2 points")


LATER = "(() => { const now = Date.now; Date.now = () => now() + 601_000; })()"


def test_an_exam_ends_when_its_time_does_with_what_was_typed(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = site.services.study
    exam = site.post("/v1/exams", count=1, types=["short"], time_limit_s=600)
    page = open_page(f"/study/exam/{exam['id']}")
    page.locator(".question textarea").fill("something")
    wait_until(lambda: site.get(f"/v1/exams/{exam['id']}/draft")["answers"], "the answer was kept")
    clock = study._clock
    monkeypatch.setattr(study, "_clock", lambda: clock() + timedelta(seconds=601))
    page.evaluate(LATER)
    expect(page.locator(".result")).to_contain_text("Time was over")
    expect(page.locator(".typed")).to_have_text("something")


def test_what_is_typed_without_a_pause_is_kept_some_seconds_before_the_time_is_over(
    site: Live, open_page: Open, browser: Browser
) -> None:
    exam = site.post("/v1/exams", count=1, types=["short"], time_limit_s=600)
    with closing(browser.new_context(locale="en-US")) as context:  # whose clock is its own for good
        page = open_page(context=context)
        page.clock.install()
        page.goto(f"{site.address}/study/exam/{exam['id']}")
        page.locator(".question textarea").focus()
        page.clock.pause_at(datetime.fromisoformat(exam["deadline"]) - timedelta(seconds=6))
        while page.locator(".clock").text_content() != "0:03 left":
            page.keyboard.type("a")
            page.clock.run_for(250)
        wait_until(lambda: site.get(f"/v1/exams/{exam['id']}/draft")["answers"], "it was kept")


def test_an_exam_keeps_the_time_of_the_server_where_the_clock_of_the_machine_is_wrong(
    site: Live, open_page: Open
) -> None:
    def told_the_time(route: Route) -> None:
        reply = route.fetch()
        route.fulfill(response=reply, headers={**reply.headers, "date": formatdate(usegmt=True)})

    exam = site.post("/v1/exams", count=1, types=["short"], time_limit_s=600)
    page = open_page()
    page.route("**/v1/**", told_the_time)
    page.add_init_script(LATER)
    page.goto(f"{site.address}/study/exam/{exam['id']}")
    expect(page.locator(".clock")).to_have_text(re.compile(r"^(10:0|9:5)\d left$"))


def test_cards_are_turned_rated_taken_back_and_reworded_by_keyboard_in_chinese_on_a_phone(
    site: Live, open_page: Open
) -> None:
    learner = "学生"
    exam = site.post("/v1/exams", count=2, types=["choice"], learner=learner)
    site.post(f"/v1/exams/{exam['id']}/answers", answers={}, learner=learner)
    page = open_page("/study", **PHONE, locale="zh-CN")
    page.locator(".learner summary").click()
    page.get_by_label("学习者的名字").fill(learner)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="卡片 (2)").click()
    page.locator(".flashcard").wait_for()
    page.keyboard.press(" ")
    expect(page.locator(".card-back")).to_be_focused()
    page.keyboard.press("4")
    expect(page.locator(".flashcard")).to_contain_text("1 张")
    page.keyboard.press("u")
    expect(page.locator(".flashcard")).to_contain_text("2 张")
    page.keyboard.press(" ")
    page.get_by_role("button", name="编辑").click()
    page.locator(".card-back textarea").first.fill("新的问题？")
    page.locator(".card-back textarea").first.press("1")  # a key that rates while nothing is typed
    page.get_by_role("button", name="保存修改").click()
    expect(page.locator(".card-question")).to_have_text("新的问题？1")
    page.get_by_role("link", name="进度").click()
    expect(page.locator(".tile").last).to_contain_text("2")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_chapters_are_weighed_and_an_impossible_exam_is_refused_at_its_field(site: Live, open_page: Open) -> None:
    page = open_page("/study?chapter=1")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Give chapters different weights").check()
    page.get_by_label(re.compile(r"^2\. .*\(")).check()
    for name, wrong, right in (("Weight of 2. ", "0", "3"), ("Number of questions", "0", "4")):
        page.get_by_label(re.compile(name)).fill(wrong)
        page.get_by_role("button", name="Start the exam").click()
        expect(page.locator("input:invalid")).to_be_focused()
        page.get_by_label(re.compile(name)).fill(right)
    page.get_by_role("button", name="Start the exam").click()
    page.wait_for_url(re.compile(r"/study/exam/exam-\w+"))
    exam = site.get(f"/v1/exams/{page.url.rpartition('/')[2]}")
    assert sorted(question["chapter"] for question in exam["questions"]) == [1, 2, 2, 2]


def test_a_question_file_of_ones_own_is_added_and_examined(site: Live, open_page: Open) -> None:
    page = open_page("/study")
    page.get_by_text("More", exact=True).click()

    def add(content: str) -> None:
        file = {"name": "mine.jsonl", "mimeType": "text/plain", "buffer": content.encode()}
        page.set_input_files("input[type=file]", file)

    add('{"question": "a"}')
    expect(page.get_by_role("alert")).to_contain_text("mine.jsonl:1: answer is missing")
    add('{"question": "<img src=x onerror=alert(1)> Why?", "answer": "<i>so</i>", "key_facts": ["so"], "type": "why"}')
    expect(page.locator(".question-files select")).to_have_value("mine.jsonl")
    page.get_by_label("Number of questions").fill("1")
    page.get_by_role("button", name="Start the exam").click()
    expect(page.locator(".question label").first).to_contain_text("<img src=x onerror=alert(1)> Why?")
    page.get_by_role("button", name="Hand in").click()
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".mark")).to_contain_text("<i>so</i>")
    (site.services.settings.home / "questions" / "mine.jsonl").unlink()


def test_an_exam_handed_in_elsewhere_shows_its_marks(site: Live, open_page: Open) -> None:
    exam = site.post("/v1/exams", count=1, types=["choice"])
    page = open_page(f"/study/exam/{exam['id']}")
    other = open_page(f"/study/exam/{exam['id']}", context=page.context)
    for tab in (page, other):
        tab.get_by_role("button", name="Hand in").click()
        tab.locator("dialog").get_by_role("button", name="Hand in").click()
        expect(tab.locator(".result")).to_be_visible()


def test_what_was_answered_in_another_tab_is_handed_in_too(site: Live, open_page: Open) -> None:
    exam = site.post("/v1/exams", count=2, types=["short"])
    page = open_page(f"/study/exam/{exam['id']}")
    page.locator(".question").wait_for()
    other = open_page(f"/study/exam/{exam['id']}", context=page.context)
    for tab, step in ((page, 0), (other, 1)):
        tab.locator(".step").nth(step).click()
        tab.locator(".question textarea").fill(f"in tab {step}")
        tab.locator(".question textarea").blur()
    wait_until(lambda: len(site.get(f"/v1/exams/{exam['id']}/draft")["answers"]) == 2, "both were kept")
    page.get_by_role("button", name="Hand in").click()
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".typed")).to_have_text(["in tab 0", "in tab 1"])


def test_what_was_answered_after_a_session_ended_is_kept_when_the_reader_is_back(site: Live, open_page: Open) -> None:
    exam = site.post("/v1/exams", count=1, types=["choice"])
    page = open_page(f"/study/exam/{exam['id']}")
    page.locator(".choice").first.wait_for()
    page.route("**/draft", lambda route: route.fulfill(status=401, json={}))
    with page.expect_response("**/draft"):
        page.locator(".choice input").first.check()
    page.unroute("**/draft")
    wait_until(lambda: site.get(f"/v1/exams/{exam['id']}/draft")["answers"], "the answer was kept")


def test_what_was_typed_in_an_exam_stays_where_it_cannot_be_handed_in(site: Live, open_page: Open) -> None:
    exam, other = (site.post("/v1/exams", count=count, types=["short"]) for count in (2, 1))
    page = open_page(f"/study/exam/{exam['id']}")
    page.get_by_role("button", name="Next").click()
    page.route("**/v1/exams/**", lambda route: route.abort())
    page.locator(".question textarea").fill("something")
    page.get_by_role("button", name="Hand in").click()
    with page.expect_event("requestfailed", lambda request: request.method == "GET"):  # the last of handing in
        page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".toast.bad").last).to_be_visible()
    page.unroute("**/v1/exams/**")
    expect(page.locator(".question textarea")).to_have_value("something")
    page.evaluate(
        f"history.pushState(null, '', '/study/exam/{other['id']}'); dispatchEvent(new PopStateEvent('popstate'))"
    )
    expect(page.locator(".step")).to_have_count(1)
    expect(page.locator(".question textarea")).to_have_value("")
    kept = f"/v1/exams/{exam['id']}/draft"
    wait_until(lambda: list(site.get(kept)["answers"].values()) == ["something"], "the answer was kept")


def test_a_teacher_gives_one_exam_to_a_class(site: Live, open_page: Open) -> None:
    teacher = open_page("/study", permissions=["clipboard-read", "clipboard-write"])
    teacher.get_by_label("Choice", exact=True).check()
    teacher.get_by_label("Number of questions").fill("2")
    teacher.get_by_label("Time limit in minutes").fill("20")
    teacher.get_by_text("Give this exam to a class").click()
    teacher.get_by_label("Names of the learners").fill("Ada Ä\n张三")
    teacher.get_by_role("button", name="Make the links").click()
    expect(teacher.locator("tbody tr")).to_have_count(2)
    teacher.get_by_role("button", name="Copy Ada Ä's link").click()
    teacher.get_by_role("button", name="Copied").wait_for()
    address = teacher.evaluate("navigator.clipboard.readText()")
    learner = open_page(address.removeprefix(site.address))
    expect(learner.locator(".learner summary")).to_contain_text("Ada Ä")
    expect(learner.locator("main")).to_contain_text("You have 20 minutes")
    learner.get_by_role("button", name="Begin").click()
    expect(learner.locator(".clock")).to_contain_text("left")
    learner.get_by_role("button", name="Hand in").click()
    learner.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(learner.locator(".result .big")).to_have_text("0 of 2 points")
    expect(teacher.locator("tbody tr").first).to_contain_text("0 of 2 points")
    with teacher.expect_download() as marks:
        teacher.get_by_role("link", name="Download the marks (CSV)").click()
    assert "Ada Ä" in marks.value.path().read_text("utf-8")
    teacher.get_by_role("link", name="Study").click()
    expect(teacher.locator(".exam-list").last).to_contain_text("1 of 2 handed in")


def test_a_teacher_accepts_changes_drops_and_chooses_questions_of_a_book(site: Live, open_page: Open) -> None:
    document = site.shelf.put("taught", WARP, source="taught.md")
    asked = ("Which threads run in lockstep?", "How many are a warp?", "Who issues them?")
    made = [own_question(text, f"answer {n}", WARP, title="taught.md") for n, text in enumerate(asked)]
    made = [replace(one, id=f"made-{n}", book="taught") for n, one in enumerate(made)]
    site.services.questions.made.keep(document, made)
    page = open_page("/library")
    page.locator(".card.book", has_text="taught.md").get_by_role("link", name="Look through the questions").click()
    first, second, third = (page.get_by_role("article", name=text) for text in asked)
    first.get_by_role("button", name="Accept").click()
    expect(first).to_contain_text("accepted")
    expect(first.locator("blockquote")).to_have_text(WARP)
    second.get_by_role("button", name="Edit").click()
    second.get_by_label("The answer").fill("32")
    second.get_by_role("button", name="Keep the change").click()
    expect(second).to_contain_text("32")
    third.get_by_label("For an exam").check()
    third.get_by_role("button", name="Drop").click()
    expect(third).to_have_count(0)
    second.get_by_role("button", name="Make a card").click()
    wait_until(
        lambda: [one["question_id"] for one in site.get("/v1/cards/due")["cards"]] == ["made-1"], "a card is made"
    )
    second.get_by_label("For an exam").check()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.get_by_role("button", name="Start an exam of one chosen question").click()
    expect(page.locator(".question")).to_contain_text(asked[1])
    assert faults == []
    site.shelf.remove("taught")
