"""Exams to their marks, cards by keyboard, progress, several learners."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from api_fakes import Live
from browser_help import Open, ask, drawn, noticed
from playwright.sync_api import Page, expect

from evals.questions import load_bank


def start_exam(page: Page, count: int, kind: str = "Choice", minutes: str = "") -> None:
    page.get_by_label(kind, exact=True).check()
    page.get_by_label("Number of questions").fill(str(count))
    page.get_by_label("Time limit in minutes").fill(minutes)
    page.get_by_role("button", name="Start the exam").click()
    page.wait_for_url(re.compile(r"/study/exam/exam-\w+"))
    page.locator(".question").first.wait_for()


def as_learner(open_page: Open, site: Live, path: str = "/study") -> Page:
    """A page of a learner nobody else has."""
    page = open_page(path)
    page.context.add_cookies([{"name": "coalesce_learner", "value": uuid4().hex, "url": site.address}])
    page.reload()
    drawn(page)
    return page


def right_choice(page: Page) -> int:
    shown = page.locator(".question legend").inner_text()
    (question,) = [q for q in load_bank() if _words(q.question) == _words(shown) and q.type == "choice"]
    assert question.answer_index is not None
    return question.answer_index


def _words(text: str) -> str:
    return re.sub(r"[\W_]+", "", text)


def test_an_exam_goes_to_its_marks_and_misses_become_cards(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    start_exam(page, 3)
    for number in range(3):
        right = right_choice(page)
        page.locator(".choice").nth(right if number == 0 else (right + 1) % 4).click()
        expect(page.locator(".step.done")).to_have_count(number + 1)
        if number < 2:
            page.get_by_role("button", name="Next").click()
            expect(page.locator(".question > p")).to_contain_text(f"Question {number + 2}")
    page.get_by_role("button", name="Hand in").click()
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".result .big")).to_have_text("1 of 3 points")
    expect(page.locator(".mark.wrong")).to_have_count(2)
    expect(page.locator(".mark.wrong .proof mark").first).to_be_visible()
    expect(page.locator(".subnav")).to_contain_text("Cards (2)")


def test_i_was_right_is_one_press_and_counts(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    learner = next(c["value"] for c in page.context.cookies() if c["name"] == "coalesce_learner")
    body = {"count": 2, "seed": 4, "types": ["short"], "learner": learner}
    exam = site.client.post("/v1/exams", json=body).json()
    asked = exam["questions"][0]
    given = {"answers": {asked["id"]: asked["question"]}, "learner": learner}
    site.client.post(f"/v1/exams/{exam['id']}/answers", json=given)
    page.goto(f"{site.address}/study/exam/{exam['id']}")
    expect(page.locator(".result .big")).to_have_text("0 of 2 points")
    expect(page.locator(".subnav")).to_contain_text("Cards (2)")
    page.get_by_role("button", name="I was right").click()
    expect(page.locator(".subnav")).to_contain_text("Cards (1)")
    expect(page.locator(".result .big")).to_have_text("1 of 2 points")
    expect(page.locator(".mark").first).to_contain_text("your own verdict")
    expect(page.get_by_role("button", name="I was right")).to_have_attribute("aria-pressed", "true")


def test_answers_survive_a_reload_and_the_list_shows_all(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    start_exam(page, 3)
    page.locator(".choice").nth(2).click()
    expect(page.locator(".sitting-head")).to_contain_text("1 of 3 answered")
    page.reload()
    expect(page.locator(".choice").nth(2).locator("input")).to_be_checked()
    page.get_by_role("button", name="Show as a list").click()
    expect(page.locator(".question")).to_have_count(3)


def test_an_exam_shows_its_marks_when_its_time_is_over(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = as_learner(open_page, site)
    learner = next(c["value"] for c in page.context.cookies() if c["name"] == "coalesce_learner")
    exam = site.client.post("/v1/exams", json={"count": 1, "time_limit_s": 600, "learner": learner}).json()
    page.goto(f"{site.address}/study/exam/{exam['id']}")
    expect(page.locator(".clock")).to_contain_text("left")
    monkeypatch.setattr(site.services.study, "_clock", lambda: datetime.now(UTC) + timedelta(hours=1))
    expect(page.locator(".result .note")).to_contain_text("Time was over")
    late = site.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}, "learner": learner})
    assert late.status_code == 409


def test_chapters_are_weighed(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    page.get_by_label("Give chapters different weights").check()
    page.get_by_label(re.compile("Weight of 1. ")).wait_for()
    page.get_by_label(re.compile(r"^1\. .*\(")).check()
    page.get_by_label(re.compile(r"^2\. .*\(")).check()
    page.get_by_label(re.compile("Weight of 2. ")).fill("0")
    page.get_by_label("Number of questions").fill("4")
    page.get_by_role("button", name="Start the exam").click()
    noticed(page, "weight of chapter 2 is '0'")
    page.get_by_label(re.compile("Weight of 2. ")).fill("3")
    page.get_by_role("button", name="Start the exam").click()
    page.wait_for_url(re.compile(r"/study/exam/exam-\w+"))
    learner = next(c["value"] for c in page.context.cookies() if c["name"] == "coalesce_learner")
    exam = site.client.get(f"/v1/exams/{page.url.rpartition('/')[2]}", params={"learner": learner}).json()
    assert sorted(question["chapter"] for question in exam["questions"]) == [1, 2, 2, 2]


def test_a_question_file_of_ones_own_is_added_and_examined(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    name = f"{uuid4().hex}.jsonl"

    def add(content: str) -> None:
        page.set_input_files("input[type=file]", {"name": name, "mimeType": "text/plain", "buffer": content.encode()})

    add('{"question": "a"}')
    expect(page.get_by_role("alert")).to_contain_text(f"{name}:1: answer is missing")
    add('{"question": "<img src=x onerror=alert(1)> Why?", "answer": "<i>so</i>", "key_facts": ["so"], "type": "why"}')
    page.wait_for_url(re.compile(r"file="))
    expect(page.locator(".question-files select")).to_have_value(name)
    expect(page.locator(".exam-plan")).not_to_contain_text("Introduction to Parallel Computing")
    page.get_by_label("Number of questions").fill("1")
    page.get_by_role("button", name="Start the exam").click()
    expect(page.locator(".question label").first).to_contain_text("<img src=x onerror=alert(1)> Why?")
    page.get_by_role("button", name="Hand in").click()
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".mark")).to_contain_text("<i>so</i>")


def test_the_focus_follows_the_questions(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    start_exam(page, 2)
    page.get_by_role("button", name="Next").press("Enter")
    expect(page.locator("#question-1")).to_be_focused()


def test_an_exam_handed_in_elsewhere_shows_its_marks(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    start_exam(page, 1)
    other = open_page(page.url.removeprefix(site.address), context=page.context)
    for tab in (page, other):
        tab.get_by_role("button", name="Hand in").click()
        tab.locator("dialog").get_by_role("button", name="Hand in").click()
        expect(tab.locator(".result")).to_be_visible()


def test_cards_are_reviewed_by_keyboard(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    start_exam(page, 2)
    page.get_by_role("button", name="Hand in").click()
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    page.get_by_role("link", name="Review the cards").click()
    for left in ("2 cards due", "One card due"):
        expect(page.locator(".flashcard")).to_contain_text(left)
        page.keyboard.press(" ")
        expect(page.locator(".rate")).to_have_count(4)
        page.keyboard.press("3")
    expect(page.locator(".empty")).to_contain_text("2 cards done")
    expect(page.locator(".empty")).to_contain_text("due in")
    page.goto(site.address + "/study/progress")
    expect(page.locator(".tiles")).to_contain_text("Cards due")
    expect(page.locator("tbody tr")).to_have_count(len({q.chapter for q in load_bank() if q.answerable}))


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_a_card_on_a_phone_has_its_four_ratings_in_one_row_and_speaks_one_language(
    site: Live, open_page: Open, locale: str
) -> None:
    page = open_page("/study/cards", locale=locale, viewport={"width": 360, "height": 740})
    learner = uuid4().hex
    exam = site.client.post("/v1/exams", json={"count": 1, "learner": learner}).json()
    site.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}, "learner": learner})
    page.context.add_cookies([{"name": "coalesce_learner", "value": learner, "url": site.address}])
    page.reload()
    page.locator(".flashcard").wait_for()
    page.keyboard.press(" ")
    expect(page.locator(".rate")).to_have_count(4)
    tops = page.locator(".rate").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().top)")
    assert len(set(tops)) == 1
    chapter = page.locator(".card-back .soft").filter(has_text=re.compile(r"chapter \d+"))
    expect(chapter).to_have_count(1 if locale == "en-US" else 0)


def test_learners_do_not_see_each_other(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    start_exam(page, 1)
    stranger = as_learner(open_page, site, page.url.removeprefix(site.address))
    expect(stranger.get_by_role("heading", name="This page does not exist")).to_be_visible()


def test_the_learner_is_named_on_the_page(site: Live, open_page: Open) -> None:
    page = open_page("/study")
    page.locator(".learner summary").click()
    page.get_by_label("Name of the learner").fill("张三 & Co")
    page.keyboard.press("Enter")
    expect(page.locator(".learner summary")).to_have_text("Learner: 张三 & Co")


def test_an_impossible_exam_is_refused_in_words(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    for count in ("0", "1e9"):
        page.get_by_label("Number of questions").fill(count)
        page.get_by_role("button", name="Start the exam").click()
        noticed(page, f"is '{count}'")
        noticed(page, "whole number above 0")


def test_an_address_with_a_chapter_that_is_none_shows_the_view(site: Live, open_page: Open) -> None:
    page = open_page()
    for chapter in ("%C2%B2", "9" * 5000, "-1", "<b>", "999"):
        page.goto(f"{site.address}/study?chapter={chapter}&file=..%2Fx")
        expect(page.get_by_role("button", name="Start the exam")).to_be_visible()


def test_the_form_of_a_question_file_fits_a_phone(open_page: Open) -> None:
    page = open_page("/study", viewport={"width": 390, "height": 844})
    page.get_by_text("What a question file holds").click()
    expect(page.locator(".file-form pre").first).to_be_visible()
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")


def test_a_card_is_undone_edited_and_deleted(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site)
    learner = next(c["value"] for c in page.context.cookies() if c["name"] == "coalesce_learner")
    body = {"question": "What is a warp?", "answer": "32 threads", "quote": "A warp is a group", "learner": learner}
    assert site.client.post("/v1/cards", json=body).status_code == 201
    page.goto(site.address + "/study/cards")
    page.locator("[data-key=' ']").click()
    expect(page.locator(".card-quote")).to_contain_text("A warp is a group")
    page.locator("[data-key='3']").click()
    page.get_by_role("button", name=re.compile("Undo")).click()
    page.locator("[data-key=' ']").click()
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Question").fill("Which group is a warp?")
    page.get_by_role("button", name="Keep the change").click()
    expect(page.locator(".card-question")).to_contain_text("Which group is a warp?")
    page.locator("[data-key=' ']").click()
    page.get_by_role("button", name="Delete").click()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".empty")).to_be_visible()


def test_a_teacher_gives_one_exam_to_a_class(site: Live, open_page: Open) -> None:
    teacher, names = as_learner(open_page, site), [f"Ada {uuid4().hex[:6]}", "张三"]
    teacher.get_by_label("Choice", exact=True).check()
    teacher.get_by_label("Number of questions").fill("2")
    teacher.get_by_label("Time limit in minutes").fill("20")
    teacher.get_by_text("Give this exam to a class").click()
    teacher.get_by_label("Names of the learners").fill("\n".join(names))
    teacher.get_by_role("button", name="Make the links").click()
    teacher.wait_for_url(re.compile(r"/study/class/class-\w+"))
    expect(teacher.locator("tbody tr")).to_have_count(2)
    address = teacher.get_by_role("button", name=f"Copy {names[0]}'s link").get_attribute("data-copy")
    assert address is not None
    learner = open_page(address.removeprefix(site.address))
    expect(learner.locator(".learner summary")).to_contain_text(names[0])
    expect(learner.locator("main")).to_contain_text("You have 20 minutes")
    assert site.services.study.exam(site.services.study.exams(names[0])[0].id).waits
    learner.get_by_role("button", name="Begin").click()
    expect(learner.locator(".clock")).to_contain_text("left")
    learner.get_by_role("button", name="Hand in").click()
    learner.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(learner.locator(".result .big")).to_have_text("0 of 2 points")
    teacher.reload()
    expect(teacher.locator("tbody tr").first).to_contain_text("0 of 2 points")
    with teacher.expect_download() as marks:
        teacher.get_by_role("link", name="Download the marks (CSV)").click()
    assert names[0] in marks.value.path().read_text("utf-8")
    teacher.goto(site.address + "/study")
    expect(teacher.locator(".exam-list").last).to_contain_text("1 of 2 handed in")


def test_an_answer_becomes_a_card_with_its_quote(site: Live, open_page: Open) -> None:
    page = as_learner(open_page, site, "/")
    ask(page, "How many threads are in a warp?")
    page.get_by_role("button", name="Save as card").click()
    noticed(page, "Saved.")
    page.goto(site.address + "/study/cards")
    expect(page.locator(".flashcard")).to_contain_text("How many threads are in a warp?")
    page.locator("[data-key=' ']").click()
    expect(page.locator(".card-back")).to_contain_text("A warp has 32 threads")
    expect(page.locator(".card-back")).not_to_contain_text("[1]")
    expect(page.locator(".card-quote")).to_contain_text("32 threads")
