"""Asking, as a reader does it, with everything that can go wrong meanwhile."""

from __future__ import annotations

import re
import threading

import pytest
from api_fakes import SAMPLE_ID, WARP, Live, wait_until
from browser_help import PHONE, QUESTION, Gate, Open, ask, begin
from fakes import signals_only
from playwright.sync_api import Page, Route, expect

from api.errors import parts_beside
from indexes.messages import msg
from rag.errors import GenerationFailed
from rag.evidence import EvidenceJudge
from rag.sentence_reader import LearnedReader


def test_a_marker_opens_its_passage_to_make_a_card_of_and_escape_leads_back_to_it(site: Live, open_page: Open) -> None:
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
    source.get_by_role("button", name="Save as card").click()
    page.get_by_label("Question", exact=True).fill("How many threads are a warp?")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("Saved")
    (card,) = site.get("/v1/cards/due")["cards"]
    assert "32 threads" in card["answer"] and site.status("DELETE", f"/v1/cards/{card['id']}") == 204
    source.focus()
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
    holds = "The scheduler picks a ready warp in each cycle."
    site.shelf.put(SAMPLE_ID, f"{WARP} In each cycle the scheduler picks a ready warp.", source="sample", sample=True)
    engine.answers, site.generator.pieces = "both", (f"{holds} ", "It costs nothing. ", "")
    gate = Gate(site, 1)
    try:
        page = open_page()
        begin(page)
        quotes = page.locator(".turn .quotes")
        expect(quotes).to_contain_text("scheduler")
        expect(page.locator(".turn .answer:not(.quotes)")).to_have_count(0)
        gate.open()
        written = page.locator(".turn .answer:not(.quotes)")
        expect(written).to_contain_text(holds)
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
        expect(page.locator(".turn").last).not_to_contain_text(holds)
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


def test_a_question_that_was_not_sent_stays_and_the_box_has_the_focus(open_page: Open) -> None:
    page = open_page()
    expect(page.locator("#question")).to_be_focused()
    page.keyboard.type("Half a question")
    page.get_by_role("link", name="Library").click()
    page.locator(".book").wait_for()
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("link", name="Ask", exact=True).click()
    expect(page.locator("#question")).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.type(", and more")
    page.reload()
    expect(page.locator("#question")).to_have_value("Half a question, and more")
    page.keyboard.press("Enter")
    page.locator(".answer-tools").wait_for()
    page.reload()
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator("#question")).to_have_value("")


def test_who_read_on_in_the_book_comes_back_to_the_same_place(site: Live, open_page: Open) -> None:
    site.generator.pieces = ("A warp has 32 threads [1]. ", "It has 32 threads.\n\n" * 60)
    page = open_page()
    for _ in range(2):
        ask(page, QUESTION)
    page.locator(".turn").first.locator(".cite").first.click()
    page.evaluate("window.scrollTo(0, 400)")
    page.evaluate("document.querySelector('#source a').click()")
    page.locator(".book-text mark").wait_for()
    page.go_back()
    wait_until(lambda: page.evaluate("scrollY") == 400, "the reader is back where they were")


def test_who_wants_to_be_asked_is_led_to_the_exam(open_page: Open) -> None:
    page = open_page(locale="zh-CN")
    begin(page, "考考我")
    expect(page.get_by_role("heading", name="新考试")).to_be_visible()
    page.go_back()
    page.locator(".turn a.button").click()
    expect(page.get_by_role("heading", name="新考试")).to_be_visible()


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
    page.get_by_label("To page").fill("2")  # either way round
    ask(page, QUESTION)
    assert [passage.page_label for passage in site.generator.requests[-1].passages] == ["iii"]


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


@pytest.mark.parametrize("path", ["/c/nobody", "/nowhere", "/c/a/b", "/book/%zz"])
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


def test_what_cannot_be_fetched_again_is_said_beside_what_was(site: Live, open_page: Open) -> None:
    page = open_page()
    page.route("**/v1/conversations?**", lambda route: route.abort())
    page.locator("#conversations input").fill("warp")
    expect(page.locator("#conversations .problem")).to_contain_text("The server does not answer")


def test_a_question_is_sent_once_and_not_by_the_enter_of_an_input_method(site: Live, open_page: Open) -> None:
    page = open_page()
    page.fill("#question", QUESTION)
    press = "new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true, isComposing: %s})"
    page.evaluate(f"document.getElementById('question').dispatchEvent({press % 'true'})")
    expect(page.locator("#question")).to_have_value(QUESTION)
    page.evaluate(f"for (let n = 0; n < 2; n++) document.getElementById('question').dispatchEvent({press % 'false'})")
    page.locator(".answer-tools").wait_for()
    site.generator.finish = "length"
    ask(page, "And why?")
    page.reload()
    expect(page.get_by_text("The answer was cut off here")).to_have_count(1)
    assert [request.question for request in site.generator.requests] == [QUESTION, "And why?"]
    assert [turn.question for turn in site.generator.requests[-1].turns] == [QUESTION]


STOPPED = re.compile(r"/v1/answers/\w+$")


def test_an_answer_is_stopped_also_before_the_server_has_taken_the_question(site: Live, open_page: Open) -> None:
    gate = Gate(site, 1)
    page = open_page()
    held: list[Route] = []
    page.route("**/v1/ask", lambda route: held.append(route))
    with page.expect_request("**/v1/ask"):
        begin(page)
    page.get_by_role("button", name="Stop the answer").click()
    with page.expect_response(STOPPED):
        held[0].continue_()
    gate.open()
    expect(page.locator(".turn [role=status]")).to_contain_text("Stopped")


def test_an_answer_that_was_found_again_is_stopped_like_any_other(site: Live, open_page: Open) -> None:
    gate = Gate(site, 1)
    page = open_page(locale="zh-CN")
    begin(page)
    expect(page.locator(".answer")).to_contain_text("A warp has")
    page.wait_for_url(re.compile(r"/c/\w+"))
    page.reload()
    with page.expect_response(STOPPED):
        page.get_by_role("button", name="停止").click()
    gate.open()
    expect(page.locator(".turn [role=status]")).to_contain_text("已停止")
    expect(page.locator(".problem")).to_have_count(0)


SAID = """async (error) => {
  const { message } = await import(new URL("texts.js", document.querySelector("script[type=module]").src));
  return message(error, "message");
}"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (msg("the {} is empty", "question"), "问题是空的"),
        (msg("the {} is empty", msg("'{}' is empty", "İİ-Ab {} {0} $&")), "“İİ-Ab {} {0} $&”是空的是空的"),
        (msg("no one knows {} of {}", "question", "b"), "no one knows 问题 of b"),
        ("the the question is empty is empty", "the the question is empty is empty"),
        ("the {} is empty", "the {} is empty"),
    ],
)
def test_the_page_says_messages_by_their_key_and_never_by_what_they_look_like(
    open_page: Open, text: str, said: str
) -> None:
    page = open_page(locale="zh-CN")
    assert page.evaluate(SAID, {"message": text, **parts_beside(message=text)}) == said
