"""The page over REST: asking, as a reader does it, with everything that can go wrong meanwhile."""

from __future__ import annotations

import re
import shutil
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, WARP, Live, wait_until
from browser_help import Open, ask
from fakes import signals_only
from playwright.sync_api import Page, Route, expect

from api.jobs import JobHandle
from api.settings import load_settings
from evals.arms import parse_arms
from evals.comparison import compare
from evals.questions import own_question, parse_question
from evals.records import Record
from evals.report import RunFacts, report_data, write_report
from evals.run import RunSpec
from evals.scoring import score_records
from indexes.errors import Cancelled
from rag.errors import GenerationFailed
from rag.evidence import EvidenceJudge
from rag.sentence_reader import LearnedReader
from rag.tuning.settings import TuneProgress

axe_sync = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

QUESTION = "How many threads are in a warp?"
EVIL = "<img src=x onerror=\"window.ran=1\"><script>window.ran=1</script><svg onload='window.ran=1'>"
EVIL_MARKDOWN = (
    "[click](javascript:window.ran=1) ![pixel](http://example.invalid/pixel.png) [1](http://example.invalid) "
    "`</code><script>window.ran=1</script>` $\\href{javascript:window.ran=1}{x}$ $\\htmlClass{x}{y}$"
)
PHONE = {"viewport": {"width": 390, "height": 844}}


class Gate:
    """Holds the generator back before a piece until it is opened."""

    def __init__(self, live: Live, at: int) -> None:
        self._open = threading.Event()
        live.generator.before_piece = lambda index: index == at and self._open.wait(PATIENCE_S) and None

    def open(self) -> None:
        self._open.set()


def begin(page: Page, text: str = QUESTION) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def test_a_marker_opens_its_passage_and_escape_leads_back_to_it(open_page: Open) -> None:
    page = open_page()
    page.locator(".example").first.click()
    page.locator(".answer-tools").wait_for()
    page.wait_for_url(re.compile(r"/c/\w+"))
    ask(page, QUESTION)
    cite = page.locator(".answer .cite").last
    cite.focus()
    page.keyboard.press("Enter")
    source = page.locator("#source")
    expect(source).to_be_focused()
    expect(source.locator("mark")).to_contain_text("32 threads")
    expect(source.locator(".place")).to_have_text("Chapter › Section, page iii (page 3 of the file)")
    page.keyboard.press("Escape")
    expect(source).to_have_count(0)
    expect(cite).to_be_focused()
    page.reload()
    expect(page.locator(".turn")).to_have_count(2)
    page.get_by_role("link", name="New conversation").click()
    expect(page.locator(".welcome")).to_be_visible()
    page.go_back()
    expect(page.locator(".turn")).to_have_count(2)


def test_what_a_model_writes_comes_above_the_quotes_and_can_be_turned_off(site: Live, open_page: Open) -> None:
    engine = site.services.engine
    engine.answers, site.generator.pieces = "both", ("A warp has 32 threads. ", "It costs nothing. ", "")
    gate = Gate(site, 1)
    try:
        page = open_page()
        begin(page)
        quotes = page.locator(".turn .quotes")
        expect(quotes).to_contain_text("scheduler")
        expect(page.locator(".turn .answer:not(.quotes)")).to_have_count(0)
        gate.open()
        written = page.locator(".turn .answer:not(.quotes)")
        expect(written).to_contain_text("A warp has 32 threads.")
        page.locator(".answer-tools").wait_for()
        expect(page.locator(".turn")).to_contain_text("left out")
        expect(page.locator(".turn")).not_to_contain_text("costs nothing")
        assert written.bounding_box()["y"] < quotes.bounding_box()["y"]
        written.locator(".cite").click()
        expect(page.locator("#source")).to_contain_text("Written by the model")
        quotes.locator(".cite").first.click()
        expect(page.locator("#source")).not_to_contain_text("Written by the model")
        page.locator(".filters summary").click()
        page.get_by_label("An answer is").select_option("quotes")
        ask(page, QUESTION)
        expect(page.locator(".turn").last).not_to_contain_text("A warp has 32 threads.")
        expect(page.locator(".turn .quotes")).to_have_count(1)
    finally:
        engine.answers = "unchecked"


