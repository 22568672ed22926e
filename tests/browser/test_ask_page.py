"""Asking on the page: streamed answers, sources, conversations, feedback, filters."""

from __future__ import annotations

import re
import threading

from api_fakes import PATIENCE_S, SAMPLE_ID, Live, wait_until
from browser_help import Open, ask, drawn, noticed
from playwright.sync_api import Page, expect

from rag.errors import GenerationFailed

QUESTION = "How many threads are in a warp?"


class Gate:
    """Holds the generator back before a piece until it is opened."""

    def __init__(self, live: Live, at: int) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        self._at = at
        live.generator.before_piece = self._wait

    def _wait(self, index: int) -> None:
        if index == self._at:
            self.reached.set()
            self._open.wait(PATIENCE_S)

    def open(self) -> None:
        self._open.set()


def test_a_marker_opens_its_passage_with_the_quote_marked_and_its_printed_page(open_page: Open) -> None:
    page = open_page()
    ask(page, QUESTION)
    page.click(".answer .cite")
    source = page.locator("#source")
    expect(source.locator("mark")).to_contain_text("32 threads")
    expect(source.locator(".place")).to_contain_text("Chapter › Section")
    expect(source.locator(".place")).to_contain_text("page iii (page 3 of the file)")
    expect(source).to_be_focused()


def test_an_example_is_asked_by_a_click(site: Live, open_page: Open) -> None:
    page = open_page()
    page.locator(".example").first.click()
    page.locator(".answer-tools").wait_for()
    expect(page.locator(".welcome")).to_have_count(0)
    page.wait_for_url(re.compile(r"/c/\w+"))


def test_pressing_enter_twice_asks_once(site: Live, open_page: Open) -> None:
    page = open_page()
    page.fill("#question", QUESTION)
    page.evaluate(
        "for (let i = 0; i < 2; i++) document.getElementById('question').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true}))"
    )
    page.locator(".answer-tools").wait_for()
    ask(page, "And why?")  # the server takes what a page sends in its order
    assert [request.question for request in site.generator.requests] == [QUESTION, "And why?"]
    assert len(site.services.engine.conversations.list()) == 1


