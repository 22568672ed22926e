"""Measures the page; not a test. `python tests/browser/measure_page.py` prints figures, the last line as JSON.

* interactive_s: from the first 200 of `/readyz` of a real server with an existing library to a page whose question box
  takes a question (navigation begun at that moment, browser running, its cache empty).
* first_text_ms: from the engine's first piece of text to that text in the browser's document, over fakes.
* lists_ms: REST calls over fakes, until the whole body is there: 1,000 questions of a question file, 1,000 asked of the
  bundled bank, 5,000 due cards; and the view of the cards, until its first card is drawn.
* idle_mib_for_50: growth of the server's memory (proportional set size) with 50 idle pages, over fakes.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests")]

import httpx
import psutil
from api_fakes import FakeBuilder, Live, running
from conftest import CHROMIUM_ARGUMENTS
from fakes import ScriptedGenerator
from playwright.sync_api import Browser, Page, sync_playwright

from api.settings import load_settings
from evals.exam import Result
from evals.learners import DEFAULT_LEARNER
from evals.questions import load_bank
from evals.study_store import StoredExam, StudyStore

REPEATS = 20
PAGES = 50
PORT = 18_977
WATCH = """() => { window.seen = 0; new MutationObserver(() => {
  const text = [...document.querySelectorAll('.answer')].at(-1)?.textContent || '';
  if (!window.seen && text.includes('first words')) window.seen = performance.timeOrigin + performance.now();
}).observe(document.body, {childList: true, subtree: true, characterData: true}); }"""


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM_ARGUMENTS)
        figures: dict[str, Any] = {"interactive_s": interactive(browser, sys.argv[1])} if len(sys.argv) > 1 else {}
        figures |= over_fakes(browser)
        browser.close()
    print(json.dumps(figures))


def interactive(browser: Browser, home: str) -> list[float]:
    """Three starts of a real server over an existing home."""
    found = []
    for _ in range(3):
        environment = os.environ | {"COALESCE_HOME": home, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "api.cli", "serve", "--port", str(PORT)]
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
        address = f"http://127.0.0.1:{PORT}"
        while not _ready(address):
            time.sleep(0.02)
        started = time.perf_counter()
        page = browser.new_page()
        page.goto(address, wait_until="commit")
        page.locator("#question").wait_for()
        found.append(round(time.perf_counter() - started, 3))
        page.close()
        process.terminate()
        process.wait(30)
    return found


def _ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def over_fakes(browser: Browser) -> dict[str, Any]:
    times: list[float] = []
    begun: list[float] = []
    generator = ScriptedGenerator(("first words ", "and more [1]."), before_piece=lambda index: _note(index, begun))
    with (
        tempfile.TemporaryDirectory() as home,
        running(load_settings({"home": Path(home) / "home"}), FakeBuilder(generator)) as live,
    ):
        page = browser.new_page()
        for _ in range(REPEATS):
            page.goto(live.address)
            page.locator("#question").wait_for()
            page.evaluate(WATCH)
            begun.clear()
            page.fill("#question", "How many threads are in a warp?")
            page.press("#question", "Enter")
            page.locator(".answer-tools").wait_for()
            times.append(page.evaluate("window.seen") - 1000 * begun[0])
        gc.freeze()  # as `coalesce serve` does when it is ready
        lists = lists_ms(live, page)
        process = psutil.Process()
        page.close()
        gc.collect()
        before = process.memory_full_info().pss
        context = browser.new_context()
        for _ in range(PAGES):
            tab = context.new_page()
            tab.goto(live.address)
            tab.locator("#question").wait_for()
        time.sleep(3)
        grown = process.memory_full_info().pss - before
        context.close()
    return {
        "first_text_ms": {
            "median": round(statistics.median(times), 1),
            "worst": round(max(times), 1),
            "n": len(times),
        },
        "idle_mib_for_50": round(grown / 2**20, 1),
        "lists_ms": lists,
    }


def lists_ms(live: Live, page: Page) -> dict[str, dict[str, float]]:
    """A bank of 1,000 questions and 5,000 due cards, made here."""
    bank = load_bank()
    lines = [json.dumps(asdict(bank[number % len(bank)]) | {"id": f"q{number}"}) for number in range(1000)]
    content = "\n".join(lines).encode()
    live.client.post("/v1/questions/files", files={"file": ("thousand.jsonl", content)}).raise_for_status()
    missed = [replace(bank[number % len(bank)], id=f"c{number}") for number in range(5000)]
    now = datetime.now(UTC)
    with closing(StudyStore(live.services.settings.study_place)) as store:
        exam = StoredExam("measured", DEFAULT_LEARNER, now, None, ())
        store.add_exams([exam])
        store.close_exam(exam, Result(()), [], missed, now)

    def call(path: str, key: str, number: int) -> float:
        started = time.perf_counter()
        found = live.client.get(path).json()[key]
        seconds = time.perf_counter() - started
        assert len(found) == number
        return seconds

    def view() -> float:
        started = time.perf_counter()
        page.goto(f"{live.address}/study/cards", wait_until="commit")
        page.locator(".flashcard").wait_for()
        return time.perf_counter() - started

    calls = {
        "1000_of_a_file": lambda: call("/v1/questions?limit=1000&question_file=thousand.jsonl", "questions", 1000),
        "whole_bank": lambda: call("/v1/questions?limit=5000", "questions", len(bank)),
        "5000_due_cards": lambda: call("/v1/cards/due?limit=5000", "cards", 5000),
        "cards_view": view,
    }
    found = {name: sorted(1000 * measure() for _ in range(REPEATS)) for name, measure in calls.items()}
    return {
        name: {"median": round(statistics.median(times), 1), "worst": round(times[-1], 1)}
        for name, times in found.items()
    }


def _note(index: int, begun: list[float]) -> None:
    if index == 0:
        begun.append(time.time())


if __name__ == "__main__":
    main()
