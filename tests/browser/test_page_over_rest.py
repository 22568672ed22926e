"""The page over REST: asking, as a reader does it, with everything that can go wrong meanwhile."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, WARP, Live, running, wait_until
from browser_help import Open, ask
from fake_engine import MODEL, fake_engine
from fakes import signals_only
from playwright.sync_api import Browser, Page, expect

from api.page_files import PAGE
from api.settings import load_settings
from indexes.errors import StorageFull
from rag.errors import GenerationFailed
from rag.evidence import EvidenceJudge
from rag.models import home
from rag.sentence_reader import LearnedReader

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


def test_a_marker_opens_its_passage_and_escape_leads_back_to_it(open_next: Open) -> None:
    page = open_next()
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


def test_a_running_answer_is_followed_after_a_reload_and_stopped(rest_site: Live, open_next: Open) -> None:
    gate = Gate(rest_site, 1)
    page = open_next()
    begin(page)
    expect(page.locator(".answer")).to_contain_text("A warp has")
    page.wait_for_url(re.compile(r"/c/\w+"))
    page.reload()
    expect(page.locator(".answer")).to_contain_text("A warp has")
    gate.open()
    page.locator(".answer-tools").wait_for()
    expect(page.locator(".answer")).to_contain_text("32 threads")
    assert len(rest_site.generator.requests) == 1
    rest_site.generator.pieces = ("word ",) * 2000
    rest_site.generator.before_piece = lambda index: threading.Event().wait(0.05) and None
    begin(page, "And why?")
    expect(page.locator(".answer").last).to_contain_text("word word")
    page.get_by_role("button", name="Stop the answer").click()
    expect(page.locator(".turn").last).to_contain_text("Stopped")
    expect(page.locator("#question")).to_have_value("And why?")
    (kept,) = rest_site.services.engine.conversations.list(of_the_page=True)
    assert kept.num_answers == 1


def test_a_refusal_names_the_nearest_passages_and_answers_anyway(
    rest_site: Live, open_next: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_site.services.engine, "_judge", EvidenceJudge(LearnedReader(signals_only), 1.1))
    page = open_next()
    ask(page, QUESTION)
    expect(page.locator(".answer")).to_have_text("The library does not answer this question.")
    page.locator(".answer-notes .source-link").first.click()
    expect(page.locator("#source .passage")).to_contain_text("32 threads")
    page.get_by_role("button", name="Answer anyway").click()
    page.locator(".answer-tools").nth(1).wait_for()
    expect(page.locator(".turn").last.locator("[role=note]")).to_contain_text("does not seem to answer")
    expect(page.locator(".turn").last.locator(".answer")).to_contain_text("32 threads")


def test_an_answer_is_rated_copied_with_its_doubt_kept_as_a_card_changed_and_asked_again(
    rest_site: Live, open_next: Open
) -> None:
    rest_site.generator.pieces = ("Warps dream of 99 electric lanes [1].",)
    page = open_next(permissions=["clipboard-read", "clipboard-write"])
    ask(page, QUESTION)
    page.get_by_role("button", name="Copy with sources").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("Warps dream of 99 electric lanes [^1].")
    assert "[^1]: Sample › Chapter › Section, page iii" in copied and copied.endswith("supported)")
    page.get_by_role("button", name="Bad answer").click()
    page.get_by_label("What was wrong?").fill("It is 32.")
    page.keyboard.press("Enter")
    store = rest_site.services.engine.conversations
    wait_until(lambda: any(given.comment for given, _ in store.feedback()), "the comment was kept")
    page.get_by_role("button", name="Save as card").click()
    wait_until(lambda: rest_site.get("/v1/cards/due")["cards"], "the card was kept")
    page.reload()
    expect(page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "true")
    rest_site.generator.before_piece = _fail
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".problem")).to_contain_text("the engine has gone", ignore_case=True)
    expect(page.locator(".asked")).to_have_count(2)  # what was there is back, and what went wrong below it
    rest_site.generator.before_piece = lambda index: None
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


def test_the_books_ticked_are_searched_and_remembered(rest_site: Live, open_next: Open) -> None:
    for name in ("Other", "Third"):
        rest_site.shelf.put(name.lower(), f"A warp of the {name} book has 64 lanes.", source=name)
    page = open_next()
    page.click(".filters summary")
    for name in ("Other", "Third"):
        page.get_by_label(name).check()
    ask(page, QUESTION)
    assert {passage.document_id for passage in rest_site.generator.requests[-1].passages} == {"other", "third"}
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


def test_in_chinese_on_a_phone_conversations_are_searched_renamed_and_deleted(rest_site: Live, open_next: Open) -> None:
    rest_site.client.post("/v1/ask", json={"question": "Asked by a program: what is a warp?"})
    page = open_next(**PHONE, locale="zh-CN")
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
    page.wait_for_url(f"{rest_site.address}{PAGE}/")
    wait_until(lambda: len(rest_site.services.engine.conversations.list()) == 1, "those of the page are gone")


def test_what_cannot_be_asked_is_said_and_stays_in_the_box(rest_site: Live, open_next: Open) -> None:
    page = open_next()
    begin(page, "x" * 60_000)
    expect(page.locator(".toast.bad")).to_contain_text("characters")
    expect(page.locator("#question")).to_have_value("x" * 60_000)
    assert rest_site.services.engine.conversations.list() == ()
    code = "\n".join(f"line {number} of my code;" for number in range(900))
    ask(page, f"{QUESTION}\n{code}")
    height = "(element) => element.getBoundingClientRect().height"
    assert page.locator(".asked").evaluate(height) < 250
    page.get_by_role("button", name="Show all").click()
    assert page.locator(".asked").evaluate(height) > 5_000
    ask(page, "ما هو الوارب؟")
    assert page.locator(".asked").last.evaluate("(element) => getComputedStyle(element).direction") == "rtl"


@pytest.mark.parametrize("path", ["/c/nobody", "/nowhere", "/c/a/b"])
def test_an_unknown_address_says_so(open_next: Open, path: str) -> None:
    expect(open_next(path).get_by_role("heading", name="This page does not exist")).to_be_visible()


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


def test_a_lost_connection_is_said_and_the_answer_found_again(rest_site: Live, open_next: Open) -> None:
    gate = Gate(rest_site, 1)
    page = open_next()
    page.evaluate(CUT)
    begin(page)
    expect(page.locator(".answer")).to_contain_text("A warp has")
    page.evaluate("cut()")
    expect(page.locator(".turn")).to_contain_text("The connection was lost")
    gate.open()
    page.locator(".answer-tools").wait_for()
    expect(page.locator(".answer")).to_contain_text("A warp has 32 threads")
    assert len(rest_site.generator.requests) == 1


def test_an_answer_that_a_restart_took_is_said_and_the_question_kept(rest_site: Live, open_next: Open) -> None:
    gate = Gate(rest_site, 1)
    page = open_next()
    page.evaluate(CUT)
    begin(page)
    expect(page.locator(".answer")).to_contain_text("A warp has")
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


def test_a_key_is_asked_for_over_the_page_and_what_was_typed_stays(browser: Browser, tmp_path_factory) -> None:
    keys = {"api_keys": "teacher-key", "learner_keys": "alice=alices-key"}
    with running(load_settings({"home": tmp_path_factory.mktemp("home"), **keys})) as live:
        page = browser.new_context(locale="en-US").new_page()
        page.goto(f"{live.address}{PAGE}")
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("dialog .problem")).to_contain_text("This key is not known")
        page.keyboard.press("Escape")
        page.get_by_label("API key").fill("alices-key")
        page.keyboard.press("Enter")
        page.fill("#question", QUESTION)
        expect(page.locator(".views a")).to_have_text(["Ask", "Library", "Study"])
        page.context.clear_cookies()
        page.press("#question", "Enter")
        page.get_by_label("API key").fill("alices-key")
        page.keyboard.press("Enter")
        expect(page.locator("dialog")).to_have_count(0)
        expect(page.locator("#question")).to_have_value(QUESTION)
        page.press("#question", "Enter")
        page.locator(".answer-tools").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("API key").wait_for()
        page.context.close()


def test_markup_of_questions_answers_and_books_stays_text_and_formulas_and_code_are_set(
    rest_site: Live, open_next: Open
) -> None:
    rest_site.shelf.clear()
    rest_site.shelf.put(SAMPLE_ID, f"{WARP} {EVIL}", source=f"{EVIL}.pdf", sample=True, pages=True)
    rest_site.generator.pieces = (
        f"A warp has 32 threads [1]. {EVIL}\n\n{EVIL_MARKDOWN}\n\n$$\n\\frac{{a}}{{b}}\n$$\n\n",
        "```cuda\n__global__ void add(float* x) { x[0] = 1.0f; }\n```\n\n| a | b |\n| :-- | --: |\n| 1 | 2 |\n",
    )
    page = open_next()
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
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None


def test_a_book_is_added_followed_stopped_and_removed(rest_site: Live, open_next: Open) -> None:
    page = open_next("/library")
    files = page.locator("input[type=file][accept]")
    name = "<img src=x onerror=window.ran=1>.txt"
    held = threading.Event()
    rest_site.shelf.before_step = lambda step: held.wait(PATIENCE_S) and None
    files.set_input_files({"name": "slow.txt", "mimeType": "text/plain", "buffer": b"A slow book about warps."})
    row = page.locator(".upload").filter(has_text="Adding a book: slow.txt")
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("Stopping")
    held.set()
    expect(row).to_have_count(0)
    rest_site.shelf.before_step = lambda step: None
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


def test_a_book_is_read_on_from_a_quote_turned_and_searched(rest_site: Live, open_next: Open) -> None:
    rest_site.shelf.extend(SAMPLE_ID, "Occupancy is a share. " * 30, path=("Occupancy",), chapter=2)
    page = open_next()
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
    page.goto(f"{rest_site.address}{PAGE}/book/nothing")
    expect(page.get_by_role("heading", name="This page does not exist")).to_be_visible()


def test_an_exam_is_taken_reloaded_handed_in_and_its_marks_decided(rest_site: Live, open_next: Open) -> None:
    page = open_next("/study")
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
    wait_until(lambda: rest_site.get(f"/v1/exams/{exam}/draft")["answers"], "the answer was kept")
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


def test_an_exam_ends_when_its_time_does_with_what_was_typed(rest_site: Live, open_next: Open) -> None:
    exam = rest_site.post("/v1/exams", count=1, types=["short"], time_limit_s=4)
    page = open_next(f"/study/exam/{exam['id']}")
    page.locator(".question textarea").fill("something")
    expect(page.locator(".result")).to_contain_text("Time was over")
    expect(page.locator(".typed")).to_have_text("something")


def test_cards_are_turned_rated_taken_back_and_reworded_by_keyboard_in_chinese_on_a_phone(
    rest_site: Live, open_next: Open
) -> None:
    learner = "学生"
    exam = rest_site.post("/v1/exams", count=2, types=["choice"], learner=learner)
    rest_site.post(f"/v1/exams/{exam['id']}/answers", answers={}, learner=learner)
    page = open_next("/study", **PHONE, locale="zh-CN")
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


def test_an_exam_of_a_class_begins_at_its_learners_press_and_its_marks_come_by_themselves(
    rest_site: Live, open_next: Open
) -> None:
    teacher = open_next("/study", permissions=["clipboard-read", "clipboard-write"])
    teacher.get_by_label("Choice", exact=True).check()
    teacher.get_by_label("Number of questions").fill("2")
    teacher.get_by_label("Time limit in minutes").fill("20")
    teacher.get_by_text("Give this exam to a class").click()
    teacher.get_by_label("Names of the learners").fill("Ada L.\n\n张三")
    teacher.get_by_role("button", name="Make the links").click()
    expect(teacher.locator("tbody tr")).to_have_count(2)
    expect(teacher.locator(".class-exam [role=note]")).to_contain_text("Only this machine")
    teacher.get_by_role("button", name="Copy Ada L.'s link").click()
    teacher.get_by_role("button", name="Copied").wait_for()
    address = teacher.evaluate("navigator.clipboard.readText()")
    learner = open_next(address.removeprefix(rest_site.address + PAGE), **PHONE)
    expect(learner.locator("main")).to_contain_text("Ada L., this exam has 2 questions")
    expect(learner.locator("main")).to_contain_text("You have 20 minutes")
    learner.reload()
    expect(teacher.locator("tbody tr").first).to_contain_text("not begun yet")
    learner.get_by_role("button", name="Begin").click()
    expect(learner.locator(".clock")).to_contain_text("left")
    expect(teacher.locator("tbody tr").first).to_contain_text("not handed in")
    learner.get_by_role("button", name="Hand in").click()
    learner.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(learner.locator(".result .big")).to_have_text("0 of 2 points")
    expect(learner.locator(".verdict")).to_have_count(0)
    teacher.get_by_role("link", name="0 of 2 points").click()
    expect(teacher.locator(".mark")).to_have_count(2)
    expect(teacher.locator(".learner summary")).not_to_contain_text("Ada")
    teacher.go_back()
    with teacher.expect_download() as marks:
        teacher.get_by_role("link", name="Download the marks (CSV)").click()
    assert "Ada L." in marks.value.path().read_text("utf-8")
    teacher.get_by_role("link", name="Study").click()
    expect(teacher.locator(".exam-list").last).to_contain_text("1 of 2 handed in")
    teacher.get_by_text("Give this exam to a class").click()
    expect(teacher.get_by_label("Names of the learners")).to_have_value("Ada L.\n张三")


def test_what_answers_is_fetched_stopped_switched_and_put_back(
    rest_site: Live, open_next: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, model = rest_site.services.engine, "qwen2.5-coder-1.5b"

    def fetch(name: str, folder: object, tell: Callable[[str, int, int], None]) -> None:
        while True:
            tell("unpacking", 500_000, 1_000_000)
            time.sleep(0.02)

    def refuse(name: str, folder: object, tell: Callable[[str, int, int], None]) -> None:
        raise StorageFull(f"{name} needs 1,117 MB", hint="Free some space.")

    with fake_engine() as engine:
        monkeypatch.setattr(home, "ENGINE_PORTS", {"Ollama": engine.server_address[1]})
        monkeypatch.setattr(home, "get_model", fetch)
        page = open_next("/settings")
        page.get_by_role("button", name=f"Get and use: {model}").click()
        row = page.locator(".upload")
        expect(row).to_contain_text("Unpacking: 50 %")
        page.reload()
        page.get_by_role("button", name=f"Get and use: {model}").click()
        expect(page.locator(".toast.bad")).to_contain_text("being loaded")
        row.get_by_role("button", name="Cancel").click()
        expect(row).to_have_count(0)
        monkeypatch.setattr(home, "get_model", refuse)
        page.get_by_role("button", name=f"Get and use: {model}").click()
        expect(page.locator(".upload.failed")).to_contain_text("Free some space")
        page.get_by_role("button", name=f"Use: {MODEL}").click()
        expect(page.locator(".model.current")).to_contain_text(MODEL)
        expect(page.locator(".facts-of-server")).to_contain_text(MODEL)
        page.get_by_role("link", name="Ask").click()
        ask(page, QUESTION)
        expect(page.locator(".answer")).to_contain_text("says the engine")
    page.get_by_role("link", name="Settings").click()
    expect(page.locator(".answering")).to_contain_text("does not answer now")
    page.get_by_role("button", name="Use: sentences of the books").click()
    expect(page.locator(".model.current")).to_contain_text("sentences of the books")
    rest_site.services.use_engine(before)


STUDY = ("/study", "/study/cards", "/study/progress", f"/study/guide/{SAMPLE_ID}")
VIEWS = ("", "/library", "/settings", f"/book/{SAMPLE_ID}", *STUDY)
WIDTHS = (320, 390, 768, 1152)
_TOO_WIDE = """async () => {
  await new Promise((done) => requestAnimationFrame(() => done()));
  return document.documentElement.scrollWidth > document.documentElement.clientWidth;
}"""


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_no_view_scrolls_sideways_or_has_a_serious_fault_of_access_in_light_or_dark(
    rest_site: Live, open_next: Open, locale: str
) -> None:
    page = open_next(locale=locale)
    ask(page, QUESTION)
    page.click(".answer .cite")
    expect(page.locator("#source mark")).to_be_visible()
    found = {"an answer": _faults(page)}
    for view in VIEWS:
        page.goto(f"{rest_site.address}{PAGE}{view}")
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


def test_the_exam_and_its_marks_have_no_serious_fault_of_access(rest_site: Live, open_next: Open) -> None:
    given = rest_site.post("/v1/class-exams", count=2, learners=["Ada"], time_limit_s=60)
    exam = rest_site.post("/v1/exams", count=2, types=["choice", "short"])
    page = open_next(f"/study/class/{given['id']}")
    page.locator("tbody").wait_for()
    found = _faults(page)
    page.goto(f"{rest_site.address}{PAGE}/study/exam/{exam['id']}")
    page.locator(".question").wait_for()
    found += _faults(page)
    rest_site.post(f"/v1/exams/{exam['id']}/answers", answers={})
    page.reload()
    page.locator(".result").wait_for()
    found += _faults(page)
    page.goto(f"{rest_site.address}{PAGE}/study/cards")
    page.locator(".flashcard").wait_for()
    page.keyboard.press(" ")
    page.locator(".rate").first.wait_for()
    assert found + _faults(page) == []


def test_the_theme_and_the_language_are_chosen_and_kept(open_next: Open) -> None:
    page = open_next()
    page.click("#theme")
    page.click("#theme")
    page.locator("#language").select_option("zh")
    expect(page.locator(".views")).to_contain_text("提问")
    page.reload()
    expect(page.locator(".views")).to_contain_text("提问")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 22, 20)"