def test_a_running_answer_is_followed_after_a_reload_and_stopped(site: Live, open_page: Open) -> None:
    gate = Gate(site, 1)
    page = open_page()
    begin(page)
    expect(page.locator(".answer")).to_contain_text("A warp has")
    page.wait_for_url(re.compile(r"/c/\w+"))
    page.reload()
    expect(page.locator(".answer")).to_contain_text("A warp has")
    gate.open()
    page.locator(".answer-tools").wait_for()
    expect(page.locator(".answer")).to_contain_text("32 threads")
    assert len(site.generator.requests) == 1
    site.generator.pieces = ("word ",) * 2000
    site.generator.before_piece = lambda index: threading.Event().wait(0.05) and None
    begin(page, "And why?")
    expect(page.locator(".answer").last).to_contain_text("word word")
    page.get_by_role("button", name="Stop the answer").click()
    expect(page.locator(".turn").last).to_contain_text("Stopped")
    expect(page.locator("#question")).to_have_value("And why?")
    (kept,) = site.services.engine.conversations.list(of_the_page=True)
    assert kept.num_answers == 1


def test_a_question_does_not_go_into_the_conversation_that_is_opened_before_it_is_sent(
    site: Live, open_page: Open
) -> None:
    page = open_page()
    ask(page, QUESTION)
    page.get_by_role("link", name="New conversation").click()
    held: list[Route] = []
    page.route("**/v1/conversations", lambda route: held.append(route))
    with page.expect_request("**/v1/conversations"):
        begin(page, "And why?")
    page.locator(".conversation a").click()
    expect(page.locator(".turn")).to_have_count(1)
    held[0].continue_()
    expect(page.locator("#question")).to_have_value("And why?")
    assert len(site.generator.requests) == 1


def test_a_refusal_names_the_nearest_passages_and_answers_anyway(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.services.engine, "_judge", EvidenceJudge(LearnedReader(signals_only), 1.1))
    page = open_page()
    ask(page, QUESTION)
    expect(page.locator(".answer")).to_have_text("The library does not answer this question.")
    page.locator(".answer-notes .source-link").first.click()
    expect(page.locator("#source .passage")).to_contain_text("32 threads")
    page.get_by_role("button", name="Answer anyway").click()
    page.locator(".answer-tools").nth(1).wait_for()
    expect(page.locator(".turn").last.locator("[role=note]")).to_contain_text("does not seem to answer")
    expect(page.locator(".turn").last.locator(".answer")).to_contain_text("32 threads")


def test_an_answer_is_rated_copied_with_its_doubt_kept_as_a_card_changed_and_asked_again(
    site: Live, open_page: Open
) -> None:
    site.generator.pieces = ("Warps dream of 99 electric lanes [1].",)
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    ask(page, QUESTION)
    page.get_by_role("button", name="Copy with sources").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("Warps dream of 99 electric lanes [^1].")
    assert "[^1]: Sample › Chapter › Section, page iii" in copied and copied.endswith("supported)")
    page.get_by_role("button", name="Bad answer").click()
    page.get_by_label("What was wrong?").fill("It is 32.")
    page.keyboard.press("Enter")
    store = site.services.engine.conversations
    wait_until(lambda: any(given.comment for given, _ in store.feedback()), "the comment was kept")
    page.get_by_role("button", name="Save as card").click()
    wait_until(lambda: site.get("/v1/cards/due")["cards"], "the card was kept")
    page.reload()
    expect(page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "true")
    site.generator.before_piece = _fail
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".problem")).to_contain_text("the engine has gone", ignore_case=True)
    expect(page.locator(".asked")).to_have_count(2)  # what was there is back, and what went wrong below it
    site.generator.before_piece = lambda index: None
    page.reload()
    page.get_by_role("button", name="Change the question").click()
    expect(page.locator("#question")).to_have_value(QUESTION)
    begin(page, "How many threads has a warp?")
    expect(page.locator(".asked")).to_have_text(["How many threads has a warp?"])
    page.locator(".answer-tools").wait_for()
    (kept,) = store.list(of_the_page=True)
    assert kept.num_answers == 1


