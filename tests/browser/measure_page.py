"""Measures the page; not a test. `python tests/browser/measure_page.py` prints figures, the last line as JSON.

* interactive_s: from the first 200 of `/readyz` of a real server with an existing library to a page whose question box
  takes a question (navigation begun at that moment, browser running, its cache empty).
* first_text_ms: from the engine's first piece of text to that text in the browser's document, over fakes.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

import httpx
import psutil
from api_fakes import FakeBuilder, running
from conftest import CHROMIUM_ARGUMENTS
from fakes import ScriptedGenerator
from playwright.sync_api import Browser, sync_playwright

from api.settings import load_settings

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
        page.wait_for_function("window.did_handshake === true && document.querySelector('#question') !== null")
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
        running(load_settings({"home": Path(home) / "home"}), FakeBuilder(generator), pages=True) as live,
    ):
        page = browser.new_page()
        for _ in range(REPEATS):
            page.goto(live.address)
            page.wait_for_function("window.did_handshake === true")
            page.evaluate(WATCH)
            begun.clear()
            page.fill("#question", "How many threads are in a warp?")
            page.press("#question", "Enter")
            page.wait_for_function("window.seen > 0")
            times.append(page.evaluate("window.seen") - 1000 * begun[0])
            page.locator(".answer-tools").wait_for()
        process = psutil.Process()
        page.close()
        time.sleep(25)  # the server forgets the pages that were closed
        gc.collect()
        before = process.memory_full_info().pss
        context = browser.new_context()
        for _ in range(PAGES):
            tab = context.new_page()
            tab.goto(live.address)
            tab.wait_for_function("window.did_handshake === true")
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
    }


def _note(index: int, begun: list[float]) -> None:
    if index == 0:
        begun.append(time.time())


if __name__ == "__main__":
    main()
