"""Comparisons, votes, reports, tuning, and what answers."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from api_fakes import PATIENCE_S, Live, wait_until
from browser_help import PHONE, QUESTION, Gate, Open, ask, begin
from fake_engine import MODEL, fake_engine
from playwright.sync_api import expect

from api.jobs import JobHandle
from api.services import REPORT
from api.settings import load_settings
from evals.arms import parse_arms
from evals.comparison import compare
from evals.questions import parse_question
from evals.records import Record
from evals.report import RunFacts, report_data, write_report
from evals.run import RunSpec
from evals.scoring import score_records
from indexes.errors import Cancelled
from rag.models import home
from rag.tuning.settings import TuneProgress


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
    expect(page.get_by_role("link", name="获取或选择模型").first).to_have_attribute("href", "/settings")
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

    def compared(handle: JobHandle, **_: Any) -> str:
        handle.progress(3, 48, "asking")
        gate.wait(PATIENCE_S)
        if handle.cancelled():
            raise Cancelled("the comparison was cancelled")
        write_report(reports / "one", a_report())
        return "one"

    monkeypatch.setitem(site.services.jobs._errands, REPORT, (compared, lambda **_: None))
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


def test_a_comparison_is_followed_after_a_reload_and_stays_blind(site: Live, open_page: Open) -> None:
    gate = Gate(site, 1)
    page = open_page("/compare")
    begin(page)
    columns = page.locator(".arm-answer")
    expect(columns.first).to_contain_text("A warp has")
    page.reload()
    expect(page.locator("#question")).to_have_value(QUESTION)
    expect(columns.first).to_contain_text("A warp has")
    gate.open()
    page.locator(".ballot").get_by_role("button", name="Answer B").click()
    expect(page.locator(".ballot")).to_contain_text("Kept")
    assert {heading.inner_text() for heading in columns.locator("h2").all()} == {"model alone", "model with the books"}
    assert len(site.generator.requests) == 2
    page.goto(f"{site.address}/compare?run=unknown")
    page.wait_for_url(f"{site.address}/compare")


def test_another_model_answers_after_a_press_in_settings(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = site.services.engine
    with fake_engine() as engine:
        monkeypatch.setattr(home, "ENGINE_PORTS", {"Ollama": engine.server_address[1]})
        page = open_page("/settings", **PHONE, locale="zh-CN")
        page.get_by_role("button", name=f"使用: {MODEL}").click()
        expect(page.locator(".model.current")).to_contain_text(MODEL)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        site.services.engine.answers = "free"
        page.get_by_role("link", name="提问").click()
        ask(page, QUESTION)
        expect(page.locator(".answer")).to_contain_text("says the engine")
    page.goto(f"{site.address}/settings")
    expect(page.locator(".problem")).to_contain_text("现在没有响应")
    site.services.use_engine(before)
