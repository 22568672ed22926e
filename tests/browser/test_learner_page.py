"""The page where keys are asked for: signing in as a learner, what a learner sees, signing out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_fakes import PATIENCE_S, Live, running
from browser_help import ask
from playwright.sync_api import Browser, Page, expect

from api.settings import load_settings

KEYS = {"api_keys": "teacher-key", "learner_keys": "alice=alices-key,bob=bobs-key"}
QUESTION = "How many threads are in a warp?"


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with running(load_settings({"home": tmp_path_factory.mktemp("home"), **KEYS})) as live:
        yield live


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(locale="en-US", reduced_motion="reduce") as context:
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE_S * 1000)
        yield opened


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)


def sign_out(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").wait_for()


def test_a_key_is_asked_for_over_the_page_and_what_was_typed_stays(page: Page, school: Live) -> None:
    page.goto(school.address)
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("dialog .problem")).to_contain_text("This key is not known")
    page.keyboard.press("Escape")
    sign_in(page, "alices-key")
    page.fill("#question", QUESTION)
    expect(page.locator(".views a")).to_have_text(["Ask", "Library", "Study"])
    page.context.clear_cookies()
    page.press("#question", "Enter")
    sign_in(page, "alices-key")
    expect(page.locator("#question")).to_have_value(QUESTION)
    page.press("#question", "Enter")
    page.locator(".answer-tools").wait_for()
    page.get_by_role("button", name="Delete all").click()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".conversation")).to_have_count(0)
    sign_out(page)


@pytest.mark.parametrize(
    "wanted", ["/docs", "//evil.test", "https://evil.test", "/\\evil.test", "javascript:alert(1)", "//"]
)
def test_who_signs_in_goes_on_to_what_they_asked_for_on_this_server_only(page: Page, school: Live, wanted: str) -> None:
    if wanted == "/docs":
        page.goto(f"{school.address}{wanted}")
    else:
        page.goto(f"{school.address}/login?next={wanted}")
    page.get_by_label("API key").wait_for()
    assert page.url.startswith(f"{school.address}/login?next=")
    page.get_by_label("API key").fill("teacher-key")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{school.address}{'/docs' if wanted == '/docs' else '/'}")


def test_a_learner_sees_their_own_things_and_no_others(page: Page, school: Live) -> None:
    page.goto(school.address)
    sign_in(page, "alices-key")
    ask(page, QUESTION)
    page.wait_for_url("**/c/*")
    alices = page.url
    page.goto(f"{school.address}/study")
    expect(page.locator(".learner summary")).to_have_text("Learner: alice")
    page.locator(".learner summary").click()
    expect(page.locator(".learner")).to_contain_text("nobody else's")
    expect(page.get_by_label("Name of the learner")).to_have_count(0)
    page.get_by_role("button", name="Start the exam").click()
    page.locator(".question").first.wait_for()
    exam = page.url
    sign_out(page)

    sign_in(page, "bobs-key")
    expect(page.locator(".conversations")).to_contain_text("What you ask is kept here.")
    # The name in the cookie of a browser without a learner's key counts for nothing here.
    page.context.add_cookies([{"name": "coalesce_learner", "value": "alice", "url": school.address}])
    for foreign in (alices, exam, f"{school.address}/settings"):
        page.goto(foreign)
        expect(page.get_by_role("heading", name="This page does not exist")).to_be_visible()
    page.goto(f"{school.address}/study")
    expect(page.locator(".learner summary")).to_have_text("Learner: bob")
    sign_out(page)

    sign_in(page, "teacher-key")
    expect(page.locator(".conversation")).to_have_count(1)
    page.goto(f"{school.address}/study")
    page.locator(".learner summary").click()
    page.get_by_label("Name of the learner").fill("alice")
    page.keyboard.press("Enter")
    expect(page.locator(".learner summary")).to_have_text("Learner: alice")
    expect(page.locator(".exam-list li")).to_have_count(1)


def test_a_learner_reads_the_library_and_cannot_change_it(page: Page, school: Live) -> None:
    page.goto(f"{school.address}/library")
    sign_in(page, "alices-key")
    expect(page.locator(".book")).to_have_count(1)
    expect(page.locator(".drop")).to_have_count(0)
    expect(page.get_by_role("button", name="Remove Sample")).to_have_count(0)
