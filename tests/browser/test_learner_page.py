"""The page where keys are asked for: signing in as a learner, what a learner sees, signing out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_fakes import PATIENCE_S
from browser_help import ask, drawn
from playwright.sync_api import Browser, Page, expect

SERVER = Path(__file__).with_name("keyed_server.py")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    paths = os.pathsep.join(str(SERVER.parents[levels]) for levels in (2, 1))
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait(PATIENCE_S)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(locale="en-US") as context:
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE_S * 1000)
        yield opened


def sign_in(page: Page, address: str, key: str) -> None:
    page.goto(address)
    page.wait_for_url("**/login")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Open").click()


def go(page: Page, address: str) -> None:
    page.goto(address)
    drawn(page)


def sign_out(page: Page, address: str) -> None:
    go(page, f"{address}/settings")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")


def test_a_wrong_key_says_so_in_the_readers_language(browser: Browser, address: str) -> None:
    with browser.new_context(locale="zh-CN") as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.goto(address)
        page.get_by_label("API 密钥").fill("wrong")
        page.get_by_role("button", name="进入").click()
        expect(page.get_by_role("alert")).to_have_text("密钥无效。")


def test_a_learner_sees_their_own_things_and_no_others(page: Page, address: str) -> None:
    sign_in(page, address, "alices-key")
    page.locator("#question").wait_for()
    ask(page, "How many threads are in a warp?")
    alices = page.url
    go(page, f"{address}/study")
    expect(page.locator(".learner summary")).to_have_text("Learner: alice")
    page.locator(".learner summary").click()
    expect(page.locator(".learner")).to_contain_text("nobody else's")
    expect(page.get_by_label("Name of the learner")).to_have_count(0)
    page.get_by_role("button", name="Start the exam").click()
    page.locator(".question").first.wait_for()
    exam = page.url
    sign_out(page, address)

    sign_in(page, address, "bobs-key")
    page.locator("#question").wait_for()
    expect(page.locator(".conversations")).to_contain_text("What you ask is kept here.")
    # The name in the cookie of a browser without a learner's key counts for nothing here.
    page.context.add_cookies([{"name": "coalesce_learner", "value": "alice", "url": address}])
    for foreign in (alices, exam):
        go(page, foreign)
        expect(page.get_by_role("heading", name="This page does not exist")).to_be_visible()
    expect(page.locator(".learner summary")).to_have_text("Learner: bob")
    sign_out(page, address)

    sign_in(page, address, "teacher-key")
    page.locator("#question").wait_for()
    expect(page.locator(".conversation")).to_have_count(1)
    go(page, f"{address}/study")
    page.locator(".learner summary").click()
    page.get_by_label("Name of the learner").fill("alice")
    page.keyboard.press("Enter")
    expect(page.locator(".learner summary")).to_have_text("Learner: alice")
    expect(page.locator(".exam-list li")).to_have_count(1)


def test_a_learner_reads_the_library_and_cannot_change_it(page: Page, address: str) -> None:
    sign_in(page, address, "alices-key")
    page.locator("#question").wait_for()
    go(page, f"{address}/library")
    expect(page.locator(".book")).to_have_count(1)
    expect(page.locator(".drop")).to_have_count(0)
    expect(page.get_by_role("button", name="Remove Sample")).to_have_count(0)
    go(page, f"{address}/settings")
    expect(page.locator("tr", has_text="API key")).to_contain_text("alice")