def test_escape_closes_the_source_and_returns_to_the_marker(open_page: Open) -> None:
    page = open_page()
    ask(page, QUESTION)
    page.focus(".answer .cite")
    page.keyboard.press("Enter")
    expect(page.locator("#source mark")).to_be_visible()
    expect(page.locator("#source")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#source")).to_be_hidden()
    expect(page.locator(".answer .cite")).to_be_focused()


def test_text_is_shown_while_the_generator_still_writes(site: Live, open_page: Open) -> None:
    gate = Gate(site, 1)
    page = open_page()
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    expect(page.locator(".answer")).to_contain_text("A warp has")
    assert page.locator(".answer-tools").count() == 0
    gate.open()
    page.locator(".answer-tools").wait_for()


def test_a_page_reloaded_in_the_middle_shows_what_there_is_and_then_the_finished_answer(
    site: Live, open_page: Open
) -> None:
    gate = Gate(site, 1)
    page = open_page()
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    expect(page.locator(".answer")).to_contain_text("A warp has")
    page.wait_for_url(re.compile(r"/c/\w+"))
    page.reload()
    expect(page.locator(".answer")).to_contain_text("A warp has")
    gate.open()
    page.locator(".answer-tools").wait_for()
    expect(page.locator(".answer")).to_contain_text("32 threads")
    assert len(site.generator.requests) == 1
    page.reload()
    expect(page.locator(".turn")).to_have_count(1)
    page.click(".answer .cite")
    expect(page.locator("#source mark")).to_contain_text("32 threads")


def test_stop_stops_the_generator(site: Live, open_page: Open) -> None:
    site.generator.pieces = ("word ",) * 2000
    site.generator.before_piece = lambda index: threading.Event().wait(0.05)
    closed = site.generator.closed_streams
    page = open_page()
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    expect(page.locator(".answer")).to_contain_text("word word")
    page.get_by_role("button", name="Stop the answer").click()
    wait_until(lambda: site.generator.closed_streams == closed + 1, "the generator was closed")
    expect(page.locator(".answer-notes")).to_contain_text("Stopped")
    expect(page.locator("#question")).to_have_value(QUESTION)


def test_an_answer_that_was_cut_off_says_so_and_still_does_after_a_reload(site: Live, open_page: Open) -> None:
    page = open_page()
    ask(page, QUESTION)
    expect(page.get_by_text("was cut off")).to_be_hidden()
    site.generator.finish = "length"
    ask(page, "And why?")
    expect(page.get_by_text("The answer was cut off here").last).to_be_visible()
    page.reload()
    drawn(page)
    expect(page.get_by_text("The answer was cut off here").last).to_be_visible()


LONG = "\n".join(f"line {number} of my code" for number in range(900))


def test_a_long_question_is_shown_in_a_few_lines_and_whole_at_a_press(open_page: Open) -> None:
    page = open_page()
    ask(page, QUESTION)
    expect(page.get_by_role("button", name="Show all")).to_be_hidden()
    ask(page, f"{QUESTION}\n{LONG}")
    asked = page.locator(".asked").last
    height = "(element) => element.getBoundingClientRect().height"
    assert asked.evaluate(height) < 250
    page.get_by_role("button", name="Show all").last.click()
    assert asked.evaluate(height) > 5_000
    page.get_by_role("button", name="Show less").click()
    assert asked.evaluate(height) < 250


def test_code_in_a_question_keeps_its_columns(open_page: Open) -> None:
    page = open_page()
    ask(page, "What is a warp here?\nint warp = threadIdx.x / 32;\nif (warp == 0) {\n  work();\n}")
    asked = page.locator(".asked").last
    expect(asked).to_contain_text("threadIdx.x / 32;")
    assert "monospace" in asked.evaluate("(heading) => getComputedStyle(heading).fontFamily")


def test_a_follow_up_goes_on_with_the_conversation(site: Live, open_page: Open) -> None:
    page = open_page()
    ask(page, QUESTION)
    ask(page, "And why?")
    assert [turn.question for turn in site.generator.requests[-1].turns] == [QUESTION]
    expect(page.locator(".conversation")).to_have_count(1)


def test_two_tabs_ask_at_once_and_keep_their_own_answers(site: Live, open_page: Open) -> None:
    first = open_page()
    second = open_page(context=first.context)
    for tab, question in ((first, "First question about a warp?"), (second, "Second question about a warp?")):
        tab.fill("#question", question)
        tab.press("#question", "Enter")
    for tab, question in ((first, "First question"), (second, "Second question")):
        tab.locator(".answer-tools").wait_for()
        expect(tab.locator(".asked")).to_have_count(1)
        expect(tab.locator(".asked")).to_contain_text(question)
        tab.wait_for_url(re.compile(r"/c/\w+"))
    assert first.url != second.url


def test_a_conversation_is_named_and_deleted(site: Live, open_page: Open) -> None:
    page = open_page()
    ask(page, QUESTION)
    page.get_by_role("button", name="Rename").click()
    box = page.get_by_label("Name of the conversation")
    expect(box).to_be_focused()
    box.fill("Warps")
    page.keyboard.press("Enter")
    expect(page.locator(".conversation .name")).to_have_text("Warps")
    page.get_by_role("button", name="Delete conversation").click()
    expect(page.get_by_role("button", name="Keep")).to_be_focused()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(site.address + "/")
    expect(page.locator(".conversations")).to_contain_text("What you ask is kept here")
    assert site.services.engine.conversations.list() == ()


def test_a_thumb_is_kept_with_its_comment_and_shown_again(site: Live, open_page: Open) -> None:
    page = open_page()
    ask(page, QUESTION)
    page.get_by_role("button", name="Bad answer").click()
    page.get_by_label("What was wrong?").fill("It is 64 on some GPUs.")
    page.keyboard.press("Enter")
    store = site.services.engine.conversations
    wait_until(lambda: any(given.comment for given, _ in store.feedback()), "the comment was kept")
    page.reload()
    expect(page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "true")
    cases = site.client.get("/v1/feedback/cases.jsonl").text
    assert "It is 64 on some GPUs." in cases


def test_an_answer_is_copied_with_its_sources(open_page: Open) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    ask(page, QUESTION)
    page.evaluate(
        "window.labels = []; new MutationObserver((changes) => "
        "changes.forEach((change) => window.labels.push(change.target.getAttribute('aria-label'))))"
        ".observe(document.body, {subtree: true, attributes: true, attributeFilter: ['aria-label']})"
    )
    page.get_by_role("button", name="Copy with sources").click()
    page.wait_for_function("window.labels.includes('Copied')")  # it says so for a moment only
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("A warp has 32 threads [^1].")
    assert "[^1]: Sample › Chapter › Section, page iii" in copied


def test_the_books_ticked_are_searched_and_remembered_with_the_conversation(site: Live, open_page: Open) -> None:
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
    expect(page.locator(".filters summary")).to_have_text("All books")  # the bar is drawn again before it is pressed
    page.get_by_label("Sample").check()
    page.get_by_label("From page").fill("4")
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    expect(page.locator(".answer").nth(1)).to_contain_text("Nothing in the library matches")
    expect(page.locator(".filters summary")).to_have_text("Sample · pages 4–…")


def test_the_panel_shows_the_rank_of_an_expected_page(open_page: Open) -> None:
    page = open_page()
    ask(page, QUESTION)
    page.get_by_text("Expected another page?").click()
    page.get_by_label("Page of the file").fill("3")
    page.get_by_role("button", name="Show its ranks").click()
    expect(page.locator(".explain-verdict")).to_contain_text("at rank 1")
    page.get_by_label("Page of the file").fill("8")
    page.get_by_role("button", name="Show its ranks").click()
    expect(page.locator(".explain-result .problem")).to_contain_text("Page 8 is not in the book")


def test_an_error_is_explained_and_the_question_stays(site: Live, open_page: Open) -> None:
    page = open_page()
    page.fill("#question", "x" * 60_000)
    page.press("#question", "Enter")
    noticed(page, "characters")
    expect(page.locator("#question")).to_have_value("x" * 60_000)
    assert site.services.engine.conversations.list() == ()


def test_enter_of_an_input_method_does_not_send(site: Live, open_page: Open) -> None:
    page = open_page()
    page.fill("#question", "线程束")
    page.evaluate(
        "document.getElementById('question').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))"
    )
    expect(page.locator("#question")).to_have_value("线程束")
    ask(page, QUESTION)  # the server takes what a page sends in its order
    assert [request.question for request in site.generator.requests] == [QUESTION]


def test_a_lost_connection_comes_back_and_answers(site: Live, open_page: Open) -> None:
    gate = Gate(site, 1)
    page = open_page()
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    expect(page.locator(".answer")).to_contain_text("A warp has")
    _cut(page)
    gate.open()
    page.locator(".answer-tools").wait_for()
    expect(page.locator(".answer")).to_contain_text("32 threads")


def _cut(page: Page) -> None:
    page.evaluate("window.socket.io.engine.close()")


def test_an_unknown_address_says_so(site: Live, open_page: Open) -> None:
    page = open_page()
    for unknown in ("/c/nobody", "/study/exam/none", "/reports/none"):
        page.goto(site.address + unknown)
        expect(page.get_by_role("heading", name="This page does not exist")).to_be_visible()


def _fail(index: int) -> None:
    raise GenerationFailed("the engine has gone")


def test_a_question_is_asked_again_changed_searched_for_and_all_are_deleted(site: Live, open_page: Open) -> None:
    site.client.post("/v1/ask", json={"question": "Asked by a program: what is a warp?"})
    site.shelf.extend(SAMPLE_ID, "Occupancy is a share. " * 30, path=("Occupancy",))
    page = open_page(viewport={"width": 390, "height": 844}, locale="zh-CN")
    ask(page, QUESTION)
    site.generator.before_piece = _fail
    page.get_by_role("button", name="重新回答").click()
    expect(page.locator(".problem")).to_be_visible()
    expect(page.locator(".asked")).to_have_count(2)  # what was there is back, and what went wrong below it
    assert site.services.engine.conversations.list(of_the_page=True)[0].num_answers == 1
    site.generator.before_piece = lambda index: None
    page.reload()
    page.locator(".turn").evaluate("(turn) => turn.setAttribute('data-before', '')")
    page.get_by_role("button", name="重新回答").click()
    expect(page.locator(".turn[data-before]")).to_have_count(0)  # a press on what is about to go is lost
    expect(page.locator(".asked")).to_have_count(1)
    page.locator(".answer-tools").wait_for()
    page.get_by_role("button", name="修改问题").click()
    expect(page.locator("#question")).to_have_value(QUESTION)
    page.fill("#question", "How many threads has a warp?")
    page.press("#question", "Enter")
    expect(page.locator(".asked")).to_have_text(["How many threads has a warp?"])
    page.locator(".answer-tools").wait_for()
    (kept,) = site.services.engine.conversations.list(of_the_page=True)
    assert kept.num_answers == 1
    page.get_by_role("button", name="修改问题").click()
    page.locator(".next-questions button").first.click()  # a suggestion asks for more; it changes nothing
    expect(page.locator(".asked")).to_have_count(2)
    expect(page.locator(".editing")).to_be_hidden()
    page.locator(".answer-tools").nth(1).wait_for()
    page.get_by_role("button", name="显示对话列表").click()
    expect(page.locator(".conversation")).to_have_count(1)
    page.get_by_label("搜索").fill("texture")
    expect(page.locator(".conversations")).to_contain_text("没有包含")
    page.get_by_label("搜索").fill("")
    expect(page.locator(".day")).to_have_text(["今天"])
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="全部删除").click()
    page.locator("dialog").get_by_role("button", name="删除").click()
    page.wait_for_url(site.address + "/")
    assert len(site.services.engine.conversations.list()) == 1