def _fail(index: int) -> None:
    raise GenerationFailed("the engine has gone")


def test_the_books_ticked_are_searched_and_remembered(site: Live, open_page: Open) -> None:
    for name in ("Other", "Third"):
        site.shelf.put(name.lower(), f"A warp of the {name} book has 64 lanes.", source=name)
    page = open_page()
    page.click(".filters summary")
    for name in ("Other", "Third"):
        page.get_by_label(name).check()
    ask(page, QUESTION)
    assert {passage.document_id for passage in site.generator.requests[-1].passages} == {"other", "third"}
    page.reload()
    expect(page.locator(".filters summary")).to_have_text("2 books")
    page.click(".filters summary")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Sample").check()
    page.get_by_label("From page").fill("4")
    expect(page.locator(".filters summary")).to_have_text("Sample · pages 4–…")
    page.get_by_label("To page").fill("2")
    begin(page)
    expect(page.locator(".toast.bad")).to_contain_text("4 to 2")
    expect(page.locator("#question")).to_have_value(QUESTION)


def test_in_chinese_on_a_phone_conversations_are_searched_renamed_and_deleted(site: Live, open_page: Open) -> None:
    site.client.post("/v1/ask", json={"question": "Asked by a program: what is a warp?"})
    page = open_page(**PHONE, locale="zh-CN")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    ask(page, "一个线程束有多少个线程？")
    page.get_by_role("button", name="打开出处 1").click()
    expect(page.locator("#source mark")).to_be_in_viewport()
    page.get_by_role("button", name="关闭").click()
    page.get_by_role("button", name="显示对话列表").click()
    expect(page.locator(".day")).to_have_text(["今天"])
    expect(page.locator(".conversation")).to_have_count(1)
    page.get_by_role("button", name="重命名").click()
    page.locator("dialog input").fill("线程束")
    page.keyboard.press("Enter")
    expect(page.locator(".conversation .name")).to_have_text("线程束")
    page.get_by_label("搜索").fill("texture")
    expect(page.locator(".conversations")).to_contain_text("没有包含")
    page.get_by_label("搜索").fill("")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="全部删除").click()
    expect(page.locator("dialog [autofocus]")).to_be_focused()
    page.locator("dialog").get_by_role("button", name="删除").click()
    page.wait_for_url(f"{site.address}/")
    wait_until(lambda: len(site.services.engine.conversations.list()) == 1, "those of the page are gone")


def test_what_cannot_be_asked_is_said_and_stays_in_the_box(site: Live, open_page: Open) -> None:
    page = open_page()
    begin(page, "x" * 60_000)
    expect(page.locator(".toast.bad")).to_contain_text("characters")
    expect(page.locator("#question")).to_have_value("x" * 60_000)
    assert site.services.engine.conversations.list() == ()
    code = "\n".join(f"line {number} of my code;" for number in range(900))
    ask(page, f"{QUESTION}\n{code}")
    height = "(element) => element.getBoundingClientRect().height"
    assert page.locator(".asked").evaluate(height) < 250
    page.get_by_role("button", name="Show all").click()
    assert page.locator(".asked").evaluate(height) > 5_000
    ask(page, "ما هو الوارب؟")
    assert page.locator(".asked").last.evaluate("(element) => getComputedStyle(element).direction") == "rtl"


@pytest.mark.parametrize("path", ["/c/nobody", "/nowhere", "/c/a/b"])
def test_an_unknown_address_says_so(open_page: Open, path: str) -> None:
    expect(open_page(path).get_by_role("heading", name="This page does not exist")).to_be_visible()


