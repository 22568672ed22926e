"""A job in work: what it does, how far it is, a button that stops it, and in the end what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from nicegui import ui

from api.jobs import Job, as_clock
from api.pages.controls import button, set_attributes, tag, toast
from api.pages.frame import Visit
from api.pages.texts import Texts
from indexes.errors import CoalesceError, NotFound

POLL_S = 0.25


def job_name(t: Texts, job: Job) -> str:
    """What a job does, and with what."""
    kind = t.either(f"library.job.{job.kind}", job.kind)
    return f"{kind}: {job.title}" if job.title else kind


def say_job(t: Texts, job: Job) -> str:
    """How far a job is, or why it failed."""
    if job.error:
        return t.sentences(job.error["message"], job.error["hint"])
    stage = t.either(f"stage.{job.message}", t.said(job.message))
    left = f" (≈ {as_clock(job.seconds_left)})" if job.seconds_left is not None and not job.final else ""
    if job.total > 100_000:  # bytes
        return f"{stage}: {100 * job.done // job.total} %{left}"
    return f"{stage} {job.done:,} / {job.total:,}{left}" if job.total > 1 else stage


class JobSlot:
    """The place of one job, drawn where it is made, and the way to begin it.

    Args:
        kind: of the job; one that is already in work is shown by `resume`.
        on_done: awaited with the job when it has succeeded.
    """

    def __init__(self, visit: Visit, kind: str, on_done: Callable[[Job], Awaitable[None]]) -> None:
        self._visit = visit
        self._kind = kind
        self._on_done = on_done
        self._area = tag("div", "", "uploads")

    async def start(self, begin: Callable[[], Job]) -> Job | None:
        """Begins a job and shows it; says why where it cannot begin, and gives None."""
        try:
            job = await asyncio.to_thread(begin)
        except CoalesceError as error:
            toast(self._visit.t.error(error), bad=True)
            return None
        self._show(job)
        return job

    def resume(self) -> Job | None:
        """Shows the newest job and gives it, if it began before the page was loaded and is in work or has failed."""
        newest = next((job for job in self._visit.services.jobs.list() if job.kind == self._kind), None)
        if newest is None or (newest.final and newest.state != "failed"):
            return None
        self._show(newest)
        return newest

    def _show(self, job: Job) -> None:
        self._area.clear()
        with self._area:
            JobRow(self._visit, job, self._ended)

    async def _ended(self, job: Job) -> None:
        if job.state == "done":
            await self._on_done(job)


class JobRow:
    """Drawn where it is made. A job that failed stays until it is dismissed and is then forgotten; any other row goes
    with its job.

    Args:
        on_end: awaited once with the job when it has ended.
    """

    def __init__(self, visit: Visit, job: Job, on_end: Callable[[Job], Awaitable[None]]) -> None:
        self._visit = visit
        self._t = visit.t
        self._id = job.id
        self._on_end = on_end
        self._stopping = self._ended = False
        with tag("div", "", "upload", role="status") as self._row:
            tag("span", job_name(visit.t, job), "upload-name")
            self._state = tag("span", "", "upload-state")
            self._bar = tag("progress", "", "bar", aria_label=job_name(visit.t, job))
            self._button = button(self._t("cancel"), self._press, kind="quiet")
            self._timer = ui.timer(POLL_S, self._look)
        self._draw(job)

    async def _look(self) -> None:
        if self._ended:
            return
        try:
            job = self._visit.services.jobs.get(self._id)
        except NotFound:  # dismissed in another tab
            self._row.delete()
            return
        self._draw(job)
        if job.final:
            self._end(job)
            await self._on_end(job)

    def _draw(self, job: Job) -> None:
        self._state.set_text(self._t("library.stopping") if self._stopping and not job.final else say_job(self._t, job))
        counted = job.total > 0
        set_attributes(self._bar, max=job.total if counted else None, value=job.done if counted else None)

    def _end(self, job: Job) -> None:
        self._ended = True
        self._timer.deactivate()
        if job.state == "failed":
            self._row.classes(add="failed")
            self._bar.set_visibility(False)
            self._button.clear()
            with self._button:
                tag("span", self._t("upload.dismiss"))
        else:
            self._row.set_visibility(False)

    async def _press(self) -> None:
        if self._ended:
            with suppress(NotFound):  # another tab was first
                await asyncio.to_thread(self._visit.services.jobs.forget, self._id)
            self._row.delete()
            return
        try:
            await asyncio.to_thread(self._visit.services.jobs.cancel, self._id)
        except CoalesceError as error:
            toast(self._t.error(error), bad=True)
            return
        self._stopping = True
