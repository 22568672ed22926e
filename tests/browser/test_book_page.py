"""Reading on: from a citation into the book, through its chapters, and with a search inside it."""

from __future__ import annotations

from api_fakes import SAMPLE_ID, Live
from browser_help import Open, ask
from playwright.sync_api import expect


def test_a_citation_leads_into_the_book_and_on_to_the_next_chapter(site: Live, open_page: Open) -> None:
    more = (
        "```cuda\nint warps = 32;\n```\n"
        + "Occupancy is the share of a multiprocessor's warp slots that are in use. " * 6
    )
    site.shelf.extend(SAMPLE_ID, more, path=("Occupancy",), chapter=2)
    page = open_page("/", viewport={"width": 390, "height": 844}, locale="zh-CN")
    ask(page, "How many threads are in a warp?")
    expect(page.locator(".next-questions button")).to_contain_text("Occupancy")
    page.click(".answer .cite")
    page.get_by_role("link", name="在书中继续阅读").click()
    expect(page.locator(".book-text mark").first).to_contain_text("32 threads")
    expect(page.locator(".book-text mark").first).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".turn-next").press("Enter")  # a press of the mouse may miss it while the page scrolls to the mark
    expect(page.locator(".book-text")).to_contain_text("Occupancy is the share")
    page.fill("#book-search", "group of 32 threads")
    page.press("#book-search", "Enter")
    expect(page.locator(".book-found")).to_contain_text("int warps = 32; Occupancy")
    expect(page.locator(".book-found")).not_to_contain_text("```")
    page.locator(".found-link", has_text="32 threads").click()
    expect(page.locator(".book-text mark").first).to_contain_text("lockstep")
    page.goto(f"{site.address}/library")
    page.get_by_role("link", name="Sample").click()
    expect(page.locator(".book-contents")).to_contain_text("Chapter")
