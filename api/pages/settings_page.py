"""`/settings`: what answers, and a switch to something else; what runs, with the command that changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import setitem

from fastapi import Request
from nicegui import ui
from nicegui.element import Element

from api.chosen_generator import GeneratorChoice
from api.generator import Answers
from api.jobs import Job
from api.pages.controls import button, field, link, select, set_attributes, tag
from api.pages.frame import Visit, open_view, sign_out
from api.pages.job_row import JobSlot
from rag.models.home import FoundModel, Inventory

COMMANDS = {
    "generator": "coalesce serve --generator local --model PATH",
    "model": "coalesce serve --generator remote --base-url URL --model NAME",
    "quantization": "coalesce serve --generator local --model PATH --quantization none|int8|nf4",
    "adapters": "coalesce serve --generator local --model PATH --adapter NAME=FOLDER",
    "arms": "coalesce tune --model PATH --data FILE --out FOLDER",
    "embedder": "COALESCE_EMBEDDER=NAME coalesce serve",
    "faiss": "make serve GPU=1",
    "books": "coalesce add PATH",
    "home": "COALESCE_HOME=FOLDER coalesce serve",
    "address": "coalesce serve --host HOST --port PORT",
    "keys": "COALESCE_API_KEYS=KEY COALESCE_LEARNER_KEYS=NAME=KEY,NAME=KEY coalesce serve",
}
QUANTIZATIONS = ("none", "int8", "nf4")


@ui.page("/settings")
def settings(request: Request) -> None:
    open_view(request, "settings", _show)


def _show(visit: Visit) -> None:
    t = visit.t
    tag("h1", t("nav.settings"))
    if visit.owner is None:
        choice = _AnsweringChoice(visit, lambda: _fill(visit, body))
        choice.resume()
        ui.timer(0, choice.look, once=True)
    tag("p", t("settings.lead"), "lead")
    with (
        tag(
            "div",
            "",
            "card table-box stacked settings-table",
            tabindex="0",
            role="region",
            aria_label=t("nav.settings"),
        ),
        tag("table"),
    ):
        with tag("thead"), tag("tr"):
            for name in ("what", "now", "change"):
                tag("th", t(f"settings.{name}"), scope="col")
        body = tag("tbody")
    _fill(visit, body)
    with tag("div", "", "row"):
        link(t("settings.api"), "/docs")
        sign_out(visit)


def _fill(visit: Visit, body: Element) -> None:
    """Draws the rows of what runs now."""
    t = visit.t
    body.clear()
    with body:
        for name, value in _values(visit).items():
            if value is None:
                continue
            with tag("tr"):
                tag("th", t(f"settings.{name}"), scope="row")
                tag("td", value)
                with tag("td", "", "command-cell"):
                    tag("code", COMMANDS[name])
                    copy = button("", kind="quiet", icon_name="copy", label=t("settings.copy", command=COMMANDS[name]))
                    set_attributes(copy, data_copy=COMMANDS[name], data_copied=t("copied"))


def _values(visit: Visit) -> dict[str, str | None]:
    """What runs now, by the names of `COMMANDS`; None where it has no meaning."""
    t = visit.t
    running = visit.services.runtime_info()
    server = visit.services.settings
    return {
        "generator": t.either(f"generator.{running['generator']}", running["generator"]),
        "model": running["model"] if running["generator"] != "extractive" else None,
        "quantization": running["quantization"],
        "adapters": ", ".join(running["adapters"]) or t("settings.no_adapter"),
        "arms": ", ".join(t(f"arm.{arm}") for arm in running["arms"]),
        "embedder": running["embedder"],
        "faiss": t(f"faiss.{running['faiss_device']}"),
        "books": t(
            "settings.book_count",
            books=t.count("library.books_count", running["documents"]),
            nodes=t.count("library.nodes", running["nodes"]),
        ),
        "home": str(server.home),
        "address": f"{server.host}:{visit.services.generators.own_port}",
        "keys": t(f"settings.{_key_state(visit)}", name=visit.owner or ""),
    }


def _key_state(visit: Visit) -> str:
    if not visit.services.settings.asks_for_keys:
        return "without_key"
    return "with_key" if visit.owner is None else "learner_key"


class _AnsweringChoice:
    """What answers: the engines and models found, each with a button that switches to it.

    Drawn where it is made; looks around when it is drawn and again after every switch.

    Args:
        on_switch: called when something else answers.
    """

    def __init__(self, visit: Visit, on_switch: Callable[[], None]) -> None:
        self._visit = visit
        self._t = visit.t
        self._on_switch = on_switch
        with tag("section", "", "card answering", aria_labelledby="answering-title"):
            with tag("div", "", "book-head"):
                tag("h2", self._t("settings.answering"), id="answering-title")
                button(self._t("settings.look_again"), self.look, kind="quiet", icon_name="search")
            self._now = tag("p", "")
            tag("p", self._t("settings.other_servers"), "soft")
            self._problem = tag("p", "", "problem")
            self._slot = JobSlot(self._visit, "generator", self._switched)
            self._list = tag("ul", "", "choices-of-models", aria_live="polite")
        self._say_now()

    def resume(self) -> None:
        """Shows a switch that began before the page was loaded."""
        self._slot.resume()

    async def look(self) -> None:
        """Looks around and draws what was found."""
        self._list.clear()
        with self._list:
            tag("li", self._t("settings.looking"), "soft")
        found = await asyncio.to_thread(self._visit.services.generators.discover_models)
        self._list.clear()
        with self._list:
            self._draw(found)

    def _say_now(self) -> None:
        now = self._visit.services.generators.now()
        name = self._t.either(f"generator.{now.generator}", now.generator)
        model = f": {now.model}" if now.generator != "extractive" else ""
        adapter = f" + {now.adapter}" if now.adapter else ""
        self._now.set_text(self._t("settings.answers_now", name=f"{name}{model}{adapter}"))
        self._problem.set_text(self._t("settings.choice_failed", why=now.problem) if now.problem else "")
        self._problem.set_visibility(now.problem is not None)

    def _draw(self, found: Inventory) -> None:
        now = self._visit.services.generators.now()
        self._row(
            self._t("generator.extractive"), self._t("settings.extractive_note"),
            GeneratorChoice(generator="extractive"), here=now.generator == "extractive",
        )  # fmt: skip
        for engine in found.engines:
            for name in engine.models:
                choice = GeneratorChoice(generator="remote", base_url=engine.base_url, model=name)
                here = now.generator == "remote" and (now.base_url, now.model) == (engine.base_url, name)
                self._row(name, f"{engine.engine} · {engine.base_url}", choice, here=here)
        for model in found.models:
            fits = [adapter.name for adapter in found.adapters if model.name in adapter.fits]
            self._local(model, fits, now)
        for package in found.available:
            if package.writes_answers and not package.here:
                size = self._t("settings.megabytes", n=f"{package.download_bytes / 1e6:,.0f}")
                self._row(
                    package.name, f"{package.about} · {package.licence} · {size}",
                    GeneratorChoice(generator="local", model=package.name),
                    label="settings.get_and_use",
                )  # fmt: skip
        if self._visit.services.generators.is_silent(found):
            tag("li", self._t("settings.silent", url=now.base_url), "problem")
        if not found.engines:
            tag("li", self._t("settings.no_engine"), "soft")

    def _local(self, model: FoundModel, adapters: list[str], now: Answers) -> None:
        chosen = {"adapter": "", "quantization": self._visit.services.settings.quantization.removeprefix("auto")}
        here = now.generator == "local" and self._visit.services.generators.running.model in (model.name, model.path)
        if here:
            quantization = now.quantization if now.quantization in QUANTIZATIONS else ""
            chosen = {"adapter": now.adapter or "", "quantization": quantization or ""}
        size = self._t("settings.megabytes", n=f"{model.weights_bytes / 1e6:,.0f}")

        def choose() -> GeneratorChoice:
            named = {name: value for name, value in chosen.items() if value}
            return GeneratorChoice.model_validate({"generator": "local", "model": model.name, **named})

        def options() -> None:
            with field(self._t("settings.quantization")):
                names = [("", self._t("quantization.auto"))]
                names += [(name, self._t(f"quantization.{name}")) for name in QUANTIZATIONS]
                select(names, partial(setitem, chosen, "quantization"), value=chosen["quantization"])
            if adapters:
                with field(self._t("filters.adapter")):
                    names = [("", self._t("settings.no_adapter")), *((name, name) for name in adapters)]
                    select(names, partial(setitem, chosen, "adapter"), value=chosen["adapter"])

        self._row(model.name, f"{model.architecture} · {size}", choose, here=here, options=options)

    def _row(
        self,
        name: str,
        detail: str,
        choice: GeneratorChoice | Callable[[], GeneratorChoice],
        *,
        here: bool = False,
        options: Callable[[], None] | None = None,
        label: str = "settings.use",
    ) -> None:
        with tag("li", "", "model current" if here else "model"):
            with tag("div", "", "model-name"):
                tag("span", name, "upload-name")
                tag("span", detail, "soft")
            with tag("div", "", "row"):
                if options is not None:
                    options()
                if here:
                    tag("span", self._t("settings.in_use"), "badge right")
                if not here or options is not None:
                    text = self._t("settings.apply") if here else self._t(label)
                    button(text, partial(self._switch, choice), label=f"{text}: {name}")

    async def _switch(self, choice: GeneratorChoice | Callable[[], GeneratorChoice]) -> None:
        made = choice() if callable(choice) else choice
        await self._slot.start(partial(self._visit.services.generators.switch, made))

    async def _switched(self, _: Job) -> None:
        self._say_now()
        self._on_switch()
        await self.look()
