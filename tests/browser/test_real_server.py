"""The page of a real `coalesce serve`: a chapter of the sample book, the embedded model, one question, one source."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api_fakes import PATIENCE_S, wait_until
from playwright.sync_api import Browser, expect

from api.services import SAMPLE_MARKER

pytestmark = pytest.mark.integration
START_TIMEOUT_S = 120.0
CHAPTER = Path(__file__).parents[2] / "indexes" / "sample_book" / "04-compute-architecture-and-scheduling.md"


def answers(address: str, path: str, status: int) -> bool:
    try:
        return httpx.get(address + path, timeout=PATIENCE_S).status_code == status
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own process over an empty home; it may still be getting ready.

    The home says that the sample book was removed: embedding the whole of it would take most of this suite's time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home: Path = tmp_path_factory.mktemp("home")
    (home / SAMPLE_MARKER).touch()
    environment = os.environ | {"COALESCE_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "api.cli", "serve", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
        )
        try:
            found = f"http://127.0.0.1:{port}"
            wait_until(lambda: answers(found, "/healthz", 200), "the server answers")
            yield found
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@pytest.mark.timeout(300)
def test_a_page_opened_too_early_becomes_ready_takes_a_book_and_answers_from_it(browser: Browser, address: str) -> None:
    page = browser.new_page(locale="en-US")
    page.set_default_timeout(START_TIMEOUT_S * 1000)
    page.goto(address + "/library")
    page.locator("main > *").first.wait_for()
    expect(page.locator("main")).to_contain_text("Drop books here", timeout=START_TIMEOUT_S * 1000)  # else it is told
    assert answers(address, "/readyz", 200)
    expect(page.locator(".empty")).to_contain_text("The library is empty")
    page.set_input_files("input[type=file][accept]", CHAPTER)
    expect(page.locator(".book")).to_contain_text(CHAPTER.name, timeout=START_TIMEOUT_S * 1000)
    page.goto(address)
    page.fill("#question", "What happens when the threads of one warp take different sides of a branch?")
    page.press("#question", "Enter")
    page.locator(".answer-tools").wait_for()
    page.wait_for_url(re.compile(r"/c/\w+"))
    page.locator(".answer .cite").first.click()
    expect(page.locator("#source mark").first).to_be_visible()
    page.close()
