"""Tuning an adapter on the questions about a book, on the compare page: its job, its curve, the way to compare it."""

from __future__ import annotations

import asyncio
from functools import partial
from urllib.parse import quote

from nicegui import ui

from api.generator import ADAPTER
from api.jobs import Job
from api.pages.controls import button, field, link, select, set_attributes, tag, text_box, toast
from api.pages.frame import Visit
from api.pages.job_row import JobSlot
from api.questions import BANK_TUNE
from indexes.errors import CoalesceError, InvalidInput
from rag.question import whole_number

CURVE_POLL_S = 2.0
USUAL_EPOCHS = 3


class TuneAdapter:
    """Drawn where it is made, for readers with an open key."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._t = visit.t
        self._adapters = visit.services.adapters
        books = [(book.document_id, book.title) for book in visit.services.questions.books()]
        self._sources = [(BANK_TUNE, self._t("exam.bank")), *books]
        self._source = self._sources[-1][0]
        self._name = ""
        self._epochs = str(USUAL_EPOCHS)

    def build(self) -> None:
        """Draws the closed section; open while a job runs, or where the last one failed."""
        t = self._t
        with tag("details", "", "card tuning") as section:
            tag("summary", t("tune.title"))
            if self._adapters.base is None:
                tag("p", t("tune.needs"), "soft")
                link(t("compare.other_model"), "/settings")
                return
            tag("p", t("tune.about"), "soft")
            with tag("div", "", "grid"):
                with field(t("exam.questions_from")):
                    select(self._sources, self._set_source, value=self._source)
                with field(t("tune.name")):
                    text_box(self._set_name, event="input", maxlength="64")
                with field(t("tune.epochs")):
                    text_box(self._set_epochs, value=self._epochs, kind="number", event="input", min="1", max="100")
            button(t("tune.start"), self._start, kind="primary")
            self._slot = JobSlot(self._visit, ADAPTER, self._done)
            self._curve = tag("img", "", "loss-curve", alt=t("tune.curve"))
            self._curve.set_visibility(False)
            self._switch_slot = JobSlot(self._visit, "generator", self._switched)
            self._ready = tag("div", "", "row", aria_live="polite")
            self._draw_ready()
            if job := self._slot.resume():
                set_attributes(section, open=True)
                self._follow(job.title)

    def _set_source(self, source: str) -> None:
        self._source = source

    def _set_name(self, name: str) -> None:
        self._name = name.strip()

    def _set_epochs(self, text: str) -> None:
        self._epochs = text

    async def _start(self) -> None:
        epochs = whole_number(self._epochs)
        if not epochs or epochs > 100:
            wrong = InvalidInput(f"{self._t('tune.epochs')} is {self._epochs!r:.20}", hint="give 1 to 100")
            toast(self._t.error(wrong), bad=True)
            return
        books = () if self._source == BANK_TUNE else (self._source,)
        services = self._visit.services

        def begin() -> Job:
            return services.adapters.start(self._name, services.questions.for_tuning(books), float(epochs))

        if job := await self._slot.start(begin):
            self._follow(job.title)

    def _follow(self, name: str) -> None:
        """Shows the curve of an adapter once there is one, and draws it again while its job runs."""

        def draw() -> None:
            jobs = [job for job in self._visit.services.jobs.list() if job.kind == ADAPTER and job.title == name]
            step = jobs[0].done if jobs else 0
            if not jobs or jobs[0].final:
                timer.deactivate()
            cancelled = bool(jobs) and jobs[0].state == "cancelled"
            shown = self._adapters.has_curve(name) and not cancelled
            self._curve.set_visibility(shown)
            if shown:
                set_attributes(self._curve, src=f"/v1/adapters/{quote(name, safe='')}/loss.svg?step={step}")

        with self._ready:
            timer = ui.timer(CURVE_POLL_S, draw)
        draw()

    async def _done(self, job: Job) -> None:
        toast(job.message)
        self._draw_ready(job.title)

    def _draw_ready(self, newest: str = "") -> None:
        """The adapters of the model that answers, each with the way to compare it."""
        try:
            names = self._adapters.fitting()
        except CoalesceError:  # the model has gone
            names = []
        for child in [child for child in self._ready if child.tag == "button"]:
            child.delete()
        with self._ready:
            for name in dict.fromkeys([newest, *names] if newest else names):
                button(self._t("tune.compare", name=name), partial(self._use, name), kind="")

    async def _use(self, name: str) -> None:
        switch = partial(self._visit.services.generators.switch, self._adapters.choice_of(name))
        await self._switch_slot.start(switch)

    async def _switched(self, _: Job) -> None:
        await asyncio.sleep(0)
        ui.navigate.to("/compare")
