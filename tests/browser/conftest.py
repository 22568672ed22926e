"""A headless Chromium and one live server with the page, over fakes: no models, real HTTP."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from api_fakes import PATIENCE_S, SAMPLE_ID, WARP, Live, running
from browser_help import Open

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from api.settings import load_settings

CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The address bar's list of suggestions, a page of its own for each window, takes more time than what is tested.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup",
]
PIECES = ("A warp has ", "32 threads [1].")
ARMS = ("base", "rag")
CALLED = ("/files/", "/v1/", "/page-image/", "/readyz")
"""What the page may ask a server for."""
TIMEOUT_MS = PATIENCE_S * 1000
expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests; without one they are skipped."""
    path = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGUMENTS, timeout=TIMEOUT_MS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for the tests of a process; `site` puts it back in order."""
    with running(load_settings({"home": tmp_path_factory.mktemp("home")})) as live:
        yield live


@pytest.fixture
def site(server: Live) -> Iterator[Live]:
    """The server as it was at the beginning: the sample book alone, no conversation, no card, the usual answer."""
    _reset(server)
    yield server
    server.generator.before_piece = lambda index: None


def _reset(server: Live) -> None:
    """The sample book alone, no conversation, the usual answer."""
    generator, shelf = server.generator, server.shelf
    generator.pieces, generator.arms, generator.refused, generator.finish = PIECES, ARMS, False, "stop"
    generator.before_piece = lambda index: None
    generator.requests.clear()
    shelf.before_step = lambda step: None
    shelf.clear()
    shelf.put(SAMPLE_ID, WARP, source="Sample", sample=True, pages=True)
    store, study = server.services.engine.conversations, server.services.study
    store.delete_all()
    for card in study.cards():
        study.delete_card(card.id)
    server.services.jobs.forget_before(datetime.now(UTC))


class Watch:
    """What went wrong in a page: errors of its scripts, and requests that left the server."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.paths: set[str] = set()
        """What the page asked for."""

    def follow(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._hear)
        page.on("request", self._check)

    def _hear(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text or "TrustedHTML" in message.text:
            self.errors.append(message.text)

    def _check(self, request: Request) -> None:
        if not request.url.startswith(self._address):
            self.strangers.append(request.url)
        elif not request.is_navigation_request() and not request.headers.get("referer", "").endswith("/docs"):
            self.paths.add(urlsplit(request.url).path)


class Profiles:
    """Browser profiles by their options, emptied after a test and used again: their scripts are compiled already."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[str, list[BrowserContext]] = {}

    @contextmanager
    def one(self, options: dict[str, Any]) -> Iterator[BrowserContext]:
        """A profile that nobody else has while this one is open."""
        free = self._free.setdefault(repr(sorted(options.items())), [])
        context = free.pop() if free else self._browser.new_context(**options)
        yield context
        for page in context.pages:
            page.close()
        context.clear_cookies()
        free.append(context)


@pytest.fixture(scope="session")
def profiles(browser: Browser) -> Profiles:
    return Profiles(browser)


@pytest.fixture
def open_page(profiles: Profiles, site: Live) -> Iterator[Open]:
    """Opens a path of the page in an empty profile or in `context`, without animations; at the end no script failed, no
    policy was broken, and nothing but REST was called."""
    watch = Watch(site.address)
    with ExitStack() as stack:

        def opened(path: str = "/", *, context: BrowserContext | None = None, **options: Any) -> Page:
            if context is None:
                options = {"locale": "en-US", "reduced_motion": "reduce", **options}
                context = stack.enter_context(profiles.one(options))
            page = context.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            watch.follow(page)
            page.goto(site.address + path)
            page.locator("main > *").first.wait_for()
            return page

        yield opened
    assert watch.errors == []
    assert watch.strangers == [], "a request left this machine"
    assert [path for path in watch.paths if not path.startswith(CALLED)] == [], "not a call of REST"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here drives a browser, and comes last: while one is driven, no other test of the process may run an
    event loop. Files with the most tests come first, so that no process is left with one."""
    here = Path(__file__).parent
    tests_in = Counter(item.path for item in items if here in item.path.parents)
    for item in items:
        if item.path in tests_in:
            item.add_marker(pytest.mark.browser)
    items.sort(key=lambda item: (item.path in tests_in, -tests_in[item.path]))
