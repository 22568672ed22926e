"""Adding a book that is no file: a page of the web or a sitemap by its address, or pasted text."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

from api.pages.controls import button, field, set_attributes, tag, text_area, text_box, toast
from api.pages.frame import Visit
from api.uploads import Taken
from indexes.errors import CoalesceError

MOST_PASTED = 2_000_000
NAME_CHARS = 60


class AddBook:
    """Drawn where it is made, folded away."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        self._url = self._text = self._title = ""
        self._busy = False
        with tag("details", "", "add-other"):
            tag("summary", self._t("library.other"))
            with tag("form", "", "add-form") as by_url:
                with field(self._t("library.url")):
                    box = text_box(self._keep_url, kind="url", event="input", maxlength="2000")
                    set_attributes(box, placeholder="https://")
                button(self._t("library.fetch"), self._fetch)
                self._fetching = tag("p", "", "soft", role="status")
            by_url.on("submit.prevent", self._fetch, args=[])
            with tag("div", "", "add-form"):
                with field(self._t("library.paste_title")):
                    text_box(self._keep_title, event="input", maxlength=str(NAME_CHARS))
                with field(self._t("library.paste")):
                    text_area(self._keep_text, rows="4", maxlength=str(MOST_PASTED))
                button(self._t("library.add_text"), self._add_text)

    def _keep_url(self, text: str) -> None:
        self._url = text.strip()

    def _keep_title(self, text: str) -> None:
        self._title = text.strip()

    def _keep_text(self, text: str) -> None:
        self._text = text

    async def _fetch(self) -> None:
        if self._url and not self._busy:
            self._busy = True
            self._fetching.set_text(self._t("library.fetching"))
            await self._add(lambda: self._visit.services.fetch_book(self._url))
            self._busy = False
            self._fetching.set_text("")

    async def _add_text(self) -> None:
        if self._text.strip():
            name = "".join(c if c.isalnum() or c in " -_" else " " for c in self._title).strip() or "text"
            content = io.BytesIO(self._text.encode())
            await self._add(lambda: self._visit.services.books.upload(content, f"{name}.md"))

    async def _add(self, add: Callable[[], Taken]) -> None:
        try:
            taken = await asyncio.to_thread(add)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        if not taken.new:
            toast(self._t("upload.there"))