CUT = """
const real = window.fetch;
window.fetch = async (...call) => {
  const reply = await real(...call);
  if (!reply.headers.get("x-answer-id")) return reply;
  const wire = new TransformStream({start(end) { window.cut = () => end.error(new TypeError("network error")); }});
  return new Response(reply.body.pipeThrough(wire), reply);
};
undefined;
"""
"""Breaks the stream of an answer by `cut()`, as a server that goes away does."""


def held_with_a_wire_to_cut(site: Live, open_page: Open) -> tuple[Page, Gate]:
    """An answer that is held after its first piece."""
    gate = Gate(site, 1)
    page = open_page()
    page.evaluate(CUT)
    begin(page)
    expect(page.locator(".answer")).to_contain_text("A warp has")
    return page, gate


def test_a_lost_connection_is_said_and_the_answer_found_again(site: Live, open_page: Open) -> None:
    page, gate = held_with_a_wire_to_cut(site, open_page)
    page.evaluate("cut()")
    expect(page.locator(".turn")).to_contain_text("The connection was lost")
    gate.open()
    page.locator(".answer-tools").wait_for()
    expect(page.locator(".answer")).to_contain_text("A warp has 32 threads")
    assert len(site.generator.requests) == 1


def test_an_answer_that_a_restart_took_is_said_and_the_question_kept(site: Live, open_page: Open) -> None:
    page, gate = held_with_a_wire_to_cut(site, open_page)
    page.route("**/v1/answers/**", lambda route: route.fulfill(status=404, json={"error": {"type": "not_found"}}))
    page.evaluate("cut()")
    expect(page.locator(".problem")).to_contain_text("The answer was lost")
    expect(page.locator("#question")).to_have_value(QUESTION)
    gate.open()
    page.route("**/v1/ask", lambda route: route.abort())
    page.press("#question", "Enter")
    expect(page.locator(".toast.bad")).to_contain_text("The server does not answer")
    expect(page.locator("#question")).to_have_value(QUESTION)
    expect(page.locator(".turn")).to_have_count(1)


def test_markup_of_questions_answers_and_books_stays_text_and_formulas_and_code_are_set(
    site: Live, open_page: Open
) -> None:
    site.shelf.clear()
    site.shelf.put(SAMPLE_ID, f"{WARP} {EVIL}", source=f"{EVIL}.pdf", sample=True, pages=True)
    site.generator.pieces = (
        f"A warp has 32 threads [1]. {EVIL}\n\n{EVIL_MARKDOWN}\n\n$$\n\\frac{{a}}{{b}}\n$$\n\n",
        "```cuda\n__global__ void add(float* x) { x[0] = 1.0f; }\n```\n\n| a | b |\n| :-- | --: |\n| 1 | 2 |\n",
    )
    page = open_page()
    ask(page, f"What is a warp? {EVIL}")
    answer = page.locator(".answer")
    expect(page.locator(".asked")).to_contain_text("<script>")
    expect(answer).to_contain_text("onerror")
    assert answer.locator("img, script, a[href^=javascript]").count() == 0
    expect(answer.locator("a")).to_have_text(["pixel"])  # a bare number would look like a citation
    expect(answer.locator(".katex-display")).to_have_count(1)
    expect(answer.locator(".listing .k")).to_have_text(["__global__"])
    assert answer.locator("td.right").inner_text() == "2"
    page.click(".answer .cite")
    expect(page.locator("#source .passage")).to_contain_text("<svg onload")
    expect(page.locator("#source h2")).to_contain_text("<img")
    page.reload()
    expect(page.locator(".conversation .name")).to_contain_text("<img")
    expect(answer).to_contain_text("onerror")
    assert page.locator("main").locator("img, script").count() == 0
    assert page.evaluate("window.ran") is None


