"""Library, comparison, reports, settings."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import docx
import pytest
from api_fakes import PATIENCE_S, Live, wait_until
from browser_help import Open, ask, noticed
from fake_engine import MODEL, fake_engine
from playwright.sync_api import Browser, Page, expect

from api.jobs import Job, JobHandle, JobStore
from evals.arms import parse_arms
from evals.comparison import compare
from evals.questions import parse_question
from evals.records import Record
from evals.report import RunFacts, report_data, write_report
from evals.run import RunSpec
from evals.scoring import score_records
from indexes.errors import InvalidInput, NotFound
from rag.models import home

TWELVE_SECTIONS = "\n".join(f"# Part {number}\n\nWarp {number}." for number in range(12))


def upload(page: Page, name: str, text: str) -> None:
    page.set_input_files("input[type=file][accept]", {"name": name, "mimeType": "text/plain", "buffer": text.encode()})


def test_a_book_is_added_with_progress_and_found(site: Live, open_page: Open) -> None:
    gate = threading.Event()
    site.shelf.before_step = lambda step: gate.wait(PATIENCE_S) and None if step == 2 else None
    page = open_page("/library")
    upload(page, "occupancy.md", TWELVE_SECTIONS)
    expect(page.locator(".upload")).to_contain_text("Embedding 8 / 12")
    gate.set()
    expect(page.locator(".book")).to_have_count(2)
    expect(page.locator(".upload")).to_have_count(0)
    expect(page.locator(".book").nth(1)).to_contain_text("Occupancy")


def test_a_folder_picked_in_the_browser_is_one_book_and_other_books_in_it_their_own(
    site: Live, open_page: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "Kernels"
    (folder / "part").mkdir(parents=True)
    (folder / "1-tiles.md").write_text("# Tiles\n\nA tile is staged.")
    (folder / "part" / "2-warps.md").write_text("# Warps\n\nA warp runs in lockstep.")
    document = docx.Document()
    document.add_paragraph("A block has warps.")
    document.save(str(folder / "notes.docx"))
    (folder / "picture.png").write_text("left out")
    page = open_page("/library", viewport={"width": 390, "height": 844}, locale="zh-CN")
    page.set_input_files(".drop input[accept]", {"name": "empty.md", "mimeType": "text/markdown", "buffer": b""})
    expect(page.locator(".upload.failed")).to_contain_text("文件是空的。请上传有文字的文件。")
    page.locator(".upload.failed button").click()
    page.locator("input[webkitdirectory]").set_input_files(folder)
    expect(page.locator(".book")).to_have_count(3)
    sources = {document.source for document in site.shelf.documents()}
    assert sources == {"Sample", "Kernels", "notes.docx"}
    (kernels,) = [document for document in site.shelf.documents() if document.title == "Kernels"]
    assert [section.heading_path[0] for section in site.shelf.sections_of(kernels.document_id)] == ["Tiles", "Warps"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_adding_a_book_can_be_cancelled(site: Live, open_page: Open) -> None:
    gate = threading.Event()
    site.shelf.before_step = lambda step: gate.wait(PATIENCE_S) and None if step == 2 else None
    page = open_page("/library")
    upload(page, "cancelled.md", TWELVE_SECTIONS)
    row = page.locator(".upload", has_text="Embedding 8 / 12")
    row.get_by_role("button", name="Cancel").click()
    expect(page.locator(".upload")).to_contain_text("Stopping")
    gate.set()
    expect(page.locator(".upload")).to_have_count(0)
    expect(page.locator(".book")).to_have_count(1)


def test_a_file_that_cannot_be_read_says_why(site: Live, open_page: Open) -> None:
    page = open_page("/library")
    upload(page, "picture.png", "no book")
    expect(page.locator(".upload.failed")).to_contain_text(".png")
    upload(page, "binary.txt", "a\0b")
    failed = page.locator(".upload.failed", has_text="binary data")
    expect(failed).to_be_visible()
    failed.get_by_role("button", name="Dismiss").click()
    expect(failed).to_have_count(0)


def test_a_book_is_removed_after_a_question(site: Live, open_page: Open) -> None:
    page = open_page("/library")
    page.get_by_role("button", name="Remove Sample").click()
    page.get_by_role("button", name="Keep").click()
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator(".book")).to_have_count(1)
    page.get_by_role("button", name="Remove Sample").click()
    page.locator("dialog").get_by_role("button", name="Remove").click()
    expect(page.locator(".empty")).to_contain_text("The library is empty")
    assert site.shelf.documents() == ()
    page.goto(site.address)
    expect(page.get_by_role("link", name="Add a book")).to_be_visible()


def test_the_chapters_of_a_book_are_shown(open_page: Open) -> None:
    page = open_page("/library")
    page.get_by_text("Chapters").click()
    expect(page.locator(".chapter-tree")).to_contain_text("1. Chapter")
    expect(page.locator(".chapter-tree")).to_contain_text("Section")


def test_arms_are_compared_blind_and_the_vote_is_kept(site: Live, open_page: Open) -> None:
    store = site.services.engine.conversations
    before = len(store.votes())
    page = open_page("/compare")
    expect(page.locator(".arm", has_text="tuned model alone")).to_contain_text("--adapter NAME=FOLDER")
    page.fill("#question", "How many threads are in a warp?")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("heading", name="Which answer is best?").wait_for()
    expect(page.locator(".arm-answer h2")).to_have_text(["Answer A", "Answer B"])
    assert page.locator(".arm-figures dd").count() == 0
    page.locator(".ballot").get_by_role("button", name="Answer B").click()
    expect(page.locator(".arm-figures").first).to_contain_text("First words")
    for heading in page.locator(".arm-answer h2").all():
        expect(heading).to_contain_text("model")
    wait_until(lambda: len(store.votes()) > before, "the vote is kept")
    winner = page.locator(".arm-answer h2").nth(1).inner_text()
    assert {winner, page.locator(".arm-answer h2").nth(0).inner_text()} == {"model alone", "model with the books"}
    kept = store.votes()[before:]
    assert [(vote.winner, vote.blind) for vote in kept] == [("base" if winner == "model alone" else "rag", True)]
    assert site.client.get("/v1/compare/votes.jsonl").text.count("\n") == before + 1


def test_a_choice_question_shows_what_each_arm_takes_and_what_is_right(site: Live, open_page: Open) -> None:
    page = open_page("/compare", viewport={"width": 390, "height": 844}, locale="zh-CN")
    page.get_by_role("button", name="对比", exact=True).click()
    noticed(page, "问题是空的。")
    page.select_option("#compare-kind", "choice")
    expect(page.locator(".choice-options li")).to_have_count(4)
    options = page.locator(".choice-options li").all_inner_texts()
    page.get_by_role("button", name="对比", exact=True).click()
    expect(page.locator(".arm-answer")).to_have_count(2)
    assert page.locator(".arm-answer .rich").first.inner_text() in options
    expect(page.locator(".ballot")).to_contain_text("正确答案")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_adapter_of_a_comparison_is_chosen_where_several_are_loaded(site: Live, open_page: Open) -> None:
    arms, adapters = site.generator.arms, site.generator.adapters
    site.generator.arms, site.generator.adapters = ("tuned", "rag"), ("qa", "raft")
    try:
        page = open_page("/compare")
        page.locator(".filters summary").click()
        page.get_by_label("Adapter").select_option("raft")
        page.get_by_text("Hide which is which until I have voted").click()
        page.fill("#question", "How many threads are in a warp?")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("heading", name="Which answer is best?").wait_for()
        assert [request.adapter for request in site.generator.requests] == ["raft", None]
    finally:
        site.generator.arms, site.generator.adapters = arms, adapters


def test_the_api_page_works_without_the_network(site: Live, open_page: Open) -> None:
    page = open_page("/settings")
    page.get_by_role("link", name="API documentation").click()
    expect(page.locator("#swagger-ui")).to_contain_text("/v1/ask")
    page.get_by_role("button", name="Authorize").first.wait_for()


def test_a_comparison_is_stopped(site: Live, open_page: Open) -> None:
    site.generator.pieces = ("word ",) * 2000
    site.generator.before_piece = lambda index: threading.Event().wait(0.05)
    closed = site.generator.closed_streams
    page = open_page("/compare")
    page.fill("#question", "How many threads are in a warp?")
    page.press("#question", "Enter")
    expect(page.locator(".arm-answer").first).to_contain_text("word")
    page.get_by_role("button", name="Stop the answer").click()
    wait_until(lambda: site.generator.closed_streams == closed + 1, "the generator was closed")
    expect(page.locator(".arm-answer").first).to_contain_text("Stopped")
    expect(page.locator(".arm-answer").last).to_contain_text("Not asked")
    expect(page.locator(".arm-columns")).not_to_contain_text("Waiting for its turn")


def test_a_comparison_that_failed_is_said_until_it_is_dismissed(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget = site.services.jobs.forget

    def forget_slowly(job_id: str) -> None:
        time.sleep(1)
        forget(job_id)

    def fail(_: JobHandle) -> str:
        raise InvalidInput("the engine is gone")

    for _ in range(2):
        job = site.services.jobs.submit("report", fail)
    wait_until(lambda: site.services.jobs.get(job.id).final, "the jobs end")
    page = open_page("/reports")
    expect(page.locator(".upload.failed")).to_contain_text("The engine is gone.")
    page.reload()
    monkeypatch.setattr(site.services.jobs, "forget", forget_slowly)
    page.locator(".upload.failed").get_by_role("button", name="Dismiss").click()
    expect(page.locator(".upload")).to_have_count(0)
    page.reload()
    page.locator("h1", has_text="Reports").wait_for()
    expect(page.locator(".upload")).to_have_count(0)
    kept = [job.kind for job in JobStore(site.services.settings.home / "jobs.sqlite3").list()]
    assert "report" not in kept, "it would come back when the server starts again"


def test_a_comparison_dismissed_in_another_tab_goes_from_this_one(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(job_id: str) -> Job:
        raise NotFound("no such job", hint="")

    running = threading.Event()
    job = site.services.jobs.submit("report", lambda _: "done" if running.wait(PATIENCE_S) else "")
    page = open_page("/reports")
    expect(page.locator(".upload")).to_have_count(1)
    with monkeypatch.context() as patched:
        patched.setattr(site.services.jobs, "get", gone)
        expect(page.locator(".upload")).to_have_count(0)
    running.set()
    wait_until(lambda: site.services.jobs.get(job.id).final, "the job ends")


def test_reports_are_listed_and_shown(site: Live, open_page: Open) -> None:
    page = open_page("/reports")
    expect(page.locator(".empty")).to_contain_text("coalesce eval")
    reports = site.services.settings.home / "reports"
    (reports / "broken").mkdir(parents=True, exist_ok=True)
    (reports / "broken" / "report.json").write_text(json.dumps({"run": {}}))
    page.reload()
    expect(page.locator(".empty")).to_contain_text("coalesce eval")
    write_report(reports / "one", a_report())
    try:
        page.reload()
        expect(page.locator("article tbody tr")).to_have_text(
            [re.compile(r"with the books, over model alone\s*\+100\.0")]
        )
        page.get_by_role("link", name="Retrieve or tune?").click()
        page.wait_for_url("**/reports/one")
        report = page.frame_locator(".report-frame")
        expect(report.locator("body")).to_contain_text("How <b>many</b> threads?")
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
    finally:
        shutil.rmtree(reports / "one")


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


def test_settings_name_what_runs_and_the_command_that_changes_it(open_page: Open) -> None:
    page = open_page("/settings")
    row = page.locator("tr", has_text="Vector search")
    expect(row).to_contain_text("FAISS on the CPU")
    expect(row).to_contain_text("make serve GPU=1")


def test_another_model_answers_after_a_press_in_settings(site: Live, open_page: Open) -> None:
    before = site.services.engine
    with pytest.MonkeyPatch.context() as patch:
        with fake_engine() as engine:
            patch.setattr(home, "ENGINE_PORTS", {"Ollama": engine.server_address[1]})
            page = open_page("/settings", viewport={"width": 390, "height": 844}, locale="zh-CN")
            page.get_by_role("button", name=f"使用: {MODEL}").click()
            expect(page.locator(".model.current")).to_contain_text(MODEL)
            expect(page.locator(".settings-table")).to_contain_text(MODEL)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            page.goto(site.address)
            ask(page, "How many threads are in a warp?")
            expect(page.locator(".answer")).to_contain_text("says the engine")
        page.goto(f"{site.address}/settings")
        expect(page.locator(".choices-of-models .problem")).to_contain_text("现在没有响应")
    site.services.use_engine(before)


def test_where_one_arm_runs_ways_to_search_are_compared_and_counted(site: Live, open_page: Open) -> None:
    site.generator.arms = ("rag",)
    page = open_page("/compare", viewport={"width": 390, "height": 844}, locale="zh-CN")
    expect(page.locator(".offer")).to_contain_text("只有一个方案可用")
    expect(page.get_by_role("button", name="获取语言模型（1,093 MB）")).to_be_visible()
    page.select_option("#compare-kind", "passages")
    page.fill("#question", "How many threads are in a warp?")
    page.get_by_role("button", name="对比", exact=True).click()
    page.locator(".ballot").get_by_role("button", name="答案 A").click()
    headings = page.locator(".arm-answer h2")
    expect(headings.first).to_contain_text("个段落")
    assert {heading.inner_text() for heading in headings.all()} == {"3 个段落", "10 个段落"}
    expect(page.locator(".tally")).to_contain_text("10 个段落")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_pasted_text_becomes_a_book_and_a_private_address_is_refused(site: Live, open_page: Open) -> None:
    page = open_page("/library", viewport={"width": 390, "height": 844}, locale="zh-CN")
    page.get_by_text("添加网页或粘贴的文本").click()
    page.get_by_label("地址").fill("http://127.0.0.1:9/")
    page.get_by_role("button", name="添加网页").click()
    noticed(page, "COALESCE_PRIVATE_URLS")
    page.get_by_label("标题").fill("Occupancy")
    page.get_by_label("文本（支持").fill("Occupancy is the share of warp slots in use.")
    page.get_by_role("button", name="添加文本").click()
    expect(page.locator(".book")).to_have_count(2)
    expect(page.locator(".book").nth(1)).to_contain_text("Occupancy.md")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_pasted_text_keeps_its_title_where_the_connection_was_dead_while_it_was_typed(
    site: Live, open_page: Open
) -> None:
    page = open_page("/library")
    page.get_by_text("Add a web page or pasted text").click()
    page.evaluate("() => { window.socket.emit = () => {}; }")
    page.get_by_label("Title").fill("Occupancy")
    page.evaluate("() => { delete window.socket.emit; }")
    page.get_by_label("Text (").fill("Occupancy is the share of warp slots in use.")
    page.get_by_role("button", name="Add the text").click()
    expect(page.locator(".book").nth(1)).to_contain_text("Occupancy.md")


def test_pasted_text_is_kept_until_it_is_added_when_the_page_comes_again(site: Live, open_page: Open) -> None:
    page = open_page("/library")
    page.get_by_text("Add a web page or pasted text").click()
    page.get_by_label("Title").fill("Occupancy")
    page.get_by_label("Text (").fill("Occupancy is the share of warp slots in use.")
    page.reload()
    expect(page.get_by_label("Title")).to_have_value("Occupancy")
    expect(page.get_by_label("Text (")).to_have_value("Occupancy is the share of warp slots in use.")
    page.get_by_role("button", name="Add the text").click()
    expect(page.locator(".book").nth(1)).to_contain_text("Occupancy.md")
    expect(page.get_by_label("Text (")).to_have_value("")
    page.reload()
    page.get_by_text("Add a web page or pasted text").click()
    expect(page.get_by_label("Text (")).to_have_value("")
    expect(page.get_by_label("Title")).to_have_value("")


def test_an_unknown_address_says_so_with_the_way_back(browser: Browser, site: Live) -> None:
    for locale, said in (("zh-CN", "没有这个页面"), ("en-US", "This page does not exist")):
        page = browser.new_page(locale=locale, viewport={"width": 390, "height": 844})
        reply = page.goto(f"{site.address}/nowhere")
        assert reply is not None and reply.status == 404
        expect(page.locator("h1")).to_have_text(said)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("main a").click()
        page.wait_for_url(f"{site.address}/")
        page.close()
