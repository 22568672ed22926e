"""A book of one's own: uploaded, asked about, examined, marked."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from api_fakes import Live, wait_until
from browser_help import Open, drawn, noticed
from playwright.sync_api import expect

from api.chosen_generator import GeneratorChoice
from api.jobs import JobHandle
from evals.questions import own_question
from indexes.errors import InvalidInput
from rag.tuning.settings import TuneProgress

BOOK = (
    "A warp is a group of neighbouring threads that a scheduler issues together. "
    "Every line of the second-level cache on the chip holds 128 bytes in four sectors. "
    "`cudaMemcpyAsync` queues a transfer and gives control back to the host at once."
)


def test_an_exam_on_an_uploaded_book_goes_to_its_marks(site: Live, open_page: Open) -> None:
    page = open_page("/library")
    page.context.add_cookies([{"name": "coalesce_learner", "value": uuid4().hex, "url": site.address}])
    own = {"name": "own.md", "mimeType": "text/markdown", "buffer": f"{BOOK} {uuid4().hex}".encode()}
    page.set_input_files(".drop input[accept]", own)
    card = page.locator(".card.book", has_text="own.md")
    card.get_by_role("button", name="Make questions").click()
    noticed(page, "questions were made")
    expect(card).to_contain_text(re.compile(r"\d questions"))
    card.get_by_role("link", name="Take an exam").click()
    expect(page.locator(".question-files select")).to_have_value(re.compile("book:"))
    page.get_by_role("button", name="Start the exam").click()
    page.wait_for_url(re.compile(r"/study/exam/exam-\w+"))
    page.get_by_role("button", name="Show as a list").click()
    expect(page.get_by_role("button", name="Show one at a time")).to_be_visible()
    number = page.locator(".question", has_text="____ bytes")
    number.locator("textarea").fill("128")
    number.locator("textarea").press("Tab")
    expect(page.locator(".sitting-head")).to_contain_text("1 of ")
    page.get_by_role("button", name="Hand in").click()
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".mark.right")).to_have_count(1)
    expect(page.locator(".mark.wrong .proof mark").first).to_be_visible()
    expect(page.locator(".mark.wrong .proof").first).to_contain_text("Own")
    page.get_by_role("link", name="Progress", exact=True).first.click()
    expect(page.locator("main select")).to_have_value(re.compile(r"\w{16}"))
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("1 right of 3 seen")


def test_a_book_without_questions_offers_to_make_them_where_exams_begin(site: Live, open_page: Open) -> None:
    site.shelf.put("fresh", f"{BOOK} Again.", source="fresh.md")
    page = open_page("/study?book=fresh")
    page.get_by_role("button", name="Make questions").click()
    noticed(page, "questions were made")
    page.get_by_role("button", name="Start the exam").click()
    page.wait_for_url(re.compile(r"/study/exam/exam-\w+"))


def test_a_guide_leads_into_the_book_and_leaves_as_markdown(site: Live, open_page: Open) -> None:
    site.shelf.put("guided", BOOK, source="guided.md")
    page = open_page("/library", viewport={"width": 390, "height": 844})
    card = page.locator(".card.book", has_text="guided.md")
    card.get_by_role("link", name="Study guide").click()
    entry = page.locator(".guide-list dd", has_text="A warp is a group")
    expect(entry).to_be_visible()
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download as Markdown").click()
    assert "- **warp**: A warp is a group" in saved.value.path().read_text("utf-8")
    entry.get_by_role("link").click()
    expect(page.locator(".book-text mark").first).to_contain_text("A warp is a group")


def test_an_adapter_is_tuned_on_a_books_questions_and_offered_for_comparison(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(model: str, rows: Any, out: Path, settings: Any, progress: Any, cancelled: Any) -> str:
        out.mkdir(parents=True)
        progress(TuneProgress(1, 1, 2.0, None, 10.0))
        return f"1 step on {len(rows)} rows"

    monkeypatch.setattr(site.services.adapters, "_tune", tune)
    monkeypatch.setattr(site.services.generators, "choice", GeneratorChoice(generator="local", model="tiny"))
    document = site.shelf.put("tuned", f"{BOOK} Tuned.", source="tuned.md")
    question = own_question("Which threads issue together?", "neighbouring ones", BOOK[:74], title="tuned.md")
    made = [replace(question, id=f"made-{n}", book="tuned", section=f"s{n}") for n in range(8)]
    site.services.questions.made.keep(document, made)
    page = open_page("/compare")
    page.get_by_text("Tune an adapter").click()
    expect(page.locator(".tuning select")).to_have_value("tuned")
    name = f"mine-{uuid4().hex[:6]}"
    page.get_by_label("Name of the adapter").fill(name)
    page.get_by_role("button", name="Tune", exact=True).click()
    noticed(page, "1 step on")
    expect(page.locator(".loss-curve")).to_be_visible()
    expect(page.get_by_role("button", name=f"Compare with {name}")).to_be_visible()


def test_tuning_that_failed_while_nobody_looked_is_said_until_it_is_dismissed(
    site: Live, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: JobHandle) -> str:
        raise InvalidInput("the server stopped before the job was done")

    monkeypatch.setattr(site.services.generators, "choice", GeneratorChoice(generator="local", model="tiny"))
    job = site.services.jobs.submit("adapter", fail, title="other")
    wait_until(lambda: site.services.jobs.get(job.id).final, "the job ends")
    page = open_page("/compare")
    expect(page.locator(".tuning .upload.failed")).to_contain_text("The server stopped")
    page.locator(".tuning").get_by_role("button", name="Dismiss").click()
    expect(page.locator(".tuning .upload.failed")).to_be_hidden()
    page.reload()
    drawn(page)
    expect(page.locator(".tuning")).not_to_have_attribute("open", "")