def test_a_book_is_added_followed_stopped_and_removed(site: Live, open_page: Open) -> None:
    page = open_page("/library")
    files = page.locator("input[type=file][accept]")
    name = "<img src=x onerror=window.ran=1>.txt"
    held = threading.Event()
    site.shelf.before_step = lambda step: held.wait(PATIENCE_S) and None
    files.set_input_files({"name": "slow.txt", "mimeType": "text/plain", "buffer": b"A slow book about warps."})
    row = page.locator(".upload").filter(has_text="Adding a book: slow.txt")
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("Stopping")
    held.set()
    expect(row).to_have_count(0)
    site.shelf.before_step = lambda step: None
    files.set_input_files({"name": name, "mimeType": "text/plain", "buffer": b"A book about warps."})
    expect(page.locator(".book")).to_have_count(2)
    files.set_input_files({"name": name, "mimeType": "text/plain", "buffer": b"A book about warps."})
    expect(page.locator(".upload")).to_contain_text("in the library already")
    files.set_input_files({"name": "broken.pdf", "mimeType": "application/pdf", "buffer": b"no PDF"})
    expect(page.locator(".upload.failed")).to_contain_text("broken.pdf")
    page.get_by_text("Add a web page or pasted text").click()
    page.get_by_label("Address of a page").fill("http://127.0.0.1/secret")
    page.get_by_role("button", name="Add the page").click()
    expect(page.locator(".toast.bad").last).to_be_visible()
    page.get_by_label("Title").fill("Notes: of mine")
    page.get_by_label("Text (Markdown is read)").fill("# Warps\n\nA warp has 32 lanes.")
    page.get_by_role("button", name="Add the text").click()
    expect(page.locator(".book").filter(has_text="Notes  of mine.md")).to_be_visible()
    page.get_by_role("button", name="Remove <img").click()
    page.locator("dialog").get_by_role("button", name="Remove").click()
    expect(page.locator(".book")).to_have_count(2)
    assert page.evaluate("window.ran") is None


def test_a_book_is_read_on_from_a_quote_turned_and_searched(site: Live, open_page: Open) -> None:
    site.shelf.extend(SAMPLE_ID, "Occupancy is a share. " * 30, path=("Occupancy",), chapter=2)
    page = open_page()
    ask(page, QUESTION)
    page.click(".answer .cite")
    page.get_by_role("link", name="Read on in the book").click()
    expect(page.locator(".book-text mark")).to_contain_text("32 threads")
    page.locator(".turn-next").click()
    expect(page.locator(".book-text")).to_contain_text("Occupancy is a share")
    page.get_by_label("Search in this book").fill("threads in lockstep")
    page.keyboard.press("Enter")
    page.locator(".found-link").first.click()
    expect(page.locator(".book-text")).to_contain_text("32 threads")
    page.go_back()
    expect(page.locator(".book-text")).to_contain_text("Occupancy is a share")
    page.goto(f"{site.address}/book/nothing")
    expect(page.get_by_role("heading", name="This page does not exist")).to_be_visible()


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


def test_arms_are_compared_blind_and_the_vote_is_counted(site: Live, open_page: Open) -> None:
    store = site.services.engine.conversations
    before = len(store.votes())
    page = open_page("/compare")
    expect(page.locator(".arm", has_text="tuned model alone")).to_contain_text("--adapter NAME=FOLDER")
    gate = Gate(site, 1)
    begin(page)
    columns = page.locator(".arm-answer")
    expect(columns.first).to_contain_text("A warp has")
    expect(columns.last).to_contain_text("Waiting for its turn")
    gate.open()
    page.locator(".ballot").get_by_role("button", name="Answer B").wait_for()
    expect(columns.locator("h2")).to_have_text(["Answer A", "Answer B"])
    expect(page.locator(".arm-figures")).to_have_count(0)
    page.locator(".ballot").get_by_role("button", name="Answer B").click()
    expect(page.locator(".arm-figures").first).to_contain_text("First words")
    winner, loser = columns.locator("h2").nth(1).inner_text(), columns.locator("h2").nth(0).inner_text()
    assert {winner, loser} == {"model alone", "model with the books"}
    (vote,) = store.votes()[before:]
    assert (vote.winner, vote.blind) == ("base" if winner == "model alone" else "rag", True)
    expect(page.locator(".tally")).to_contain_text(winner)
    page.locator(".arm-answer .cite").first.click()
    expect(page.locator("#source mark")).to_contain_text("32 threads")
    page.keyboard.press("Escape")
    site.generator.pieces = ("word ",) * 2000
    site.generator.before_piece = lambda index: threading.Event().wait(0.05) and None
    closed = site.generator.closed_streams
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(columns.first).to_contain_text("word word")
    page.get_by_role("button", name="Stop the answer").click()
    expect(columns.first).to_contain_text("Stopped")
    expect(columns.last).to_contain_text("Not asked")
    wait_until(lambda: site.generator.closed_streams == closed + 1, "the generator was closed")


