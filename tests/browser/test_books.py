"""The library, and a book to read on in."""

from __future__ import annotations

import threading
from pathlib import Path

import docx
import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, Live, wait_until
from browser_help import PHONE, QUESTION, Open, ask
from playwright.sync_api import Route, expect

from api.jobs import JobHandle
from indexes.errors import InvalidInput
from indexes.messages import msg


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


def test_a_book_that_came_since_the_books_were_listed_is_opened(site: Live, open_page: Open) -> None:
    site.shelf.put("a", "Registers are fast.", source="A")
    page = open_page("/book/a")
    expect(page.locator(".book-text")).to_contain_text("Registers are fast")
    site.shelf.put("b", "Blocks make a grid.", source="B")
    page.evaluate("history.pushState(null, '', '/book/b'); dispatchEvent(new PopStateEvent('popstate'))")
    expect(page.locator(".book-text")).to_contain_text("Blocks make a grid")
    expect(page).to_have_title("B · Coalesce")


def test_what_could_not_be_fetched_comes_when_the_server_is_back(open_page: Open) -> None:
    page = open_page("/library")
    page.route("**/contents", lambda route: route.abort())
    page.get_by_role("link", name="Sample").click()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/contents")
    expect(page.locator(".book-text")).to_contain_text("A warp is")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_book_is_sent_and_its_fault_said_although_another_view_is_opened_meanwhile(
    site: Live, open_page: Open
) -> None:
    page = open_page("/library")
    held: list[Route] = []
    page.route(
        "**/v1/documents", lambda route: held.append(route) if route.request.method == "POST" else route.continue_()
    )
    with page.expect_request(lambda request: request.method == "POST"):
        page.set_input_files("input[type=file][accept]", {"name": "b.md", "mimeType": "text/plain", "buffer": b""})
    page.get_by_role("link", name="Ask", exact=True).click()
    page.locator("#question").wait_for()
    page.on("dialog", lambda dialog: dialog.dismiss())
    with page.expect_event("dialog"):
        page.evaluate("location.reload()")
    held[0].continue_()
    page.get_by_role("link", name="Library").click()
    expect(page.locator(".upload.failed")).to_contain_text("b.md")


def test_what_was_typed_stays_while_the_server_is_gone_and_after_a_reload(site: Live, open_page: Open) -> None:
    page = open_page("/library", **PHONE, locale="zh-CN")
    page.get_by_text("添加网页或粘贴的文本").click()
    page.get_by_label("标题").fill("Occupancy")
    page.get_by_label("文本（支持").fill("Occupancy is the share of warp slots in use.")
    page.route("**/readyz", lambda route: route.abort())
    page.locator(".book-head button").click()
    with page.expect_request("**/readyz"):
        page.locator("dialog .danger").click()
    expect(page.get_by_label("标题")).to_have_value("Occupancy")
    page.unroute("**/readyz")
    page.reload()
    expect(page.get_by_label("文本（支持")).to_have_value("Occupancy is the share of warp slots in use.")
    page.get_by_role("button", name="添加文本").click()
    expect(page.locator(".book")).to_contain_text("Occupancy.md")
    expect(page.get_by_label("标题")).to_have_value("")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_folder_is_one_book_and_other_books_in_it_their_own(site: Live, open_page: Open, tmp_path: Path) -> None:
    folder = tmp_path / "Kernels"
    (folder / "part").mkdir(parents=True)
    (folder / "1-tiles.md").write_text("# Tiles\n\nA tile is staged.")
    (folder / "part" / "2-warps.md").write_text("# Warps\n\nA warp runs in lockstep.")
    document = docx.Document()
    document.add_paragraph("A block has warps.")
    document.save(str(folder / "notes.docx"))
    (folder / "picture.png").write_text("left out")
    page = open_page("/library")
    page.locator("input[webkitdirectory]").set_input_files(folder)
    expect(page.locator(".book")).to_have_count(3)
    assert {document.source for document in site.shelf.documents()} == {"Sample", "Kernels", "notes.docx"}
    (kernels,) = [document for document in site.shelf.documents() if document.title == "Kernels"]
    assert [section.heading_path[0] for section in site.shelf.sections_of(kernels.document_id)] == ["Tiles", "Warps"]


def test_a_job_that_failed_while_nobody_looked_is_said_until_it_is_dismissed(site: Live, open_page: Open) -> None:
    def fail(_: JobHandle) -> str:
        raise InvalidInput(msg("the {} is empty", "question"))

    for _ in range(2):
        job = site.services.jobs.submit("report", fail)
    wait_until(lambda: site.services.jobs.get(job.id).final, "the jobs end")
    page = open_page("/reports", locale="zh-CN")
    failed = page.locator(".upload.failed")
    expect(failed.first).to_contain_text("问题是空的")
    failed.first.get_by_role("button").click()
    expect(failed).to_have_count(0)
    page.reload()
    page.locator("h1").wait_for()
    expect(failed).to_have_count(0)
    assert [job for job in site.services.jobs.list() if job.kind == "report" and job.state == "failed"] == []


BOOK = (
    "A warp is a group of neighbouring threads that a scheduler issues together. "
    "Every line of the second-level cache on the chip holds 128 bytes in four sectors. "
    "`cudaMemcpyAsync` queues a transfer and gives control back to the host at once."
)


def test_a_book_of_ones_own_is_examined_and_its_guide_leads_into_it(site: Live, open_page: Open) -> None:
    page = open_page("/library")
    own = {"name": "own.md", "mimeType": "text/markdown", "buffer": BOOK.encode()}
    page.set_input_files(".drop input[accept]", own)
    card = page.locator(".card.book", has_text="own.md")
    card.get_by_role("button", name="Make questions").click()
    expect(page.locator(".upload")).to_contain_text("questions were made")
    card.get_by_role("link", name="Take an exam").click()
    page.get_by_role("button", name="Start the exam").click()
    page.get_by_role("button", name="Show as a list").click()
    page.locator(".question", has_text="____ queues").locator("textarea").fill("cudaMemcpyAsync")
    page.get_by_role("button", name="Hand in").click()
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".mark.right")).to_have_count(1)
    expect(page.locator(".mark.wrong .proof mark").first).to_be_visible()
    page.get_by_role("link", name="Library").click()
    card.get_by_role("link", name="Study guide").click()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download as Markdown").click()
    assert "- **warp**: A warp is a group" in saved.value.path().read_text("utf-8")
    page.locator(".guide-list dd", has_text="A warp is a group").get_by_role("link").click()
    expect(page.locator(".book-text mark").first).to_contain_text("A warp is a group")


@pytest.mark.parametrize("late", [["/v1/documents"], ["/readyz"], ["/v1/documents", "/readyz"]])
def test_a_page_is_drawn_although_the_server_becomes_ready_between_its_calls(
    site: Live, open_page: Open, late: list[str]
) -> None:
    page = open_page()
    starting = {
        "error": {"type": "not_ready", "message": "", "hint": ""},
        "status": "starting",
        "waiting_for": "a step",
    }
    for path in late:
        page.route(f"**{path}", lambda route: route.fulfill(status=503, json=starting), times=1)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    with page.expect_response(lambda reply: reply.url.endswith("/readyz") and reply.ok):
        page.goto(f"{site.address}/library")
    expect(page.locator(".drop")).to_be_visible()
    assert faults == []