def test_ways_to_search_and_a_choice_question_are_compared_in_chinese_on_a_phone(site: Live, open_page: Open) -> None:
    site.generator.arms = ("rag",)
    site.generator.pieces = (f"A warp has 32 threads [1].\n\n```\n{'x' * 400}\n```\n",)
    page = open_page("/compare", **PHONE, locale="zh-CN")
    expect(page.get_by_role("button", name="获取语言模型（1,093 MB）")).to_be_visible()
    page.get_by_role("button", name="对比", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("问题是空的。")
    page.locator(".toast").click()
    page.select_option("#compare-kind", "passages")
    page.fill("#question", QUESTION)
    page.get_by_role("button", name="对比", exact=True).click()
    page.locator(".ballot").get_by_role("button", name="答案 A").click()
    headings = page.locator(".arm-answer h2")
    expect(headings.first).to_contain_text("个段落")
    assert {heading.inner_text() for heading in headings.all()} == {"3 个段落", "10 个段落"}
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.select_option("#compare-kind", "choice")
    expect(page.locator(".choice-options li")).to_have_count(4)
    options = page.locator(".choice-options li").all_inner_texts()
    page.get_by_role("button", name="对比", exact=True).click()
    expect(page.locator(".ballot")).to_contain_text("正确答案")
    assert page.locator(".arm-answer .option").first.inner_text() in options
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_of_several_adapters_the_one_that_is_shown_answers(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.generator, "arms", ("rag", "tuned"))
    monkeypatch.setattr(site.generator, "adapters", ("qa", "raft"))
    page = open_page()
    page.locator(".filters summary").click()
    page.get_by_label("Answered by").select_option("tuned")
    ask(page, QUESTION)
    page.get_by_role("link", name="Compare").click()
    page.locator(".filters summary").click()
    page.get_by_label("Adapter").select_option("raft")
    page.get_by_text("Hide which is which until I have voted").click()
    begin(page)
    page.locator(".ballot").wait_for()
    assert [request.adapter for request in site.generator.requests] == ["qa", "raft", None]


def test_the_quick_comparison_is_followed_cancelled_run_and_its_report_opened(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = site.services.settings.reports_folder
    gate = threading.Event()

    def compared(_source: str, _arms: tuple[str, ...], handle: JobHandle) -> str:
        handle.progress(3, 48, "asking")
        gate.wait(PATIENCE_S)
        if handle.cancelled():
            raise Cancelled("the comparison was cancelled")
        write_report(reports / "one", a_report())
        return "one"

    monkeypatch.setattr(site.services, "_compare", compared)
    page = open_page("/compare")
    page.get_by_role("link", name="Reports").click()
    expect(page.locator(".empty")).to_contain_text("coalesce eval")
    row = page.locator(".upload")
    page.get_by_role("button", name="Run the quick comparison").click()
    page.reload()
    expect(row).to_contain_text("Asking 3 / 48")
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("Stopping")
    gate.set()
    expect(row).to_have_count(0)
    try:
        page.get_by_role("button", name="Run the quick comparison").click()
        page.wait_for_url("**/reports/one")
        body = page.frame_locator(".report-frame").locator("body")
        expect(body).to_contain_text("How <b>many</b> threads?")
        page.get_by_role("link", name="All reports").click()
        expect(page.locator("article tbody tr")).to_have_text(
            [re.compile(r"with the books, over model alone\s*\+100\.0")]
        )
    finally:
        shutil.rmtree(reports / "one", ignore_errors=True)


def a_report() -> dict[str, Any]:
    """A comparison of two arms on one question, with HTML in it."""
    question = parse_question(
        {"id": "q1", "type": "choice", "question": "How <b>many</b> threads?", "answer": "32",
         "choices": ["32", "16", "64", "8"], "answer_index": 0},
        where="test:1",
    )  # fmt: skip
    records = [Record("q1", arm, 0, "choice", picked=pick) for arm, pick in (("base", 1), ("rag", 0))]
    rows = score_records(records, {"q1": question})
    facts = RunFacts("2026-01-02T03:04:05+00:00", "extractive", "m", "e", 1, {}, {})
    return report_data(RunSpec((question,), parse_arms(["base", "rag"])), facts, compare(rows), rows, None)


def test_an_adapter_is_tuned_with_its_curve_and_offered(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    adapters = site.services.adapters

    def tune(_model: str, _rows: Any, out: Path, _settings: Any, progress: Any, _cancelled: Any) -> str:
        out.mkdir(parents=True)
        progress(TuneProgress(1, 3, 2.5, None, 100.0))
        progress(TuneProgress(2, 3, 1.5, 1.75, 100.0))
        gate.wait(PATIENCE_S)
        return "3 steps"

    local = load_settings({"generator": "local", "model": "tiny"}).rag.generator
    monkeypatch.setattr(adapters, "_tune", tune)
    monkeypatch.setattr(adapters, "_running", lambda: local)
    monkeypatch.setattr(adapters, "_rows", lambda *_: [])
    page = open_page("/compare")
    page.get_by_text("Tune an adapter").click()
    page.get_by_label("Name of the adapter").fill("../up")
    page.get_by_role("button", name="Tune", exact=True).click()
    expect(page.locator(".toast.bad")).to_contain_text("adapter's name")
    page.get_by_label("Name of the adapter").fill("mine")
    page.get_by_role("button", name="Tune", exact=True).click()
    expect(page.locator(".upload")).to_contain_text("Training 2 / 3")
    expect(page.locator(".loss-curve circle.loss")).to_have_count(2)
    page.reload()
    expect(page.locator(".loss-curve polyline.eval_loss")).to_have_count(1)
    monkeypatch.setattr(adapters, "fitting", lambda: ["mine"])
    gate.set()
    expect(page.locator(".upload")).to_contain_text("3 steps")
    expect(page.get_by_role("button", name="Compare with mine")).to_be_visible()
    shutil.rmtree(site.services.settings.home / "adapters")


def test_a_teacher_accepts_changes_drops_and_chooses_questions_of_a_book(rest_site: Live, open_next: Open) -> None:
    document = rest_site.shelf.put("taught", WARP, source="taught.md")
    asked = ("Which threads run in lockstep?", "How many are a warp?", "Who issues them?")
    made = [own_question(text, f"answer {n}", WARP, title="taught.md") for n, text in enumerate(asked)]
    made = [replace(one, id=f"made-{n}", book="taught") for n, one in enumerate(made)]
    rest_site.services.questions.made.keep(document, made)
    page = open_next("/library")
    page.locator(".card.book", has_text="taught.md").get_by_role("link", name="Look through the questions").click()
    first, second, third = (page.get_by_role("article", name=text) for text in asked)
    first.get_by_role("button", name="Accept").click()
    expect(first).to_contain_text("accepted")
    expect(first.locator("blockquote")).to_have_text(WARP)
    second.get_by_role("button", name="Edit").click()
    second.get_by_label("The answer").fill("32")
    second.get_by_role("button", name="Keep the change").click()
    expect(second).to_contain_text("32")
    third.get_by_role("button", name="Drop").click()
    expect(third).to_have_count(0)
    second.get_by_label("For an exam").check()
    faults = _faults(page)
    page.get_by_role("button", name="Start an exam of one chosen question").click()
    expect(page.locator(".question")).to_contain_text(asked[1])
    assert faults == []
    rest_site.shelf.remove("taught")


STUDY = ("/study", "/study/cards", "/study/progress", f"/study/guide/{SAMPLE_ID}")
VIEWS = ("/", "/settings", "/compare", "/reports", "/library", f"/book/{SAMPLE_ID}", *STUDY)
WIDTHS = (320, 390, 768, 1152)
_TOO_WIDE = """async () => {
  await new Promise((done) => requestAnimationFrame(() => done()));
  return document.documentElement.scrollWidth > document.documentElement.clientWidth;
}"""


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_no_view_scrolls_sideways_or_has_a_serious_fault_of_access_in_light_or_dark(
    site: Live, open_page: Open, locale: str
) -> None:
    page = open_page(locale=locale)
    ask(page, QUESTION)
    page.click(".answer .cite")
    expect(page.locator("#source mark")).to_be_visible()
    found = {"an answer": _faults(page)}
    for view in VIEWS:
        page.goto(f"{site.address}{view}")
        page.locator("main > * > *").first.wait_for()
        found[view] = _faults(page)
    assert {where: faults for where, faults in found.items() if faults} == {}


def _faults(page: Page) -> list[str]:
    found = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 740})
        if page.evaluate(_TOO_WIDE):
            found.append(f"too wide at {width}")
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        options = {"resultTypes": ["violations"], "preload": False}
        violations = axe_sync.Axe().run(page, options=options).response["violations"]
        found += [f"{theme} {one['id']}: {one['nodes'][0]['html'][:200]}" for one in violations
                  if one["impact"] in ("serious", "critical")]  # fmt: skip
    return found


def test_the_exam_and_its_marks_have_no_serious_fault_of_access(site: Live, open_page: Open) -> None:
    given = site.post("/v1/class-exams", count=2, learners=["Ada"], time_limit_s=60)
    exam = site.post("/v1/exams", count=2, types=["choice", "short"])
    page = open_page(f"/study/class/{given['id']}")
    page.locator("tbody").wait_for()
    found = _faults(page)
    page.goto(f"{site.address}/study/exam/{exam['id']}")
    page.locator(".question").wait_for()
    found += _faults(page)
    site.post(f"/v1/exams/{exam['id']}/answers", answers={})
    page.reload()
    page.locator(".result").wait_for()
    found += _faults(page)
    page.goto(f"{site.address}/study/cards")
    page.locator(".flashcard").wait_for()
    page.keyboard.press(" ")
    page.locator(".rate").first.wait_for()
    assert found + _faults(page) == []


def test_the_pages_of_reports_and_of_the_calls_are_drawn_under_their_policies(
    site: Live, open_page: Open, tmp_path: Path
) -> None:
    reports = site.services.settings.reports_folder
    write_report(reports / "drawn", a_report())
    try:
        page = open_page("/reports/drawn")
        body = page.frame_locator(".report-frame").locator("body")
        expect(body.locator(".plot svg").first).to_be_visible()
        assert body.evaluate("(body) => getComputedStyle(body).maxWidth") == "1040px"
        assert body.locator("[style]").count() == 0
    finally:
        shutil.rmtree(reports / "drawn")
    page = open_page("/settings")
    page.get_by_role("link", name="API documentation").click()
    expect(page.locator("#swagger-ui")).to_contain_text("/v1/ask")
    page.get_by_role("button", name="Authorize").first.wait_for()


def test_the_theme_and_the_language_are_chosen_and_kept(open_page: Open) -> None:
    page = open_page()
    page.click("#theme")
    page.click("#theme")
    page.locator("#language").select_option("zh")
    expect(page.locator(".views")).to_contain_text("提问")
    page.reload()
    expect(page.locator(".views")).to_contain_text("提问")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 22, 20)"
